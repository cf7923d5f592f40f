// Trees whose shape is settled before anything is drafted: chains, widths by level (SpecInfer), lists of rank paths
// (Medusa), and the best shape for measured acceptance rates (Sequoia).
#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/ranges.h>

#include "base/error.h"
#include "speculative/tree/policies.h"
#include "speculative/tree/sequoia.h"

namespace sx {
namespace {

TreeShape chain_shape(int length) {
  TreeShape shape;
  shape.clear();
  for (int n = 0; n < length; ++n) shape.add(n, 0);
  return shape;
}

TreeShape widths_shape(const std::vector<int>& widths) {
  TreeShape shape;
  shape.clear();
  int first = 0;  // of the level above
  for (int width : widths) {
    const int last = shape.size();
    for (int parent = first; parent < last; ++parent)
      for (int rank = 0; rank < width; ++rank) shape.add(parent, rank);
    first = last;
  }
  return shape;
}

TreeShape paths_shape(std::vector<std::vector<int>> paths) {
  const auto earlier = [](const std::vector<int>& a, const std::vector<int>& b) {
    return a.size() != b.size() ? a.size() < b.size() : a < b;
  };
  std::sort(paths.begin(), paths.end(), earlier);
  TreeShape shape;
  shape.clear();
  for (const std::vector<int>& path : paths) {
    const std::vector<int> parent(path.begin(), path.end() - 1);
    const auto found = std::lower_bound(paths.begin(), paths.end(), parent, earlier);
    shape.add(parent.empty() ? 0 : static_cast<int>(found - paths.begin()) + 1, path.back());
  }
  return shape;
}

TreeShape static_shape(const TreeConfig& config) {
  if (config.kind == TreeKind::kChain) return chain_shape(config.nodes);
  return config.paths.empty() ? widths_shape(config.widths) : paths_shape(config.paths);
}

// Grows a shape: the node of rank r takes candidate r, all nodes of a level that have children are run in one go.
class StaticPolicy : public TreePolicy {
 public:
  explicit StaticPolicy(const TreeConfig& config)
      : StaticPolicy(static_shape(config), config.kind == TreeKind::kChain) {
    for (int16_t rank : shape_.rank) width_ = std::max(width_, rank + 1);
    std::vector<int> parents(static_cast<size_t>(shape_.size()));  // by level
    for (int place = 1; place < shape_.size(); ++place)
      if (const size_t parent = to_size(shape_.parent[to_size(place)]); place == first_child(static_cast<int>(parent)))
        rows_ = std::max(rows_, ++parents[to_size(shape_.depth[parent])]);
  }

  int width() const override { return width_; }
  int capacity() const override { return static_cast<int>(place_.size()); }
  int rows() const override { return rows_; }
  bool fixed_shape() const override { return true; }

  void start(const TreeLimits& limits) override;
  void grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) override;
  void finish(TokenTree&) override {}

 protected:
  StaticPolicy(TreeShape shape, bool chain) : shape_(std::move(shape)), chain_(chain), place_(to_size(shape_.size())) {}
  static size_t to_size(int n) { return static_cast<size_t>(n); }

  TreeShape shape_;
  int width_ = 1, rows_ = 1;

 private:
  // Place of the first child of a place, or the end.
  int first_child(int place) const {
    const auto found = std::lower_bound(shape_.parent.begin() + 1, shape_.parent.end(), place);
    return static_cast<int>(found - shape_.parent.begin());
  }
  bool has_children(int place) const {
    const int child = first_child(place);
    return child < count_ && shape_.parent[to_size(child)] == place;
  }
  // Costs are given for chains only where the shape may depend on the candidates.
  bool has_costs() const { return chain_ && (limits_.verify_cost != nullptr || limits_.level_cost > 0); }
  bool worth_adding(const TokenTree& tree, float score) const {
    return !has_costs() || std::exp(score) > row_cost(limits_, tree.drafted());
  }
  bool worth_running(const TokenTree& tree, NodeId node) const {
    return !has_costs() || std::exp(tree.score(node)) > limits_.level_cost + row_cost(limits_, tree.drafted());
  }

  bool chain_;
  TreeLimits limits_;
  int count_ = 0;               // places within the limits
  std::vector<int16_t> place_;  // of a node of the tree
};

void StaticPolicy::start(const TreeLimits& limits) {
  limits_ = limits;
  const auto deeper = std::upper_bound(shape_.depth.begin(), shape_.depth.end(), limits.depth);
  count_ = 1 + std::min(static_cast<int>(deeper - shape_.depth.begin()) - 1, limits.nodes);
  place_[0] = 0;
}

void StaticPolicy::grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) {
  for (const NodeCandidates& distribution : distributions) {
    const int parent = place_[to_size(distribution.node)];
    for (int place = first_child(parent); place < count_ && shape_.parent[to_size(place)] == parent; ++place) {
      const size_t rank = to_size(shape_.rank[to_size(place)]);
      if (rank >= distribution.best.size()) break;
      const Candidate& c = distribution.best[rank];
      const float score = path_score(tree.score(distribution.node), c.logp);
      if (!worth_adding(tree, score)) return;
      const NodeId earlier = tree.child(distribution.node, c.token), node = tree.add(distribution.node, c.token, score);
      place_[to_size(node)] = static_cast<int16_t>(place);
      // A token drawn twice is tried twice, but the walk goes on from the first.
      if (earlier == kNoNode && has_children(place) && worth_running(tree, node)) next.push_back(node);
    }
  }
}

// Measures the rates as it goes and now and then takes the shape that is best for them; it depends on past rounds only.
class SequoiaPolicy : public StaticPolicy {
 public:
  explicit SequoiaPolicy(const TreeConfig& config)
      : StaticPolicy(chain_shape(config.nodes), false),
        nodes_(config.nodes),
        depth_(std::min(config.depth, config.nodes)),
        prior_(config.rates.empty() ? default_rates() : config.rates),
        rates_(prior_),
        hits_(prior_.size()),
        trials_(prior_.size()),
        solver_(nodes_, depth_, static_cast<int>(prior_.size())) {
    shape_.reserve(nodes_ + 1);
    width_ = static_cast<int>(prior_.size());
    rows_ = std::max(1, nodes_ / 2);  // each has a child
    const double steps = 0.5 * nodes_ * nodes_ * depth_ * width_;
    interval_ = kInterval * std::max(1, static_cast<int>(steps / kSteps));
    solver_.solve(rates_);
  }

  void start(const TreeLimits& limits) override {
    const int nodes = std::clamp(limits.nodes, 0, nodes_), depth = std::clamp(limits.depth, 0, depth_);
    if (nodes != shape_nodes_ || depth != shape_depth_) solver_.shape(nodes, depth, shape_);
    shape_nodes_ = nodes;
    shape_depth_ = depth;
    StaticPolicy::start(limits);
  }

  void observe(const TokenTree& tree, std::span<const NodeId> path) override {
    for (size_t i = 0; i < path.size(); ++i) count_children(tree, path[i], i + 1 < path.size() ? path[i + 1] : kNoNode);
    if (++rounds_ % interval_ != 0) return;
    for (size_t r = 0; r < rates_.size(); ++r)
      rates_[r] = (kPriorWeight * prior_[r] + hits_[r]) / (kPriorWeight + trials_[r]);
    solver_.solve(rates_);
    shape_nodes_ = -1;
  }

 private:
  static constexpr int kInterval = 64;        // observed rounds between two solutions, more for large tables
  static constexpr double kSteps = 1 << 19;   // of the solver in that interval
  static constexpr double kPriorWeight = 50;  // trials that the rates at the start stand for
  static constexpr double kMaxTrials = 4000;  // then old ones fade, so that the rates follow the text
  static std::vector<double> default_rates() { return {0.55, 0.12, 0.05, 0.03, 0.02, 0.015, 0.01, 0.008}; }

  void count_children(const TokenTree& tree, NodeId node, NodeId accepted) {
    for (NodeId c = tree.first_child(node); c != kNoNode; c = tree.next_sibling(c)) {
      const size_t rank = to_size(tree.rank(c));
      if (rank >= rates_.size() || !(tree.source(c) & kFromModel)) continue;
      trials_[rank] += 1;
      hits_[rank] += c == accepted;
      if (trials_[rank] < kMaxTrials) continue;
      trials_[rank] /= 2;
      hits_[rank] /= 2;
    }
  }

  int nodes_, depth_;
  std::vector<double> prior_, rates_, hits_, trials_;  // by rank
  SequoiaSolver solver_;
  int interval_ = 0, rounds_ = 0;
  int shape_nodes_ = -1, shape_depth_ = -1;  // the shape was made for these limits; -1: it is stale
};

void check_paths(const std::vector<std::vector<int>>& paths) {
  const std::set<std::vector<int>> all(paths.begin(), paths.end());
  if (all.size() != paths.size()) fail("tree: paths has the same rank path twice");
  for (const std::vector<int>& path : paths) {
    if (path.empty()) fail("tree: paths has an empty rank path");
    for (int rank : path)
      if (rank < 0 || rank >= kMaxDrafted)
        fail("tree: paths has {}: ranks from 0 to {} are expected", path, kMaxDrafted - 1);
    const std::vector<int> parent(path.begin(), path.end() - 1);
    if (!parent.empty() && !all.contains(parent))
      fail("tree: paths has {} but not {}, which it begins with", path, parent);
  }
}

}  // namespace

void check_static_shape(const TreeConfig& config) {
  if (config.paths.empty() && config.widths.empty()) fail("tree: static needs widths or paths");
  int64_t nodes = 0;
  if (config.paths.empty()) {
    int64_t level = 1;
    for (int width : config.widths) {
      if (width < 1 || width > kMaxDrafted) fail("tree: widths has {}, from 1 to {} is expected", width, kMaxDrafted);
      level = std::min<int64_t>(level * width, kMaxTreeNodes);
      nodes += level;
    }
  } else {
    check_paths(config.paths);
    nodes = static_cast<int64_t>(config.paths.size());
  }
  if (nodes > kMaxDrafted) fail("tree: the static shape has more than {} nodes", kMaxDrafted);
}

std::unique_ptr<TreePolicy> make_static_policy(const TreeConfig& config) {
  return std::make_unique<StaticPolicy>(config);
}

std::unique_ptr<TreePolicy> make_sequoia_policy(const TreeConfig& config) {
  return std::make_unique<SequoiaPolicy>(config);
}

}  // namespace sx
