#include "spec/price.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace sx {
namespace {

constexpr double kLearn = 0.1;  // weight of one observation

// The largest i with kRows[i] <= rows.
size_t below(int rows) {
  size_t i = 0;
  while (i + 1 < StepPrice::kRows.size() && StepPrice::kRows[i + 1] <= rows) ++i;
  return i;
}

}  // namespace

void StepPrice::set(int rows, int history, double ms) {
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
void StepPrice::fill() {
  size_t last = 0;
  points_ = measured_;
  const auto line = [&](double Point::*value, bool Point::*has) {
    last = 0;
    for (size_t i = 1; i < kRows.size(); ++i) {
      if (!(measured_[i].*has)) continue;
      for (size_t j = last + 1; j < i; ++j) {
        const double t = double(kRows[j] - kRows[last]) / double(kRows[i] - kRows[last]);
        points_[j].*value = measured_[last].*value + t * (measured_[i].*value - measured_[last].*value);
      }
      last = i;
    }
    size_t before = last;
    while (before > 0 && (before == last || !(measured_[before].*has))) --before;
    const double rise = last == before ? measured_[last].*value / kRows[last]
                                       : (measured_[last].*value - measured_[before].*value) / (kRows[last] - kRows[before]);
    for (size_t j = last + 1; j < kRows.size(); ++j)
      points_[j].*value = points_[last].*value + rise * (kRows[j] - kRows[last]);
  };
  line(&Point::at_zero, &Point::near);
  line(&Point::slope, &Point::far);
}

double StepPrice::corrected(size_t i, double history) const {
  return (points_[i].at_zero + points_[i].slope * history) * points_[i].correction;
}

double StepPrice::predict(int rows, double history) const {
  if (!known_) return 0;
  const size_t i = below(rows);
  if (i + 1 == kRows.size()) return corrected(i, history) * rows / kRows[i];
  const double t = double(rows - kRows[i]) / double(kRows[i + 1] - kRows[i]);
  return corrected(i, history) * (1 - t) + corrected(i + 1, history) * t;
}

void StepPrice::observe(int rows, double history, double ms) {
  if (!known_ || !(ms > 0)) return;
  const double expected = predict(rows, history);
  if (!(expected > 0)) return;
  // A pass that was interrupted says little: outliers count as at most a factor of two.
  const double ratio = std::clamp(ms / expected, 0.5, 2.0);
  const size_t i = below(rows);
  const double t = i + 1 == kRows.size() ? 0 : double(rows - kRows[i]) / double(kRows[i + 1] - kRows[i]);
  points_[i].correction *= std::pow(ratio, kLearn * (1 - t));
  if (t > 0) points_[i + 1].correction *= std::pow(ratio, kLearn * t);
}

void StepPrice::costs(int nodes, int base, double history, std::span<float> cost) const {
  SX_ASSERT(size_t(nodes) < cost.size());
  const double one = predict(base, history);
  cost[0] = 1;
  for (int n = 1; n <= nodes; ++n)
    cost[size_t(n)] = std::max(cost[size_t(n - 1)], one > 0 ? float(predict(base + n, history) / one) : 1.0f);
}

int worthwhile_nodes(const TokenTree& tree, std::span<const float> cost, double sunk, double trust) {
  float scores[kMaxTreeNodes];
  const int drafted = std::min({tree.drafted(), kMaxTreeNodes - 1, int(cost.size()) - 1});
  int count = 0;
  for (NodeId n = 1; n < tree.size() && count < kMaxTreeNodes; ++n) scores[count++] = tree.score(n);
  std::sort(scores, scores + count, std::greater<>());
  int best = 0;
  double best_rate = 1 / (sunk + double(cost[0])), tokens = 1;
  for (int n = 1; n <= drafted; ++n) {
    tokens += trust * std::exp(double(scores[n - 1]));
    const double rate = tokens / (sunk + double(cost[size_t(n)]));
    if (rate > best_rate) best_rate = rate, best = n;
  }
  return best;
}

}  // namespace sx
