#include "backend/cpu/choose.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace sx::cpu {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// The largest value's first index. NaN never wins; if nothing compares (all NaN or -inf) the answer is 0.
Token largest(const float* x, int n) {
  constexpr int kLanes = 16;
  float best[kLanes];
  int32_t at[kLanes];
  for (int j = 0; j < kLanes; ++j) best[j] = kNever, at[j] = std::numeric_limits<int32_t>::max();
  int i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int j = 0; j < kLanes; ++j) {
      const bool more = x[i + j] > best[j];
      best[j] = more ? x[i + j] : best[j];
      at[j] = more ? i + j : at[j];
    }
  for (int j = 0; i < n; ++i, ++j)
    if (x[i] > best[j]) best[j] = x[i], at[j] = i;
  int win = 0;
  for (int j = 1; j < kLanes; ++j)
    if (best[j] > best[win] || (best[j] == best[win] && at[j] < at[win])) win = j;
  return at[win] == std::numeric_limits<int32_t>::max() ? 0 : at[win];
}

void adjust(float* x, int vocab, const ChooseRow& row) {
  const Sampling& s = *row.sampling;
  for (const TokenBias& b : row.bias)
    if (b.token >= 0 && b.token < vocab) x[b.token] += b.bias;
  for (const TokenCount& c : row.counts) {
    if (c.token < 0 || c.token >= vocab || c.count <= 0) continue;
    float& logit = x[c.token];
    logit = logit > 0 ? logit / s.repeat_penalty : logit * s.repeat_penalty;
    logit -= s.presence_penalty + s.frequency_penalty * static_cast<float>(c.count);
  }
}

// Among the candidates, the largest logit / temperature + noise. Most candidates are dismissed without logarithms:
// -log(-log u) >= b needs -log u <= e^-b, and -log u >= 1 - u.
Token race(const float* logits, const Token* candidates, size_t count, const Sampling& s, uint64_t position) {
  const double inverse = 1.0 / double(s.temperature);
  double best = -std::numeric_limits<double>::infinity();
  Token winner = -1;
  for (size_t i = 0; i < count; ++i) {
    const Token token = candidates[i];
    const double u = uniform_from(hash_key(s.seed, position, static_cast<uint64_t>(token)));
    const double scaled = double(logits[token]) * inverse;
    if (1.0 - u > std::exp(scaled - best) * 1.000001) continue;
    const double score = scaled - std::log(-std::log(u));
    if (score > best || (score == best && token < winner)) best = score, winner = token;
  }
  return winner < 0 ? candidates[0] : winner;
}

// Keeps the candidates that top-k, top-p and min-p leave; `candidates` comes in with all ids of finite logits.
size_t filter(const float* logits, Token* candidates, size_t count, const Sampling& s) {
  const auto before = [&](Token a, Token b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); };
  if (s.top_k > 0 && size_t(s.top_k) < count) {
    std::nth_element(candidates, candidates + s.top_k, candidates + count, before);
    count = size_t(s.top_k);
  }
  if (s.top_p < 1) {
    std::sort(candidates, candidates + count, before);
    const double top = double(logits[candidates[0]]);
    double sum = 0, kept = 0;
    for (size_t i = 0; i < count; ++i) sum += std::exp(double(logits[candidates[i]]) - top);
    size_t n = 0;
    while (n < count) {
      kept += std::exp(double(logits[candidates[n++]]) - top);
      if (kept >= double(s.top_p) * sum) break;
    }
    count = std::max<size_t>(n, 1);
  }
  if (s.min_p > 0) {
    float top = kNever;
    for (size_t i = 0; i < count; ++i) top = std::max(top, logits[candidates[i]]);
    const double least = double(top) + std::log(double(s.min_p));
    count = size_t(std::partition(candidates, candidates + count, [&](Token t) { return double(logits[t]) >= least; }) - candidates);
  }
  return count;
}

}  // namespace

void ChooseScratch::reserve(int threads, int vocab) {
  if (threads_.size() < size_t(threads)) threads_.resize(size_t(threads));
  for (auto& t : threads_)
    if (t.adjusted.size() < size_t(vocab)) t.adjusted.resize(size_t(vocab)), t.candidates.resize(size_t(vocab));
}

void choose(const ChooseArgs& args, ThreadPool& pool, ChooseScratch& scratch) {
  const auto one = [&](int thread, size_t r) {
    const ChooseRow& row = args.rows[r];
    const Sampling& s = *row.sampling;
    const float* logits = row.logits;
    auto& mine = scratch.threads_[size_t(thread)];
    if (!row.bias.empty() || !row.counts.empty()) {
      std::memcpy(mine.adjusted.data(), logits, size_t(args.vocab) * sizeof(float));
      adjust(mine.adjusted.data(), args.vocab, row);
      logits = mine.adjusted.data();
    }
    if (!(s.temperature > 0)) {
      args.out[r] = largest(logits, args.vocab);
      return;
    }
    size_t count = 0;
    for (Token t = 0; t < args.vocab; ++t)
      if (std::isfinite(logits[t])) mine.candidates[count++] = t;
    if (count == 0) {
      args.out[r] = largest(logits, args.vocab);
      return;
    }
    count = filter(logits, mine.candidates.data(), count, s);
    args.out[r] = race(logits, mine.candidates.data(), count, s, row.position);
  };
  if (pool.size() == 1 || args.rows.size() == 1) {
    for (size_t r = 0; r < args.rows.size(); ++r) one(0, r);
    return;
  }
  pool.run([&](int thread) {
    for (size_t r = size_t(thread); r < args.rows.size(); r += size_t(pool.size())) one(thread, r);
  });
}

}  // namespace sx::cpu
