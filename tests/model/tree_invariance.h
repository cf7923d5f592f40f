// Batch invariance of trees on any backend: every node's logits have the bits its path has when decoded token by token,
// with several ragged sequences in one pass, after a commit, and when the tree grows over several steps. The beginnings
// of texts are run as prompts.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "backend/backend.h"

namespace sx::testing {

struct TreeSubject {
  std::string name;
  std::function<std::unique_ptr<Backend>(int threads)> make;
};

// Two sequences with their own trees in one pass; every node of both against its path decoded one token at a time.
void check_tree(const std::string& path, const TreeSubject& subject, const KvTypes& kv_type,
                std::pair<int, int> histories, int nodes, unsigned seed);
// Two trees, each written in one step and, in another slot, level by level or in any portions.
void check_grown(const std::string& path, const TreeSubject& subject, const KvTypes& kv_type,
                 std::pair<int, int> history, int nodes, bool levels, unsigned seed);

}  // namespace sx::testing
