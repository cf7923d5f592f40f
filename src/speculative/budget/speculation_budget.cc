#include "speculative/budget/speculation_budget.h"

#include <algorithm>

namespace sx {
namespace {

constexpr double kShare = 0.015;  // of the time, for trying
constexpr double kMost = 4;       // plain steps; what was earned long ago is not spent on what does not pay now
constexpr double kForget = 0.95;  // of the sums behind confidence, per drafted round
constexpr double kLearn = 0.2;    // weight of a round in the cost of drafting

}  // namespace

int SpeculationBudget::depth_within_budget(int deepest, double level, double node) const {
  return level > 0 ? int(std::clamp((balance_ - node) / level, 0.0, double(deepest))) : 0;
}

void SpeculationBudget::plain_round() { balance_ = std::min(kMost, balance_ + kShare); }

void SpeculationBudget::drafted_round(double expected, int accepted, double drafting, double verifying, bool whole) {
  balance_ = std::min(kMost, balance_ + kShare + accepted + 1 - drafting - verifying);
  missed_ = accepted == 0;
  if (drafting > 0 && whole)
    draft_cost_ = draft_cost_ == 0 ? drafting : draft_cost_ + kLearn * (drafting - draft_cost_);
  sum_expected_ = 4 + kForget * (sum_expected_ - 4) + expected;  // four tokens as expected stay, so confidence recovers
  sum_accepted_ = 4 + kForget * (sum_accepted_ - 4) + accepted;
  confidence_ = std::clamp(sum_accepted_ / sum_expected_, 0.05, 1.5);
}

}  // namespace sx
