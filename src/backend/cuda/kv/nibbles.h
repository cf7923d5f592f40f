// The cells of packed stores (see views.h): one side, K or V, of one head of one cell, as 4-byte words of
//   BF16, F16   two neighbours
//   Q8_0        four neighbours; apart from them one f16 scale per 32 elements
//   Q4_0, Q4_1  eight neighbours, the first in the lowest bits; apart from them per 32 elements one f16 scale (Q4_0: value
//               scale * (code - 8)), or a scale and the least value (Q4_1: scale * code + least)
// and the arithmetic of codes of 4 bits, which is that of tensor/quantise.cc bit for bit. The host compiles all of it,
// too: tests/backend/nibbles_test.cc holds it against tensor/.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tensor/dtype.h"
#include "tensor/half.h"

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#define SX_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define SX_HOST_DEVICE inline
#endif

namespace sx::cuda {

SX_HOST_DEVICE constexpr bool is_nibbles(DType type) { return type == DType::kQ4_0 || type == DType::kQ4_1; }
// Elements of a word.
SX_HOST_DEVICE constexpr int per_word(DType type) { return is_nibbles(type) ? 8 : type == DType::kQ8_0 ? 4 : 2; }
// Words of a head of `dim` elements, a multiple of 32, and f16 numbers that lie apart from them.
SX_HOST_DEVICE constexpr int side_words(DType type, int dim) { return dim / per_word(type); }
SX_HOST_DEVICE constexpr int side_scales(DType type, int dim) {
  return type == DType::kQ4_1 ? dim / 16 : type == DType::kQ4_0 || type == DType::kQ8_0 ? dim / 32 : 0;
}
// Where the scale of word `word` lies among them; that of Q4_1 has the least value behind it.
SX_HOST_DEVICE constexpr int scale_of_word(DType type, int word) {
  const int block = word * per_word(type) / 32;
  return type == DType::kQ4_1 ? 2 * block : block;
}

// No compiler may contract these.
SX_HOST_DEVICE float product_of(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
SX_HOST_DEVICE float sum_of(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
SX_HOST_DEVICE float quotient_of(float a, float b) {
#if defined(__CUDA_ARCH__)
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
SX_HOST_DEVICE float widened_half(uint16_t bits) {
#if defined(__CUDA_ARCH__)
  return __half2float(__ushort_as_half(bits));
#else
  return f16_to_float(bits);
#endif
}

// The value of a code of 4 bits.
SX_HOST_DEVICE float nibble_value(DType type, unsigned code, float scale, float least) {
  if (type == DType::kQ4_0) return product_of(scale, float(int(code) - 8));
  return sum_of(product_of(scale, float(code)), least);
}

// The elements of a word. least: of Q4_1.
SX_HOST_DEVICE void widen_word(DType type, uint32_t word, float scale, float least, float* out) {
  if (is_nibbles(type)) {
    for (int i = 0; i < 8; ++i) out[i] = nibble_value(type, word >> (4 * i) & 15u, scale, least);
  } else if (type == DType::kQ8_0) {
    for (int i = 0; i < 4; ++i) out[i] = product_of(scale, float(int8_t(uint8_t(word >> (8 * i)))));
  } else if (type == DType::kF16) {
    out[0] = widened_half(uint16_t(word)), out[1] = widened_half(uint16_t(word >> 16));
  } else {
    const uint32_t bits[2] = {word << 16, word & 0xffff0000u};
    memcpy(out, bits, sizeof bits);
  }
}

// How the elements of a block become codes. Q4_0 knows the signed value of the largest magnitude, the first of equals,
// which becomes -8; Q4_1 the smallest and the largest value.
struct NibbleScale {
  float scale, inverse, least;
};
SX_HOST_DEVICE NibbleScale scaled_by(float scale, float least) {
  float inverse = scale == 0 ? 0.0f : quotient_of(1.0f, scale);
  if (inverse - inverse != 0) inverse = 0;  // infinite or NaN
  return {scale, inverse, least};
}
SX_HOST_DEVICE NibbleScale nibble_scale_q4_0(float extreme) { return scaled_by(quotient_of(extreme, -8.0f), 0); }
SX_HOST_DEVICE NibbleScale nibble_scale_q4_1(float low, float high) {
  return scaled_by(quotient_of(sum_of(high, -low), 15.0f), low);
}
// The product with the inverse is exact in double, so it does not matter whether a compiler fuses it with the sum.
SX_HOST_DEVICE unsigned nibble_code(DType type, float x, const NibbleScale& s) {
  const double value = type == DType::kQ4_0 ? double(x) * double(s.inverse) + 8.5
                                            : double(sum_of(product_of(sum_of(x, -s.least), s.inverse), 0.5f));
  if (!(value > 0)) return 0;
  return value < 15 ? unsigned(int(value)) : 15u;
}

}  // namespace sx::cuda
