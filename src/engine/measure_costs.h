// Times passes of the target when an engine opens, for the cost model that decides how much is drafted.
#pragma once
#include "engine/speculation.h"

namespace sx {

// Where costs are measured for trees of `rows` rows: passes of up to `most` rows, on an empty cache and behind `far`
// cells (0: only empty).
struct CostRange {
  int most, far;
};
CostRange cost_range(const SpeculationParts& parts, int rows);
// Times one pass of `rows` rows behind the first `history` cells of a slot. What those behind them hold is lost.
double time_pass(const SpeculationParts& parts, SeqId seq, int rows, int history);
// Times passes of the target of up to `rows` rows, in slot 0, which nobody uses yet.
void measure_costs(const SpeculationParts& parts, int rows);

}  // namespace sx
