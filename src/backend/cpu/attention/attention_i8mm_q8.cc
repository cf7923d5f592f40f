// q8 attention with smmla (K) and usmmla (V), neon-i8mm level. A position's scale covers its whole head vector. Queries
// are quantised per row; the weights of a block become unsigned bytes against their own maximum, after the scales of V
// have gone into them. Integer sums are exact, so the order inside a block does not matter; between blocks it is fixed.
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/kv/score_kernels.h"

namespace sx::cpu::neon_i8mm {
namespace {

#include "backend/cpu/attention/attention_i8mm.inl"

// Integer accumulators start at the bits of 1.5 * 2^23: reread as float and minus that number, a sum under 2^22 is
// converted exactly without scvtf (half the rate of fsub). 256 * 127 * 127 < 2^22 and 64 * 255 * 127 < 2^22.
constexpr int kMagicBits = 0x4B400000;
inline float32x4_t as_float(int32x4_t x) { return vsubq_f32(vreinterpretq_f32_s32(x), vdupq_n_f32(12582912.f)); }

// Queries: [3 pairs][padded / 8][2 rows][8 dims] int8, then 8 scales.
inline const int8_t* query_of(const std::byte* q, int pair, int padded) {
  return reinterpret_cast<const int8_t*>(q) + pair * padded * 2;
}

void pack(std::byte* query, int row, const float* x, int dim, int padded, float scale) {
  auto* q = reinterpret_cast<int8_t*>(query);
  auto* scales = reinterpret_cast<float*>(query + kTileRows * padded);
  if (row == 0) memset(q, 0, static_cast<size_t>(kTileRows * padded) + 8 * sizeof(float));
  q += row / 2 * padded * 2 + row % 2 * 8;
  float top = 0;
  for (int d = 0; d < dim; ++d) top = __builtin_fmaxf(top, __builtin_fabsf(x[d]));
  const float inverse = top > 0 ? 127 / top : 0;
  scales[row] = top / 127 * (scale * 1.44269504f);
  for (int d = 0; d < dim; ++d) q[d / 8 * 16 + d % 8] = static_cast<int8_t>(__builtin_lrintf(x[d] * inverse));
}

// Two lines of what is read next, asked for while this is multiplied: see attention_i8mm_tile.inl.
inline void ahead(const int8_t* p) {
  __builtin_prefetch(p, 0, 1);
  __builtin_prefetch(p + 64, 0, 1);
}

// Two 2x2 tiles (row, column) to four columns of the first or of the second row.
inline float32x4_t row0(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vzip1q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}
inline float32x4_t row1(float32x4_t x, float32x4_t y) {
  return vreinterpretq_f32_f64(vzip2q_f64(vreinterpretq_f64_f32(x), vreinterpretq_f64_f32(y)));
}

// Caps the scores, hides the positions a row does not see, and finds the per-lane maxima anew (of scores that nothing
// caps, the same ones for a row that sees all).
inline void mask(float (*s)[kBlock], float (*top)[4], const FoldArgs& a) {
  for (int i = 0; i < a.rows; ++i) {
    if (a.soft_cap > 0) cap_scores(s[i], kBlock, SoftCap(a.soft_cap));
    for (int j = 0; a.end && j < a.begin[i]; ++j) s[i][j] = -INFINITY;
    for (int j = a.end ? a.end[i] : kBlock; j < kBlock; ++j) s[i][j] = -INFINITY;
    float32x4_t t = vdupq_n_f32(kEmpty);
    for (int j = 0; j < kBlock; j += 4) t = vmaxq_f32(t, vld1q_f32(s[i] + j));
    vst1q_f32(top[i], t);
  }
}

// Running maxima of the rows from the per-lane maxima; alpha = the factor for the old sums and outputs (exactly 1 if
// the maximum stands).
template <int P>
inline void raise_maxima(State& r, const float (*top)[4], float* alpha) {
  for (int h = 0; h < 2 * P; h += 4) {
    float32x4_t t = vpmaxq_f32(vpmaxq_f32(vld1q_f32(top[h]), vld1q_f32(top[h + 1])),
                               vpmaxq_f32(vld1q_f32(top[h + 2]), vld1q_f32(top[h + 3])));
    float32x4_t old = vld1q_f32(r.m + h), m = vmaxq_f32(old, t);
    vst1q_f32(r.m + h, m);
    vst1q_f32(alpha + h, exp2_neg(vsubq_f32(old, m)));
  }
}

template <int P, int kDim, bool kFetch>
SX_KERNEL void scores(const FoldArgs& f, float (*s)[kBlock], float (*top)[4]) {
  const std::byte *query = f.query, *keys = f.keys;
  const int8_t* next = reinterpret_cast<const int8_t*>(f.values);
  const int padded = kDim ? kDim : f.padded;
  const float* scale = reinterpret_cast<const float*>(keys + kBlock * padded);
  const float* own = reinterpret_cast<const float*>(query + kTileRows * padded);
  for (int i = 0; i < 2 * P; ++i) vst1q_f32(top[i], vdupq_n_f32(kEmpty));
  for (int t = 0; t < 4; ++t) {
    const int8_t* k = reinterpret_cast<const int8_t*>(keys) + t * 16 * padded;
    int32x4_t acc[P][8];
    for (int i = 0; i < P; ++i)
      for (int j = 0; j < 8; ++j) acc[i][j] = vdupq_n_s32(kMagicBits);
#pragma GCC unroll 1
    for (int d = 0; d < padded / 8; ++d) {
      int8x16_t a[P];
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) a[i] = vld1q_s8(query_of(query, i, padded) + d * 16);
      if (kFetch) ahead(next + t * 16 * padded + d * 128);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const int8x16_t b = vld1q_s8(k + d * 128 + j * 16);
#pragma GCC unroll 8
        for (int i = 0; i < P; ++i) acc[i][j] = vmmlaq_s32(acc[i][j], a[i], b);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) {
      float32x4_t t0 = vld1q_f32(top[2 * i]), t1 = vld1q_f32(top[2 * i + 1]);
#pragma GCC unroll 8
      for (int j = 0; j < 8; j += 2) {
        const float32x4_t x = as_float(acc[i][j]), y = as_float(acc[i][j + 1]), ks = vld1q_f32(scale + t * 16 + j * 2);
        const float32x4_t u = vmulq_f32(row0(x, y), vmulq_n_f32(ks, own[2 * i]));
        const float32x4_t v = vmulq_f32(row1(x, y), vmulq_n_f32(ks, own[2 * i + 1]));
        t0 = vmaxq_f32(t0, u);
        t1 = vmaxq_f32(t1, v);
        vst1q_f32(s[2 * i] + t * 16 + j * 2, u);
        vst1q_f32(s[2 * i + 1] + t * 16 + j * 2, v);
      }
      vst1q_f32(top[2 * i], t0);
      vst1q_f32(top[2 * i + 1], t1);
    }
  }
}

// Weights 2^(s - m) times the scale of the position, as bytes: w[pair][pos / 8][2 rows][8 positions]; back: one byte's
// worth per row.
template <int P>
SX_KERNEL void weights(uint8_t (*w)[8][16], float* back, State& r, const float* scale, const float (*s)[kBlock],
                       const float* alpha) {
  for (int i = 0; i < 2 * P; ++i) {
    alignas(64) float x[kBlock];
    const float32x4_t m = vdupq_n_f32(r.m[i]);
    float32x4_t a = vdupq_n_f32(0), b = a, high = a;
#pragma GCC unroll 1
    for (int g = 0; g < kBlock; g += 8) {
      const float32x4_t y = exp2_neg(vsubq_f32(vld1q_f32(s[i] + g), m));
      const float32x4_t z = exp2_neg(vsubq_f32(vld1q_f32(s[i] + g + 4), m));
      a = vaddq_f32(a, y);
      b = vaddq_f32(b, z);
      const float32x4_t u = vmulq_f32(y, vld1q_f32(scale + g)), v = vmulq_f32(z, vld1q_f32(scale + g + 4));
      high = vmaxq_f32(high, vmaxq_f32(u, v));
      vst1q_f32(x + g, u);
      vst1q_f32(x + g + 4, v);
    }
    r.l[i] = __builtin_fmaf(r.l[i], alpha[i], vaddvq_f32(vaddq_f32(a, b)));
    const float top = vmaxvq_f32(high), inverse = top > 0 ? 255 / top : 0;
    back[i] = top / 255;
    const float32x4_t magic = vdupq_n_f32(8388608.f);  // 2^23: the low byte of the sum is the rounded weight
#pragma GCC unroll 4
    for (int g = 0; g < 16; g += 4) {
      uint16x8_t y[4];
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) y[j] = vreinterpretq_u16_f32(vfmaq_n_f32(magic, vld1q_f32(x + 4 * (g + j)), inverse));
      const uint16x8_t u = vuzp1q_u16(y[0], y[1]), v = vuzp1q_u16(y[2], y[3]);
      const uint8x16_t z = vuzp1q_u8(vreinterpretq_u8_u16(u), vreinterpretq_u8_u16(v));
      vst1_u8(w[i / 2][g / 2] + i % 2 * 8, vget_low_u8(z));
      vst1_u8(w[i / 2][g / 2 + 1] + i % 2 * 8, vget_high_u8(z));
    }
  }
}

template <int P, int kDim, bool kFetch>
SX_KERNEL void add_values(const FoldArgs& f, const uint8_t (*w)[8][16], const float* back) {
  const int8_t* next = reinterpret_cast<const int8_t*>(f.next_keys);
  const int padded = kDim ? kDim : f.padded;
  for (int t = 0; t < padded / 16; ++t) {
    const int8_t* v = reinterpret_cast<const int8_t*>(f.values) + t * 16 * kBlock;
    float* o = f.state + kStateHead + t * 32;
    int32x4_t acc[P][8];
    for (int i = 0; i < P; ++i)
      for (int j = 0; j < 8; ++j) acc[i][j] = vdupq_n_s32(kMagicBits);
#pragma GCC unroll 1
    for (int g = 0; g < 8; ++g) {
      uint8x16_t a[P];
#pragma GCC unroll 8
      for (int i = 0; i < P; ++i) a[i] = vld1q_u8(w[i][g]);
      if (kFetch) ahead(next + t * 16 * kBlock + g * 128);
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const int8x16_t b = vld1q_s8(v + g * 128 + j * 16);
#pragma GCC unroll 8
        for (int i = 0; i < P; ++i) acc[i][j] = vusmmlaq_s32(acc[i][j], a[i], b);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < P; ++i) {
      const float32x4_t factor = vcombine_f32(vdup_n_f32(back[2 * i]), vdup_n_f32(back[2 * i + 1]));
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        float* at = o + i * padded * 2 + j * 4;
        vst1q_f32(at, vfmaq_f32(vld1q_f32(at), as_float(acc[i][j]), factor));
      }
    }
  }
}

template <int P, int kDim, bool kFetch>
void fold_pairs(const FoldArgs& a) {
  alignas(64) float s[2 * P][kBlock], top[8][4], alpha[8];
  alignas(64) uint8_t w[P][8][16];
  float back[2 * P];
  State& r = as_state(a.state);
  for (int i = 2 * P; i < 8; ++i) vst1q_f32(top[i], vdupq_n_f32(kEmpty));
  scores<P, kDim, kFetch>(a, s, top);
  if (a.end || a.soft_cap > 0) mask(s, top, a);
  raise_maxima<P>(r, top, alpha);
  rescale<P>(r, alpha, a.padded);
  weights<P>(w, back, r, reinterpret_cast<const float*>(a.values + kBlock * a.padded), s, alpha);
  add_values<P, kDim, kFetch>(a, w, back);
}

template <int kDim, bool kFetch>
void fold_rows(const FoldArgs& a) {
  if (a.rows <= 2) fold_pairs<1, kDim, kFetch>(a);
  else if (a.rows <= 4) fold_pairs<2, kDim, kFetch>(a);
  else fold_pairs<3, kDim, kFetch>(a);
}

void fold_any(const FoldArgs& a) {
  if (a.padded == 64) a.next_keys ? fold_rows<64, true>(a) : fold_rows<64, false>(a);
  else a.next_keys ? fold_rows<0, true>(a) : fold_rows<0, false>(a);
}

void fold(const FoldArgs& a) { with_rows_aside(a, fold_any); }

// ---- kv_score(): a query head is a pair of rows, its bytes and what those leave over in steps of 1/254 --------------

void pack_split(std::byte* query, int head, const float* x, int dim, int padded, float scale) {
  auto* q = reinterpret_cast<int8_t*>(query);
  auto* scales = reinterpret_cast<float*>(query + kTileRows * padded);
  if (head == 0) memset(q, 0, static_cast<size_t>(kTileRows * padded) + 8 * sizeof(float));
  q += head * padded * 2;
  float top = 0;
  for (int d = 0; d < dim; ++d) top = __builtin_fmaxf(top, __builtin_fabsf(x[d]));
  const float inverse = top > 0 ? 127 / top : 0;
  scales[2 * head] = top / 127 * (scale * 1.44269504f);
  scales[2 * head + 1] = scales[2 * head] / 254;
  for (int d = 0; d < dim; ++d) {
    const float y = x[d] * inverse, near = __builtin_rintf(y);
    q[d / 8 * 16 + d % 8] = static_cast<int8_t>(near);
    q[d / 8 * 16 + d % 8 + 8] = static_cast<int8_t>(__builtin_rintf((y - near) * 254));
  }
}

template <int P, int kDim>
inline void logits_of(const FoldArgs& f, float (*out)[kBlock]) {
  alignas(64) float s[2 * P][kBlock], top[8][4];
  if (f.values) scores<P, kDim, true>(f, s, top);
  else scores<P, kDim, false>(f, s, top);
  for (int i = 0; i < P; ++i)
    for (int j = 0; j < kBlock; j += 4)
      vst1q_f32(out[i] + j, vaddq_f32(vld1q_f32(s[2 * i] + j), vld1q_f32(s[2 * i + 1] + j)));
}

template <int kDim>
void logits_any(const FoldArgs& f, int heads, float (*s)[kBlock]) {
  if (heads == 1) logits_of<1, kDim>(f, s);
  else if (heads == 2) logits_of<2, kDim>(f, s);
  else logits_of<3, kDim>(f, s);
}

void logits(const std::byte* query, const std::byte* keys, const std::byte* next, int heads, int padded,
            float (*s)[kBlock]) {
  const FoldArgs f{.state = nullptr, .query = query, .keys = keys, .values = next, .rows = 2 * heads, .padded = padded};
  if (padded == 64) logits_any<64>(f, heads, s);
  else logits_any<0>(f, heads, s);
}

void widen(const std::byte* keys, int from, int to, int padded, float* low, float* high) {
  const auto* scale = reinterpret_cast<const float*>(keys + kBlock * padded);
  for (int p = from, stop; p < to; p = stop) {
    stop = to < p / 16 * 16 + 16 ? to : p / 16 * 16 + 16;
    const auto* k = reinterpret_cast<const int8_t*>(keys) + p / 16 * 16 * padded + p % 16 * 8;
    for (int d = 0; d < padded; d += 8, k += 128) {
      float32x4_t least[2] = {vld1q_f32(low + d), vld1q_f32(low + d + 4)};
      float32x4_t most[2] = {vld1q_f32(high + d), vld1q_f32(high + d + 4)};
      for (int i = 0; i < stop - p; ++i) {
        const int16x8_t x = vmovl_s8(vld1_s8(k + 8 * i));
        const float32x4_t y[2] = {vmulq_n_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(x))), scale[p + i]),
                                  vmulq_n_f32(vcvtq_f32_s32(vmovl_high_s16(x)), scale[p + i])};
        for (int j = 0; j < 2; ++j) least[j] = vminq_f32(least[j], y[j]), most[j] = vmaxq_f32(most[j], y[j]);
      }
      for (int j = 0; j < 2; ++j) vst1q_f32(low + d + 4 * j, least[j]), vst1q_f32(high + d + 4 * j, most[j]);
    }
  }
}

}  // namespace

extern const AttentionKernels kAttentionQ8;
const AttentionKernels kAttentionQ8 = {pack, fold, merge, copy_row, finish};
extern const ScoreKernels kScoreQ8;
const ScoreKernels kScoreQ8 = {pack_split, logits, widen};

}  // namespace sx::cpu::neon_i8mm
