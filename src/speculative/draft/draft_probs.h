// Distributions a drafter drew from, kept for rules that compare them with the target's: one row of probabilities per
// expanded node.
#pragma once
#include <vector>

#include "base/error.h"
#include "speculative/tree/tree.h"

namespace sx {

class DraftProbs {
 public:
  DraftProbs(int nodes, int vocab) : nodes_(nodes), vocab_(vocab), rows_(size_t(nodes) * size_t(vocab)) {}
  int vocab() const { return vocab_; }
  // [vocab], sums to 1; valid for nodes that have children.
  float* row(NodeId n) { return rows_.data() + offset(n); }
  const float* row(NodeId n) const { return rows_.data() + offset(n); }

 private:
  size_t offset(NodeId n) const {
    SX_ASSERT(n >= 0 && n < nodes_);
    return size_t(n) * size_t(vocab_);
  }
  int nodes_, vocab_;
  std::vector<float> rows_;
};

// How a drafter picks the children of a node.
enum class DrawMode {
  kBest,      // the most probable ones (with the target's own noise if it samples): for sample-and-match
  kIid,       // drawn independently from the draft's distribution; duplicates stay
  kDistinct,  // drawn without replacement
};

}  // namespace sx
