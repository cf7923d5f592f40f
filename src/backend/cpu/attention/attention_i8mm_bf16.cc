// bf16 attention with bfmmla (neon-i8mm level: i8mm, bf16 and half-precision arithmetic). One block of 64 positions
// and 6 rows: 2 x 64 x 64 x 6 multiply-adds for head size 64, 8 KiB of K and 8 KiB of V; register tile 3 row pairs x
// 8 column pairs = 24 accumulators, 11 loads for 24 bfmmla. Each output element has one accumulator that runs over
// the inner dimension in order, whatever the number of rows.
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/kv/score_kernels.h"

namespace sx::cpu::neon_i8mm {
namespace {

#include "backend/cpu/attention/attention_i8mm.inl"

#include "backend/cpu/attention/attention_i8mm_tile.inl"

inline uint16_t to_bf16(float x) {
  uint32_t u;
  memcpy(&u, &x, 4);
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// Queries: [padded / 4][3 pairs][2 rows][4 dims] bf16.
void pack(std::byte* query, int row, const float* x, int dim, int padded, float scale) {
  auto* q = reinterpret_cast<uint16_t*>(query);
  if (row == 0) memset(q, 0, static_cast<size_t>(kTileRows) * static_cast<size_t>(padded) * 2);
  q += row / 2 * 8 + row % 2 * 4;
  const float factor = scale * 1.44269504f;
  int d = 0;
  for (; d + 4 <= dim; d += 4) {
    const bfloat16x4_t y = vcvt_bf16_f32(vmulq_n_f32(vld1q_f32(x + d), factor));
    vst1_u16(q + d * 6, vreinterpret_u16_bf16(y));
  }
  for (; d < dim; ++d) q[d / 4 * 24 + d % 4] = to_bf16(x[d] * factor);
}

// s[pair][position / 2][row][position % 2], as the instruction leaves it, and the per-lane maxima top[pair][row][2].
template <int P, bool kFetch>
inline void scores(const FoldArgs& f, float (*s)[32][4], float (*top)[4]) {
  const auto* q = reinterpret_cast<const uint16_t*>(f.query);
  const auto* k = reinterpret_cast<const uint16_t*>(f.keys);
  for (int i = 0; i < P; ++i) vst1q_f32(top[i], vdupq_n_f32(kEmpty));
  // 16 positions = 8 pairs are a tile
  const auto* next = reinterpret_cast<const uint16_t*>(f.values);
  multiply<P, kFetch>({q, k, f.padded / 4, kBlock / 16, next, s[0][0], 128, top[0]});
}

// Eight vectors at a time go through each step together: one by one their long chains of dependent instructions would
// fill the issue queues, and the pipes would wait.
#define SX_EACH8(...) \
  _Pragma("GCC unroll 8") for (int e = 0; e < 8; ++e) { __VA_ARGS__; }

// bf16 weights 2^(s - m) of 8 x 4 positions of a row pair, in half precision: t = s - m = n + f, the quadratic 2^f is
// in [0.7, 1.42], and its f16 bits shifted right by 3 with rounding, plus n in the exponent field, are the bf16 bits.
// The magic number 1536 + 112 puts n + 112 into the low bits. t <= -127 (a masked position) gives exactly zero, t = 0
// exactly one. The quadratic is off by at most 0.2 %, as much as bf16 rounds by; rounded keys move a weight by 1 %.
inline void exp2_bf16(uint16x8_t (&w)[8], const float (*s)[4], float32x4_t m) {
  const float16x8_t magic = vdupq_n_f16(1648), least = vdupq_n_f16(-127);
  const float16x8_t c2 = vdupq_n_f16(0.2404f), c1 = vdupq_n_f16(0.7032f), c0 = vdupq_n_f16(1.0f);
  float32x4_t x[8];
  float16x4_t y[8];
  float16x8_t t[8], r[8], p[8];
  SX_EACH8(x[e] = vsubq_f32(vld1q_f32(s[2 * e]), m))
  SX_EACH8(y[e] = vcvt_f16_f32(x[e]))
  SX_EACH8(x[e] = vsubq_f32(vld1q_f32(s[2 * e + 1]), m))
  SX_EACH8(t[e] = vcvt_high_f16_f32(y[e], x[e]))
  SX_EACH8(t[e] = vmaxq_f16(t[e], least))
  SX_EACH8(r[e] = vaddq_f16(t[e], magic))
  SX_EACH8(p[e] = vsubq_f16(r[e], magic))
  SX_EACH8(t[e] = vsubq_f16(t[e], p[e]))
  SX_EACH8(p[e] = vfmaq_f16(c1, t[e], c2))
  SX_EACH8(p[e] = vfmaq_f16(c0, p[e], t[e]))
  SX_EACH8(w[e] = vshlq_n_u16(vreinterpretq_u16_f16(r[e]), 7))
  SX_EACH8(w[e] = vrsraq_n_u16(w[e], vreinterpretq_u16_f16(p[e]), 3))
}

// w[pos / 4][pair][2 rows][4 positions]; the sum of the (rounded) weights is one more column of ones.
template <int P>
SX_KERNEL void weights(uint16_t (*w)[3][8], State& r, const float (*s)[32][4], const float* alpha) {
  uint16x8_t one_bits = vdupq_n_u16(0x3F80);
  asm("" : "+w"(one_bits));  // g++ 12 would fold the bf16 constant wrongly
  const bfloat16x8_t ones = vreinterpretq_bf16_u16(one_bits);
  // Rows and positions come as (row 0, row 1) x 2 twice; the four of a row must stand together.
  alignas(16) static constexpr uint8_t kRowsTogether[16] = {0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15};
  const uint8x16_t order = vld1q_u8(kRowsTogether);
#pragma GCC unroll 1
  for (int i = 0; i < P; ++i) {
    const float32x4_t m = vcombine_f32(vdup_n_f32(r.m[2 * i]), vdup_n_f32(r.m[2 * i + 1]));
    float32x4_t even = vdupq_n_f32(0), odd = even;
#pragma GCC unroll 1
    for (int g = 0; g < 16; g += 8) {
      uint16x8_t x[8];
      exp2_bf16(x, s[i] + 2 * g, m);
      SX_EACH8(x[e] = vreinterpretq_u16_u8(vqtbl1q_u8(vreinterpretq_u8_u16(x[e]), order)))
      SX_EACH8(vst1q_u16(w[g + e][i], x[e]))
#pragma GCC unroll 4
      for (int e = 0; e < 8; e += 2) {
        even = vbfmmlaq_f32(even, vreinterpretq_bf16_u16(x[e]), ones);
        odd = vbfmmlaq_f32(odd, vreinterpretq_bf16_u16(x[e + 1]), ones);
      }
    }
    const float32x4_t sum = vaddq_f32(even, odd);
    r.l[2 * i] = __builtin_fmaf(r.l[2 * i], alpha[2 * i], vgetq_lane_f32(sum, 0));
    r.l[2 * i + 1] = __builtin_fmaf(r.l[2 * i + 1], alpha[2 * i + 1], vgetq_lane_f32(sum, 2));
  }
}

template <int P, bool kFetch>
inline void add_values(const FoldArgs& f, const uint16_t (*w)[3][8]) {
  const auto* v = reinterpret_cast<const uint16_t*>(f.values);
  // 16 channels = 8 pairs are a tile
  const auto* next = reinterpret_cast<const uint16_t*>(f.next_keys);
  multiply_add<P, kFetch>({w[0][0], v, kBlock / 4, f.padded / 16, next, f.state + kStateHead, 2 * f.padded, nullptr});
}

// Caps the scores, hides the positions a row does not see, and finds the per-lane maxima anew (of scores that nothing
// caps, the same ones for a row that sees all).
inline void mask(float (*s)[32][4], float (*top)[4], const FoldArgs& a) {
  if (a.soft_cap > 0) cap_scores(s[0][0], (a.rows + 1) / 2 * 128, SoftCap(a.soft_cap));
  for (int i = 0; a.end && i < a.rows; ++i)
    for (int j = 0; j < kBlock; ++j)
      if (j < a.begin[i] || j >= a.end[i]) s[i / 2][j / 2][i % 2 * 2 + j % 2] = -INFINITY;
  for (int i = 0; i < (a.rows + 1) / 2; ++i) {
    float32x4_t high = vdupq_n_f32(kEmpty);
    for (int j = 0; j < 32; ++j) high = vmaxq_f32(high, vld1q_f32(s[i][j]));
    vst1q_f32(top[i], high);
  }
}

// Running maxima from the per-lane maxima; alpha = the factor for the old sums and outputs (exactly 1 if the maximum
// stands).
inline void raise_maxima(State& r, const float (*top)[4], float* alpha, int from) {
  const float32x4_t t = vpmaxq_f32(vld1q_f32(top[from / 2]), vld1q_f32(top[from / 2 + 1]));
  const float32x4_t old = vld1q_f32(r.m + from), m = vmaxq_f32(old, t);
  vst1q_f32(r.m + from, m);
  vst1q_f32(alpha + from, exp2_neg(vsubq_f32(old, m)));
}

template <int P, bool kFetch>
void fold_pairs(const FoldArgs& a) {
  alignas(64) float s[P][32][4], top[4][4], alpha[8];
  alignas(64) uint16_t w[16][3][8];
  State& r = as_state(a.state);
  for (int i = P; i < 4; ++i) vst1q_f32(top[i], vdupq_n_f32(kEmpty));
  scores<P, kFetch>(a, s, top);
  if (a.end || a.soft_cap > 0) mask(s, top, a);
  raise_maxima(r, top, alpha, 0);
  if (P == 3) raise_maxima(r, top, alpha, 4);
  rescale<P>(r, alpha, a.padded);
  weights<P>(w, r, s, alpha);
  add_values<P, kFetch>(a, w);
}

template <bool kFetch>
void fold_rows(const FoldArgs& a) {
  if (a.rows <= 2) fold_pairs<1, kFetch>(a);
  else if (a.rows <= 4) fold_pairs<2, kFetch>(a);
  else fold_pairs<3, kFetch>(a);
}

void fold_any(const FoldArgs& a) { a.next_keys ? fold_rows<true>(a) : fold_rows<false>(a); }

void fold(const FoldArgs& a) { with_rows_aside(a, fold_any); }

// ---- kv_score(): a query head is a pair of rows, its bf16 value and what that leaves over ---------------------------

void pack_split(std::byte* query, int head, const float* x, int dim, int padded, float scale) {
  auto* q = reinterpret_cast<uint16_t*>(query);
  if (head == 0) memset(q, 0, static_cast<size_t>(kTileRows) * static_cast<size_t>(padded) * 2);
  q += head * 8;
  const float factor = scale * 1.44269504f;
  for (int d = 0; d < dim; ++d) {
    const float y = x[d] * factor;
    const uint16_t rounded = to_bf16(y);
    const uint32_t bits = uint32_t(rounded) << 16;
    float near;
    memcpy(&near, &bits, 4);
    q[d / 4 * 24 + d % 4] = rounded;
    q[d / 4 * 24 + d % 4 + 4] = to_bf16(y - near);
  }
}

template <int P>
inline void logits_of(const FoldArgs& f, float (*out)[kBlock]) {
  alignas(64) float s[P][32][4], top[4][4];
  if (f.values) scores<P, true>(f, s, top);
  else scores<P, false>(f, s, top);
  for (int i = 0; i < P; ++i)
    for (int j = 0; j < 32; j += 2) {
      const float32x4_t x = vld1q_f32(s[i][j]), y = vld1q_f32(s[i][j + 1]);
      const float32x4_t high = vcombine_f32(vget_low_f32(x), vget_low_f32(y));
      const float32x4_t low = vcombine_f32(vget_high_f32(x), vget_high_f32(y));
      vst1q_f32(out[i] + 2 * j, vaddq_f32(high, low));
    }
}

void logits(const std::byte* query, const std::byte* keys, const std::byte* next, int heads, int padded,
            float (*s)[kBlock]) {
  const FoldArgs f{.state = nullptr, .query = query, .keys = keys, .values = next, .rows = 2 * heads, .padded = padded};
  if (heads == 1) logits_of<1>(f, s);
  else if (heads == 2) logits_of<2>(f, s);
  else logits_of<3>(f, s);
}

// The bits of bf16 numbers are sign and magnitude. Of a set with a number >= 0 the largest has the largest signed bits,
// of negative ones the smallest unsigned bits; of a set with a negative number the smallest has the largest unsigned
// bits, of others the smallest unsigned bits.
void widen(const std::byte* keys, int from, int to, int padded, float* low, float* high) {
  const auto* k = reinterpret_cast<const uint16_t*>(keys);
  for (int d = 0; d < padded; d += 4) {
    uint16x8_t least = vdupq_n_u16(0xFFFF), most = vdupq_n_u16(0);
    int16x8_t largest = vdupq_n_s16(-32768);
    const auto add = [&](uint16x8_t x) {
      least = vminq_u16(least, x);
      most = vmaxq_u16(most, x);
      largest = vmaxq_s16(largest, vreinterpretq_s16_u16(x));
    };
    const auto at = [&](int p) { return k + p / 16 * 16 * padded + d * 16 + p % 16 * 4; };
    int p = from;
    for (; p < to && p % 16 != 0; ++p) add(vcombine_u16(vld1_u16(at(p)), vld1_u16(at(p))));
    for (; p + 16 <= to; p += 16)
#pragma GCC unroll 8
      for (int i = 0; i < 64; i += 8) add(vld1q_u16(at(p) + i));
    for (; p < to; ++p) add(vcombine_u16(vld1_u16(at(p)), vld1_u16(at(p))));
    const uint16x8_t top = vbslq_u16(vcgezq_s16(largest), vreinterpretq_u16_s16(largest), least);
    const uint16x8_t bottom = vbslq_u16(vcltzq_s16(vreinterpretq_s16_u16(most)), most, least);
    const auto wide = [](uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); };
    const float32x4_t lower = vminq_f32(wide(vget_low_u16(bottom)), wide(vget_high_u16(bottom)));
    const float32x4_t upper = vmaxq_f32(wide(vget_low_u16(top)), wide(vget_high_u16(top)));
    vst1q_f32(low + d, vminq_f32(vld1q_f32(low + d), lower));
    vst1q_f32(high + d, vmaxq_f32(vld1q_f32(high + d), upper));
  }
}

}  // namespace

// Two cells of four dimensions at a time, with their partners half a head on.
void turn_cells_bf16(const std::byte* from, std::byte* to, int cells, const float* table, int half);
void turn_cells_bf16(const std::byte* from, std::byte* to, int cells, const float* table, int half) {
  const auto* x = reinterpret_cast<const uint16_t*>(from);
  auto* y = reinterpret_cast<uint16_t*>(to);
  const int partner = half * 16;
  const auto wide = [](uint16x4_t k) { return vreinterpretq_f32_u32(vshll_n_u16(k, 16)); };
  for (int d = 0; d < half; d += 4, x += 64, y += 64) {
    const float32x4x2_t t = vld2q_f32(table + 2 * d);
    const auto first = [&](float32x4_t a, float32x4_t b) {
      return vsubq_f32(vmulq_f32(a, t.val[0]), vmulq_f32(b, t.val[1]));
    };
    const auto second = [&](float32x4_t a, float32x4_t b) {
      return vaddq_f32(vmulq_f32(a, t.val[1]), vmulq_f32(b, t.val[0]));
    };
    int i = 0;
    for (; i + 2 <= cells; i += 2) {
      const uint16x8_t a = vld1q_u16(x + 4 * i), b = vld1q_u16(x + partner + 4 * i);
      const float32x4_t a0 = wide(vget_low_u16(a)), b0 = wide(vget_low_u16(b));
      const float32x4_t a1 = wide(vget_high_u16(a)), b1 = wide(vget_high_u16(b));
      const bfloat16x8_t u = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(first(a0, b0)), first(a1, b1));
      const bfloat16x8_t v = vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(second(a0, b0)), second(a1, b1));
      vst1q_u16(y + 4 * i, vreinterpretq_u16_bf16(u));
      vst1q_u16(y + partner + 4 * i, vreinterpretq_u16_bf16(v));
    }
    if (i < cells) {
      const float32x4_t a = wide(vld1_u16(x + 4 * i)), b = wide(vld1_u16(x + partner + 4 * i));
      vst1_u16(y + 4 * i, vreinterpret_u16_bf16(vcvt_bf16_f32(first(a, b))));
      vst1_u16(y + partner + 4 * i, vreinterpret_u16_bf16(vcvt_bf16_f32(second(a, b))));
    }
  }
}

extern const AttentionKernels kAttentionBf16;
const AttentionKernels kAttentionBf16 = {pack, fold, merge, copy_row, finish};
extern const ScoreKernels kScoreBf16;
const ScoreKernels kScoreBf16 = {pack_split, logits, widen};

}  // namespace sx::cpu::neon_i8mm
