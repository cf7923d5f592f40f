#include "speculative/draft/candidates.h"

#include <algorithm>
#include <cmath>

#include "base/fixed_math.h"
#include "base/rng.h"
#include "speculative/tree/tree_grammar.h"

namespace sx {
namespace {

constexpr int kPool = 48;            // candidates looked at when the request reweights them
constexpr size_t kMostCounts = 256;  // longer penalty windows are not worth following in a guess
constexpr uint64_t kDrawTag = 0x6472616674647261ull;

bool greedy(const Sampling& s) { return !(s.temperature > 0); }

float penalised(float logit, Token token, const DraftTask& task) {
  for (const TokenBias& b : task.bias)
    if (b.token == token) logit += b.bias;
  if (task.counts.size() > kMostCounts) return logit;
  for (const TokenCount& c : task.counts) {
    if (c.token != token) continue;
    logit = logit > 0 ? logit / task.sampling->repeat_penalty : logit * task.sampling->repeat_penalty;
    logit -= task.sampling->presence_penalty + task.sampling->frequency_penalty * float(c.count);
  }
  return logit;
}

// How far below the largest logit min-p allows others; not 0.
double least_of(const Sampling& s) { return std::min(std::log(double(s.min_p)), -1e-12); }

void sort_best(std::span<Candidate> c) {
  std::sort(c.begin(), c.end(), [](const Candidate& a, const Candidate& b) {
    return a.logp != b.logp ? a.logp > b.logp : a.token < b.token;
  });
}

// What top-k, top-p and min-p leave of candidates sorted by logit (in logp); the pool stands for the whole
// distribution.
size_t surviving(std::span<const Candidate> c, const Sampling& s) {
  size_t n = s.top_k > 0 ? std::min(c.size(), size_t(s.top_k)) : c.size();
  double sum = 0, kept = 0;
  for (size_t i = 0; i < n; ++i) sum += fixed_exp(double(c[i].logp - c[0].logp));
  size_t last = 0;
  while (last < n && kept < double(s.top_p) * sum) kept += fixed_exp(double(c[last++].logp - c[0].logp));
  n = std::max<size_t>(last, 1);
  if (s.min_p > 0)
    while (n > 1 && double(c[n - 1].logp - c[0].logp) < least_of(s)) --n;
  return n;
}

void normalise(std::span<Candidate> c) {
  double top = -INFINITY, sum = 0;
  for (const Candidate& x : c) top = std::max(top, double(x.logp));
  for (const Candidate& x : c) sum += fixed_exp(double(x.logp) - top);
  const double lse = top + fixed_log(sum);
  for (Candidate& x : c) x.logp = float(double(x.logp) - lse);
}

}  // namespace

CandidateFinder::CandidateFinder(Backend& backend, const CandidateOptions& options, int width, int rows, int vocab,
                                 int stride, std::span<const Token> map)
    : backend_(backend),
      options_(options),
      width_(std::min(width, vocab)),
      pool_(std::min(std::max(width, kPool), vocab)),
      vocab_(vocab),
      stride_(stride),
      map_(map),
      candidates_(size_t(rows) * size_t(pool_)) {
  found_.resize(size_t(rows));
  if (options.draws != DrawMode::kBest) distribution_.resize(size_t(vocab));
}

void CandidateFinder::prepare(const float* logits, int rows) {
  if (options_.draws != DrawMode::kBest) return;
  std::fill_n(found_.begin(), rows, std::span<const Candidate>());
  if (rows > 0) backend_.top_k({candidates_.data(), logits, rows, vocab_, pool_, stride_});
}

bool CandidateFinder::by_backend(const DraftTask& task, TreeGrowthSampling& how) const {
  if (options_.draws != DrawMode::kBest || !task.bias.empty() || !task.counts.empty() || task.grammar) return false;
  const Sampling& s = *task.sampling;
  how = {};
  if (!greedy(s))
    how = {pool_,           s.temperature, s.top_p,         s.top_k, s.min_p > 0 ? least_of(s) : 0,
           options_.couple, s.seed,        task.text.size()};
  return true;
}

std::span<const Candidate> CandidateFinder::guess(const DraftTask& task, NodeId node, uint64_t position,
                                                  const float* logits, int place) {
  return options_.draws == DrawMode::kBest ? best(task, node, position, place)
                                           : drawn(task, node, position, logits, place);
}

std::span<const Candidate> CandidateFinder::guess_level(const DraftTask& task, NodeId node, const float* logits,
                                                        int row, int place) {
  const uint64_t position = task.text.size() + size_t(task.tree->depth(node));
  if (options_.draws != DrawMode::kBest)
    return drawn(task, node, position, logits + size_t(row) * size_t(stride_), place);
  std::span<const Candidate>& found = found_[size_t(row)];
  if (!found.empty()) return found;
  DraftTask any = task;
  any.grammar = nullptr;
  return found = best(any, node, position, row);
}

void CandidateFinder::grow(DraftTask& task, const float* logits, int row, int count, TreePolicy& policy,
                           std::vector<NodeCandidates>& distributions, std::vector<NodeId>& next) {
  distributions.clear();
  for (int i = 0; i < count; ++i) {
    const NodeId node = next.empty() ? 0 : next[size_t(i)];
    const uint64_t position = task.text.size() + size_t(task.tree->depth(node));
    distributions.push_back({node, guess(task, node, position, logits + size_t(row + i) * size_t(stride_), row + i)});
  }
  next.clear();
  policy.grow(*task.tree, distributions, next);
}

std::span<const Candidate> CandidateFinder::best(const DraftTask& task, NodeId node, uint64_t position, int place) {
  std::span<Candidate> pool(candidates_.data() + size_t(place) * size_t(pool_), size_t(pool_));
  const Sampling& s = *task.sampling;
  const bool reweighted = !task.bias.empty() || !task.counts.empty();
  if (greedy(s) && !reweighted && !task.grammar) {
    for (Candidate& c : pool.first(size_t(width_))) c.token = target_token(c.token);
    return pool.first(size_t(width_));
  }
  // From here on logp holds logits until they are normalised over the pool.
  for (Candidate& c : pool) {
    c.token = target_token(c.token);
    c.logp = penalised(c.logit, c.token, task);
  }
  if (task.grammar) {
    const uint32_t* mask = task.grammar->draft_mask(*task.tree, node);
    if (!mask) return {};
    const auto kept = std::remove_if(pool.begin(), pool.end(),
                                     [&](const Candidate& c) { return !TreeGrammar::allows(mask, c.token); });
    pool = pool.first(size_t(kept - pool.begin()));
    if (pool.empty()) return {};
  }
  if (reweighted) sort_best(pool);
  size_t count = pool.size();
  if (!greedy(s)) {
    count = surviving(pool, s);
    for (Candidate& c : pool.first(count)) {
      c.logp /= s.temperature;
      if (options_.couple) c.logp += float(fixed_gumbel(s.seed, position, uint64_t(c.token)));
    }
    if (options_.couple) sort_best(pool.first(count));
  }
  normalise(pool.first(count));
  return pool.first(std::min(count, size_t(width_)));
}

// What may follow a node, by the drafter's own tokens; null: nothing of it.
const uint32_t* CandidateFinder::allowed(const DraftTask& task, NodeId node) {
  const uint32_t* mask = task.grammar->draft_mask(*task.tree, node);
  if (!mask) return nullptr;
  allowed_.assign((size_t(vocab_) + 31) / 32, 0);
  bool any = false;
  for (int t = 0; t < vocab_; ++t) {
    if (!TreeGrammar::allows(mask, target_token(t))) continue;
    allowed_[size_t(t) / 32] |= 1u << (t % 32);
    any = true;
  }
  return any ? allowed_.data() : nullptr;
}

std::span<const Candidate> CandidateFinder::drawn(const DraftTask& task, NodeId node, uint64_t position,
                                                  const float* logits, int place) {
  SX_ASSERT(task.distributions && task.distributions->vocab() >= vocab_);
  const std::span<Candidate> out(candidates_.data() + size_t(place) * size_t(pool_), size_t(width_));
  const auto bias = map_.empty() ? task.bias : std::span<const TokenBias>();  // biases are by the target's tokens
  const uint32_t* mask = task.grammar ? allowed(task, node) : nullptr;
  if (task.grammar && !mask) return {};
  backend_.probabilities({distribution_.data(), {logits, position, task.sampling, bias, {}, mask}, vocab_});
  float* kept = task.distributions->row(node);
  double left = 0;
  std::fill(kept, kept + task.distributions->vocab(), 0.0f);
  for (int t = 0; t < vocab_; ++t) left += double(kept[target_token(t)] = float(distribution_[size_t(t)]));
  // Draws are taken from the distribution as it is kept. Their random numbers are keyed by the round (where its tree
  // begins) and the node, so that they are never the same twice, even if an earlier round had a tree over these
  // positions.
  const uint64_t seed = mix64(task.sampling->seed ^ kDrawTag);
  size_t count = 0;
  while (count < out.size() && left > 1e-12) {
    const double u = uniform_from(hash_key(seed, task.text.size(), uint64_t(node) * 4096 + count)) * left;
    double sum = 0;
    Token token = kNoToken;
    for (int own = 0; own < vocab_; ++own) {
      const Token t = target_token(own);
      if (!(kept[t] > 0)) continue;
      if (options_.draws == DrawMode::kDistinct &&
          std::any_of(out.begin(), out.begin() + ptrdiff_t(count), [&](const Candidate& c) { return c.token == t; }))
        continue;
      token = t;
      if ((sum += double(kept[t])) >= u) break;
    }
    if (token == kNoToken) break;
    out[count++] = {token, float(std::log(double(kept[token])))};
    if (options_.draws == DrawMode::kDistinct) left -= double(kept[token]);
  }
  return out.first(count);
}

}  // namespace sx
