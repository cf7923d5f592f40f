// What the tree policies share: pools of the best guesses, the costs of a round, and a maker per family of policies.
#pragma once
#include <algorithm>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "speculative/tree/policy.h"

namespace sx {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();  // score of a path that cannot be
inline constexpr int kMaxDrafted = kMaxTreeNodes - 1;
inline constexpr int kMaxGrown = 16384;      // nodes of a tree while it grows, node 0 included
inline constexpr int kMaxRun = kMaxDrafted;  // nodes run in a round: a drafter stages them like a verified tree

// Most nodes to run in a pass when `run` have been: half of what is left, so that deeper levels get their turn.
inline int pass_limit(int run) { return (kMaxRun - run + 1) / 2; }

// A child some distribution proposes, not necessarily a node yet.
struct Guess {
  float value;  // what it is ranked by
  float score;  // log-probability of its path
  int depth;
  int order;            // of arrival
  NodeId parent, node;  // node: kNoNode until it is in the tree
  Token token;
};

// A strict order; a node is better than its descendants as long as values do not grow along a path.
inline bool better(const Guess& a, const Guess& b) {
  if (a.value != b.value) return a.value > b.value;
  if (a.depth != b.depth) return a.depth < b.depth;
  return a.order < b.order;
}

// The best `limit` guesses of all that were offered.
class CandidatePool {
 public:
  explicit CandidatePool(int most) { guesses_.reserve(static_cast<size_t>(most) + 1); }
  void reset(int limit);
  void offer(Guess guess);  // sets its order; the value must not be NaN
  std::span<Guess> guesses() { return guesses_; }
  std::span<const Guess> sort();  // best first; then only reset() may follow

 private:
  size_t limit_ = 0;
  int arrived_ = 0;
  std::vector<Guess> guesses_;  // a heap, the worst in front
};

// The best `limit` scores of all that were added, best first.
class BestScores {
 public:
  explicit BestScores(int most) {
    scores_.reserve(static_cast<size_t>(most)), merged_.reserve(static_cast<size_t>(most));
  }
  void reset(int limit);
  void add(const TokenTree& tree, NodeId first, NodeId last);  // nodes [first, last), best first
  int count() const { return static_cast<int>(scores_.size()); }
  float floor() const;  // what a score must beat to get in
  double sum() const;   // of the probabilities, from the best on

 private:
  size_t limit_ = 0;
  std::vector<float> scores_, merged_;
};

// Path log-probability of a child; NaN if logp is.
inline float path_score(float parent, float logp) { return parent + std::min(logp, 0.0f); }

// The score a node must beat to be worth its row in the cheapest case: log of the smallest cost of one more row, minus
// infinity when costs are not known or some row is free. `nodes`: <= limits.nodes.
float dead_score(const TreeLimits& limits, int nodes);
// Average cost of a further row after `nodes` (< limits.nodes) drafted ones, if as many are added as makes it
// cheapest.
float row_cost(const TreeLimits& limits, int nodes);

std::unique_ptr<TreePolicy> make_static_policy(const TreeConfig& config);  // chain, static
std::unique_ptr<TreePolicy> make_sequoia_policy(const TreeConfig& config);
std::unique_ptr<TreePolicy> make_level_policy(const TreeConfig& config);  // eagle2, opt-tree
std::unique_ptr<TreePolicy> make_best_first_policy(const TreeConfig& config);

// Checks of the static shapes, for check_tree_config.
void check_static_shape(const TreeConfig& config);

}  // namespace sx
