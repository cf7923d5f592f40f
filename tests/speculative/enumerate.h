// Exact enumeration of speculative decoding on small vocabularies: every draft the random can make and every branch a
// rule can take, with their probabilities, added up to the distribution of the emitted text.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>
#include <vector>

#include "speculative/accept/accept.h"

namespace sx::testing {

// Replays a prefix of decisions and takes the first option of each new one; advance() moves on to the next script.
// Options of probability 0 are left out.
class ScriptedRandom : public RandomSource {
 public:
  // Calls run() once for every outcome; probability() is then that of the outcome.
  template <class Run>
  void for_all(Run run) {
    script_.clear();
    do {
      step_ = 0, probability_ = 1;
      run();
    } while (advance());
  }
  double probability() const { return probability_; }

  bool flip(double p) override {
    EXPECT_TRUE(p >= 0 && p <= 1) << p;
    if (p <= 0 || p >= 1) return p >= 1;
    return take([&](std::vector<Option>& options) { options = {{1, p}, {0, 1 - p}}; }) == 1;
  }
  Token draw(std::span<const double> distribution) override {
    return take([&](std::vector<Option>& options) {
      for (size_t t = 0; t < distribution.size(); ++t)
        if (distribution[t] > 0) options.emplace_back(Token(t), distribution[t]);
    });
  }

 private:
  using Option = std::pair<Token, double>;
  struct Decision {
    std::vector<Option> options;
    size_t taken = 0;
  };

  template <class Fill>
  Token take(Fill fill) {
    if (step_ == script_.size()) fill(script_.emplace_back().options);
    const Decision& decision = script_[step_++];
    const Option& option = decision.options.at(decision.taken);
    probability_ *= option.second;
    return option.first;
  }
  bool advance() {
    for (; !script_.empty(); script_.pop_back())
      if (++script_.back().taken < script_.back().options.size()) return true;
    return false;
  }

  std::vector<Decision> script_;
  size_t step_ = 0;
  double probability_ = 1;
};

// The same for a rule, whose one draw comes last: its distribution is kept instead of trying every token.
class AcceptRandom final : public ScriptedRandom {
 public:
  Token draw(std::span<const double> distribution) override {
    last_distribution.assign(distribution.begin(), distribution.end());
    ++draws;
    return 0;
  }
  std::vector<double> last_distribution;
  int draws = 0;
};

// A target and a draft on a vocabulary of a few tokens, both with a distribution of their own after every prefix, and
// the shape of the trees: widths[d] children for every node of depth d. A prefix is a place in a heap: the one after it
// by x is vocab * id + x + 1.
struct Case {
  int vocab = 0;
  std::vector<int> widths;
  bool within_support = false;                     // distinct draws stop at the support of the draft's distribution
  std::vector<std::vector<double>> target, draft;  // by prefix, of up to depth() tokens

  int depth() const { return int(widths.size()); }
  size_t next(size_t prefix, Token x) const { return prefix * size_t(vocab) + size_t(x) + 1; }
  size_t prefix(const TokenTree& tree, NodeId node) const {
    return node == 0 ? 0 : next(prefix(tree, tree.parent(node)), tree.token(node));
  }
};

inline std::vector<double> random_distribution(std::mt19937_64& random, int vocab) {
  std::normal_distribution<double> normal(0, 1.5);
  std::vector<double> distribution(static_cast<size_t>(vocab), 0.0);
  const auto favourite = size_t(random() % uint64_t(vocab));
  const auto kind = random() % 8;
  for (double& p : distribution) {
    const double dense = std::exp(normal(random));
    if (kind <= 3) p = dense;
    if (kind == 4 || kind == 5) p = random() % 2 ? dense : 0;  // zeros
    if (kind == 6) p = dense * 1e-9;                           // near a point mass; kind 7: a point mass
  }
  if (kind >= 4) distribution[favourite] += 1;
  double sum = 0;
  for (double p : distribution) sum += p;
  for (double& p : distribution) p /= sum;
  return distribution;
}

inline Case random_case(std::mt19937_64& random, int vocab, std::vector<int> widths) {
  Case c;
  c.vocab = vocab, c.widths = std::move(widths);
  c.within_support = random() % 2;
  size_t prefixes = 0, level = 1;
  for (int d = 0; d <= c.depth(); ++d) prefixes += level, level *= size_t(vocab);
  for (size_t i = 0; i < prefixes; ++i) {
    c.target.push_back(random_distribution(random, vocab));
    const auto kind = random() % 8;
    c.draft.push_back(kind <= 1 ? c.target.back() : random_distribution(random, vocab));
    if (kind != 1) continue;
    double sum = 0;  // equal up to a hair
    for (double& q : c.draft.back()) sum += q *= 1 + 1e-13 * double(random() % 100);
    for (double& q : c.draft.back()) q /= sum;
  }
  return c;
}

// The distributions of a case at the nodes of a tree.
class TableDistributions final : public Distributions {
 public:
  TableDistributions(const Case& c, const TokenTree& tree) : case_(c), tree_(tree) {}
  int vocab() const override { return case_.vocab; }
  void target(NodeId node, std::span<double> distribution) override { copy(case_.target, node, distribution); }
  void draft(NodeId node, std::span<double> distribution) override { copy(case_.draft, node, distribution); }

 private:
  void copy(const std::vector<std::vector<double>>& distributions, NodeId node, std::span<double> distribution) const {
    const std::vector<double>& from = distributions.at(case_.prefix(tree_, node));
    ASSERT_EQ(from.size(), distribution.size());
    std::copy(from.begin(), from.end(), distribution.begin());
  }
  const Case& case_;
  const TokenTree& tree_;
};

// Draws a tree of the case's shape. kBest: the most probable children, nothing drawn. Distinct draws beyond the support
// of the draft's distribution are uniform over what is left.
inline void draft_tree(const Case& c, DrawMode mode, RandomSource& random, TokenTree& tree) {
  tree.reset(0);
  for (NodeId n = 0; n < tree.size(); ++n) {
    if (tree.depth(n) == c.depth()) continue;
    std::vector<double> q = c.draft[c.prefix(tree, n)];
    std::vector<char> used(q.size(), 0);
    for (int i = 0; i < c.widths[size_t(tree.depth(n))]; ++i) {
      double sum = 0;
      for (double v : q) sum += v;
      if (sum == 0 && c.within_support) break;
      for (size_t t = 0; t < q.size(); ++t) q[t] = sum > 0 ? q[t] / sum : double(!used[t]);
      if (sum == 0) {
        const double left = double(std::count(used.begin(), used.end(), 0));
        for (double& v : q) v /= left;
      }
      const Token x =
          mode == DrawMode::kBest ? Token(std::max_element(q.begin(), q.end()) - q.begin()) : random.draw(q);
      tree.add(n, x, 0);
      if (mode == DrawMode::kIid) continue;
      used[size_t(x)] = 1;
      q[size_t(x)] = 0;
    }
  }
}

// What comes out of one round.
struct Output {
  std::vector<double> emitted;  // probability that exactly this text is emitted, by prefix of up to depth() + 1 tokens
  double total = 0;             // of all outcomes: 1
  double accepted = 0;          // expected drafted tokens accepted
};

inline Output enumerate(const Case& c, Rule& rule, DrawMode mode) {
  Output out;
  out.emitted.assign(c.target.size() * size_t(c.vocab) + 1, 0.0);
  int nodes = 1;
  for (int d = 0, level = 1; d < c.depth(); ++d) level *= c.widths[size_t(d)], nodes += level;
  TokenTree tree(nodes);
  TableDistributions distributions(c, tree);
  AcceptResult result;
  ScriptedRandom draft_random;
  AcceptRandom random;
  draft_random.for_all([&] {
    draft_tree(c, mode, draft_random, tree);
    random.for_all([&] {
      random.draws = 0;
      rule.accept(tree, distributions, random, result);
      EXPECT_EQ(random.draws, 1);
      const double probability = draft_random.probability() * random.probability();
      EXPECT_EQ(result.path.at(0), 0);
      for (size_t i = 1; i < result.path.size(); ++i) EXPECT_EQ(tree.parent(result.path[i]), result.path[i - 1]);
      const size_t prefix = c.prefix(tree, result.path.back());
      for (Token x = 0; x < c.vocab; ++x)
        out.emitted[c.next(prefix, x)] += probability * random.last_distribution[size_t(x)];
      out.total += probability;
      out.accepted += probability * double(result.path.size() - 1);
    });
  });
  return out;
}

// Total variation between the target's joint distribution of depth() + 1 tokens and the emitted text, completed to that
// length by draws from the target.
inline double total_variation(const Case& c, const Output& out) {
  std::vector<double> completed = out.emitted, exact(out.emitted.size(), 0.0);
  exact[0] = 1;
  for (size_t prefix = 0; prefix < c.target.size(); ++prefix)
    for (Token x = 0; x < c.vocab; ++x) {
      const double p = c.target[prefix][size_t(x)];
      completed[c.next(prefix, x)] += completed[prefix] * p;
      exact[c.next(prefix, x)] = exact[prefix] * p;
    }
  double distance = 0;
  for (size_t i = c.target.size(); i < exact.size(); ++i) distance += std::abs(completed[i] - exact[i]);  // the longest
  return distance / 2;
}

}  // namespace sx::testing
