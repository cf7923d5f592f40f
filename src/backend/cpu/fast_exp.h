// An exponential that loops over rows can be vectorised with.
#pragma once
#include <stdint.h>

namespace sx::cpu {

// e^x for x in [-87, 87] (clamped), relative error about 1e-7; branch-free so that loops over it vectorise. It has no
// linkage: files compiled for different instruction sets include it. They are compiled without jump threading, with
// which g++ also divides every value by the constant 1 + e^87: the result is no normal number, for which x86 needs some
// 150 cycles.
[[maybe_unused]] static inline __attribute__((always_inline)) float fast_exp(float x) {
  x = x < -87.0f ? -87.0f : x;
  x = x > 87.0f ? 87.0f : x;
  const float t = x * 1.44269504088896f, magic = 12582912.0f;
  const float r = t + magic, n = r - magic;
  const float f = (x - n * 0.693145751953125f) - n * 1.42860682030941723e-06f;  // x - n ln 2 in two parts
  float p = 1.0f / 5040;
  p = p * f + 1.0f / 720;
  p = p * f + 1.0f / 120;
  p = p * f + 1.0f / 24;
  p = p * f + 1.0f / 6;
  p = p * f + 0.5f;
  p = p * f + 1.0f;
  p = p * f + 1.0f;
  const int32_t exponent = static_cast<int32_t>(__builtin_bit_cast(uint32_t, r) << 23);
  return __builtin_bit_cast(float, __builtin_bit_cast(int32_t, p) + exponent);
}

}  // namespace sx::cpu
