// States of sessions kept in memory: what a session held before another text took its place. Bounded by bytes; what has
// not been asked for longest goes first. A state belongs to the scope (whose texts it may be part of) that it was saved
// for, and no other scope finds it.
#pragma once
#include <specextend/specextend.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "server/turns.h"

namespace sx::server {

// Tokens two texts have in common from their beginning.
size_t common_prefix(std::span<const Token> a, std::span<const Token> b);

class StateCache {
 public:
  explicit StateCache(size_t most_bytes) : most_(most_bytes) {}

  // The longest beginning of `text` that a state holds.
  size_t longest(uint64_t scope, std::span<const Token> text) const;
  // Keeps the session's state, in place of states of beginnings of its text. Not if it is too large or held already.
  // While it pauses, the session must stay as it is; the cache may be used.
  void save(uint64_t scope, const Session& session, Turns* turns = nullptr);
  // Puts the state that holds most of `text` into the session. False: there is none, or it would not go (and is
  // dropped).
  bool restore(uint64_t scope, std::span<const Token> text, Session& session, Turns* turns = nullptr);

  size_t size() const { return states_.size(); }
  size_t bytes() const { return bytes_; }

 private:
  struct State {
    uint64_t scope;
    std::vector<Token> text;
    std::shared_ptr<const std::string> blob;  // stays while it is read, whatever becomes of the state
  };
  using States = std::list<State>;  // most recently used first
  void drop(States::iterator state);

  const size_t most_;
  size_t bytes_ = 0;
  States states_;
};

}  // namespace sx::server
