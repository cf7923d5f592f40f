#include "backend/cpu/sampling/top_k.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "base/error.h"

namespace sx::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

int slabs_of(int vocab) { return (vocab + kSlab - 1) / kSlab; }

// The maxima of a slab's groups; returns the largest.
float find_slab_maxima(const float* row, int vocab, int slab, RowScratch& scratch) {
  float* maxima = scratch.maxima.data() + slab * kGroups;
  scratch.kernels->find_maxima(row + slab * kSlab, std::min(kSlab, vocab - slab * kSlab), maxima);
  return *std::max_element(maxima, maxima + kGroups);
}

bool better(const float* row, Token a, Token b) { return row[a] > row[b] || (row[a] == row[b] && a < b); }

struct Normaliser {
  float largest;
  double log_sum;  // of e^x
};

// Fills the maxima too. One way through memory: a slab is summed while it is near.
Normaliser find_normaliser(const float* row, int vocab, RowScratch& scratch) {
  const int slabs = slabs_of(vocab);
  float largest = kNever;
  double sum = 0;  // of e^(x - largest) over the slabs so far
  for (int s = 0; s < slabs; ++s) {
    const float top = find_slab_maxima(row, vocab, s, scratch);
    if (!std::isfinite(top)) {
      largest = std::max(largest, top);
      continue;
    }
    const double add = double(scratch.kernels->sum_powers(row + s * kSlab, std::min(kSlab, vocab - s * kSlab), top));
    if (top > largest) {
      sum = sum * std::exp(double(largest) - double(top)) + add;
      largest = top;
    } else {
      sum += add * std::exp(double(top) - double(largest));
    }
  }
  return {largest, double(largest) + std::log(sum)};
}

// A logit that at least k tokens reach: the k-th largest of disjoint groups' maxima. Groups are joined while there are
// many more than k, which costs little sharpness and saves most of the ranking. -infinity: not enough groups.
float reached_by(size_t k, int vocab, RowScratch& scratch) {
  auto slabs = static_cast<size_t>(slabs_of(vocab));
  if (k > slabs * kGroups) return kNever;
  float* ranked = scratch.ranked.data();
  std::copy_n(scratch.maxima.data(), slabs * kGroups, ranked);
  while (slabs > 1 && slabs * kGroups >= 8 * k) {
    const size_t half = (slabs + 1) / 2;
    for (size_t i = 0; i < (slabs - half) * kGroups; ++i) ranked[i] = std::max(ranked[i], ranked[half * kGroups + i]);
    slabs = half;
  }
  std::nth_element(ranked, ranked + (k - 1), ranked + slabs * kGroups, std::greater<float>());
  return ranked[k - 1];
}

void top_k_row(const float* row, int vocab, size_t k, Candidate* out, RowScratch& scratch) {
  Normaliser n = find_normaliser(row, vocab, scratch);
  if (n.largest == -kNever) {
    find_maxima_of_finite(row, vocab, scratch);
    row = scratch.copy.data();
    n = find_normaliser(row, vocab, scratch);
  }
  const size_t count = pick_best(k, row, vocab, scratch);
  sort_tokens({scratch.tokens.data(), count}, row);
  for (size_t i = 0; i < count; ++i) {
    const Token token = scratch.tokens[i];
    out[i] = {token, std::min(0.0f, static_cast<float>(double(row[token]) - n.log_sum)), row[token]};
  }
  size_t filled = count;
  for (Token t = 0; filled < k; ++t)
    if (!(row[t] > kNever)) out[filled++] = {t, kNever, kNever};
}

}  // namespace

void RowScratches::reserve(int threads, int vocab) {
  if (threads_.size() < static_cast<size_t>(threads)) threads_.resize(static_cast<size_t>(threads));
  const auto n = static_cast<size_t>(vocab), slabs = static_cast<size_t>(slabs_of(vocab));
  for (RowScratch& s : threads_) {
    s.kernels = kernels_;
    if (s.copy.size() >= n) continue;
    s.copy.resize(n);
    s.tokens.resize(n);
    s.maxima.resize(slabs * kGroups);
    s.ranked.resize(slabs * kGroups);
  }
}

float find_maxima(const float* row, int vocab, RowScratch& scratch) {
  SX_ASSERT(vocab > 0 && static_cast<size_t>(vocab) <= scratch.copy.size());
  float largest = kNever;
  for (int s = 0; s < slabs_of(vocab); ++s) largest = std::max(largest, find_slab_maxima(row, vocab, s, scratch));
  return largest;
}

float find_maxima_of_finite(const float* row, int vocab, RowScratch& scratch) {
  for (int i = 0; i < vocab; ++i) scratch.copy[static_cast<size_t>(i)] = std::isfinite(row[i]) ? row[i] : kNever;
  return find_maxima(scratch.copy.data(), vocab, scratch);
}

Token first_with(float largest, const float* row, int vocab, const RowScratch& scratch) {
  if (largest == kNever) return 0;
  const float* maxima = scratch.maxima.data();
  const auto group = std::find(maxima, maxima + slabs_of(vocab) * kGroups, largest) - maxima;
  auto token = static_cast<Token>(group / kGroups * kSlab);
  while (row[token] != largest) ++token;
  return token;
}

size_t pick_above(double least, const float* row, int vocab, RowScratch& scratch) {
  Token* out = scratch.tokens.data();
  const int groups = slabs_of(vocab) * kGroups;
  for (int g = 0; g < groups; ++g) {
    if (!(double(scratch.maxima[static_cast<size_t>(g)]) >= least)) continue;
    const int from = g / kGroups * kSlab, to = std::min(from + kSlab, vocab);
    for (int t = from + g % kGroups; t < to; t += kGroups)
      if (double(row[t]) >= least) *out++ = t;
  }
  return static_cast<size_t>(out - scratch.tokens.data());
}

size_t pick_best(size_t k, const float* row, int vocab, RowScratch& scratch) {
  const float least = std::max(reached_by(k, vocab, scratch), std::numeric_limits<float>::lowest());
  const size_t count = pick_above(double(least), row, vocab, scratch);
  if (count <= k) return count;
  Token* tokens = scratch.tokens.data();
  std::nth_element(tokens, tokens + k, tokens + count, [row](Token a, Token b) { return better(row, a, b); });
  return k;
}

void sort_tokens(std::span<Token> tokens, const float* row) {
  std::sort(tokens.begin(), tokens.end(), [row](Token a, Token b) { return better(row, a, b); });
}

void top_k(const TopKArgs& args, ThreadPool& pool, RowScratches& scratch) {
  SX_ASSERT(args.k > 0 && args.k <= args.vocab && static_cast<size_t>(args.vocab) <= scratch[0].copy.size());
  share_rows(args.rows, pool, scratch, [&](int r, RowScratch& mine) {
    const auto k = static_cast<size_t>(args.k);
    const float* row = args.logits + static_cast<ptrdiff_t>(r) * (args.stride > 0 ? args.stride : args.vocab);
    top_k_row(row, args.vocab, k, args.out + static_cast<size_t>(r) * k, mine);
  });
}

}  // namespace sx::cpu
