// Parts of quantise_search: runs of 32 values as scale * code + offset with codes 0..15, and the Q4_K block made of
// eight such runs whose scales and offsets are 6-bit multiples of two shared numbers.
#pragma once
#include <cstdint>

namespace sx {

struct AffineRun {
  float scale = 0, offset = 0;
};

// The best scale and offset found for x[32]; `below_zero`: the offset may not be positive, nor the scale negative (Q4_K
// stores both without a sign). Judged with both rounded to 16 bits unless below_zero (which is rounded elsewhere).
AffineRun search_affine(const float* x, bool below_zero);
// Codes of x[32] nearest to scale * code + offset; returns the squared error.
float code_affine(const float* x, float scale, float offset, int8_t* code);
// x[256] -> one BlockQ4_K at `out`. `largest`: the largest magnitude, not zero.
void search_q4_k(const float* x, float largest, void* out);

}  // namespace sx
