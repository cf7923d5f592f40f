// A token tree: node 0 is the pending token, the others are drafted. Parents come before their children, so the bits of
// a node's ancestors can be made top-down and a path's ids ascend. Memory is taken once; growing and pruning allocate
// nothing.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "kv/sequence_table.h"

namespace sx {

inline constexpr int kMaxTreeNodes = 512;  // verified in one pass, node 0 included
inline constexpr NodeId kNoNode = -1;

// Who proposed a node; a node may have several.
enum NodeSource : uint8_t { kFromModel = 1, kFromIndex = 2 };

class TokenTree {
 public:
  // While growing a tree may have more nodes than are verified in the end.
  explicit TokenTree(int capacity);

  void reset(Token pending);
  int size() const { return size_; }
  int capacity() const { return static_cast<int>(token_.size()); }
  bool full() const { return size_ == capacity(); }
  int drafted() const { return size_ - 1; }

  // `score`: log-probability of the whole path by the drafter's estimate; raised above the parent's it is clamped to
  // it.
  NodeId add(NodeId parent, Token token, float score, uint8_t source = kFromModel);

  Token token(NodeId n) const { return token_[index(n)]; }
  NodeId parent(NodeId n) const { return parent_[index(n)]; }  // kNoNode for node 0
  int depth(NodeId n) const { return depth_[index(n)]; }       // 0 for node 0
  float score(NodeId n) const { return score_[index(n)]; }     // 0 for node 0
  uint8_t source(NodeId n) const { return source_[index(n)]; }
  int rank(NodeId n) const { return rank_[index(n)]; }                   // place among its siblings, in order of adding
  NodeId first_child(NodeId n) const { return first_child_[index(n)]; }  // or kNoNode; children in order of adding
  NodeId next_sibling(NodeId n) const { return next_sibling_[index(n)]; }
  // The first child that carries `token`, or kNoNode.
  NodeId child(NodeId n, Token token) const;
  std::span<const Token> tokens() const { return {token_.data(), static_cast<size_t>(size_)}; }
  int max_depth() const;

  // Another drafter proposes node n too: the better score counts, sources add up.
  void support(NodeId n, float score, uint8_t source);

  // Keeps node 0 and the `drafted` best others by (score descending, depth ascending, id ascending), which is closed
  // under parents because scores never grow along a path and ties go to the shallower node. Ids are renumbered in their
  // old order; ranks stay those of drafting.
  void keep_best(int drafted);
  // Keeps the given nodes: ascending, closed under parents, beginning with 0.
  void keep(std::span<const NodeId> nodes);

  // Ancestor bits, [size][words()], self included; made anew by the call. size() <= kMaxTreeNodes.
  const uint64_t* ancestors();
  int words() const { return (size_ + 63) / 64; }

 private:
  static size_t index(NodeId n) { return static_cast<size_t>(n); }

  int size_ = 0;
  std::vector<Token> token_;
  std::vector<NodeId> parent_, first_child_, last_child_, next_sibling_, order_, renumbered_;
  std::vector<int16_t> depth_, rank_;
  std::vector<float> score_;
  std::vector<uint8_t> source_;
  std::vector<uint64_t> bits_;
};

}  // namespace sx
