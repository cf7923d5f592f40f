// Attention over bf16 K and V with AMX: tdpbf16ps multiplies 16 rows x 32 inner values by 32 x 16 columns, with rows of
// zeros where a tile is not full. A block is first rewritten with its inner dimension in pairs, as the tile unit reads
// it: one shuffle per cache line, once for all tiles of a chunk, and it is then that the next block is fetched. Queries
// and the weights of a block are rounded to bf16; the sum l is that of the rounded weights.
//
// A tile of a few rows waits longer for tiles to be stored and loaded than it has to multiply, so it is folded by
// vector instructions that add in the order of tdpbf16ps, to the bit: what the even and the odd elements of 32 give is
// summed apart, one after the other, then added to each other and to the result, and numbers that are not normal are
// zeros. Threads count such numbers as zeros between enter() and leave().
//
// The unit takes 16 cycles for an instruction, 256 for a block and a tile of head size 64. A row's softmax is vector
// code on 4 registers; maxima and sums of 16 rows are reduced together by transposing them.
#define SX_ISA_NAMESPACE amx
#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::amx {
namespace {

constexpr float kEmpty = -1e30f;  // m of a row that has seen nothing; masked scores are -infinity, which is below it
constexpr int kRows = kMostTileRows, kInner = 32, kTile = 16 * kInner;  // rows; inner values; elements of an operand
constexpr int kOutputsAt = 2 * kRows;                                   // of a state
static_assert(kRows == 16 && kBlock == 64);

inline int steps_of(int padded) { return (padded + kInner - 1) / kInner; }  // tiles along a head

// The instructions on registers that are named by literals. They read and write memory behind the compiler's back. g++
// 12's intrinsics do not say so.
#define SX_TILE_ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define SX_TILE_LOAD(t, p, stride) \
  asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"(static_cast<long>(stride)) : "memory")
#define SX_TILE_STORE(t, p, stride) \
  asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"(static_cast<long>(stride)) : "memory")
#define SX_TILE_MULTIPLY(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)

struct alignas(64) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig kConfig = {.palette = 1,
                                .start = 0,
                                .reserved = {},
                                .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                .rows = {16, 16, 16, 16, 16, 16, 16, 16}};

constexpr unsigned kNoSubnormals = 0x8040;  // MXCSR: subnormal operands and results are zeros
thread_local unsigned t_mode;               // MXCSR before

void enter() {
  asm volatile("ldtilecfg (%0)" ::"r"(&kConfig) : "memory");
  t_mode = _mm_getcsr();
  _mm_setcsr(t_mode | kNoSubnormals);
}
// A thread that does something else has no tiles to be saved.
void leave() {
  _mm_setcsr(t_mode);
  asm volatile("tilerelease" ::: "memory");
}

// Two vectors of floats as 32 bf16.
SX_INLINE __m512i to_bf16(Vec low, Vec high) { return (__m512i)_mm512_cvtne2ps_pbh(high, low); }

// Queries: [padded / 32][16 rows][32].
void pack(std::byte* query, int row, const float* x, int dim, int padded, float scale) {
  auto* q = reinterpret_cast<uint16_t*>(query);
  if (row == 0) memset(q, 0, sizeof(uint16_t) * static_cast<size_t>(steps_of(padded) * kTile));
  q += row * kInner;
  const Vec factor = set1(scale * 1.44269504f);
  for (int d = 0; d < dim; d += kInner, q += kTile) {
    float part[kInner] = {};
    memcpy(part, x + d, sizeof(float) * static_cast<size_t>(dim - d < kInner ? dim - d : kInner));
    _mm512_storeu_si512(q, to_bf16(mul(load(part), factor), mul(load(part + 16), factor)));
  }
}

// ---- blocks as the tile unit reads them ------------------------------------------------------------------------------

// (a0 .. a15, b0 .. b15) to (a0, b0, a1, b1, ..).
SX_INLINE __m512i in_pairs(__m512i x) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return _mm512_maskz_permutexvar_epi16(~__mmask32(0), _mm512_load_si512(kOrder), x);
}

// [position / 16][d][position % 16] to [position / 16][d / 2][position % 16][d % 2], d filled up to whole tiles.
void ready_keys(const std::byte* block, const std::byte* next, int padded, std::byte* out) {
  const auto* k = reinterpret_cast<const uint16_t*>(block);
  const auto* ahead = reinterpret_cast<const uint16_t*>(next);
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int t = 0; t < kBlock / 16; ++t) {
#pragma GCC unroll 4
    for (int d = 0; d < padded; d += 2, k += 32, ahead += 32, to += 32) {
      __builtin_prefetch(ahead, 0, 2);
      _mm512_storeu_si512(to, in_pairs(_mm512_loadu_si512(k)));
    }
    for (int d = padded; d < steps_of(padded) * kInner; d += 2, to += 32)
      _mm512_storeu_si512(to, _mm512_setzero_si512());
  }
}

// [position][c] to [c / 16][position / 2][c % 16][position % 2].
void ready_values(const std::byte* block, const std::byte* next, int padded, std::byte* out) {
  const auto* v = reinterpret_cast<const uint16_t*>(block);
  const auto* ahead = reinterpret_cast<const uint16_t*>(next);
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int p = 0; p < kBlock; p += 2, v += 2 * padded, to += 32)
    for (int c = 0; c < padded; c += 16, ahead += 32) {
      __builtin_prefetch(ahead, 0, 2);
      const __m256i even = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + c));
      const __m256i odd = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(v + padded + c));
      _mm512_storeu_si512(to + c * kBlock,
                          in_pairs(_mm512_maskz_inserti64x4(0xff, _mm512_castsi256_si512(even), odd, 1)));
    }
}

// ---- softmax ---------------------------------------------------------------------------------------------------------

// 2^t for t <= 0; exactly 1 at 0, exactly 0 below -120. Relative error 2e-4, a tenth of what rounding a weight to bf16
// costs, or 4e-6 (fine).
template <bool kFine>
SX_INLINE Vec exp2_neg(Vec t) {
  const __mmask16 some = _mm512_cmp_ps_mask(t, set1(-120.0f), _CMP_GE_OQ);
  const Vec magic = set1(12582912.0f), r = add(t, magic), f = sub(t, sub(r, magic));
  Vec p;
  if (kFine) {
    p = fma(set1(0.00961813f), f, set1(0.05550411f));
    p = fma(p, f, set1(0.24022651f));
    p = fma(p, f, set1(0.69314718f));
  } else {
    p = fma(set1(0.0559208f), f, set1(0.242219f));
    p = fma(p, f, set1(0.693121f));
  }
  p = fma(p, f, set1(1.0f));
  const __m512i power = _mm512_maskz_slli_epi32(some, _mm512_castps_si512(r), 23);
  return _mm512_castsi512_ps(_mm512_maskz_add_epi32(some, _mm512_castps_si512(p), power));
}

struct Sum {
  SX_INLINE Vec of(Vec a, Vec b) { return add(a, b); }
};
struct Top {
  SX_INLINE Vec of(Vec a, Vec b) { return max(a, b); }
};

// In every quarter of a register: (a0, a1, a2, a3), (b0, b1, b2, b3) to (a0 a2, b0 b2, a1 a3, b1 b3).
template <class Fold>
SX_INLINE Vec fold_lanes(Vec a, Vec b) {
  return Fold::of(_mm512_maskz_unpacklo_ps(0xffff, a, b), _mm512_maskz_unpackhi_ps(0xffff, a, b));
}
// (A0, A1, A2, A3), (B0, B1, B2, B3) to (A0 A1, A2 A3, B0 B1, B2 B3).
template <class Fold>
SX_INLINE Vec fold_quarters(Vec a, Vec b) {
  return Fold::of(_mm512_maskz_shuffle_f32x4(0xffff, a, b, 0x88), _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0xdd));
}

// Lane i: the 16 lanes of x[i], folded. All rows are folded in the same order.
template <class Fold>
SX_INLINE Vec fold_rows(const float (*x)[16]) {
  Vec fours[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Vec a = fold_lanes<Fold>(load(x[4 * i]), load(x[4 * i + 2]));
    const Vec b = fold_lanes<Fold>(load(x[4 * i + 1]), load(x[4 * i + 3]));
    fours[i] = fold_lanes<Fold>(a, b);
  }
  return fold_quarters<Fold>(fold_quarters<Fold>(fours[0], fours[1]), fold_quarters<Fold>(fours[2], fours[3]));
}

// Caps the scores of a row softly.
__attribute__((noinline)) void cap_scores(float* s, SoftCap cap) {
  for (int j = 0; j < kBlock; j += 16) {
    const Vec x = load(s + j), e = exp2_neg<true>(mul(abs(x), set1(-cap.steep)));
    const Vec y = mul(set1(cap.limit), div(sub(set1(1.0f), e), add(set1(1.0f), e)));
    store(s + j, select_ge(x, zero(), y, sub(zero(), y)));
  }
}

struct alignas(64) Work {
  float s[kRows][kBlock];
  uint16_t w[2][kRows][kInner];  // [position / 32][row][position % 32]
  float lanes[kRows][16], alpha[kRows];
};

// s[row][position] = q . k, in log2 units.
SX_INLINE void scores(const FoldArgs& a, Work& work) {
  const auto* q = reinterpret_cast<const uint16_t*>(a.query);
  const auto* k = reinterpret_cast<const uint16_t*>(a.keys);
  const int steps = steps_of(a.padded), stride = steps * kTile;
  SX_TILE_ZERO(0);
  SX_TILE_ZERO(1);
  SX_TILE_ZERO(2);
  SX_TILE_ZERO(3);
  for (int i = 0; i < steps; ++i, q += kTile, k += kTile) {
    SX_TILE_LOAD(4, q, 64);
    SX_TILE_LOAD(5, k, 64);
    SX_TILE_MULTIPLY(0, 4, 5);
    SX_TILE_LOAD(6, k + stride, 64);
    SX_TILE_MULTIPLY(1, 4, 6);
    SX_TILE_LOAD(5, k + 2 * stride, 64);
    SX_TILE_MULTIPLY(2, 4, 5);
    SX_TILE_LOAD(6, k + 3 * stride, 64);
    SX_TILE_MULTIPLY(3, 4, 6);
  }
  SX_TILE_STORE(0, work.s[0], 4 * kBlock);
  SX_TILE_STORE(1, work.s[0] + 16, 4 * kBlock);
  SX_TILE_STORE(2, work.s[0] + 32, 4 * kBlock);
  SX_TILE_STORE(3, work.s[0] + 48, 4 * kBlock);
}

SX_INLINE void raise_maxima(const FoldArgs& a, Work& work) {
  for (int i = 0; i < a.rows; ++i) {
    float* s = work.s[i];
    if (a.soft_cap > 0) cap_scores(s, SoftCap(a.soft_cap));
    if (a.end) {
      for (int j = 0; j < a.begin[i]; ++j) s[j] = -INFINITY;
      for (int j = a.end[i]; j < kBlock; ++j) s[j] = -INFINITY;
    }
    store(work.lanes[i], max(max(load(s), load(s + 16)), max(load(s + 32), load(s + 48))));
  }
  for (int i = a.rows; i < kRows; ++i) store(work.lanes[i], set1(kEmpty));
  const Vec old = load(a.state), m = max(old, fold_rows<Top>(work.lanes));
  store(a.state, m);
  store(work.alpha, exp2_neg<true>(sub(old, m)));
}

SX_INLINE void rescale(const FoldArgs& a, const float* alpha) {
  for (int i = 0; i < a.rows; ++i) {
    if (alpha[i] == 1 || a.state[kRows + i] == 0) continue;  // an empty row is all zeros
    float* o = a.state + kOutputsAt + i * a.padded;
    for (int c = 0; c < a.padded; c += 16) store(o + c, mul(load(o + c), set1(alpha[i])));
  }
}

// The even and the odd ones of 32 bf16 as floats.
SX_INLINE Vec even_of(__m512i x) { return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, x, 16)); }
SX_INLINE Vec odd_of(__m512i x) {
  return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(int(0xffff0000u))));
}

// Weights of the rows, and their sums.
SX_INLINE void weigh(const FoldArgs& a, Work& work) {
  for (int i = 0; i < a.rows; ++i) {
    const Vec m = set1(a.state[i]);
    Vec sum[2];
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const float* s = work.s[i] + h * kInner;
      const __m512i w = to_bf16(exp2_neg<false>(sub(load(s), m)), exp2_neg<false>(sub(load(s + 16), m)));
      _mm512_store_si512(work.w[h][i], w);
      sum[h] = add(even_of(w), odd_of(w));
    }
    store(work.lanes[i], add(sum[0], sum[1]));
  }
  for (int i = a.rows; i < kRows; ++i) {
    memset(work.w[0][i], 0, sizeof(work.w[0][i]));
    memset(work.w[1][i], 0, sizeof(work.w[1][i]));
    store(work.lanes[i], zero());
  }
  float* l = a.state + kRows;
  store(l, fma(load(l), load(work.alpha), fold_rows<Sum>(work.lanes)));
}

// o += w V, 16 channels in tile t.
#define SX_ADD_CHANNELS(t, o, v, stride) \
  SX_TILE_LOAD(t, o, stride);            \
  SX_TILE_LOAD(6, v, 64);                \
  SX_TILE_MULTIPLY(t, 4, 6);             \
  SX_TILE_LOAD(7, (v) + kTile, 64);      \
  SX_TILE_MULTIPLY(t, 5, 7);

SX_INLINE void add_values(const FoldArgs& a, const Work& work) {
  const auto* v = reinterpret_cast<const uint16_t*>(a.values);
  float* o = a.state + kOutputsAt;
  const int stride = 4 * a.padded;
  SX_TILE_LOAD(4, work.w[0][0], 64);
  SX_TILE_LOAD(5, work.w[1][0], 64);
  int c = 0;
  for (; c + 64 <= a.padded; c += 64, o += 64, v += 8 * kTile) {
    SX_ADD_CHANNELS(0, o, v, stride)
    SX_ADD_CHANNELS(1, o + 16, v + 2 * kTile, stride)
    SX_ADD_CHANNELS(2, o + 32, v + 4 * kTile, stride)
    SX_ADD_CHANNELS(3, o + 48, v + 6 * kTile, stride)
    SX_TILE_STORE(0, o, stride);
    SX_TILE_STORE(1, o + 16, stride);
    SX_TILE_STORE(2, o + 32, stride);
    SX_TILE_STORE(3, o + 48, stride);
  }
  for (; c < a.padded; c += 16, o += 16, v += 2 * kTile) {
    SX_ADD_CHANNELS(0, o, v, stride)
    SX_TILE_STORE(0, o, stride);
  }
}

// Of a block as tiles read it.
void fold_ready(const FoldArgs& a) {
  Work work;
  scores(a, work);
  raise_maxima(a, work);
  rescale(a, work.alpha);
  weigh(a, work);
  add_values(a, work);
}

#include "backend/cpu/attention/attention_amx_few.inl"

// Of a block as the store has it.
void fold_stored(const FoldArgs& a) {
  if (a.rows <= kFewRows) return kFoldFew[a.rows - 1](a);
  alignas(64) std::byte keys[kBlock * kMaxHeadDim * 2], values[kBlock * kMaxHeadDim * 2];
  ready_keys(a.keys, a.values, a.padded, keys);
  ready_values(a.values, a.next_keys ? a.next_keys : a.values, a.padded, values);
  FoldArgs ready = a;
  ready.keys = keys, ready.values = values;
  fold_ready(ready);
}

void copy_row(float* to, int to_row, const float* from, int from_row, int padded) {
  to[to_row] = from[from_row];
  to[kRows + to_row] = from[kRows + from_row];
  memcpy(to + kOutputsAt + to_row * padded, from + kOutputsAt + from_row * padded,
         sizeof(float) * static_cast<size_t>(padded));
}

// A row that sees nothing of the block is kept aside while its tile folds it.
template <void fold_all(const FoldArgs&)>
void fold(const FoldArgs& a) {
  bool some = false;
  for (int i = 0; a.end && i < a.rows; ++i) some = some || a.end[i] <= a.begin[i];
  if (!some) return fold_all(a);
  alignas(64) float kept[kOutputsAt + kRows * kMaxHeadDim];
  for (int i = 0; i < a.rows; ++i) copy_row(kept, i, a.state, i, a.padded);
  fold_all(a);
  for (int i = 0; i < a.rows; ++i)
    if (a.end[i] <= a.begin[i]) copy_row(a.state, i, kept, i, a.padded);
}

void merge(float* into, const float* from, int padded) {
  const Vec x = load(into), y = load(from), m = max(x, y);
  alignas(64) float a[kRows], b[kRows];
  store(a, exp2_neg<true>(sub(x, m)));
  store(b, exp2_neg<true>(sub(y, m)));
  for (int i = 0; i < kRows; ++i) {
    if (from[kRows + i] == 0) continue;
    if (into[kRows + i] == 0) {
      copy_row(into, i, from, i, padded);
      continue;
    }
    into[i] = into[i] > from[i] ? into[i] : from[i];
    into[kRows + i] = __builtin_fmaf(into[kRows + i], a[i], from[kRows + i] * b[i]);
    float* o = into + kOutputsAt + i * padded;
    const float* p = from + kOutputsAt + i * padded;
    for (int c = 0; c < padded; c += 16) store(o + c, fma(load(o + c), set1(a[i]), mul(load(p + c), set1(b[i]))));
  }
}

// Adding +0 makes every zero positive: the sign of one could depend on values that are masked (-0 + 0 * v).
void finish(const float* state, int row, float* out, int dim, int padded) {
  const float inverse = 1 / state[kRows + row];
  const float* o = state + kOutputsAt + row * padded;
  for (int c = 0; c < dim; ++c) out[c] = (o[c] + 0.0f) * inverse;
}

// Of blocks that several tiles fold.
constexpr AttentionKernels kReady = {.pack = pack,
                                     .fold = fold<fold_ready>,
                                     .merge = merge,
                                     .copy_row = copy_row,
                                     .finish = finish,
                                     .tile_rows = kRows,
                                     .ready_keys = ready_keys,
                                     .ready_values = ready_values,
                                     .shared = nullptr,
                                     .enter = enter,
                                     .leave = leave};

constexpr AttentionKernels of_stored_blocks() {
  AttentionKernels kernels = kReady;
  kernels.fold = fold<fold_stored>;
  kernels.ready_keys = kernels.ready_values = nullptr;
  kernels.shared = &kReady;
  return kernels;
}

}  // namespace

extern const AttentionKernels kAttentionBf16;
constexpr AttentionKernels kAttentionBf16 = of_stored_blocks();

}  // namespace sx::cpu::amx
