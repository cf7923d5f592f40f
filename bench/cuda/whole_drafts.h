// How long a whole draft takes, from the pending token to the finished tree, with the host between the levels and
// without it.
#pragma once
#include <span>

#include "model/heads/eagle.h"
#include "model/model.h"

namespace sx::bench {

struct DraftBench {
  Backend* backend;
  Model* target;
  KvStore* target_kv;  // holds the text
  Model* draft;        // or
  EagleHead* head;
  DType type;                   // of the draft's cells
  std::span<const Token> text;  // read first; a token more is committed with each draft
  int topk, nodes, depth;       // of EAGLE-2's tree: it runs a level of `topk` nodes after the other
  int repeats;
};
struct DraftTime {
  double ms;
  int nodes, levels;
};
DraftTime draft_time(const DraftBench& bench, bool on_backend);

}  // namespace sx::bench
