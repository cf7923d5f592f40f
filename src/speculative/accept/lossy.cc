// Rules that accept what the target itself might not have written: typical acceptance (Medusa) and the margin rule
// (after MARS). Where the target is greedy its distribution is a single token, so probabilities are read from its
// distribution at temperature 1.
#include <cmath>

#include "base/error.h"
#include "speculative/accept/accept_internal.h"

namespace sx {
namespace {

Sampling never_greedy(Sampling sampling) {
  if (!(sampling.temperature > 0)) sampling.temperature = 1;
  return sampling;
}

// p > min(epsilon, alpha exp(-entropy)) passes; the longest path of such nodes wins, ties by its log-probability.
class TypicalAcceptance final : public Acceptance {
 public:
  TypicalAcceptance(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits)
      : config_(config),
        backend_(backend),
        distribution_(size_t(limits.vocab)),
        passed_(size_t(limits.nodes)),
        logp_(size_t(limits.nodes)) {}

  bool lossless() const override { return false; }

  void accept(const AcceptArgs& args, AcceptResult& result) override {
    const TokenTree& tree = *args.tree;
    SX_ASSERT(tree.size() <= int(passed_.size()));
    std::fill_n(passed_.begin(), tree.size(), char(0));
    passed_[0] = 1, logp_[0] = 0;
    NodeId best = 0;
    for (NodeId n = 0; n < tree.size(); ++n) {  // parents come first
      if (!passed_[size_t(n)]) continue;
      const int longer = tree.depth(n) - tree.depth(best);
      if (longer > 0 || (longer == 0 && logp_[size_t(n)] > logp_[size_t(best)])) best = n;
      if (tree.first_child(n) != kNoNode) test_children(args, n);
    }
    result.path.resize(size_t(tree.depth(best)) + 1);
    for (NodeId n = best; n != kNoNode; n = tree.parent(n)) result.path[size_t(tree.depth(n))] = n;
    const PathInWindow path(args, best);
    result.next = choose_at(backend_, args, best);
  }

 private:
  void test_children(const AcceptArgs& args, NodeId node) {
    const PathInWindow path(args, node);
    distribution_at(backend_, args, node, never_greedy(*args.sampling), distribution_);
    double entropy = 0;
    for (double p : distribution_)
      if (p > 0) entropy -= p * std::log(p);
    const double threshold = std::min(double(config_.epsilon), double(config_.alpha) * std::exp(-entropy));
    const Token greedy = args.sampling->temperature > 0 ? kNoToken : choose_at(backend_, args, node);
    for (NodeId c = args.tree->first_child(node); c != kNoNode; c = args.tree->next_sibling(c)) {
      const Token x = args.tree->token(c);
      const double p = distribution_[size_t(x)];
      passed_[size_t(c)] = p > threshold || x == greedy;
      logp_[size_t(c)] = logp_[size_t(node)] + std::log(p);
    }
  }

  const AcceptConfig config_;
  Backend& backend_;
  std::vector<double> distribution_;  // [vocab], of the node at hand
  std::vector<char> passed_;          // [nodes]
  std::vector<double> logp_;          // [nodes], of the whole path; valid where passed
};

// As match, but where the target's choice was not drafted its second most probable token passes if it is nearly as
// probable as the first.
class MarginAcceptance final : public Acceptance {
 public:
  MarginAcceptance(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits)
      : margin_(double(config.margin)), backend_(backend), distribution_(size_t(limits.vocab)) {}

  bool lossless() const override { return false; }

  void accept(const AcceptArgs& args, AcceptResult& result) override {
    walk(backend_, args, result, [&](NodeId node, Token chosen) {
      const NodeId child = args.tree->child(node, chosen);
      if (child != kNoNode || args.tree->first_child(node) == kNoNode) return child;
      return second_choice(args, node);
    });
  }

 private:
  NodeId second_choice(const AcceptArgs& args, NodeId node) {
    distribution_at(backend_, args, node, never_greedy(*args.sampling), distribution_);
    const auto first = std::max_element(distribution_.begin(), distribution_.end());
    const double p1 = *first;
    *first = -1;
    const auto second = std::max_element(distribution_.begin(), distribution_.end());
    if (!(*second > 0 && *second >= margin_ * p1)) return kNoNode;
    return args.tree->child(node, Token(second - distribution_.begin()));
  }

  const double margin_;
  Backend& backend_;
  std::vector<double> distribution_;  // [vocab], of the node at hand
};

}  // namespace

std::unique_ptr<Acceptance> make_typical(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits) {
  return std::make_unique<TypicalAcceptance>(config, backend, limits);
}

std::unique_ptr<Acceptance> make_margin(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits) {
  return std::make_unique<MarginAcceptance>(config, backend, limits);
}

}  // namespace sx
