// Best-first growth (SpecExec): a pool holds the most probable prefixes seen so far, up to the budget; each pass runs
// the best that have not been run, until no new one can enter. Guesses become nodes only when they are run or when the
// tree is finished, so that ids stay and the tree stays small.
#include <cmath>

#include "base/error.h"
#include "speculative/tree/policies.h"

namespace sx {
namespace {

class BestFirstPolicy : public TreePolicy {
 public:
  explicit BestFirstPolicy(const TreeConfig& config)
      : config_(config),
        log_decay_(std::log(config.decay)),
        spare_(2 * config.nodes + config.beams),
        pool_(config.nodes) {
    frontier_.reserve(static_cast<size_t>(config.nodes));
    kept_.reserve(static_cast<size_t>(config.nodes) + 1);
  }

  int width() const override { return config_.topk; }
  // The best node of a pass is in the final tree for sure, as nothing that comes later is better; so nodes that were
  // run and fall out again are among the others, of which there are at most spare_.
  int capacity() const override { return 1 + config_.nodes + spare_; }
  int rows() const override { return std::min(config_.beams, config_.nodes); }
  bool fixed_shape() const override { return false; }

  void start(const TreeLimits& limits) override;
  void grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) override;
  void finish(TokenTree& tree) override;

 private:
  void offer_children(const TokenTree& tree, const NodeCandidates& distribution);
  void pick_frontier();

  TreeConfig config_;
  float log_decay_;
  int spare_;
  CandidatePool pool_;  // those with a node have been run
  std::vector<Guess*> frontier_;
  std::vector<NodeId> kept_;

  // Of the current tree.
  TreeLimits limits_;
  int nodes_ = 0, depth_ = 0;
  int spare_left_ = 0, run_ = 0;
  float dead_ = 0;  // score to beat to be worth a row
};

void BestFirstPolicy::start(const TreeLimits& limits) {
  limits_ = limits;
  nodes_ = std::clamp(limits.nodes, 0, config_.nodes);
  depth_ = std::min(limits.depth, config_.depth);
  spare_left_ = spare_;
  run_ = 0;
  dead_ = dead_score(limits, nodes_);
  pool_.reset(nodes_);
}

void BestFirstPolicy::offer_children(const TokenTree& tree, const NodeCandidates& distribution) {
  const float parent = tree.score(distribution.node);
  const int depth = tree.depth(distribution.node) + 1;
  for (const Candidate& c :
       distribution.best.first(std::min(distribution.best.size(), static_cast<size_t>(config_.topk)))) {
    const float score = path_score(parent, c.logp), value = score + static_cast<float>(depth) * log_decay_;
    if (score > dead_) pool_.offer({value, score, depth, 0, distribution.node, kNoNode, c.token});
  }
}

// The best guesses that have not been run and may have children.
void BestFirstPolicy::pick_frontier() {
  frontier_.clear();
  for (Guess& g : pool_.guesses())
    if (g.node == kNoNode && g.depth < depth_) frontier_.push_back(&g);
  const int allowed = std::min({config_.beams, limits_.rows, spare_left_ + 1, pass_limit(run_)});
  const size_t most = std::min(frontier_.size(), static_cast<size_t>(allowed));
  std::partial_sort(frontier_.begin(), frontier_.begin() + static_cast<ptrdiff_t>(most), frontier_.end(),
                    [](const Guess* a, const Guess* b) { return better(*a, *b); });
  frontier_.resize(most);
}

void BestFirstPolicy::grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) {
  if (depth_ <= 0) return;
  for (const NodeCandidates& distribution : distributions) offer_children(tree, distribution);
  pick_frontier();
  double most = 0;  // children together are at most as probable as their parent
  for (const Guess* g : frontier_) most += std::exp(double{g->score});
  if (most <= limits_.level_cost) return;
  for (Guess* g : frontier_) {
    g->node = tree.add(g->parent, g->token, g->score);
    next.push_back(g->node);
  }
  run_ += static_cast<int>(next.size());
  spare_left_ -= static_cast<int>(next.size()) - 1;
}

void BestFirstPolicy::finish(TokenTree& tree) {
  kept_.assign(1, 0);
  for (const Guess& g : pool_.sort())
    kept_.push_back(g.node != kNoNode ? g.node : tree.add(g.parent, g.token, g.score));
  std::sort(kept_.begin(), kept_.end());
  tree.keep(kept_);
}

}  // namespace

std::unique_ptr<TreePolicy> make_best_first_policy(const TreeConfig& config) {
  return std::make_unique<BestFirstPolicy>(config);
}

}  // namespace sx
