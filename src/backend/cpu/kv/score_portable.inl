// The kernels of kv_score() for the "lanes" layouts on any instruction set. Included after attention_portable.inl,
// whose elements and scores it uses.
#include "backend/cpu/kv/score_kernels.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

// Queries are packed as those of attention; rows beyond the lot's heads are zeros and are never read.
template <class E>
void logits(const std::byte* query, const std::byte* keys, const std::byte* next, int heads, int padded,
            float (*s)[kBlock]) {
  const auto* q = reinterpret_cast<const float*>(query);
  if (!next) next = keys;
  if (heads == 1) scores<E, 1>(q, keys, next, padded, s);
  else scores<E, kScoreHeads>(q, keys, next, padded, s);
}

struct Indices {
  float at[kBlock];
};
constexpr Indices kIndices = [] {
  Indices x{};
  for (int i = 0; i < kBlock; ++i) x.at[i] = static_cast<float>(i);
  return x;
}();

// Lanes outside [from, to) become `other`.
SX_INLINE Vec only(Vec x, int at, int from, int to, Vec other) {
  const Vec index = load(kIndices.at + at);
  const Vec y = select_ge(index, set1(static_cast<float>(from)), x, other);
  return select_ge(set1(static_cast<float>(to - 1)), index, y, other);
}

template <class E>
void widen(const std::byte* keys, int from, int to, int padded, float* low, float* high) {
  const auto* k = reinterpret_cast<const typename E::Stored*>(keys);
  const auto* scale = reinterpret_cast<const float*>(keys + kBlock * padded);
  const int first = from / kLanes * kLanes;
  for (int d = 0; d < padded; ++d) {
    Vec least = set1(INFINITY), most = set1(-INFINITY);
    for (int p = first; p < to; p += kLanes) {
      Vec x = E::get(k + p / 16 * 16 * padded + d * 16 + p % 16);
      if constexpr (E::kScaled) x = mul(x, load(scale + p));
      const bool whole = p >= from && p + kLanes <= to;
      least = min(least, whole ? x : only(x, p, from, to, least));
      most = max(most, whole ? x : only(x, p, from, to, most));
    }
    const float a = -reduce_max(sub(zero(), least)), b = reduce_max(most);
    low[d] = a < low[d] ? a : low[d];
    high[d] = b > high[d] ? b : high[d];
  }
}

// 2^t for t <= 0, relative error 4e-6; exactly 1 at 0, exactly 0 below -125.
SX_INLINE Vec weight_of(Vec t) {
  const Vec magic = set1(12582912.0f), low = max(t, set1(-125.0f)), w = add(low, magic), f = sub(low, sub(w, magic));
  Vec p = fma(set1(9.61813e-3f), f, set1(5.550411e-2f));
  p = fma(p, f, set1(0.240226507f));
  p = fma(p, f, set1(0.693147181f));
  p = fma(p, f, set1(1.0f));
  return select_ge(t, set1(-125.0f), add_exponent(p, w), zero());
}

// Calls body(vector of s at p) for the lanes of [from, to), the others being `other`.
template <class Body>
SX_INLINE void each_vector(const float* s, int from, int to, float other, Body body) {
  int p = from / kLanes * kLanes;
  if (p < from) {
    body(only(load(s + p), p, from, to, set1(other)));
    p += kLanes;
  }
#pragma GCC unroll 4
  for (; p + kLanes <= to; p += kLanes) body(load(s + p));
  if (p < to) body(only(load(s + p), p, from, to, set1(other)));
}

// Eight vectors go through each step together: one by one their chains of dependent instructions would fill the queues.
// Weights below 2^-125 come out as about that: against the 1 of the maximum they vanish.
SX_INLINE Vec weights_of_eight(const float* s, Vec level) {
  Vec t[8], w[8], p[8];
  const Vec magic = set1(12582912.0f), least = set1(-125.0f);
#define SX_EACH8(...) \
  _Pragma("GCC unroll 8") for (int e = 0; e < 8; ++e) { __VA_ARGS__; }
  SX_EACH8(t[e] = max(sub(load(s + e * kLanes), level), least))
  SX_EACH8(w[e] = add(t[e], magic))
  SX_EACH8(t[e] = sub(t[e], sub(w[e], magic)))
  SX_EACH8(p[e] = fma(set1(9.61813e-3f), t[e], set1(5.550411e-2f)))
  SX_EACH8(p[e] = fma(p[e], t[e], set1(0.240226507f)))
  SX_EACH8(p[e] = fma(p[e], t[e], set1(0.693147181f)))
  SX_EACH8(p[e] = fma(p[e], t[e], set1(1.0f)))
  SX_EACH8(p[e] = add_exponent(p[e], w[e]))
#undef SX_EACH8
  return add(add(add(p[0], p[1]), add(p[2], p[3])), add(add(p[4], p[5]), add(p[6], p[7])));
}

void weigh_chunk(const float* s, int from, int to, float* m, float* l) {
  Vec top = set1(-INFINITY);
  each_vector(s, from, to, -INFINITY, [&](Vec x) { top = max(top, x); });
  const float high = reduce_max(top), next = *l == 0 || high > *m ? high : *m;
  const Vec level = set1(next);
  Vec sum = zero();
  if (from % kLanes == 0)
    for (; from + 8 * kLanes <= to; from += 8 * kLanes) sum = add(sum, weights_of_eight(s + from, level));
  each_vector(s, from, to, -INFINITY, [&](Vec x) { sum = add(sum, weight_of(sub(x, level))); });
  const float old = *l == 0 ? 0.0f : *l * exp2_neg1(*m - next);
  *m = next;
  *l = old + reduce_add(sum);
}

float sum_chunk(const float* s, int from, int to) {
  Vec sum = zero();
  each_vector(s, from, to, 0, [&](Vec x) { sum = add(sum, x); });
  return reduce_add(sum);
}

float bound_chunk(const float* q, const float* low, const float* high, int padded) {
  Vec sum = zero();
  for (int d = 0; d < padded; d += kLanes) {
    const Vec x = load(q + d);
    sum = add(sum, max(mul(x, load(low + d)), mul(x, load(high + d))));
  }
  return reduce_add(sum);
}

// A vector of m or l from i on, `other` behind the end.
SX_INLINE Vec some(const float* x, int i, int count, float other) {
  if (i + kLanes <= count) return load(x + i);
  float y[kLanes];
  for (int j = 0; j < kLanes; ++j) y[j] = i + j < count ? x[i + j] : other;
  return load(y);
}

void share(const float* m, float* l, int count, bool mass) {
  Vec top = set1(-INFINITY), sum = zero();
  for (int i = 0; i < count; i += kLanes) top = max(top, some(m, i, count, -INFINITY));
  const Vec level = set1(reduce_max(top));
  for (int i = 0; i < count; i += kLanes)
    sum = fma(weight_of(sub(some(m, i, count, -INFINITY), level)), some(l, i, count, 0), sum);
  const Vec inverse = set1(1 / reduce_add(sum));
  for (int i = 0; i < count; i += kLanes) {
    const Vec w = mul(weight_of(sub(some(m, i, count, -INFINITY), level)), inverse);
    float y[kLanes];
    store(y, mass ? mul(w, some(l, i, count, 0)) : w);
    for (int j = 0; j < kLanes && i + j < count; ++j) l[i + j] = y[j];
  }
}

template <class E>
constexpr ScoreKernels kScoreTable = {pack, logits<E>, widen<E>};
constexpr ScoreFolds kFolds = {weigh_chunk, sum_chunk, bound_chunk, share};

}  // namespace

const ScoreFolds* portable_folds();
const ScoreFolds* portable_folds() { return &kFolds; }

const ScoreKernels* portable_scores(DType type);
const ScoreKernels* portable_scores(DType type) {
  switch (type) {
    case DType::kF32: return &kScoreTable<F32>;
    case DType::kF16: return &kScoreTable<F16>;
    case DType::kBF16: return &kScoreTable<BF16>;
    case DType::kQ8_0: return &kScoreTable<Q8>;
    default: return nullptr;
  }
}

}  // namespace sx::cpu::SX_ISA_NAMESPACE
