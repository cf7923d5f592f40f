// The loop of the x86-64 peaks: kChains independent accumulators (as many as fit beside the operands), each the input
// of its own next step, so that nothing can be moved out of the loop. Included in the namespace of one instruction set.
constexpr int kRounds = 40000;

template <int kChains, class Step>
double burn(Step step, double operations) {
  decltype(Step::zero()) acc[kChains];
#pragma GCC unroll 32
  for (int i = 0; i < kChains; ++i) {
    acc[i] = Step::zero();
    asm volatile("" : "+v"(acc[i]));  // else equal chains become one
  }
  for (int n = 0; n < kRounds; ++n) {
#pragma GCC unroll 32
    for (int i = 0; i < kChains; ++i) acc[i] = step(acc[i]);
  }
#pragma GCC unroll 32
  for (int i = 0; i < kChains; ++i) asm volatile("" ::"v"(acc[i]));
  return operations * kChains * kRounds;
}
