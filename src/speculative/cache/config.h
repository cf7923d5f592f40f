// The numbers of a draft cache: which policy chooses the cells (keys and values of single tokens) that a drafter
// attends to, how many, how often, and at which positions.
#pragma once
#include <algorithm>
#include <vector>

#include "speculative/cache/policy.h"

namespace sx {

// The RoPE position of a cell: its place among the chosen cells (never beyond the trained length: if there are more
// cells, the oldest share the first position), or its place in the text.
enum class CachePositions { kCompact, kOriginal };

struct CacheConfig {
  const CachePolicy* policy = &kFullCache;
  CachePositions positions = CachePositions::kCompact;
  int budget = 1024;          // cells in the working cache after a refresh
  float share = 0;            // or this share of the text, where it is more
  int chunk = 32;             // cells that are chosen together
  int interval = 4;           // rounds from one refresh to the next
  int sink = 4, recent = 64;  // first and last cells that are always chosen (whole chunks where chunks are chosen)
  int window = -1;            // attention window of the drafter's own prompt pass; 0: none; -1: 512 where cells are
                              // chosen, else the trained length where the context is longer
  std::vector<int> layers;    // layers of the target whose attention counts; negative: from the end; empty: those
                              // that retrieval_layers.h finds
  bool all_layers = false;

  bool chooses() const { return policy->chooses(); }
  bool reads_target() const { return policy->reads_target(); }
  bool reads_draft() const { return policy->reads_draft(); }
  bool each_head() const { return policy->scores.each_head; }
  bool every_layer() const { return all_layers || each_head(); }
  bool probes() const { return reads_target() && layers.empty() && !every_layer(); }  // the layers have to be found
  bool per_head() const { return reads_draft() || each_head(); }  // Each layer and key/value head chooses for itself.
  int budget_for(int cells) const { return std::max(budget, int(double(share) * cells)); }  // of a text
  bool once() const { return policy->refresh == CacheRefresh::kOnce; }
};

}  // namespace sx
