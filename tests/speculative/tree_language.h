// A random language for tests of tree policies: the distribution after a path is a pure function of the path, so an
// oracle can ask for any of them. Also the loop a drafter runs, with checks of what a policy promises at each turn, and
// parts of slow oracles.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "base/rng.h"
#include "speculative/tree/policy.h"

namespace sx::testing {

using Path = std::vector<Token>;

class Language {
 public:
  // `sure`: share of paths after which one token has probability 1 and the others 0.
  Language(uint64_t seed, int vocab, double sure = 0) : seed_(seed), vocab_(vocab), sure_(sure) {}
  virtual ~Language() = default;
  int vocab() const { return vocab_; }

  // All tokens, best first, ties to the smaller id.
  virtual std::vector<Candidate> distribution(const Path& path) const {
    uint64_t key = mix64(seed_ + 1);
    for (Token t : path) key = hash_key(key, path.size(), uint64_t(t));
    std::vector<Candidate> all(static_cast<size_t>(vocab_));
    if (uniform_from(hash_key(key, 1, 0)) < sure_) {
      const auto chosen = Token(hash_key(key, 2, 0) % uint64_t(vocab_));
      for (int t = 0; t < vocab_; ++t) all[size_t(t)] = {t, t == chosen ? 0 : -std::numeric_limits<float>::infinity()};
    } else {
      // Some languages are easy to predict.
      const double sharp = double(4 + 6 * (seed_ % 4)) * uniform_from(hash_key(key, 3, 0));
      double sum = 0;
      std::vector<double> logits(static_cast<size_t>(vocab_));
      for (int t = 0; t < vocab_; ++t) {
        logits[size_t(t)] = sharp * uniform_from(hash_key(key, 4, uint64_t(t)));
        sum += std::exp(logits[size_t(t)]);
      }
      for (int t = 0; t < vocab_; ++t) all[size_t(t)] = {t, float(logits[size_t(t)] - std::log(sum))};
    }
    std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
      return a.logp != b.logp ? a.logp > b.logp : a.token < b.token;
    });
    return all;
  }

 private:
  uint64_t seed_;
  int vocab_;
  double sure_;
};

inline Path path_of(const TokenTree& tree, NodeId node) {
  Path path;
  for (; node != 0; node = tree.parent(node)) path.insert(path.begin(), tree.token(node));
  return path;
}

struct Drafted {
  int passes = 0;        // besides the one over node 0
  int run = 0;           // nodes in them
  std::set<Path> paths;  // of the final tree
};

// One round, as a drafter would do it.
inline Drafted draft(TreePolicy& policy, TokenTree& tree, const TreeLimits& limits, const Language& language) {
  Drafted result;
  std::vector<NodeId> next;
  next.reserve(size_t(policy.rows()));
  std::vector<NodeId> run = {0};
  std::set<NodeId> ever = {0};
  tree.reset(7);
  policy.start(limits);
  while (!run.empty()) {
    std::vector<std::vector<Candidate>> candidates;
    std::vector<NodeCandidates> distributions;
    for (NodeId n : run) {
      candidates.push_back(language.distribution(path_of(tree, n)));
      candidates.back().resize(std::min(candidates.back().size(), size_t(policy.width())));
    }
    for (size_t i = 0; i < run.size(); ++i) distributions.push_back({run[i], candidates[i]});
    next.clear();
    policy.grow(tree, distributions, next);
    EXPECT_LE(int(next.size()), policy.rows());
    EXPECT_TRUE(std::is_sorted(next.begin(), next.end()));
    for (NodeId n : next) EXPECT_TRUE(n < tree.size() && ever.insert(n).second) << n;
    result.passes += !next.empty();
    result.run += int(next.size());
    run = next;
  }
  policy.finish(tree);
  EXPECT_LE(tree.drafted(), limits.nodes);
  EXPECT_LE(tree.max_depth(), std::max(0, limits.depth));
  for (NodeId n = 1; n < tree.size(); ++n) {
    Path path = path_of(tree, n);
    float score = 0;
    for (size_t i = 0; i < path.size(); ++i)
      for (const Candidate& c : language.distribution(Path(path.begin(), path.begin() + ptrdiff_t(i))))
        if (c.token == path[i]) score += std::min(c.logp, 0.0f);
    EXPECT_EQ(tree.score(n), score);
    EXPECT_TRUE(result.paths.insert(std::move(path)).second) << "a path twice";
  }
  return result;
}

// --- What slow oracles are made of.

struct Slow {
  Path path;
  float score;
  double p() const { return std::exp(double{score}); }
  int depth() const { return int(path.size()); }
};

// Best first, ties to the shallower, then in the order of arrival.
inline void sort_best(std::vector<Slow>& all) {
  std::stable_sort(all.begin(), all.end(), [](const Slow& a, const Slow& b) {
    return a.score != b.score ? a.score > b.score : a.depth() < b.depth();
  });
}

inline void keep_first(std::vector<Slow>& all, int n) { all.resize(std::min(all.size(), size_t(n))); }

inline std::vector<Slow> children(const Slow& of, const Language& language, int most) {
  std::vector<Slow> result;
  for (const Candidate& c : language.distribution(of.path)) {
    if (int(result.size()) == most || c.logp == -std::numeric_limits<float>::infinity()) break;
    result.push_back({of.path, of.score + std::min(c.logp, 0.0f)});
    result.back().path.push_back(c.token);
  }
  return result;
}

inline std::set<Path> paths(const std::vector<Slow>& nodes) {
  std::set<Path> result;
  for (const Slow& n : nodes) result.insert(n.path);
  return result;
}

inline std::multiset<float> scores(const std::vector<Slow>& nodes) {
  std::multiset<float> result;
  for (const Slow& n : nodes) result.insert(n.score);
  return result;
}

inline std::multiset<float> scores(const TokenTree& tree) {
  std::multiset<float> result;
  for (NodeId n = 1; n < tree.size(); ++n) result.insert(tree.score(n));
  return result;
}

// Every prefix up to a depth whose score beats `floor`.
inline std::vector<Slow> all_prefixes(const Language& language, int depth, double floor = 0) {
  std::vector<Slow> all, level = {{{}, 0}};
  for (int d = 0; d < depth; ++d) {
    std::vector<Slow> below;
    for (const Slow& n : level)
      for (const Slow& c : children(n, language, language.vocab()))
        if (c.p() > floor) below.push_back(c);
    all.insert(all.end(), below.begin(), below.end());
    level = below;
  }
  return all;
}

// The budget's best so far: what a further node must beat.
inline float floor_of(std::vector<Slow> all, int nodes) {
  sort_best(all);
  return int(all.size()) < nodes ? -std::numeric_limits<float>::infinity() : all[size_t(nodes) - 1].score;
}

// Those whose children could still be among the budget's best: what is worth running.
inline std::vector<Slow> still_useful(const std::vector<Slow>& level, const std::vector<Slow>& all, int nodes) {
  std::vector<Slow> result;
  for (const Slow& n : level)
    if (n.score > floor_of(all, nodes)) result.push_back(n);
  return result;
}

inline double sum(const std::vector<Slow>& nodes) {
  double total = 0;
  for (const Slow& n : nodes) total += n.p();
  return total;
}

struct Costs {
  double row = 0, level = 0;  // of one more row, of one more pass
  std::vector<float> cost;
  Costs(double r, double l, int nodes) : row(r), level(l) {
    for (int n = 0; n <= nodes; ++n) cost.push_back(float(1 + r * n));
  }
  TreeLimits limits(const TreeConfig& c) const { return {c.nodes, c.depth, cost.data(), float(level)}; }
};

inline TreeLimits limits_of(const TreeConfig& config) { return {config.nodes, config.depth}; }

}  // namespace sx::testing
