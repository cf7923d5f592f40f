// Softmax in base 2 over scores in registers, in the accumulator layout that mma.sync and wgmma share: element
// 4 j + 2 r + e of a thread is row lane / 4 + 8 r, column 8 j + 2 * (lane % 4) + e.
#pragma once
#include <cstdint>

namespace sx::cuda {

__device__ __forceinline__ float minus_infinity() { return __int_as_float(int(0xff800000)); }

__device__ __forceinline__ float exp2_fast(float x) {  // 2^-inf = 0, 2^0 = 1 exactly
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

inline constexpr float kLog2E = 1.4426950408889634f;

// A score in log2 units, softly capped: limit * tanh(x / limit), where limit = cap * log2(e) and tanh is
// (1 - e) / (1 + e) with e = 2^(-2 |x| / cap). It depends on the score alone.
__device__ __forceinline__ float cap_score(float x, float cap) {
  const float e = exp2_fast(__fmul_rn(fabsf(x), __fdiv_rn(-2.f, cap)));
  const float y = __fmul_rn(__fmul_rn(cap, kLog2E), __fdiv_rn(__fsub_rn(1.f, e), __fadd_rn(1.f, e)));
  return copysignf(y, x);
}
template <int n>
__device__ __forceinline__ void cap_scores(float (&s)[n], float cap) {
#pragma unroll
  for (int i = 0; i < n; i++) s[i] = cap_score(s[i], cap);
}

// A sink joins the sum of the softmax of a row whose maximum is m (log2 units); the output has to be multiplied by the
// factor that is returned.
__device__ __forceinline__ float add_sink(float m, float& l, float sink) {
  const float own = __fmul_rn(sink, kLog2E), top = fmaxf(m, own), factor = exp2_fast(__fsub_rn(m, top));
  l = __fmaf_rn(l, factor, exp2_fast(__fsub_rn(own, top)));
  return factor;
}

// Two floats as 16-bit values in one register, `low` in the low half. f16 saturates: an infinity would meet weights of
// 0.
template <bool bf16>
__device__ __forceinline__ uint32_t pack2(float low, float high) {
  uint32_t y;
  if constexpr (bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  } else {
    low = fminf(fmaxf(low, -65504.f), 65504.f);
    high = fminf(fmaxf(high, -65504.f), 65504.f);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  }
  return y;
}

// For values known not to be too large.
template <bool bf16>
__device__ __forceinline__ uint32_t pack2_weights(float low, float high) {
  uint32_t y;
  if constexpr (bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  }
  return y;
}

// What was packed, the low half first.
template <bool bf16>
__device__ __forceinline__ float2 unpack2(uint32_t x) {
  if constexpr (bf16) {
    return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
  } else {
    float2 y;
    asm("{\n.reg .b16 l, h;\nmov.b32 {l, h}, %2;\ncvt.f32.f16 %0, l;\ncvt.f32.f16 %1, h;\n}\n"
        : "=f"(y.x), "=f"(y.y)
        : "r"(x));
    return y;
  }
}

// The maximum and the sum over the four threads that share a row of an accumulator; all four get the same bits.
__device__ __forceinline__ float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float quad_sum(float x) {
  x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

// One step of the online softmax over a tile's scores in the same layout. s becomes weights, `most` and `sum` go on
// (the sum is this thread's part), and factor is what the output so far is to be multiplied by.
template <int n>
__device__ __forceinline__ void softmax_step(float (&s)[n], float (&most)[2], float (&sum)[2], float (&factor)[2]) {
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float even = s[2 * r], odd = s[2 * r + 1];
#pragma unroll
    for (int j = 1; j < n / 4; j++) {
      even = fmaxf(even, s[4 * j + 2 * r]);
      odd = fmaxf(odd, s[4 * j + 2 * r + 1]);
    }
    const float now = fmaxf(most[r], quad_max(fmaxf(even, odd)));
    const float base = now == minus_infinity() ? 0.f : now;  // nothing visible yet: all weights 0, not NaN
    factor[r] = exp2_fast(__fsub_rn(most[r], base));
    most[r] = now;
    even = odd = 0.f;
#pragma unroll
    for (int j = 0; j < n / 4; j++) {
      const float a = exp2_fast(__fsub_rn(s[4 * j + 2 * r], base));
      const float b = exp2_fast(__fsub_rn(s[4 * j + 2 * r + 1], base));
      s[4 * j + 2 * r] = a;
      s[4 * j + 2 * r + 1] = b;
      even = __fadd_rn(even, a);
      odd = __fadd_rn(odd, b);
    }
    sum[r] = __fmaf_rn(sum[r], factor[r], __fadd_rn(even, odd));
  }
}

}  // namespace sx::cuda
