// Trees grown level by level from the most probable paths: EAGLE-2 (a frontier of k nodes, k children each, to a given
// depth) and OPT-Tree (frontier and children without a bound of their own; deepens while that pays). Unlike the
// published procedures they never keep or run a node that can no longer be among the best; the final tree is the same.
#include "base/error.h"
#include "base/fixed_math.h"
#include "speculative/tree/policies.h"

namespace sx {
namespace {

class LevelPolicy : public TreePolicy {
 public:
  explicit LevelPolicy(const TreeConfig& config)
      : config_(config),
        opt_(config.kind == TreeKind::kOptTree),
        branch_(opt_ ? config.nodes : config.topk),
        pool_(config.nodes),
        best_(config.nodes) {}

  int width() const override { return branch_; }
  int capacity() const override {
    const int first = std::min(branch_, config_.nodes), level = std::min(branch_ * branch_, config_.nodes);
    return 1 + first + level * (config_.depth - 1);
  }
  int rows() const override { return std::min(branch_, config_.nodes); }
  bool fixed_shape() const override { return false; }

  void start(const TreeLimits& limits) override;
  void grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) override;
  void finish(TokenTree& tree) override { tree.keep_best(nodes_); }
  bool levels(TreeGrowthRules& rules) const override;

 private:
  void add_level(TokenTree& tree, std::span<const NodeCandidates> distributions);
  bool pays(const TokenTree& tree, std::span<const NodeId> frontier) const;

  TreeConfig config_;
  bool opt_;
  int branch_;          // children per node and size of the frontier
  CandidatePool pool_;  // of one level
  BestScores best_;     // of the tree

  // Of the current tree.
  TreeLimits limits_;
  int nodes_ = 0, depth_ = 0;
  int level_ = 0;                    // deepest one there is
  int run_ = 0;                      // nodes run
  float dead_ = 0, floor_ = 0;       // scores to beat: to be worth a row; to be among the best as well
  double sum_ = 0;                   // of the best path probabilities: tokens expected besides the one that is sure
  double gain_ = 0, last_gain_ = 0;  // of the deepest level, of the one before
};

void LevelPolicy::start(const TreeLimits& limits) {
  limits_ = limits;
  nodes_ = std::clamp(limits.nodes, 0, config_.nodes);
  depth_ = std::min(limits.depth, config_.depth);
  level_ = run_ = 0;
  best_.reset(nodes_);
  dead_ = floor_ = dead_score(limits, nodes_);
  sum_ = 0;
  gain_ = 1;  // node 0 itself
}

void LevelPolicy::add_level(TokenTree& tree, std::span<const NodeCandidates> distributions) {
  pool_.reset(nodes_);
  for (const NodeCandidates& distribution : distributions) {
    const float parent = tree.score(distribution.node);
    for (const Candidate& c :
         distribution.best.first(std::min(distribution.best.size(), static_cast<size_t>(branch_)))) {
      const float score = path_score(parent, c.logp);
      if (score > floor_) pool_.offer({score, score, level_ + 1, 0, distribution.node, kNoNode, c.token});
    }
  }
  const NodeId first = tree.size();
  for (const Guess& g : pool_.sort()) tree.add(g.parent, g.token, g.score);
  best_.add(tree, first, tree.size());
  ++level_;
  floor_ = std::max(dead_, best_.floor());
  last_gain_ = gain_;
  gain_ = best_.sum() - sum_;
  sum_ += gain_;
}

void LevelPolicy::grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) {
  if (nodes_ == 0 || depth_ <= 0) return;
  const NodeId first = tree.size();
  add_level(tree, distributions);
  if (level_ == depth_) return;
  // The level lies in the tree best first, so those worth running come first in it.
  const int most = std::min({branch_, limits_.rows, pass_limit(run_)});
  for (NodeId n = first; n < tree.size() && n - first < most && tree.score(n) > floor_; ++n) next.push_back(n);
  if (!pays(tree, next)) next.clear();
  run_ += static_cast<int>(next.size());
}

// Whether running the frontier is likely to bring more than it costs.
bool LevelPolicy::pays(const TokenTree& tree, std::span<const NodeId> frontier) const {
  double most = 0;  // children together are at most as probable as their parent
  for (NodeId n : frontier) most += fixed_exp(double{tree.score(n)});
  if (most <= limits_.level_cost) return false;
  if (!opt_) return true;
  if (limits_.verify_cost == nullptr || limits_.level_cost <= 0) return gain_ > config_.threshold;
  // Tokens per time must rise: the next level is expected to lose the same share of the gain as the last one did.
  const double gain = std::min(most, gain_ * std::min(1.0, gain_ / last_gain_));
  const double cost = double{limits_.level_cost} * level_ + double{limits_.verify_cost[best_.count()]};
  return gain * cost > double{limits_.level_cost} * (1 + sum_);
}

bool LevelPolicy::levels(TreeGrowthRules& rules) const {
  if (nodes_ == 0 || depth_ <= 0) return false;
  rules = {nodes_,
           depth_,
           branch_,
           std::min({branch_, config_.nodes, limits_.rows}),
           dead_,
           limits_.level_cost,
           limits_.verify_cost,
           opt_,
           config_.threshold};
  return true;
}

}  // namespace

std::unique_ptr<TreePolicy> make_level_policy(const TreeConfig& config) {
  return std::make_unique<LevelPolicy>(config);
}

}  // namespace sx
