#include "spec/controller.h"

#include <algorithm>

namespace sx {
namespace {

constexpr double kForget = 0.95;     // of the sums behind trust, per drafted round
constexpr double kLearn = 0.15;      // weight of a round in the running gain
constexpr double kStart = 1.1;       // gain assumed after a pause: a few poor rounds end the trial
constexpr int kLongestPause = 64;    // rounds

}  // namespace

bool Controller::draft_now() {
  if (pause_ == 0) return true;
  --pause_;
  return false;
}

void Controller::observe(double expected, int accepted, double gain) {
  sum_expected_ = 4 + kForget * (sum_expected_ - 4) + expected;  // four tokens kept as hoped for: trust recovers by itself
  sum_accepted_ = 4 + kForget * (sum_accepted_ - 4) + accepted;
  trust_ = std::clamp(sum_accepted_ / sum_expected_, 0.05, 1.5);
  gain_ += kLearn * (gain - gain_);
  if (gain_ >= 1) {
    next_pause_ = std::max(4, next_pause_ - (gain_ > 1.05 ? 1 : 0));
    return;
  }
  pause_ = next_pause_;
  next_pause_ = std::min(2 * next_pause_, kLongestPause);
  gain_ = kStart;
}

}  // namespace sx
