// Whether a request should draft at all: drafting pauses when it has not paid lately and is tried again after ever longer
// pauses. Also how far the drafter's own probabilities can be trusted.
#pragma once

namespace sx {

class Controller {
 public:
  // True: draft in this round.
  bool draft_now();
  // Accepted tokens per token the drafter expected to be accepted, lately.
  double trust() const { return trust_; }
  // A round that drafted. `expected`: sum of the path probabilities of the verified nodes; `gain`: tokens of the round in the
  // time plain decoding would have needed for them, over the time it took.
  void observe(double expected, int accepted, double gain);

 private:
  double gain_ = 1.1, trust_ = 1;
  double sum_expected_ = 4, sum_accepted_ = 4;
  int pause_ = 0, next_pause_ = 4;
};

}  // namespace sx
