// Sampling as its definition reads (ops.h): everything sorted, everything summed, nothing skipped. And random rows with
// all that may come along: ties, infinities, NaN, bias, penalties, tokens that are not allowed.
#pragma once
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "backend/ops.h"
#include "base/rng.h"

namespace sx::cpu::testing {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Case {
  std::vector<float> logits;
  Sampling sampling;
  std::vector<TokenBias> bias;
  std::vector<TokenCount> counts;
  uint64_t position = 0;
  int vocab() const { return static_cast<int>(logits.size()); }
  std::vector<uint32_t> allowed;  // bits; empty: all
  ChooseRow row() const {
    return {logits.data(), position, &sampling, bias, counts, allowed.empty() ? nullptr : allowed.data()};
  }
  bool allows(size_t t) const { return allowed.empty() || (allowed[t / 32] >> (t % 32) & 1); }
};

inline std::vector<float> random_logits(int vocab, std::mt19937& random) {
  std::vector<float> x(static_cast<size_t>(vocab));
  std::normal_distribution<float> normal(0, 0.1f + static_cast<float>(random() % 50) / 10);
  const bool ties = random() % 3 == 0;
  for (float& v : x) v = ties ? std::round(normal(random) * 2) / 2 : normal(random);
  const auto any = [&]() -> float& { return x[random() % x.size()]; };
  if (random() % 4 == 0) {
    for (int i = 0; i < 4; ++i) any() = i % 2 ? -kInfinity : std::numeric_limits<float>::quiet_NaN();
    if (random() % 3 == 0) any() = kInfinity;
  }
  const float everywhere[] = {1.5f, -kInfinity, std::numeric_limits<float>::quiet_NaN(), kInfinity};
  if (random() % 25 == 0) std::fill(x.begin(), x.end(), everywhere[random() % 4]);
  return x;
}

inline Case random_case(int vocab, std::mt19937& random) {
  Case c;
  c.logits = random_logits(vocab, random);
  c.position = random();
  Sampling& s = c.sampling;
  s.temperature = random() % 5 == 0 ? 0.0f : 0.1f + static_cast<float>(random() % 25) / 10;
  if (random() % 2) s.top_k = 1 + static_cast<int>(random() % (random() % 3 ? 60u : static_cast<unsigned>(vocab) + 3));
  if (random() % 2) s.top_p = random() % 4 ? static_cast<float>(random() % 100) / 100 : random() % 2 ? 0.5f : 0.999999f;
  if (random() % 3 == 0) s.min_p = static_cast<float>(random() % 21) / 20;
  s.seed = random();
  if (random() % 3 == 0) {
    s.repeat_penalty = 1.2f, s.presence_penalty = 0.3f, s.frequency_penalty = -0.1f;
    for (int i = 0; i < 5; ++i) {
      c.bias.push_back({static_cast<Token>(random() % static_cast<unsigned>(vocab)), static_cast<float>(i) - 1});
      c.counts.push_back({static_cast<Token>(random() % static_cast<unsigned>(vocab)), i});
    }
  }
  return c;
}

// Allows any share of the tokens, now and then one or none. Bits behind the vocabulary are as they come.
inline void restrict_tokens(Case& c, std::mt19937& random) {
  c.allowed.assign((c.logits.size() + 31) / 32, 0);
  const unsigned way = random() % 8;
  for (uint32_t& word : c.allowed) {
    if (way == 0) word = random();                                                   // half
    else if (way == 1) word = random() % 3 ? ~0u : static_cast<uint32_t>(random());  // most
    else if (way < 5) word = random() & random() & random() & random() & random();   // few
    else if (way == 5) word = random() % 20 ? 0 : static_cast<uint32_t>(random());   // few, together
  }
  const size_t last = c.logits.size() % 32;
  if (way == 6) {
    const size_t only = random() % c.logits.size();
    c.allowed[only / 32] |= 1u << (only % 32);
  } else if (way == 7 && last > 0) {
    c.allowed.back() = ~0u << last;  // none, whatever lies behind
  }
}

inline std::vector<float> adjusted(const Case& c) {
  std::vector<float> x = c.logits;
  const Sampling& s = c.sampling;
  for (const TokenBias& b : c.bias) x[static_cast<size_t>(b.token)] += b.bias;
  for (const TokenCount& t : c.counts) {
    if (t.count <= 0) continue;
    float& logit = x[static_cast<size_t>(t.token)];
    logit = logit > 0 ? logit / s.repeat_penalty : logit * s.repeat_penalty;
    logit -= s.presence_penalty + s.frequency_penalty * static_cast<float>(t.count);
  }
  return x;
}

// The tokens that may be chosen at a temperature above 0, best first.
inline std::vector<Token> survivors(const std::vector<float>& x, const Case& c) {
  const Sampling& s = c.sampling;
  std::vector<Token> ids;
  for (size_t t = 0; t < x.size(); ++t)
    if (std::isfinite(x[t]) && c.allows(t)) ids.push_back(static_cast<Token>(t));
  const auto logit = [&](Token t) { return double(x[static_cast<size_t>(t)]); };
  std::stable_sort(ids.begin(), ids.end(), [&](Token a, Token b) { return logit(a) > logit(b); });
  if (s.top_k > 0 && ids.size() > static_cast<size_t>(s.top_k)) ids.resize(static_cast<size_t>(s.top_k));
  if (ids.empty()) return ids;
  const double top = logit(ids[0]);
  if (s.top_p < 1) {
    double sum = 0, kept = 0;
    for (const Token t : ids) sum += std::exp(logit(t) - top);
    size_t n = 0;
    while (n < ids.size() && (n == 0 || kept < double(s.top_p) * sum)) kept += std::exp(logit(ids[n++]) - top);
    ids.resize(n);
  }
  if (s.min_p > 0) std::erase_if(ids, [&](Token t) { return logit(t) < top + std::log(double(s.min_p)); });
  return ids;
}

inline Token greedy(const std::vector<float>& x, const Case& c = {}) {
  Token best = kNoToken;
  float most = -kInfinity;
  for (size_t t = 0; t < x.size(); ++t)
    if (c.allows(t) && x[t] > most) most = x[t], best = static_cast<Token>(t);
  for (size_t t = 0; t < x.size() && best == kNoToken; ++t)
    if (c.allows(t)) best = static_cast<Token>(t);
  return best;
}

inline Token chosen(const Case& c) {
  const std::vector<float> x = adjusted(c);
  const std::vector<Token> ids = survivors(x, c);
  if (!(c.sampling.temperature > 0) || ids.empty()) return greedy(x, c);
  const double inverse = 1.0 / double(c.sampling.temperature);
  Token best = -1;
  double most = 0;
  for (const Token t : ids) {
    const double noise = gumbel(c.sampling.seed, c.position, static_cast<uint64_t>(t));
    const double score = double(x[static_cast<size_t>(t)]) * inverse + noise;
    if (best < 0 || score > most || (score == most && t < best)) most = score, best = t;
  }
  return best;
}

inline std::vector<double> distribution(const Case& c) {
  const std::vector<float> x = adjusted(c);
  const std::vector<Token> ids = survivors(x, c);
  std::vector<double> p(x.size(), 0.0);
  if (!(c.sampling.temperature > 0) || ids.empty()) {
    if (const Token best = greedy(x, c); best != kNoToken) p[static_cast<size_t>(best)] = 1;
    return p;
  }
  double sum = 0;
  const auto weight = [&](Token t) {
    const double gap = double(x[static_cast<size_t>(t)]) - double(x[static_cast<size_t>(ids[0])]);
    return std::exp(gap / double(c.sampling.temperature));
  };
  for (const Token t : ids) sum += weight(t);
  for (const Token t : ids) p[static_cast<size_t>(t)] = weight(t) / sum;
  return p;
}

}  // namespace sx::cpu::testing
