// The draft tail: the nodes of a growing tree that a drafter has run, in the order of their cells behind the history,
// with the ancestor bits that attention needs. Nodes of the tree that the drafter has not run are not in the tail.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/token.h"
#include "speculative/tree/tree.h"

namespace sx {

class DraftTail {
 public:
  static constexpr int kWords = kMaxTreeNodes / 64;

  DraftTail() : nodes_(kMaxTreeNodes), bits_(size_t(kMaxTreeNodes) * kWords) {}

  void clear() { size_ = 0; }
  int size() const { return size_; }
  bool has_room(int nodes) const { return size_ + nodes <= kMaxTreeNodes; }
  Token token(int place) const { return nodes_[size_t(place)].token; }
  int parent(int place) const { return nodes_[size_t(place)].parent; }  // a place; -1: the parent is in the history
  const uint64_t* ancestors(int place) const { return bits_.data() + size_t(place) * kWords; }

  // Appends a node that the drafter runs next. Returns its place.
  int add(const TokenTree& tree, NodeId node) {
    const NodeId parent_node = tree.parent(node);
    int parent = parent_node == kNoNode ? -1 : size_ - 1;
    while (parent >= 0 && nodes_[size_t(parent)].node != parent_node) --parent;
    const int place = add_ahead(tree.token(node), parent);
    bind(place, node);
    return place;
  }
  // Appends a token that is not in the tree yet, below a place (-1: below the history), because the tree may ask for
  // it. Returns its place.
  int add_ahead(Token token, int parent) {
    nodes_[size_t(size_)] = {token, parent, kNoNode};
    uint64_t* bits = bits_.data() + size_t(size_) * kWords;
    if (parent < 0) std::fill_n(bits, kWords, 0);
    else std::copy_n(ancestors(parent), kWords, bits);
    bits[size_ / 64] |= uint64_t(1) << (size_ % 64);
    return size_++;
  }
  // The place of the child of `place` with this token, or -1.
  int child(int place, Token token) const {
    for (int i = place + 1; i < size_; ++i)
      if (nodes_[size_t(i)].parent == place && nodes_[size_t(i)].token == token) return i;
    return -1;
  }
  // The tree has the token of this place now, as `node`.
  void bind(int place, NodeId node) { nodes_[size_t(place)].node = node; }

 private:
  struct Node {
    Token token;
    int32_t parent;
    NodeId node;
  };
  int size_ = 0;
  std::vector<Node> nodes_;
  std::vector<uint64_t> bits_;  // [kMaxTreeNodes][kWords]
};

}  // namespace sx
