// Traversal verification (Weng et al.): block verification for trees of draws without replacement. Nodes are tried
// bottom-up, the first child's subtree first; a node passes with its weight after all its children were rejected, and
// each rejection changes weight and distributions of the parent.
#include "base/error.h"
#include "speculative/accept/accept_internal.h"

namespace sx {
namespace {

class TraversalRule final : public Rule {
 public:
  // Not initialised: physical memory follows the depth of the trees.
  TraversalRule(int vocab, int depth)
      : vocab_(size_t(vocab)),
        depth_(depth),
        weight_(size_t(depth) + 1),
        distributions_(std::make_unique_for_overwrite<double[]>((2 * size_t(depth) + 1) * size_t(vocab))) {}

  DrawMode draws() const override { return DrawMode::kDistinct; }
  bool chains_only() const override { return false; }

  void accept(const TokenTree& tree, Distributions& distributions, RandomSource& random,
              AcceptResult& result) override {
    SX_ASSERT(distributions.vocab() == int(vocab_));
    SX_ASSERT(tree.max_depth() <= depth_);
    const bool passed = visit({tree, distributions, random, result}, 0, 1);
    SX_ASSERT(passed);
  }

 private:
  struct Call {
    const TokenTree& tree;
    Distributions& distributions;
    RandomSource& random;
    AcceptResult& result;
  };

  // P and Q of the node at that depth of the path in work; at the deepest level there are no children and no Q.
  std::span<double> target(int depth) { return {distributions_.get() + 2 * size_t(depth) * vocab_, vocab_}; }
  std::span<double> draft(int depth) { return {distributions_.get() + (2 * size_t(depth) + 1) * vocab_, vocab_}; }

  // True when the accepted path ends at `node` or below it.
  bool visit(const Call& now, NodeId node, double weight) {
    const int depth = now.tree.depth(node);
    const std::span<double> p = target(depth);
    double& w = weight_[size_t(depth)];
    w = weight;
    if (now.tree.first_child(node) != kNoNode) {
      now.distributions.target(node, p);
      if (visit_children(now, node)) return true;
      if (node != 0 && !now.random.flip(w)) return false;
    } else {  // its distribution is needed only if it passes
      if (node != 0 && !now.random.flip(w)) return false;
      now.distributions.target(node, p);
    }
    now.result.path.resize(size_t(depth) + 1);
    for (NodeId n = node; n != kNoNode; n = now.tree.parent(n)) now.result.path[size_t(now.tree.depth(n))] = n;
    now.result.next = now.random.draw(p);
    return true;
  }

  // Tries the children; those rejected change w and P of the node.
  bool visit_children(const Call& now, NodeId node) {
    const int depth = now.tree.depth(node);
    const std::span<double> p = target(depth), q = draft(depth);
    double& w = weight_[size_t(depth)];
    now.distributions.draft(node, q);
    for (NodeId child = now.tree.first_child(node); child != kNoNode; child = now.tree.next_sibling(child)) {
      const auto x = size_t(now.tree.token(child));
      const double pass = pass_probability(w, p[x], q[x]);
      if (pass > 0 && visit(now, child, pass)) return true;  // below weight 0 nothing passes
      w = remaining_weight(subtract_draft(p, w, q), w);
      if (now.tree.next_sibling(child) != kNoNode) draw_out(now.tree, child, q);
    }
    return false;
  }

  const size_t vocab_;
  const int depth_;
  std::vector<double> weight_;                     // [depth + 1]
  const std::unique_ptr<double[]> distributions_;  // [2 depth + 1, vocab]: P and Q by level, interleaved
};

}  // namespace

std::unique_ptr<Rule> make_traversal_rule(int vocab, int depth) {
  return std::make_unique<TraversalRule>(vocab, depth);
}

}  // namespace sx
