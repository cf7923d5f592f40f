// Which passes of the target are timed while an engine has nothing to do, so that the cost model holds when the next
// request comes: one pass at a time, the sizes in turn, and the least of several for each, as when an engine opens. Who
// calls it stops between two passes as soon as there is work; what was timed until then is kept for the next moment.
#pragma once
#include <array>
#include <optional>

#include "speculative/budget/cost_model.h"

namespace sx {

class IdleCosts {
 public:
  static constexpr int kSweeps = 3;
  static constexpr double kLongestMs =
      50;  // passes expected to take longer are left out: a request might wait for them
  static constexpr double kFirstGapMs = 20e3, kMostGapMs = 600e3;  // from the end of one set of sweeps to the next

  // What can be run now: passes of up to `rows` rows behind `history` cells.
  struct Room {
    int rows = 0, history = 0;
  };
  // Rows of the pass to time next, at `now_ms`; nothing: the costs are fresh, or none are known.
  std::optional<int> next(const CostModel& cost_model, const Room& room, double now_ms);
  // That pass took `ms`. After the last one of a set the cost model learns from all of it.
  void timed(CostModel& cost_model, double now_ms, double ms);

  int sets() const { return sets_; }

 private:
  void finish(CostModel& cost_model, double now_ms);

  std::array<double, CostModel::kRows.size()> least_{};
  size_t sizes_ = 0, at_ = 0;  // of this set; the size whose turn it is
  int sweep_ = 0, history_ = 0, sets_ = 0;
  double due_ms_ = 0, gap_ms_ = kFirstGapMs;
};

}  // namespace sx
