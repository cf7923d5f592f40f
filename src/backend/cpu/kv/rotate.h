// Rotation of one head by a row of (cos, sin) pairs, in either style of pairing.
#pragma once
#include "tensor/rope_style.h"

namespace sx::cpu {

// x: the head; the first `dims` elements are rotated. table: [dims / 2][cos, sin].
inline void rotate(float* x, const float* table, int dims, RopeStyle style) {
  const int half = dims / 2, step = style == RopeStyle::kHalves ? 1 : 2, gap = style == RopeStyle::kHalves ? half : 1;
  for (int i = 0; i < half; ++i) {
    const float c = table[2 * i], s = table[2 * i + 1], a = x[i * step], b = x[i * step + gap];
    x[i * step] = a * c - b * s;
    x[i * step + gap] = a * s + b * c;
  }
}

}  // namespace sx::cpu
