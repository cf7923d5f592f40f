// The block kernels of kv_score(), one table per instruction set and layout. They live beside those of attention and
// share their reading of keys; logits are in log2 units.
#pragma once
#include <cstddef>

#include "backend/cpu/isa.h"
#include "backend/cpu/kv/layout.h"

namespace sx::cpu {

inline constexpr int kScoreHeads = 3;  // query heads of one KV head that go over a block together

// Packed queries of such a lot: bytes that are enough for every kernel.
inline constexpr size_t score_query_bytes(int padded) {
  return size_t(2 * kScoreHeads) * static_cast<size_t>(padded) * 4 + 64;
}

struct ScoreKernels {
  // Packs head `head` of a lot: x [dim] times scale * log2(e), zero in the padding. Head 0 must come first (it clears).
  void (*pack)(std::byte* query, int head, const float* x, int dim, int padded, float scale);
  // s[head][position] = q k of a block. next: the K block that is read next, or null.
  void (*logits)(const std::byte* query, const std::byte* keys, const std::byte* next, int heads, int padded,
                 float (*s)[kBlock]);
  // low, high [padded]: widened to the smallest and largest value of each dimension in positions [from, to).
  void (*widen)(const std::byte* keys, int from, int to, int padded, float* low, float* high);
};

struct ScoreFolds {
  // Folds s[from, to) into a running maximum m and a sum l of 2^(s - m); l = 0: nothing was folded yet.
  void (*weigh)(const float* s, int from, int to, float* m, float* l);
  // Sum of s[from, to).
  float (*sum)(const float* s, int from, int to);
  // Sum over the dimensions of the larger of q low and q high.
  float (*bound)(const float* q, const float* low, const float* high, int padded);
  // l[i] = 2^(m[i] - M) * (mass ? l[i] : 1) / sum over j of 2^(m[j] - M) l[j], M the largest m.
  void (*share)(const float* m, float* l, int count, bool mass);
};

// The tables for a store's layout.
const ScoreKernels& score_kernels(const KvLayout& layout, Isa isa);
const ScoreFolds& score_folds(Isa isa);

}  // namespace sx::cpu
