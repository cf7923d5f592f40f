// Parts of quantise_search: runs of 32 values as scale * code + offset with codes 0..15, and the Q4_K block made of
// eight such runs whose scales and offsets are 6-bit multiples of two shared numbers.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>

namespace sx {

// Partial sums of a run, so that loops over it become vectors without any change of order.
constexpr size_t kLanes = 8;
inline double sum_lanes(const float (&part)[kLanes]) {
  double sum = 0;
  for (const float value : part) sum += static_cast<double>(value);
  return sum;
}

// Nearest whole number, ties to even, of |x| < 2^22: what is below the last bit of the large number is rounded away.
inline float nearest_small(float x) { return (x + 12582912.0f) - 12582912.0f; }

// 1 / d, or 0 where that is no finite number.
inline float inverse_or_zero(float d) {
  const float inverse = d == 0 ? 0 : 1 / d;
  return std::isfinite(inverse) ? inverse : 0;
}

struct AffineRun {
  float scale = 0, offset = 0;
};

// The best scale and offset found for x[32]; `below_zero`: the offset may not be positive, nor the scale negative (Q4_K
// stores both without a sign). Measured with both rounded to 16 bits unless below_zero (which is rounded elsewhere).
AffineRun search_affine(const float* x, bool below_zero);
// Codes of x[32] nearest to scale * code + offset.
void code_affine(const float* x, float scale, float offset, int8_t* code);
// x[256] -> one BlockQ4_K at `out`. `largest`: the largest magnitude, not zero.
void search_q4_k(const float* x, float largest, void* out);

}  // namespace sx
