// The running average of a duration. Other work on the machine makes a pass slower, never faster: a faster observation
// counts more, and a slower one counts as at most twice as slow as expected.
#pragma once
#include <algorithm>

namespace sx {

class Average {
 public:
  static constexpr double kLearn = 0.1, kLearnFaster = 0.4;  // weight of one observation, and of a faster one

  void add(double seen) {
    const double weight = seen < value_ ? kLearnFaster : kLearn;
    value_ = value_ == 0 ? seen : value_ + weight * (std::min(seen, 2 * value_) - value_);
  }
  void restart(double seen) { value_ = seen; }
  // 0: nothing has been observed.
  operator double() const { return value_; }

 private:
  double value_ = 0;
};

}  // namespace sx
