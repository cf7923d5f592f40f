// T[size][depth][b] = max over y of T[y][depth][b-1] + rate_b * best[size-y][depth-1]: the b-th child's subtree gets
// size - y nodes. Sizes are upper bounds, so that trees too small to use them all are covered.
#include "speculative/tree/sequoia.h"

#include <algorithm>

#include "base/error.h"

namespace sx {

void TreeShape::reserve(int size) {
  for (auto* list : {&parent, &rank, &depth}) list->reserve(static_cast<size_t>(size));
}

void TreeShape::clear() {
  parent.assign(1, -1);
  rank.assign(1, 0);
  depth.assign(1, 0);
}

void TreeShape::add(int parent_place, int child_rank) {
  parent.push_back(static_cast<int16_t>(parent_place));
  rank.push_back(static_cast<int16_t>(child_rank));
  depth.push_back(static_cast<int16_t>(depth[static_cast<size_t>(parent_place)] + 1));
}

SequoiaSolver::SequoiaSolver(int nodes, int depth, int branches)
    : total_(nodes + 1),
      depth_(depth),
      branches_(branches),
      solved_(depth),
      best_(at(depth, total_) + 1),
      best_branches_(best_.size()),
      split_(split_at(depth, branches, total_) + 1),
      fewer_(static_cast<size_t>(total_) + 1),
      more_(fewer_.size()),
      budget_(static_cast<size_t>(total_)) {
  SX_ASSERT(nodes >= 1 && depth >= 1 && branches >= 1);
}

void SequoiaSolver::solve(std::span<const double> rates) {
  SX_ASSERT(rates.size() == static_cast<size_t>(branches_));
  solved_ = depth_;
  const auto row = [this](int level) { return best_.begin() + static_cast<ptrdiff_t>(at(level, 0)); };
  for (int level = 0; level <= depth_; ++level) {
    std::fill_n(row(level), total_ + 1, 1.0);
    std::fill_n(best_branches_.begin() + static_cast<ptrdiff_t>(at(level, 0)), total_ + 1, int16_t{0});
    std::fill(fewer_.begin(), fewer_.end(), 1.0);
    for (int b = 1; level > 0 && b <= branches_; ++b) add_branch(level, b, rates[static_cast<size_t>(b - 1)]);
    if (level > 0 && std::equal(row(level), row(level) + total_ + 1, row(level - 1))) {
      solved_ = level;
      return;
    }
  }
}

void SequoiaSolver::add_branch(int level, int branch, double rate) {
  const double* below = best_.data() + at(level - 1, 0);
  std::fill(more_.begin(), more_.end(), -1.0);
  int16_t* split = split_.data() + split_at(level, branch, 0);
  for (int y = branch; y < total_; ++y) {
    const double fewer = fewer_[static_cast<size_t>(y)];
    for (int size = y + 1; size <= total_; ++size) {
      const double value = fewer + rate * below[size - y];
      const bool higher = value > more_[static_cast<size_t>(size)];
      more_[static_cast<size_t>(size)] = higher ? value : more_[static_cast<size_t>(size)];
      split[size] = higher ? static_cast<int16_t>(y) : split[size];
    }
  }
  for (int size = branch + 1; size <= total_; ++size) {
    double& best = best_[at(level, size)];
    if (more_[static_cast<size_t>(size)] <= best) continue;
    best = more_[static_cast<size_t>(size)];
    best_branches_[at(level, size)] = static_cast<int16_t>(branch);
  }
  std::swap(fewer_, more_);
}

void SequoiaSolver::shape(int nodes, int depth, TreeShape& shape) {
  SX_ASSERT(nodes >= 0 && nodes < total_ && depth >= 0 && depth <= depth_);
  shape.clear();
  budget_[0] = static_cast<int16_t>(nodes + 1);
  for (int place = 0; place < shape.size(); ++place) {
    const int level = depth - shape.depth[static_cast<size_t>(place)];
    int size = budget_[static_cast<size_t>(place)];
    const int first = shape.size(), branches = best_branches_[at(level, size)];
    for (int b = 0; b < branches; ++b) shape.add(place, b);
    for (int b = branches; b > 0; --b) {
      const int without = split_[split_at(level, b, size)];
      budget_[static_cast<size_t>(first + b - 1)] = static_cast<int16_t>(size - without);
      size = without;
    }
  }
}

}  // namespace sx
