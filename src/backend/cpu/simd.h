// A vector of floats as wide as the instruction set of the including translation unit, with the few operations that
// float kernels need. Every operation has one fixed order, so its bits depend on its inputs only (they do differ
// between sets).
//
// Before including, define SX_ISA_NAMESPACE (e.g. `#define SX_ISA_NAMESPACE neon_i8mm`): the same source is compiled
// with different flags, so everything lives in sx::cpu::SX_ISA_NAMESPACE and nothing may be shared by the linker.
// Define SX_SIMD_GENERIC to get the portable version on any machine. Deliberately free of standard library templates.
#pragma once
#include <stdint.h>
#include <string.h>

#ifndef SX_ISA_NAMESPACE
#error "define SX_ISA_NAMESPACE before including backend/cpu/simd.h"
#endif

#if defined(SX_SIMD_GENERIC)
#define SX_SIMD_LANES 4
#elif defined(__AVX512F__)
#define SX_SIMD_AVX512 1
#define SX_SIMD_LANES 16
#include <immintrin.h>
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SX_SIMD_AVX2 1
#define SX_SIMD_LANES 8
#include <immintrin.h>
#elif defined(__aarch64__)
#define SX_SIMD_NEON 1
#define SX_SIMD_LANES 4
#include <arm_neon.h>
#else
#define SX_SIMD_GENERIC 1
#define SX_SIMD_LANES 4
#endif

#define SX_INLINE static inline __attribute__((always_inline, unused))

namespace sx::cpu::SX_ISA_NAMESPACE {

inline constexpr int kLanes = SX_SIMD_LANES;

// ---- scalar conversions, bit for bit those of tensor/half.h (which must not be instantiated under other flags) --------
SX_INLINE uint32_t float_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}
SX_INLINE float bits_float(uint32_t u) {
  float x;
  memcpy(&x, &u, 4);
  return x;
}
SX_INLINE float scalar_bf16(uint16_t h) { return bits_float(uint32_t(h) << 16); }
SX_INLINE float scalar_f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 31) return bits_float(sign | 0x7f800000u | (mantissa << 13));
  if (exponent) return bits_float(sign | ((exponent + 112) << 23) | (mantissa << 13));
  return bits_float(sign | float_bits(static_cast<float>(mantissa) * 5.9604644775390625e-08f));
}
SX_INLINE uint16_t scalar_to_bf16(float x) {
  const uint32_t u = float_bits(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}
SX_INLINE uint16_t scalar_to_f16(float x) {
  const uint32_t u = float_bits(x), a = u & 0x7fffffffu;
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);
  if (a >= 0x38800000u) return uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
  return uint16_t(sign | (float_bits(bits_float(a) + 0.5f) - 0x3f000000u));
}

// ---- the vector ------------------------------------------------------------------------------------------------------
// load/store need no alignment. fma(a, b, c) = a * b + c, rounded once (generic: rounded twice). max and min: if either
// operand is NaN the result is unspecified. reduce_*: halves folded onto each other until one lane is left. Four: four
// neighbouring floats whose i-th is multiplied with a vector: fma_at<i>(a, x, c) = a * x[i] + c. max_number(x, y): the
// larger, y where x is NaN (y must not be). scale2(x, n) = x * 2^n for integral n in [-126, 127]. add_exponent(x, w):
// the same with n in the last bits of w, as they are when w = n + 1.5 * 2^23; x and the result are normal numbers.
// select_ge(x, y, a, b): per lane x >= y ? a : b (NaN: b).
#if defined(SX_SIMD_NEON)

using Vec = float32x4_t;
SX_INLINE Vec load(const float* p) { return vld1q_f32(p); }
SX_INLINE void store(float* p, Vec x) { vst1q_f32(p, x); }
SX_INLINE Vec set1(float x) { return vdupq_n_f32(x); }
SX_INLINE Vec zero() { return vdupq_n_f32(0); }
SX_INLINE Vec add(Vec a, Vec b) { return vaddq_f32(a, b); }
SX_INLINE Vec sub(Vec a, Vec b) { return vsubq_f32(a, b); }
SX_INLINE Vec mul(Vec a, Vec b) { return vmulq_f32(a, b); }
SX_INLINE Vec div(Vec a, Vec b) { return vdivq_f32(a, b); }
SX_INLINE Vec fma(Vec a, Vec b, Vec c) { return vfmaq_f32(c, a, b); }
using Four = float32x4_t;
SX_INLINE Four load_four(const float* p) { return vld1q_f32(p); }
template <int i>
SX_INLINE Vec fma_at(Vec a, Four x, Vec c) {
  return vfmaq_laneq_f32(c, a, x, i);
}
SX_INLINE Vec max(Vec a, Vec b) { return vmaxq_f32(a, b); }
SX_INLINE Vec min(Vec a, Vec b) { return vminq_f32(a, b); }
SX_INLINE Vec max_number(Vec x, Vec y) { return vmaxnmq_f32(x, y); }
SX_INLINE Vec abs(Vec a) { return vabsq_f32(a); }
SX_INLINE Vec round(Vec a) { return vrndnq_f32(a); }  // to nearest, ties to even
SX_INLINE Vec scale2(Vec x, Vec n) {
  const int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
  return vmulq_f32(x, vreinterpretq_f32_s32(power));
}
SX_INLINE Vec add_exponent(Vec x, Vec w) {
  const uint32x4_t power = vshlq_n_u32(vreinterpretq_u32_f32(w), 23);
  return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(x), power));
}
SX_INLINE Vec select_ge(Vec x, Vec y, Vec a, Vec b) { return vbslq_f32(vcgeq_f32(x, y), a, b); }
SX_INLINE float reduce_add(Vec x) {
  const float32x2_t h = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(h, 0) + vget_lane_f32(h, 1);
}
SX_INLINE float reduce_max(Vec x) { return vmaxvq_f32(x); }
SX_INLINE Vec load_f16(const uint16_t* p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
SX_INLINE Vec load_bf16(const uint16_t* p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }
SX_INLINE Vec load_i8(const int8_t* p) {
  uint32_t four;
  memcpy(&four, p, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_u32(vdup_n_u32(four))))));
}

#elif defined(SX_SIMD_AVX2)

using Vec = __m256;
SX_INLINE Vec load(const float* p) { return _mm256_loadu_ps(p); }
SX_INLINE void store(float* p, Vec x) { _mm256_storeu_ps(p, x); }
SX_INLINE Vec set1(float x) { return _mm256_set1_ps(x); }
SX_INLINE Vec zero() { return _mm256_setzero_ps(); }
SX_INLINE Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
SX_INLINE Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
SX_INLINE Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
SX_INLINE Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
SX_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
SX_INLINE Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
SX_INLINE Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
SX_INLINE Vec max_number(Vec x, Vec y) { return _mm256_max_ps(x, y); }  // y if either is NaN
SX_INLINE Vec abs(Vec a) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a); }
SX_INLINE Vec round(Vec a) { return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SX_INLINE Vec scale2(Vec x, Vec n) {
  const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_mul_ps(x, _mm256_castsi256_ps(power));
}
SX_INLINE Vec add_exponent(Vec x, Vec w) {
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(w), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), power));
}
SX_INLINE Vec select_ge(Vec x, Vec y, Vec a, Vec b) { return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, y, _CMP_GE_OQ)); }
SX_INLINE float reduce_add(Vec x) {
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
SX_INLINE float reduce_max(Vec x) {
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
SX_INLINE Vec load_f16(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
SX_INLINE Vec load_bf16(const uint16_t* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
SX_INLINE Vec load_i8(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

#elif defined(SX_SIMD_AVX512)

using Vec = __m512;
SX_INLINE Vec load(const float* p) { return _mm512_loadu_ps(p); }
SX_INLINE void store(float* p, Vec x) { _mm512_storeu_ps(p, x); }
SX_INLINE Vec set1(float x) { return _mm512_set1_ps(x); }
SX_INLINE Vec zero() { return _mm512_setzero_ps(); }
SX_INLINE Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
SX_INLINE Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
SX_INLINE Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
SX_INLINE Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
SX_INLINE Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
SX_INLINE Vec max(Vec a, Vec b) { return _mm512_maskz_max_ps(0xffff, a, b); }         // the plain forms trip g++ 12's
SX_INLINE Vec min(Vec a, Vec b) { return _mm512_maskz_min_ps(0xffff, a, b); }         // -Wmaybe-uninitialized
SX_INLINE Vec max_number(Vec x, Vec y) { return _mm512_maskz_max_ps(0xffff, x, y); }  // y if either is NaN
SX_INLINE Vec abs(Vec a) {
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(a), _mm512_set1_epi32(0x7fffffff)));
}
SX_INLINE Vec round(Vec a) {
  return _mm512_maskz_roundscale_ps(0xffff, a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
SX_INLINE Vec scale2(Vec x, Vec n) { return _mm512_maskz_scalef_ps(0xffff, x, n); }
SX_INLINE Vec add_exponent(Vec x, Vec w) {
  const __m512i power = _mm512_maskz_slli_epi32(0xffff, _mm512_castps_si512(w), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), power));
}
SX_INLINE Vec select_ge(Vec x, Vec y, Vec a, Vec b) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, y, _CMP_GE_OQ), b, a);
}
SX_INLINE __m256 lower_half(Vec x) {
  return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(x), 0));
}
SX_INLINE __m256 upper_half(Vec x) {
  return _mm256_castpd_ps(_mm512_maskz_extractf64x4_pd(0xf, _mm512_castps_pd(x), 1));
}
SX_INLINE float reduce_add(Vec x) {
  const __m256 q = _mm256_add_ps(lower_half(x), upper_half(x));
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}
SX_INLINE float reduce_max(Vec x) {
  const __m256 q = _mm256_max_ps(lower_half(x), upper_half(x));
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(q), _mm256_extractf128_ps(q, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}
SX_INLINE Vec load_f16(const uint16_t* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
SX_INLINE Vec load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
}
SX_INLINE Vec load_i8(const int8_t* p) {
  const __m512i wide = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return _mm512_maskz_cvtepi32_ps(0xffff, wide);
}

#else

struct Vec {
  float v[kLanes];
};
#define SX_LANES(expression)                              \
  Vec r;                                                  \
  for (int i = 0; i < kLanes; ++i) r.v[i] = (expression); \
  return r
SX_INLINE Vec load(const float* p) { SX_LANES(p[i]); }
SX_INLINE void store(float* p, Vec x) {
  for (int i = 0; i < kLanes; ++i) p[i] = x.v[i];
}
SX_INLINE Vec set1(float x) { SX_LANES(x); }
SX_INLINE Vec zero() { SX_LANES(0.0f); }
SX_INLINE Vec add(Vec a, Vec b) { SX_LANES(a.v[i] + b.v[i]); }
SX_INLINE Vec sub(Vec a, Vec b) { SX_LANES(a.v[i] - b.v[i]); }
SX_INLINE Vec mul(Vec a, Vec b) { SX_LANES(a.v[i] * b.v[i]); }
SX_INLINE Vec div(Vec a, Vec b) { SX_LANES(a.v[i] / b.v[i]); }
SX_INLINE Vec fma(Vec a, Vec b, Vec c) { SX_LANES(a.v[i] * b.v[i] + c.v[i]); }
SX_INLINE Vec max(Vec a, Vec b) { SX_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
SX_INLINE Vec min(Vec a, Vec b) { SX_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
SX_INLINE Vec max_number(Vec x, Vec y) { SX_LANES(x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
SX_INLINE Vec abs(Vec a) { SX_LANES(bits_float(float_bits(a.v[i]) & 0x7fffffffu)); }
SX_INLINE Vec round(Vec a) { SX_LANES(__builtin_rintf(a.v[i])); }
SX_INLINE Vec scale2(Vec x, Vec n) { SX_LANES(x.v[i] * bits_float(uint32_t(int32_t(n.v[i]) + 127) << 23)); }
SX_INLINE Vec add_exponent(Vec x, Vec w) { SX_LANES(bits_float(float_bits(x.v[i]) + (float_bits(w.v[i]) << 23))); }
SX_INLINE Vec select_ge(Vec x, Vec y, Vec a, Vec b) { SX_LANES(x.v[i] >= y.v[i] ? a.v[i] : b.v[i]); }
SX_INLINE float reduce_add(Vec x) { return (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]); }
SX_INLINE float reduce_max(Vec x) {
  const float a = x.v[0] > x.v[2] ? x.v[0] : x.v[2], b = x.v[1] > x.v[3] ? x.v[1] : x.v[3];
  return a > b ? a : b;
}
SX_INLINE Vec load_f16(const uint16_t* p) { SX_LANES(scalar_f16(p[i])); }
SX_INLINE Vec load_bf16(const uint16_t* p) { SX_LANES(scalar_bf16(p[i])); }
SX_INLINE Vec load_i8(const int8_t* p) { SX_LANES(static_cast<float>(p[i])); }
#undef SX_LANES

#endif

#if !defined(SX_SIMD_NEON)
using Four = const float*;  // broadcasting from memory costs these sets nothing
SX_INLINE Four load_four(const float* p) { return p; }
template <int i>
SX_INLINE Vec fma_at(Vec a, Four x, Vec c) {
  return fma(a, set1(x[i]), c);
}
#endif

// ---- in terms of the above -------------------------------------------------------------------------------------------
// e^x, relative error below 3e-7 on [-87.3, 88]; exactly 0 below (also for -infinity), e^88 above; NaN gives 0.
SX_INLINE Vec exp(Vec x) {
  const Vec y = min(x, set1(88.0f));
  const Vec low = max(y, set1(-87.3f));
  const Vec n = round(mul(low, set1(1.44269504f)));
  const Vec r = fma(n, set1(-1.42860677e-6f), fma(n, set1(-0.693145752f), low));  // ln 2 in two parts
  Vec p = set1(1.0f / 720);
  p = fma(p, r, set1(1.0f / 120));
  p = fma(p, r, set1(1.0f / 24));
  p = fma(p, r, set1(1.0f / 6));
  p = fma(p, r, set1(0.5f));
  p = fma(p, r, set1(1.0f));
  p = fma(p, r, set1(1.0f));
  return select_ge(x, set1(-87.3f), scale2(p, n), zero());
}

}  // namespace sx::cpu::SX_ISA_NAMESPACE
