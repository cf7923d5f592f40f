// The two inner loops over a row of logits, one set of them per instruction set: the largest of each group, and the sum
// of exponentials. Both take a slab: up to kSlab values, of which group j has x[j], x[j + 16], x[j + 32], ...
#pragma once
#include "backend/cpu/isa.h"

namespace sx::cpu {

inline constexpr int kSlab = 1024, kGroups = 16;

struct RowKernels {
  // maxima[kGroups]: the largest of each group; NaN is never it, and without any other value it is -infinity.
  void (*find_maxima)(const float* x, int count, float* maxima);
  // The sum of e^(x - top) for a finite top that no x exceeds, relative error below 3e-6; NaN and -infinity add
  // nothing. Each group has its own partial sum, so the bits depend on the slab only.
  float (*sum_powers)(const float* x, int count, float top);
};

const RowKernels& row_kernels(Isa isa);

}  // namespace sx::cpu
