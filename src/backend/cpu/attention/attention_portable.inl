// The attention kernels for the "lanes" layouts on any instruction set, in f32 arithmetic on simd.h: K
// [pos/16][d][pos%16] gives scores whose lanes are positions, V [pos][c] gives outputs whose lanes are channels. A
// block is read once for the up to 6 rows of a tile; with 4 lanes the register tile is 6 rows x 16 columns, with 16
// lanes 6 rows x 64 columns = 24 accumulators. Each score and each output has one accumulator that runs over its inner
// dimension in order, so the number of rows changes no bit.
//
// Include from one translation unit per instruction set with SX_ISA_NAMESPACE defined and that set's flags; nothing
// here has external linkage except portable_attention().
#include <math.h>
#include <string.h>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr float kEmpty = -1e30f;  // m of a row that has seen nothing; masked scores are -infinity, which is below it
constexpr int kColumns = 16 / kLanes;  // vectors in 16 columns
constexpr int kAlphas = 16;            // factors for old outputs: of kTileRows rows, in whole vectors
static_assert(kAlphas >= kTileRows && kAlphas % kLanes == 0);
static_assert(16 % kLanes == 0);

// One element type: how kLanes of them become floats, and the scale of a position (1 where there is none).
struct F32 {
  using Stored = float;
  static constexpr bool kScaled = false;
  SX_INLINE Vec get(const float* p) { return load(p); }
};
struct F16 {
  using Stored = uint16_t;
  static constexpr bool kScaled = false;
  SX_INLINE Vec get(const uint16_t* p) { return load_f16(p); }
};
struct BF16 {
  using Stored = uint16_t;
  static constexpr bool kScaled = false;
  SX_INLINE Vec get(const uint16_t* p) { return load_bf16(p); }
};
struct Q8 {
  using Stored = int8_t;
  static constexpr bool kScaled = true;
  SX_INLINE Vec get(const int8_t* p) { return load_i8(p); }
};

// The same numbers, written out as floats by widen_block().
template <class E>
struct Wide {
  using Stored = float;
  static constexpr bool kScaled = E::kScaled;
  SX_INLINE Vec get(const float* p) { return load(p); }
};

// 2^t for t <= 0, relative error below 2e-7; exactly 1 at 0, exactly 0 below -125: never a subnormal number, which x86
// computes with in a slow path.
SX_INLINE Vec exp2_neg(Vec t) {
  const Vec low = max(t, set1(-125.0f)), n = round(low), f = sub(low, n);
  Vec p = fma(set1(1.540353e-4f), f, set1(1.33335581e-3f));
  p = fma(p, f, set1(9.61812911e-3f));
  p = fma(p, f, set1(5.55041087e-2f));
  p = fma(p, f, set1(0.240226507f));
  p = fma(p, f, set1(0.693147181f));
  p = fma(p, f, set1(1.0f));
  return select_ge(t, set1(-125.0f), scale2(p, n), zero());
}
SX_INLINE float exp2_neg1(float t) {
  float lanes[kLanes];
  store(lanes, exp2_neg(set1(t)));
  return lanes[0];
}

// Queries: [6][padded] floats.
void pack(std::byte* query, int row, const float* x, int dim, int padded, float scale) {
  if (row == 0) memset(query, 0, sizeof(float) * static_cast<size_t>(kTileRows * padded));
  float* q = reinterpret_cast<float*>(query) + row * padded;
  const float factor = scale * 1.44269504f;
  for (int d = 0; d < dim; ++d) q[d] = x[d] * factor;
}

// Groups of 16 columns (positions or channels) that R rows multiply at once: enough independent chains to hide the
// latency of a multiply-add, as many as registers hold. It changes no chain.
template <int R>
constexpr int kSpread = kLanes == 16            ? 4
                        : kLanes == 8 && R <= 2 ? 2
                                                : 1;

// The scales behind the elements of a block.
template <class E>
SX_INLINE const float* scales_of(const std::byte* block, int padded) {
  return reinterpret_cast<const float*>(block + kBlock * padded * int(sizeof(typename E::Stored)));
}

// Asks for the cache lines of `count` elements.
template <class T>
SX_INLINE void fetch(const T* p, int count) {
  if (kLanes < 8) return;  // not measured elsewhere
#pragma GCC unroll 4
  for (int i = 0; i < count; i += 64 / int(sizeof(T))) __builtin_prefetch(p + i);
}

// s[row][pos] = q . k, in log2 units. next: a block of as many bytes that is read next and is fetched meanwhile, or
// `keys` itself.
template <class E, int R>
__attribute__((noinline)) void scores(const float* q, const std::byte* keys, const std::byte* next, int padded,
                                      float (*s)[kBlock]) {
  constexpr int kVecs = kColumns * kSpread<R>;
  const auto* k = reinterpret_cast<const typename E::Stored*>(keys);
  const auto* ahead = reinterpret_cast<const typename E::Stored*>(next);
  const float* scale = scales_of<E>(keys, padded);
  for (int t = 0; t < kBlock; t += kVecs * kLanes, k += kVecs * kLanes * padded) {
    Vec acc[R][kVecs];
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < kVecs; ++j) acc[i][j] = zero();
#pragma GCC unroll 1
    for (int d = 0; d < padded; ++d, ahead += kVecs * kLanes) {
      Vec b[kVecs];
      fetch(ahead, kVecs * kLanes);
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) b[j] = E::get(k + (j / kColumns * padded + d) * 16 + j % kColumns * kLanes);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) {
        const Vec a = set1(q[i * padded + d]);
#pragma GCC unroll 4
        for (int j = 0; j < kVecs; ++j) acc[i][j] = fma(a, b[j], acc[i][j]);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) {
        Vec x = acc[i][j];
        if constexpr (E::kScaled) x = mul(x, load(scale + t + j * kLanes));
        store(s[i] + t + j * kLanes, x);
      }
  }
}

// Caps the scores of a row softly.
__attribute__((noinline)) void cap_scores(float* s, SoftCap cap) {
  for (int j = 0; j < kBlock; j += kLanes) {
    const Vec x = load(s + j), e = exp2_neg(mul(abs(x), set1(-cap.steep)));
    const Vec y = mul(set1(cap.limit), div(sub(set1(1.0f), e), add(set1(1.0f), e)));
    store(s + j, select_ge(x, zero(), y, sub(zero(), y)));
  }
}

// Scores to weights, in place; raises m, rescales and extends l; alpha: the factors for the old outputs. What the rows
// do one after the other (a maximum and a sum across lanes, the exponential of one number) is done for all of them at
// each step, so that they wait for it together.
template <class E, int R>
SX_INLINE void weigh(float (*s)[kBlock], float* m, float* l, float* alpha, const float* scale) {
  float next[R], sum[R];
  for (int i = 0; i < R; ++i) {
    Vec top = set1(kEmpty);
    for (int j = 0; j < kBlock; j += kLanes) top = max(top, load(s[i] + j));
    const float high = reduce_max(top);
    next[i] = high > m[i] ? high : m[i];
    alpha[i] = m[i] - next[i];
    m[i] = next[i];
  }
  for (int i = R; i < kAlphas; ++i) alpha[i] = 0;
  for (int i = 0; i < R; i += kLanes) store(alpha + i, exp2_neg(load(alpha + i)));
  for (int i = 0; i < R; ++i) {
    Vec all = zero();
    for (int j = 0; j < kBlock; j += kLanes) {
      Vec w = exp2_neg(sub(load(s[i] + j), set1(next[i])));
      all = add(all, w);
      if constexpr (E::kScaled) w = mul(w, load(scale + j));
      store(s[i] + j, w);
    }
    sum[i] = reduce_add(all);
  }
  for (int i = 0; i < R; ++i) l[i] = l[i] * alpha[i] + sum[i];
}

// o[row][c] = alpha[row] * o[row][c] + sum over positions of w[row][pos] * v[pos][c], for the channels of kVecs
// vectors. next: see scores(). Adding +0 turns -0 into +0: the sign of a zero would otherwise depend on masked values
// (-0 + 0 * v).
template <class E, int R, int kVecs>
SX_INLINE void add_channels(float* o, const typename E::Stored* v, const typename E::Stored* next, int padded,
                            const float (*w)[kBlock], const float* alpha) {
  Vec acc[R][kVecs];
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < kVecs; ++j) acc[i][j] = fma(load(o + i * padded + j * kLanes), set1(alpha[i]), zero());
#pragma GCC unroll 1
  for (int p = 0; p < kBlock; ++p) {
    Vec b[kVecs];
    fetch(next + p * padded, kVecs * kLanes);
#pragma GCC unroll 4
    for (int j = 0; j < kVecs; ++j) b[j] = E::get(v + p * padded + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      const Vec a = set1(w[i][p]);
#pragma GCC unroll 4
      for (int j = 0; j < kVecs; ++j) acc[i][j] = fma(a, b[j], acc[i][j]);
    }
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < kVecs; ++j) store(o + i * padded + j * kLanes, acc[i][j]);
}

template <class E, int R>
__attribute__((noinline)) void add_values(float* o, const std::byte* values, const std::byte* next, int padded,
                                          const float (*w)[kBlock], const float* alpha) {
  const auto* v = reinterpret_cast<const typename E::Stored*>(values);
  const auto* ahead = reinterpret_cast<const typename E::Stored*>(next);
  int c = 0;
  if (kSpread < R >> 1)
    for (; c + 16 * kSpread<R> <= padded; c += 16 * kSpread<R>)
      add_channels<E, R, kColumns * kSpread<R>>(o + c, v + c, ahead + c, padded, w, alpha);
  for (; c < padded; c += 16) add_channels<E, R, kColumns>(o + c, v + c, ahead + c, padded, w, alpha);
}

// The elements of K and of V.
template <class K, class V>
struct Pair {
  using Keys = K;
  using Values = V;
};

// E: a Pair.
template <class E, int R>
void fold_rows(const FoldArgs& a) {
  alignas(64) float s[R][kBlock], alpha[kAlphas];
  float* m = a.state;
  float* l = a.state + 8;
  float* o = a.state + kStateHead;
  const bool fetching = a.next_keys != nullptr;
  scores<typename E::Keys, R>(reinterpret_cast<const float*>(a.query), a.keys, fetching ? a.values : a.keys, a.padded,
                              s);
  const float* scale = scales_of<typename E::Values>(a.values, a.padded);
  for (int i = 0; i < R; ++i) {
    if (a.soft_cap > 0) cap_scores(s[i], SoftCap(a.soft_cap));
    if (a.end && i < a.rows) {
      for (int j = 0; j < a.begin[i]; ++j) s[i][j] = -INFINITY;
      for (int j = a.end[i]; j < kBlock; ++j) s[i][j] = -INFINITY;
    }
  }
  weigh<typename E::Values, R>(s, m, l, alpha, scale);
  add_values<typename E::Values, R>(o, a.values, fetching ? a.next_keys : a.values, a.padded, s, alpha);
}

// A tile may be folded as a larger one: rows beyond a.rows are zeros and are never read.
template <class E>
void fold_any(const FoldArgs& a) {
  if (a.rows == 1) return fold_rows<E, 1>(a);
#if !defined(SX_SIMD_GENERIC)  // where speed matters
  if (a.rows == 2) return fold_rows<E, 2>(a);
  if (a.rows == 4) return fold_rows<E, 4>(a);
#endif
  return a.rows <= 3 ? fold_rows<E, 3>(a) : fold_rows<E, 6>(a);
}

void copy_row(float* to, int to_row, const float* from, int from_row, int padded) {
  to[to_row] = from[from_row];
  to[8 + to_row] = from[8 + from_row];
  memcpy(to + kStateHead + to_row * padded, from + kStateHead + from_row * padded,
         sizeof(float) * static_cast<size_t>(padded));
}

// A row that sees nothing of the block is kept aside while its tile folds it.
template <class E>
__attribute__((noinline)) void fold_aside(const FoldArgs& a) {
  alignas(64) float kept[kStateHead + kTileRows * kMaxHeadDim];
  for (int i = 0; i < a.rows; ++i) copy_row(kept, i, a.state, i, a.padded);
  fold_any<E>(a);
  for (int i = 0; i < a.rows; ++i)
    if (a.end[i] <= a.begin[i]) copy_row(a.state, i, kept, i, a.padded);
}

template <class E>
void fold(const FoldArgs& a) {
  bool some = false;
  if (a.end)
    for (int i = 0; i < a.rows; ++i) some = some || a.end[i] <= a.begin[i];
  if (some) fold_aside<E>(a);
  else fold_any<E>(a);
}

void merge(float* into, const float* from, int padded) {
  for (int i = 0; i < kTileRows; ++i) {
    if (from[8 + i] == 0) continue;
    if (into[8 + i] == 0) {
      copy_row(into, i, from, i, padded);
      continue;
    }
    const float m = into[i] > from[i] ? into[i] : from[i];
    const float a = exp2_neg1(into[i] - m), b = exp2_neg1(from[i] - m);
    into[i] = m;
    into[8 + i] = into[8 + i] * a + from[8 + i] * b;
    float* x = into + kStateHead + i * padded;
    const float* y = from + kStateHead + i * padded;
    for (int c = 0; c < padded; c += kLanes) store(x + c, fma(load(x + c), set1(a), mul(load(y + c), set1(b))));
  }
}

void finish(const float* state, int row, float* out, int dim, int padded) {
  const float inverse = 1 / state[8 + row];
  const float* o = state + kStateHead + row * padded;
  for (int c = 0; c < dim; ++c) out[c] = o[c] * inverse;
}

// A block of K or V as floats, its scales behind them.
template <class E>
void widen_block(const std::byte* block, const std::byte* next, int padded, std::byte* out) {
  const auto* from = reinterpret_cast<const typename E::Stored*>(block);
  const auto* ahead = reinterpret_cast<const typename E::Stored*>(next);
  auto* to = reinterpret_cast<float*>(out);
  for (int i = 0; i < kBlock * padded; i += 64) {
    fetch(ahead + i, 64);
#pragma GCC unroll 8
    for (int j = i; j < i + 64; j += kLanes) store(to + j, E::get(from + j));
  }
  if (E::kScaled) memcpy(to + kBlock * padded, scales_of<E>(block, padded), sizeof(float) * kBlock);
}

template <class E>
using WidePair = Pair<Wide<typename E::Keys>, Wide<typename E::Values>>;
template <class E>
constexpr AttentionKernels kWideTable = {pack,
                                         fold<WidePair<E>>,
                                         merge,
                                         copy_row,
                                         finish,
                                         kTileRows,
                                         widen_block<typename E::Keys>,
                                         widen_block<typename E::Values>};
// Other sets have not been measured with wide blocks.
template <class E>
constexpr AttentionKernels kTable = {
    pack, fold<E>, merge, copy_row, finish, kTileRows, nullptr, nullptr, kLanes >= 8 ? &kWideTable<E> : nullptr};

template <class K>
const AttentionKernels* table_of(DType values) {
  switch (values) {
    case DType::kF32: return &kTable<Pair<K, F32>>;
    case DType::kF16: return &kTable<Pair<K, F16>>;
    case DType::kBF16: return &kTable<Pair<K, BF16>>;
    case DType::kQ8_0: return &kTable<Pair<K, Q8>>;
    default: return nullptr;
  }
}

}  // namespace

const AttentionKernels* portable_attention(DType keys, DType values);
const AttentionKernels* portable_attention(DType keys, DType values) {
  switch (keys) {
    case DType::kF32: return table_of<F32>(values);
    case DType::kF16: return table_of<F16>(values);
    case DType::kBF16: return table_of<BF16>(values);
    case DType::kQ8_0: return table_of<Q8>(values);
    default: return nullptr;
  }
}

}  // namespace sx::cpu::SX_ISA_NAMESPACE
