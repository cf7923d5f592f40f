// The token tree: nodes are appended, pruning re-appends the kept ones in place (a new id is never above the old one).
#include "speculative/tree/tree.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"

namespace sx {

TokenTree::TokenTree(int capacity) {
  SX_ASSERT(capacity >= 1 && capacity <= std::numeric_limits<int16_t>::max());
  const auto n = static_cast<size_t>(capacity);
  token_.resize(n);
  for (auto* links : {&parent_, &first_child_, &last_child_, &next_sibling_, &order_, &renumbered_}) links->resize(n);
  depth_.resize(n);
  rank_.resize(n);
  score_.resize(n);
  source_.resize(n);
  const size_t verified = std::min<size_t>(n, kMaxTreeNodes);
  bits_.resize(verified * ((verified + 63) / 64));
  reset(kNoToken);
}

void TokenTree::reset(Token pending) {
  size_ = 1;
  token_[0] = pending;
  parent_[0] = first_child_[0] = last_child_[0] = next_sibling_[0] = kNoNode;
  depth_[0] = rank_[0] = 0;
  score_[0] = 0;
  source_[0] = 0;
}

NodeId TokenTree::add(NodeId parent, Token token, float score, uint8_t source) {
  SX_ASSERT(!full() && parent >= 0 && parent < size_);
  if (std::isnan(score)) score = -std::numeric_limits<float>::infinity();
  const NodeId id = size_++;
  const size_t n = index(id), p = index(parent);
  token_[n] = token;
  parent_[n] = parent;
  depth_[n] = static_cast<int16_t>(depth_[p] + 1);
  score_[n] = std::min(score, score_[p]);
  source_[n] = source;
  first_child_[n] = last_child_[n] = next_sibling_[n] = kNoNode;
  const NodeId last = last_child_[p];
  rank_[n] = static_cast<int16_t>(last == kNoNode ? 0 : rank_[index(last)] + 1);
  (last == kNoNode ? first_child_[p] : next_sibling_[index(last)]) = id;
  last_child_[p] = id;
  return id;
}

NodeId TokenTree::child(NodeId n, Token token) const {
  NodeId c = first_child(n);
  while (c != kNoNode && token_[index(c)] != token) c = next_sibling(c);
  return c;
}

int TokenTree::max_depth() const { return *std::max_element(depth_.begin(), depth_.begin() + size_); }

void TokenTree::support(NodeId n, float score, uint8_t source) {
  SX_ASSERT(n >= 0 && n < size_);
  source_[index(n)] |= source;
  if (n == 0 || !(score > score_[index(n)])) return;
  score_[index(n)] = std::min(score, score_[index(parent(n))]);
}

void TokenTree::keep_best(int drafted) {
  SX_ASSERT(drafted >= 0);
  if (drafted >= size_ - 1) return;
  const auto better = [this](NodeId a, NodeId b) {
    if (score(a) != score(b)) return score(a) > score(b);
    if (depth(a) != depth(b)) return depth(a) < depth(b);
    return a < b;
  };
  std::iota(order_.begin(), order_.begin() + size_, 0);
  const auto first = order_.begin() + 1, last = first + drafted;
  std::nth_element(first, last, order_.begin() + size_, better);
  std::sort(first, last);
  keep({order_.data(), static_cast<size_t>(drafted) + 1});
}

void TokenTree::keep(std::span<const NodeId> nodes) {
  SX_ASSERT(!nodes.empty() && nodes[0] == 0 && nodes.back() < size_);
  std::fill_n(renumbered_.begin(), size_, kNoNode);
  renumbered_[0] = 0;
  size_ = 1;
  first_child_[0] = last_child_[0] = kNoNode;
  for (size_t i = 1; i < nodes.size(); ++i) {
    const size_t n = index(nodes[i]);
    SX_ASSERT(nodes[i] > nodes[i - 1] && renumbered_[index(parent_[n])] != kNoNode);
    const int16_t rank = rank_[n];
    const NodeId id = add(renumbered_[index(parent_[n])], token_[n], score_[n], source_[n]);
    rank_[index(id)] = rank;
    renumbered_[n] = id;
  }
}

const uint64_t* TokenTree::ancestors() {
  SX_ASSERT(size_ <= kMaxTreeNodes);
  const auto stride = static_cast<size_t>(words());
  for (NodeId n = 0; n < size_; ++n) {
    uint64_t* row = bits_.data() + index(n) * stride;
    if (n == 0) std::fill_n(row, stride, 0);
    else std::copy_n(bits_.data() + index(parent(n)) * stride, stride, row);
    row[n / 64] |= uint64_t{1} << (n % 64);
  }
  return bits_.data();
}

}  // namespace sx
