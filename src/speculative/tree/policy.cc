// Checks of a tree configuration, the maker of policies, and the parts the policies share.
#include "speculative/tree/policy.h"

#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"
#include "base/fixed_math.h"
#include "speculative/tree/policies.h"

namespace sx {
namespace {

constexpr int kMaxSequoiaDepth = 64, kMaxSequoiaRates = 16;  // its tables grow with both

void check_range(const char* name, int value, int low, int high) {
  if (value < low || value > high) fail("tree: {} is {}, from {} to {} is expected", name, value, low, high);
}

void check_rates(const std::vector<double>& rates) {
  if (rates.size() > kMaxSequoiaRates)
    fail("tree: {} rates are given, at most {} are expected", rates.size(), kMaxSequoiaRates);
  double sum = 0;
  for (double rate : rates) {
    if (!(rate >= 0 && rate <= 1)) fail("tree: rates has {}, from 0 to 1 is expected", rate);
    sum += rate;
  }
  if (sum > 1 + 1e-6) fail("tree: the rates add up to {}, at most 1 is expected (one child is accepted)", sum);
}

void check_grown(const TreeConfig& config, const char* numbers) {
  const int64_t square = int64_t{config.topk} * config.topk;
  const int64_t level = config.kind == TreeKind::kEagle2 ? std::min<int64_t>(square, config.nodes) : config.nodes;
  const int64_t grown = 1 + level * config.depth;
  if (grown > kMaxGrown)
    fail("tree: {} make it grow to {} nodes before it is cut, at most {} are expected", numbers, grown, kMaxGrown);
}

}  // namespace

void check_tree_config(const TreeConfig& config) {
  check_range("nodes", config.nodes, 1, kMaxDrafted);
  check_range("depth", config.depth, 1, kMaxDrafted);
  switch (config.kind) {
    case TreeKind::kChain: break;
    case TreeKind::kStatic: check_static_shape(config); break;
    case TreeKind::kSequoia:
      check_range("depth of sequoia", config.depth, 1, kMaxSequoiaDepth);
      check_rates(config.rates);
      break;
    case TreeKind::kEagle2:
      check_range("topk", config.topk, 1, kMaxDrafted);
      check_grown(config, "topk, nodes and depth");
      break;
    case TreeKind::kOptTree:
      if (!(config.threshold >= 0)) fail("tree: threshold is {}, 0 or more is expected", config.threshold);
      check_grown(config, "nodes and depth");
      break;
    case TreeKind::kBestFirst:
      check_range("topk", config.topk, 1, kMaxDrafted);
      check_range("beams", config.beams, 1, kMaxDrafted);
      if (!(config.decay > 0 && config.decay <= 1))
        fail("tree: decay is {}, above 0 and at most 1 is expected", config.decay);
      break;
  }
}

std::unique_ptr<TreePolicy> make_tree_policy(const TreeConfig& config) {
  check_tree_config(config);
  switch (config.kind) {
    case TreeKind::kChain:
    case TreeKind::kStatic: return make_static_policy(config);
    case TreeKind::kSequoia: return make_sequoia_policy(config);
    case TreeKind::kEagle2:
    case TreeKind::kOptTree: return make_level_policy(config);
    case TreeKind::kBestFirst: return make_best_first_policy(config);
  }
  SX_ASSERT(!"a kind of tree without a policy");
  return nullptr;
}

void CandidatePool::reset(int limit) {
  limit_ = static_cast<size_t>(limit);
  arrived_ = 0;
  guesses_.clear();
  SX_ASSERT(limit_ < guesses_.capacity());
}

void CandidatePool::offer(Guess guess) {
  guess.order = arrived_++;
  if (guesses_.size() == limit_ && (limit_ == 0 || !better(guess, guesses_.front()))) return;
  guesses_.push_back(guess);
  std::push_heap(guesses_.begin(), guesses_.end(), better);
  if (guesses_.size() <= limit_) return;
  std::pop_heap(guesses_.begin(), guesses_.end(), better);
  guesses_.pop_back();
}

std::span<const Guess> CandidatePool::sort() {
  std::sort_heap(guesses_.begin(), guesses_.end(), better);
  return guesses_;
}

void BestScores::reset(int limit) {
  limit_ = static_cast<size_t>(limit);
  scores_.clear();
  SX_ASSERT(limit_ <= scores_.capacity());
}

void BestScores::add(const TokenTree& tree, NodeId first, NodeId last) {
  merged_.clear();
  for (size_t old = 0; merged_.size() < limit_ && (old < scores_.size() || first < last);) {
    const bool keeps = first == last || (old < scores_.size() && scores_[old] >= tree.score(first));
    merged_.push_back(keeps ? scores_[old++] : tree.score(first++));
  }
  scores_.swap(merged_);
}

float BestScores::floor() const { return scores_.size() < limit_ || limit_ == 0 ? kNever : scores_.back(); }

double BestScores::sum() const {
  double total = 0;
  for (float score : scores_) total += fixed_exp(double{score});
  return total;
}

float dead_score(const TreeLimits& limits, int nodes) {
  if (limits.verify_cost == nullptr || nodes == 0) return kNever;
  float least = std::numeric_limits<float>::infinity();
  for (int n = 0; n < nodes; ++n) least = std::min(least, limits.verify_cost[n + 1] - limits.verify_cost[n]);
  return least > 0 ? std::log(least) : kNever;
}

float row_cost(const TreeLimits& limits, int nodes) {
  if (limits.verify_cost == nullptr) return 0;
  float least = std::numeric_limits<float>::infinity();
  for (int n = nodes + 1; n <= limits.nodes; ++n)
    least = std::min(least, (limits.verify_cost[n] - limits.verify_cost[nodes]) / static_cast<float>(n - nodes));
  return least;
}

}  // namespace sx
