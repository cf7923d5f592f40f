#include "speculative/budget/idle_costs.h"

#include <algorithm>
#include <cmath>

namespace sx {
namespace {

constexpr double kMoved = 0.05;  // costs that change by more are looked at again soon
constexpr int kSameHistory = 64;

}  // namespace

std::optional<int> IdleCosts::next(const CostModel& cost_model, const Room& room, double now_ms) {
  if (!cost_model.known() || now_ms < due_ms_) return std::nullopt;
  if (sizes_ > 0 && (std::abs(room.history - history_) > kSameHistory || CostModel::kRows[sizes_ - 1] > room.rows))
    sizes_ = 0;  // another text: its passes cannot be compared with those timed so far
  if (sizes_ == 0) {
    least_ = {}, at_ = 0, sweep_ = 0, history_ = room.history;
    while (sizes_ < CostModel::kRows.size() && CostModel::kRows[sizes_] <= room.rows &&
           cost_model.predict(CostModel::kRows[sizes_], room.history) <= kLongestMs)
      ++sizes_;
    if (sizes_ == 0) return due_ms_ = now_ms + kMostGapMs, std::nullopt;
  }
  return CostModel::kRows[at_];
}

void IdleCosts::timed(CostModel& cost_model, double now_ms, double ms) {
  double& least = least_[at_];
  least = least == 0 ? ms : std::min(least, ms);
  if (++at_ < sizes_) return;
  at_ = 0;
  if (++sweep_ == kSweeps) finish(cost_model, now_ms);
}

void IdleCosts::finish(CostModel& cost_model, double now_ms) {
  double moved = 0;
  for (size_t i = 0; i < sizes_; ++i) {
    const double before = cost_model.predict(CostModel::kRows[i], history_);
    moved = std::max(moved, std::abs(least_[i] / before - 1));
    cost_model.measured(CostModel::kRows[i], history_, least_[i]);
  }
  gap_ms_ = moved > kMoved ? kFirstGapMs : std::min(2 * gap_ms_, kMostGapMs);
  due_ms_ = now_ms + gap_ms_;
  sizes_ = 0, ++sets_;
}

}  // namespace sx
