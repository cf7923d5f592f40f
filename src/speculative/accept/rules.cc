// The rules that go top-down. At a node its children are tested in the order they were drawn; each rejection takes from
// the target's distribution what the draft's had offered, and what is left in the end is the distribution of the next
// token. Speculative sampling of Leviathan and Chen is the case of one child, SpecInfer's that of independent draws,
// Sequoia's that of draws without replacement.
#include "base/error.h"
#include "speculative/accept/accept_internal.h"

namespace sx {
namespace {

class TopDownRule final : public Rule {
 public:
  TopDownRule(AcceptKind kind, int vocab) : kind_(kind), p_(size_t(vocab)), q_(size_t(vocab)) {}

  DrawMode draws() const override { return kind_ == AcceptKind::kNoReplacement ? DrawMode::kDistinct : DrawMode::kIid; }
  bool chains_only() const override { return kind_ == AcceptKind::kChain; }

  void accept(const TokenTree& tree, Distributions& distributions, RandomSource& random,
              AcceptResult& result) override {
    SX_ASSERT(distributions.vocab() == int(p_.size()));
    SX_ASSERT(!chains_only() || is_chain(tree));
    result.path.clear();
    for (NodeId node = 0; node != kNoNode;) {
      result.path.push_back(node);
      distributions.target(node, p_);
      node = passing_child(tree, node, distributions, random);
    }
    result.next = random.draw(p_);
  }

 private:
  // The first child that passes, or kNoNode; then p_ is what is left of the target's distribution.
  NodeId passing_child(const TokenTree& tree, NodeId node, Distributions& distributions, RandomSource& random) {
    NodeId child = tree.first_child(node);
    if (child != kNoNode) distributions.draft(node, q_);
    for (; child != kNoNode; child = tree.next_sibling(child)) {
      const auto x = size_t(tree.token(child));
      if (random.flip(pass_probability(1, p_[x], q_[x]))) return child;
      subtract_draft(p_, 1, q_);
      if (kind_ == AcceptKind::kNoReplacement && tree.next_sibling(child) != kNoNode) draw_out(tree, child, q_);
    }
    return kNoNode;
  }

  const AcceptKind kind_;
  std::vector<double> p_, q_;  // [vocab], of the node at hand
};

}  // namespace

double residual_mass(std::span<const double> p, double weight, std::span<const double> q) {
  double mass = 0;
  for (size_t t = 0; t < p.size(); ++t) mass += std::max(0.0, weight * p[t] - q[t]);
  return mass;
}

double subtract_draft(std::span<double> p, double weight, std::span<const double> q) {
  const double mass = residual_mass(p, weight, q);
  if (!(mass > 0)) return 0;
  for (size_t t = 0; t < p.size(); ++t) p[t] = std::max(0.0, weight * p[t] - q[t]) / mass;
  return mass;
}

void draw_out(const TokenTree& tree, NodeId child, std::span<double> q) {
  q[size_t(tree.token(child))] = 0;
  double sum = 0;
  for (double v : q) sum += v;
  if (!(sum > 0)) {
    std::fill(q.begin(), q.end(), 1.0);
    for (NodeId n = tree.first_child(tree.parent(child)); n != tree.next_sibling(child); n = tree.next_sibling(n))
      q[size_t(tree.token(n))] = 0;
    for (double v : q) sum += v;
    if (!(sum > 0)) return;  // every token was drawn: no sibling can follow
  }
  for (double& v : q) v /= sum;
}

bool is_chain(const TokenTree& tree) {
  for (NodeId n = 1; n < tree.size(); ++n)
    if (tree.parent(n) != n - 1) return false;
  return true;
}

std::unique_ptr<Rule> make_top_down_rule(AcceptKind kind, int vocab) {
  return std::make_unique<TopDownRule>(kind, vocab);
}

}  // namespace sx
