#include "speculative/budget/cost_model.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "speculative/budget/average.h"

namespace sx {
namespace {

constexpr double kSlow = 1.5,
                 kLearnSure = 0.5;  // a pass so much slower than expected, and the weight of a second one in a row
constexpr double kProof = 0.5;      // of what was expected: a pass so fast proves the cost wrong
constexpr int64_t kKept = 32,
                  kHalved = 16;  // rounds for which an untried cost stays, and in which its doubtful part halves then

// The largest i with kRows[i] <= rows.
size_t below(int rows) {
  size_t i = 0;
  while (i + 1 < CostModel::kRows.size() && CostModel::kRows[i + 1] <= rows) ++i;
  return i;
}

}  // namespace

double faded(double cost, int64_t rounds) {
  return rounds <= kKept ? cost : cost * std::exp2(-double(rounds - kKept) / kHalved);
}

void CostModel::set(int rows, int history, double ms) {
  const auto at = std::find(kRows.begin(), kRows.end(), rows);
  SX_ASSERT(at != kRows.end() && ms > 0);
  Point& p = measured_[size_t(at - kRows.begin())];
  if (history == 0) {
    p.at_zero = ms;
    p.near = true;
  } else {
    SX_ASSERT(p.near && (far_history_ == 0 || far_history_ == history));
    far_history_ = history;
    p.slope = std::max(0.0, (ms - p.at_zero) / history);
    p.far = true;
  }
  known_ = measured_[0].near;
  if (known_) fill();
}

// Between measured points lines are drawn; beyond the last one the last line goes on.
void CostModel::fill() {
  // A pass cannot take longer than one of more rows: where it seemed to, it was interrupted.
  auto measured = measured_;
  double least = 0;
  for (size_t i = kRows.size(); i-- > 0;) {
    if (!measured[i].near) continue;
    if (least > 0) measured[i].at_zero = std::min(measured[i].at_zero, least);
    least = measured[i].at_zero;
  }
  points_ = measured;
  const auto line = [&](double Point::*value, bool Point::*has) {
    size_t last = 0;
    for (size_t i = 1; i < kRows.size(); ++i) {
      if (!(measured[i].*has)) continue;
      for (size_t j = last + 1; j < i; ++j) {
        const double t = double(kRows[j] - kRows[last]) / double(kRows[i] - kRows[last]);
        points_[j].*value = measured[last].*value + t * (measured[i].*value - measured[last].*value);
      }
      last = i;
    }
    size_t before = last;
    while (before > 0 && (before == last || !(measured[before].*has))) --before;
    const double rise = last == before
                            ? measured[last].*value / kRows[last]
                            : (measured[last].*value - measured[before].*value) / (kRows[last] - kRows[before]);
    for (size_t j = last + 1; j < kRows.size(); ++j)
      points_[j].*value = points_[last].*value + rise * (kRows[j] - kRows[last]);
  };
  line(&Point::at_zero, &Point::near);
  line(&Point::slope, &Point::far);
}

double CostModel::corrected(size_t i, double history) const {
  return (points_[i].at_zero + points_[i].slope * history) * points_[i].correction;
}

double CostModel::between(const Curve& points, int rows) {
  const size_t i = below(rows);
  if (i + 1 == kRows.size()) return points[i] * rows / kRows[i];
  const double t = double(rows - kRows[i]) / double(kRows[i + 1] - kRows[i]);
  return points[i] * (1 - t) + points[i + 1] * t;
}

double CostModel::predict(int rows, double history) const {
  return known_ ? between(corrected_points(history), rows) : 0;
}

// A pass does not take longer than one of more rows that has been seen.
CostModel::Curve CostModel::corrected_points(double history) const {
  Curve points;
  double most = std::numeric_limits<double>::infinity();
  for (size_t i = points.size(); i-- > 0;) {
    points[i] = std::min(corrected(i, history), most);
    if (points_[i].seen > 0) most = std::min(most, points[i]);
  }
  return points;
}

// A pass costs at least what a smaller one does; what it was measured to cost beyond that may be wrong. Only the
// smallest pass that has not been run lately (nor a larger one) is hoped to be cheaper: a try is a node or two, not a
// tree of all nodes that might be cheap.
CostModel::Curve CostModel::hoped_points(double history) const {
  const Curve known = corrected_points(history);
  Curve points = known;
  std::array<int64_t, kRows.size()> seen{};  // of passes of so many rows and more
  for (size_t i = points.size(); i-- > 0;) seen[i] = std::max(points_[i].seen, i + 1 < points.size() ? seen[i + 1] : 0);
  bool trying = false;
  for (size_t i = 1; i < points.size(); ++i) {
    const double more = known[i] - known[i - 1], hoped = trying ? more : faded(more, rounds_ - seen[i]);
    if (more <= 0) continue;
    points[i] = points[i - 1] + hoped;
    trying = trying || hoped < more;
  }
  return points;
}

void CostModel::measured(int rows, double history, double ms) {
  const auto at = std::find(kRows.begin(), kRows.end(), rows);
  SX_ASSERT(at != kRows.end());
  if (!known_ || !(ms > 0)) return;
  Point& p = points_[size_t(at - kRows.begin())];
  const double seen = ms / corrected(size_t(at - kRows.begin()), history), ratio = seen < 1 ? seen : std::sqrt(seen);
  // What it says of short histories and of long ones: the nearer, the more.
  const double far = far_history_ > 0 ? std::clamp(history / far_history_, 0.0, 1.0) : 0;
  const double at_zero = p.at_zero * p.correction * std::pow(ratio, far_history_ > 0 ? 1 - far : 1);
  const double at_far = (p.at_zero + p.slope * far_history_) * p.correction * std::pow(ratio, far);
  if (far_history_ > 0) p.slope = std::max(0.0, (at_far - at_zero) / far_history_);
  p.at_zero = at_zero, p.correction = 1;
  p.slow = 0, p.seen = std::max<int64_t>(rounds_, 1);
}

void CostModel::observe(int rows, double history, double ms) {
  if (!known_ || !(ms > 0)) return;
  const double expected = predict(rows, history);
  if (!(expected > 0)) return;
  ++rounds_;
  const size_t i = below(rows);
  const double t = i + 1 == kRows.size() ? 0 : double(rows - kRows[i]) / double(kRows[i + 1] - kRows[i]);
  if (t > 0 && ms < kProof * expected &&
      points_[i].seen > points_[i + 1].seen) {  // the larger pass, not tried for longer, is what was wrong
    const double below_it = corrected(i, history), wanted = std::max(below_it, (ms - (1 - t) * below_it) / t);
    points_[i + 1].correction *= std::min(1.0, wanted / corrected(i + 1, history));
    points_[i + 1].seen = rounds_;
    return;
  }
  const auto learn = [&](Point& p, double weight) {
    // One slow pass may have been interrupted, or the first of its kind: it counts little. Two in a row do not lie.
    if (weight >= 0.25) p.slow = ms > kSlow * expected ? p.slow + 1 : 0;
    const bool sure = p.slow > 1;
    const double ratio = std::clamp(ms / expected, 0.02, sure ? 4.0 : 2.0);
    const double rate = weight * (sure ? kLearnSure : Average::kLearn);
    p.correction *= ratio < kProof && weight >= 0.25 ? ratio : std::pow(ratio, rate);
    if (weight > 0.25) p.seen = rounds_;
  };
  learn(points_[i], 1 - t);
  if (t > 0) learn(points_[i + 1], t);
  quicken(i + (t > 0 ? 2 : 1));
}

// What slowed smaller passes down when costs were measured slowed larger ones down, too: those that have never been run
// are corrected by no more than the largest one that has. Else a machine that was busy at the start would make drafts
// look dear for long after. They do not get slower with it: a try would show it, and without a try nobody would know.
void CostModel::quicken(size_t first) {
  for (size_t i = first; i < points_.size(); ++i)
    if (points_[i].seen == 0) points_[i].correction = std::min(points_[i].correction, points_[first - 1].correction);
}

void CostModel::costs(int nodes, const BatchShape& batch, std::span<float> cost, bool hoping) const {
  SX_ASSERT(size_t(nodes) < cost.size() && batch.drafting > 0 && batch.requests >= batch.drafting);
  cost[0] = 1;
  if (!known_) return void(std::fill_n(cost.begin() + 1, nodes, 1.0f));
  const Curve points = hoping ? hoped_points(batch.history) : corrected_points(batch.history);
  const double one = between(points, batch.requests), share = double(batch.requests) / batch.drafting;
  for (int n = 1; n <= nodes; ++n) {
    const double more = between(points, batch.requests + batch.drafting * n) / one - 1;
    cost[size_t(n)] = std::max(cost[size_t(n - 1)], float(1 + share * more));
  }
}

int worthwhile_nodes(const TokenTree& tree, std::span<const float> cost, double sunk, double confidence) {
  float scores[kMaxTreeNodes];
  const int drafted = std::min({tree.drafted(), kMaxTreeNodes - 1, int(cost.size()) - 1});
  int count = 0;
  for (NodeId n = 1; n < tree.size() && count < kMaxTreeNodes; ++n) scores[count++] = tree.score(n);
  std::sort(scores, scores + count, std::greater<>());
  int best = 0;
  double best_rate = 1 / (sunk + double(cost[0])), tokens = 1;
  for (int n = 1; n <= drafted; ++n) {
    tokens += confidence * std::exp(double(scores[n - 1]));
    const double rate = tokens / (sunk + double(cost[size_t(n)]));
    if (rate > best_rate) best_rate = rate, best = n;
  }
  return best;
}

}  // namespace sx
