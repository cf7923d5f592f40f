// Exponential and logarithm with the same bits on every machine, the host's and a device's: what a draft's tree looks
// like hangs on comparisons of what they give, and both must decide alike. Fused multiply-adds in a fixed order; within
// an ulp or two of the true value.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "base/rng.h"

#ifdef __CUDACC__
#define SX_HOST_DEVICE __host__ __device__
#else
#define SX_HOST_DEVICE
#endif

namespace sx {

// e^x for x <= 0. 0 below -700 and for what is not a number.
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

// ln x for normal x > 0. -infinity for anything smaller, and for what is not a number.
SX_HOST_DEVICE inline double fixed_log(double x) {
  if (!(x >= 0x1p-1022)) return -INFINITY;
  int64_t bits;
  memcpy(&bits, &x, sizeof bits);
  int64_t exponent = (bits >> 52) - 1023;
  bits = (bits & 0x000fffffffffffff) | 0x3ff0000000000000;  // x = 2^exponent m, 1 <= m < 2
  double m;
  memcpy(&m, &bits, sizeof m);
  if (m > 1.4142135623730951) m *= 0.5, exponent += 1;
  const double f = m - 1, s = f / (f + 2), z = s * s,
               twice = 2 * s;  // ln m = 2 (s + s^3 / 3 + s^5 / 5 + ...), |s| < 0.172
  double p = 1.0 / 23;
  p = fma(p, z, 1.0 / 21);
  p = fma(p, z, 1.0 / 19);
  p = fma(p, z, 1.0 / 17);
  p = fma(p, z, 1.0 / 15);
  p = fma(p, z, 1.0 / 13);
  p = fma(p, z, 1.0 / 11);
  p = fma(p, z, 1.0 / 9);
  p = fma(p, z, 1.0 / 7);
  p = fma(p, z, 1.0 / 5);
  p = fma(p, z, 1.0 / 3);
  const double tail = twice * z, n = double(exponent);
  return fma(n, 0.693147180369123816490, fma(n, 1.90821492927058770002e-10, fma(tail, p, twice)));
}

// gumbel() of base/rng.h, as near as makes no difference to a guess.
SX_HOST_DEVICE inline double fixed_gumbel(uint64_t seed, uint64_t position, uint64_t token) {
  return -fixed_log(-fixed_log(uniform_from(hash_key(seed, position, token))));
}

}  // namespace sx
