// Device-side tree expansion, an optional op with a host fallback: a backend that supports it repeats "a pass over the
// frontier, its top-k tokens, the next level" without the host until the rules say stop. The rules are those of
// speculative/tree/levels.cc, which grows the same trees with the host between the levels.
#pragma once
#include <cstdint>

#include "base/token.h"

namespace sx {

// All of it in host memory.
struct TreeGrowthRules {
  int nodes = 0, depth = 0;  // so many nodes count in the end, none deeper; both > 0
  int branch = 0;            // children of a node
  int rows = 0;              // nodes of a level that are run
  float dead = 0;            // a path must score more to be worth its row
  // One more pass, and verify_cost[n] (n = 0..nodes) the verification of n nodes, in plain steps; 0 and null: free.
  float level_cost = 0;
  const float* verify_cost = nullptr;
  bool while_it_pays = false;  // a level must bring more than it costs, or `threshold` where costs are not known
  float threshold = 0;
};

// Candidates of requests that sample: what top-k, top-p and min-p leave of the `pool` likeliest, by logit / temperature
// plus the noise that choose() will use, their probabilities among themselves. pool 0: the likeliest as they are.
struct TreeGrowthSampling {
  int pool = 0;  // at least the rules' branch
  float temperature = 1, top_p = 1;
  int top_k = 0;     // 0: all
  double least = 0;  // of a logit's distance from the largest one; 0: any (log of min-p)
  bool noise = false;
  uint64_t seed = 0, position = 0;  // of the token after the root
};

// The tree: entries 1..size-1; node 0 is the root that was there before. In host memory, with room for 1 + nodes *
// depth nodes.
struct GrownTree {
  int size = 1;
  Token* token = nullptr;
  int32_t* parent = nullptr;
  float* score = nullptr;
  int run = 0;             // nodes that were run, in the order of their cells
  int32_t* ran = nullptr;  // [rows * (depth - 1)]
  int passes = 0;
};

struct TreeGrowthArgs {
  TreeGrowthRules rules;
  TreeGrowthSampling sampling;
  int slot = 0, history = 0;           // of the store: the tail begins behind the history and is empty
  const int32_t* positions = nullptr;  // [depth - 1] of the nodes of levels 1, 2, ..., for RoPE; host memory
  // Where passes leave the logits of their outputs, [rows, stride]; row 0 is now what follows the root. Backend memory.
  const float* logits = nullptr;
  int vocab = 0, stride = 0;   // columns [0, vocab) may be drafted
  const Token* map = nullptr;  // [vocab] their tokens, backend memory; null: the same
  // Before each further pass states[i] = left[row of the last pass that is the parent of row i]: [rows, width], backend
  // memory. The first pass finds its states there. Null: passes take no states.
  float* states = nullptr;
  const float* left = nullptr;
  int width = 0;
  GrownTree* out = nullptr;
};

}  // namespace sx
