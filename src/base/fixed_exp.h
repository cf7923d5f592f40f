// e^x for x <= 0 with the same bits on every machine, the host's and a device's: sums of probabilities decide how a draft's tree
// grows, and both must decide alike. Fused multiply-adds in a fixed order; within an ulp or two of the true value.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SX_HOST_DEVICE __host__ __device__
#else
#define SX_HOST_DEVICE
#endif

namespace sx {

// 0 below -700 and for what is not a number.
SX_HOST_DEVICE inline double fixed_exp(double x) {
  if (!(x >= -700)) return 0;
  const double n = floor(fma(x, 1.4426950408889634, 0.5));  // x = n ln 2 + r, |r| <= 0.35
  double r = fma(n, -0.693147180369123816490, x);           // the upper bits of ln 2: exact
  r = fma(n, -1.90821492927058770002e-10, r);
  double p = 1.0 / 6227020800;  // 1/13!, and on to 1/0!
  p = fma(p, r, 1.0 / 479001600);
  p = fma(p, r, 1.0 / 39916800);
  p = fma(p, r, 1.0 / 3628800);
  p = fma(p, r, 1.0 / 362880);
  p = fma(p, r, 1.0 / 40320);
  p = fma(p, r, 1.0 / 5040);
  p = fma(p, r, 1.0 / 720);
  p = fma(p, r, 1.0 / 120);
  p = fma(p, r, 1.0 / 24);
  p = fma(p, r, 1.0 / 6);
  p = fma(p, r, 0.5);
  p = fma(p, r, 1.0);
  p = fma(p, r, 1.0);
  const int64_t bits = (int64_t(n) + 1023) << 52;  // 2^n, n from -1010 to 0
  double power;
  memcpy(&power, &bits, sizeof power);
  return p * power;
}

}  // namespace sx
