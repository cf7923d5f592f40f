// Block verification of a chain (Sun et al.): how much of the chain is kept is decided for the block as a whole, from
// its end backwards, so that a token the draft favours too much can be made up for by one it favours too little. Never
// accepts less than testing token by token.
#include "base/error.h"
#include "speculative/accept/accept_internal.h"

namespace sx {
namespace {

class BlockRule final : public Rule {
 public:
  BlockRule(int vocab, int depth)
      : p_(size_t(vocab)), q_(size_t(vocab)), weight_(size_t(depth) + 1), keep_(size_t(depth) + 1) {}

  DrawMode draws() const override { return DrawMode::kIid; }
  bool chains_only() const override { return true; }

  void accept(const TokenTree& tree, Distributions& distributions, RandomSource& random,
              AcceptResult& result) override {
    SX_ASSERT(distributions.vocab() == int(p_.size()));
    SX_ASSERT(is_chain(tree) && tree.size() <= int(weight_.size()));
    const NodeId last = tree.size() - 1;
    weigh(tree, distributions, last);
    NodeId end = last;
    while (end > 0 && !random.flip(keep_[size_t(end)])) --end;
    result.path.clear();
    for (NodeId n = 0; n <= end; ++n) result.path.push_back(n);
    distributions.target(end, p_);
    if (end < last) {
      distributions.draft(end, q_);
      subtract_draft(p_, weight_[size_t(end)], q_);
    }
    result.next = random.draw(p_);
  }

 private:
  // weight_ of every node and the probability keep_ that the chain ends there, given that it does not end later.
  void weigh(const TokenTree& tree, Distributions& distributions, NodeId last) {
    weight_[0] = 1;
    for (NodeId n = 0; n < last; ++n) {
      distributions.target(n, p_);
      distributions.draft(n, q_);
      const double w = weight_[size_t(n)];
      keep_[size_t(n)] = remaining_weight(residual_mass(p_, w, q_), w);
      const auto x = size_t(tree.token(n + 1));
      weight_[size_t(n) + 1] = pass_probability(w, p_[x], q_[x]);
    }
    keep_[size_t(last)] = weight_[size_t(last)];
  }

  std::vector<double> p_, q_;          // [vocab], of the node at hand
  std::vector<double> weight_, keep_;  // [depth + 1], by node
};

}  // namespace

std::unique_ptr<Rule> make_block_rule(int vocab, int depth) { return std::make_unique<BlockRule>(vocab, depth); }

}  // namespace sx
