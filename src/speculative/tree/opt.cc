// OPT-Tree exactly as its published implementation and SpecExtend's grow it, for comparison: every node of a level is
// run, and the newest level counts neither for the stop rule nor for the final tree. Only ties are broken so that trees
// are valid.
#include <numeric>

#include "base/error.h"
#include "speculative/tree/policies.h"

namespace sx {
namespace {

class OptReferencePolicy : public TreePolicy {
 public:
  explicit OptReferencePolicy(const TreeConfig& config)
      : config_(config), pool_(config.nodes), best_(config.nodes), ids_(static_cast<size_t>(capacity())) {
    std::iota(ids_.begin(), ids_.end(), 0);
  }

  int width() const override { return config_.nodes; }
  int capacity() const override { return 1 + config_.nodes * config_.depth; }
  int rows() const override { return config_.nodes; }
  bool fixed_shape() const override { return false; }

  void start(const TreeLimits& limits) override {
    nodes_ = std::clamp(limits.nodes, 0, config_.nodes);
    // The newest level is dropped, so there may be one more than the final tree is deep.
    most_levels_ = limits.depth <= 0 ? 0 : 1 + std::min(limits.depth, config_.depth - 1);
    levels_ = 0;
    newest_ = 1;
    sum_ = 0;
    best_.reset(nodes_);
  }

  void grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) override {
    if (nodes_ == 0 || most_levels_ == 0) return;
    best_.add(tree, newest_, tree.size());  // now it is no longer the newest
    newest_ = tree.size();
    add_level(tree, distributions);
    const double sum = best_.sum();
    const bool enough = levels_ > 1 && !(sum - sum_ > config_.threshold);
    sum_ = sum;
    if (enough || levels_ == most_levels_) return;
    for (NodeId n = newest_; n < tree.size(); ++n) next.push_back(n);
  }

  void finish(TokenTree& tree) override {
    if (levels_ > 1) tree.keep({ids_.data(), static_cast<size_t>(newest_)});
    tree.keep_best(nodes_);
  }

 private:
  void add_level(TokenTree& tree, std::span<const NodeCandidates> distributions) {
    pool_.reset(nodes_);
    for (const NodeCandidates& distribution : distributions)
      for (const Candidate& c : distribution.best.first(std::min(distribution.best.size(), static_cast<size_t>(nodes_)))) {
        const float score = path_score(tree.score(distribution.node), c.logp);
        if (score > kNever) pool_.offer({score, score, levels_ + 1, 0, distribution.node, kNoNode, c.token});
      }
    for (const Guess& g : pool_.sort()) tree.add(g.parent, g.token, g.score);
    ++levels_;
  }

  TreeConfig config_;      // depth: levels that are grown, the dropped one included
  CandidatePool pool_;         // of one level
  BestScores best_;        // of all levels but the newest
  std::vector<NodeId> ids_;  // 0, 1, 2, ...

  // Of the current tree.
  int nodes_ = 0, most_levels_ = 0, levels_ = 0;
  NodeId newest_ = 1;      // first node of the newest level
  double sum_ = 0;         // of the best path probabilities before the newest level
};

}  // namespace

std::unique_ptr<TreePolicy> make_opt_reference_policy(const TreeConfig& config) {
  return std::make_unique<OptReferencePolicy>(config);
}

}  // namespace sx
