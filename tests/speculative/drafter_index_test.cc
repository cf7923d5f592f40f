// The drafters that look a text up in itself, against searching the text, and the calibration against simulated texts.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "speculative/draft/copy_confidence.h"
#include "speculative/draft/drafters.h"
#include "support/counting_new.h"

namespace sx {
namespace {

using Text = std::vector<Token>;

enum class Kind { kNgram, kSuffix };

struct Rig {
  explicit Rig(Kind kind, int nodes = 16, IndexConfig config = {}, int slots = 1, int context = 20000)
      : tree(nodes + 1) {
    TreeConfig shape;
    shape.nodes = nodes;
    shape.depth = nodes;
    limits.nodes = limits.depth = nodes;
    const IndexLimits size{slots, context, 200000};
    drafter = kind == Kind::kNgram ? make_ngram_drafter(config, shape, size) : make_suffix_drafter(config, shape, size);
    drafter->open(0);
  }

  const TokenTree& draft(std::span<const Token> text, SeqId seq = 0) {
    tree.reset(text.back());
    DraftTask task;
    task.seq = seq;
    task.text = text;
    task.limits = limits;
    task.tree = &tree;
    drafter->draft({&task, 1});
    return tree;
  }

  // The result when the text goes on as `truth` does from `at` on: the number of tokens won.
  size_t accept(const Text& truth, size_t at, SeqId seq = 0) {
    path.assign(1, 0);
    size_t next = at;
    for (NodeId c; next < truth.size() && (c = tree.child(path.back(), truth[next])) != kNoNode; ++next)
      path.push_back(c);
    const Outcome outcome{seq, &tree, path, next < truth.size() ? truth[next] : kNoToken};
    drafter->observe({&outcome, 1});
    return next - at + 1;
  }

  TokenTree tree;
  TreeLimits limits;
  std::unique_ptr<Drafter> drafter;
  std::vector<NodeId> path;
};

Text random_text(std::mt19937& random, int size, int alphabet) {
  Text text;
  for (int i = 0; i < size; ++i) text.push_back(Token(random() % unsigned(alphabet)));
  return text;
}

// Everything about a tree in one value.
std::vector<std::tuple<Token, NodeId, float, int>> content(const TokenTree& tree) {
  std::vector<std::tuple<Token, NodeId, float, int>> nodes;
  for (NodeId n = 0; n < tree.size(); ++n)
    nodes.emplace_back(tree.token(n), tree.parent(n), tree.score(n), tree.source(n));
  return nodes;
}

// --- oracles ---

std::map<Token, int> continuations(const Text& text, const Text& part) {
  std::map<Token, int> counts;
  for (size_t i = 0; i + part.size() < text.size(); ++i)
    if (std::equal(part.begin(), part.end(), text.begin() + long(i))) ++counts[text[i + part.size()]];
  return counts;
}

size_t occurrences(const Text& text, const Text& part) {
  size_t n = 0;
  for (const auto& [token, count] : continuations(text, part)) n += size_t(count);
  return n + (std::equal(part.rbegin(), part.rend(), text.rbegin()) ? 1 : 0);
}

// All nodes SuffixDecoding could draft after `part`, with their probabilities.
struct SuffixOracle {
  const Text& text;
  Text longest;  // the longest suffix that has come before
  int depth;
  float min_prob;
  Calibration calibration{64};
  std::vector<float> found = {};

  void grow(Text part, int match, int level, float share_of_path, float probability) {
    auto counts = continuations(text, part);
    if (counts.empty()) part = longest, counts = continuations(text, part);
    if (part.empty()) return;
    int total = 0;
    for (const auto& [token, count] : counts) total += count;
    const float chance = calibration.chance(Calibration::bucket(match + level, total));
    for (const auto& [token, count] : counts) {
      const float share = float(count) / float(total);
      if (share_of_path * share < min_prob) continue;
      found.push_back(probability * chance * share);
      if (level + 1 == depth) continue;
      Text next = part;
      next.push_back(token);
      grow(next, match, level + 1, share_of_path * share, found.back());
    }
  }
};

double worth(const std::vector<float>& best, size_t n, const float* cost) {
  double tokens = 1;
  for (size_t i = 0; i < n; ++i) tokens += double(best[i]);
  return cost ? tokens / double(cost[n]) : tokens;
}

// The path probabilities of the best draft, best first, and how many of them pay.
std::vector<float> suffix_oracle(const Text& text, const IndexConfig& config, const TreeLimits& limits) {
  std::vector<float> best;
  double best_worth = 0;
  size_t before = 1;
  Text longest;
  int tried = 0;
  for (int length = int(text.size()) - 1; length > 0 && tried < 4; --length) {
    const Text part(text.end() - length, text.end());
    const size_t n = occurrences(text, part);
    if (n <= before) continue;
    before = n;
    if (longest.empty()) longest = part;
    SuffixOracle oracle{text, longest, limits.depth, config.min_prob};
    oracle.grow(part, std::min(length, config.match_max), 0, 1, 1);
    std::sort(oracle.found.begin(), oracle.found.end(), std::greater<>());
    const auto budget = size_t(std::min(float(limits.nodes), config.factor * float(length) + config.offset));
    oracle.found.resize(std::min(oracle.found.size(), budget));
    size_t keep = limits.verify_cost ? 0 : oracle.found.size();
    for (size_t k = 1; limits.verify_cost && k <= oracle.found.size(); ++k)
      if (worth(oracle.found, k, limits.verify_cost) > worth(oracle.found, keep, limits.verify_cost) + 1e-9) keep = k;
    const double value = worth(oracle.found, keep, limits.verify_cost);
    if (tried++ > 0 && value <= best_worth + 1e-6) continue;
    best.assign(oracle.found.begin(), oracle.found.begin() + long(keep));
    best_worth = value;
  }
  return best;
}

std::vector<float> costs(std::mt19937& random, int nodes, double most) {
  std::vector<float> cost = {1};
  for (int i = 0; i < nodes; ++i) cost.push_back(cost.back() + float(most * double(random() % 1000) / 1000));
  return cost;
}

// --- what is drafted ---

TEST(IndexDrafter, ACopyIsDraftedAsItWas) {
  std::mt19937 random(1);
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Text text(300);
    for (size_t i = 0; i < text.size(); ++i) text[i] = Token(199999 - i);
    std::shuffle(text.begin(), text.end(), random);
    Text whole = text;
    whole.insert(whole.end(), text.begin() + 50, text.begin() + 70);
    Rig rig(kind, 16);
    const TokenTree& tree = rig.draft(whole);
    ASSERT_EQ(tree.drafted(), 16);
    for (NodeId n = 1; n <= 16; ++n) {
      EXPECT_EQ(tree.token(n), text[size_t(69 + n)]);
      EXPECT_EQ(tree.parent(n), n - 1);
      EXPECT_EQ(tree.source(n), kFromIndex);
    }
  }
}

// Text that repeats with a short period is drafted beyond its own end.
TEST(IndexDrafter, ARepetitionGoesOn) {
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    for (int period : {1, 2, 3, 7}) {
      Text text;
      for (int i = 0; i < 5 * period + 12; ++i) text.push_back(i % period);
      Rig rig(kind, 12);
      const TokenTree& tree = rig.draft(text);
      ASSERT_EQ(tree.drafted(), 12) << period;
      for (NodeId n = 1; n <= 12; ++n) EXPECT_EQ(tree.token(n), (int(text.size()) - 1 + n) % period);
    }
  }
}

TEST(IndexDrafter, NothingToCopyNothingDrafted) {
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Rig rig(kind);
    EXPECT_EQ(rig.draft(Text{5}).drafted(), 0);
    EXPECT_EQ(rig.draft(Text{5, 6, 7, 8}).drafted(), 0);
    EXPECT_EQ(rig.draft(Text{5, 6, 7, 8, 6}).token(1), 7);
    rig.limits.nodes = 0;
    EXPECT_EQ(rig.draft(Text{5, 6, 7, 8, 6, 7}).drafted(), 0);
    rig.limits.nodes = 3, rig.limits.depth = 0;
    EXPECT_EQ(rig.draft(Text{5, 6, 7, 8, 6, 7, 8}).drafted(), 0);
  }
}

TEST(NgramDrafter, EqualsSearch) {
  std::mt19937 random(2);
  for (int repeat = 0; repeat < 3000; ++repeat) {
    const Text text = random_text(random, 1 + int(random() % 40), 1 + int(random() % 6));
    IndexConfig config;
    config.ngram_min = 1 + int(random() % 3);
    config.ngram_max = config.ngram_min + int(random() % 4);
    Rig rig(Kind::kNgram, 16, config, 1, 50);
    rig.limits.nodes = 1 + int(random() % 16), rig.limits.depth = 1 + int(random() % 16);
    Text expected;
    int matched = 1;  // tokens before the two places that agree
    const int size = int(text.size());
    for (int n = std::min(config.ngram_max, size - 1); n >= config.ngram_min && expected.empty(); --n)
      for (int end = size - 1; end >= n && expected.empty(); --end)
        if (std::equal(text.end() - n, text.end(), text.begin() + (end - n))) {
          while (matched < end && text[size_t(end - 1 - matched)] == text[size_t(size - 1 - matched)]) ++matched;
          Text grown = text;
          for (int i = 0; i < std::min(rig.limits.nodes, rig.limits.depth); ++i) {
            expected.push_back(grown[size_t(end + i)]);
            grown.push_back(expected.back());
          }
        }
    const TokenTree& tree = rig.draft(text);
    ASSERT_EQ(Text(tree.tokens().begin() + 1, tree.tokens().end()), expected);
    ASSERT_EQ(tree.max_depth(), int(expected.size()));
    double probability = 1;
    for (NodeId n = 1; n < tree.size(); ++n) {
      probability *= double(Calibration(64).chance(Calibration::bucket(matched + n - 1, 1)));
      ASSERT_NEAR(std::exp(double(tree.score(n))), probability, 1e-4);
    }
  }
}

// The probabilities are those of the oracle; besides, every pair of tokens along a path has come before.
TEST(SuffixDrafter, EqualsSearch) {
  std::mt19937 random(3);
  for (int repeat = 0; repeat < 1500; ++repeat) {
    const Text text = random_text(random, 1 + int(random() % 40), 1 + int(random() % 6));
    IndexConfig config;
    config.factor = float(random() % 4), config.offset = float(random() % 8);
    config.min_prob = repeat % 3 == 0 ? 0.3f : 0.1f;
    Rig rig(Kind::kSuffix, 16, config, 1, 50);
    rig.limits.nodes = 1 + int(random() % 16), rig.limits.depth = 1 + int(random() % 6);
    std::vector<float> cost = costs(random, rig.limits.nodes, repeat % 4 == 0 ? 1.0 : 0.3);
    if (repeat % 2 == 1) rig.limits.verify_cost = cost.data();
    const std::vector<float> expected = suffix_oracle(text, config, rig.limits);
    const TokenTree& tree = rig.draft(text);
    std::vector<float> found;
    for (NodeId n = 1; n < tree.size(); ++n) {
      found.push_back(std::exp(tree.score(n)));
      Text grown;
      for (NodeId a = n; a != kNoNode; a = tree.parent(a)) grown.insert(grown.begin(), tree.token(a));
      const Text last_two(grown.end() - 2, grown.end());
      EXPECT_GT(occurrences(text, last_two), 0u);
      EXPECT_EQ(tree.child(tree.parent(n), tree.token(n)), n) << "a sibling twice";
      EXPECT_LE(tree.depth(n), rig.limits.depth);
    }
    std::sort(found.begin(), found.end(), std::greater<>());
    ASSERT_EQ(found.size(), expected.size()) << repeat;
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], 1e-4);
  }
}

TEST(SuffixDrafter, LongestMatchIsALimit) {
  // "1 2 3" goes on with 4, "2 3" twice with 5.
  const Text text = {1, 2, 3, 4, 9, 2, 3, 5, 8, 2, 3, 5, 7, 1, 2, 3};
  IndexConfig config;
  config.offset = 1, config.min_prob = 0.5f;
  Rig any(Kind::kSuffix, 1, config);
  EXPECT_EQ(any.draft(text).token(1), 4);
  config.match_max = 2;
  Rig two(Kind::kSuffix, 1, config);
  EXPECT_EQ(two.draft(text).token(1), 5);
}

// --- catching up ---

TEST(IndexDrafter, TruncatedAndReopenedDraftsAreThoseOfAFreshOne) {
  std::mt19937 random(5);
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Rig used(kind, 16, {}, 1, 600);
    for (int repeat = 0; repeat < 100; ++repeat) {
      Text text = random_text(random, 2 + int(random() % 500), 2 + int(random() % 30));
      if (random() % 2) used.drafter->prefill(0, std::span(text).first(text.size() - 1));
      if (random() % 2) used.draft(text);
      const size_t kept = random() % 2 ? text.size() - 1 - random() % 2 : random() % text.size();
      used.drafter->truncate(0, int(kept));
      if (repeat % 10 == 0) used.drafter->close(0), used.drafter->open(0);
      text.resize(kept);
      for (Token token : random_text(random, 1 + int(random() % 90), 5)) text.push_back(token);
      Rig fresh(kind, 16, {}, 1, 600);
      for (int i = 0; i < 4; ++i) {
        ASSERT_EQ(content(used.draft(text)), content(fresh.draft(text)));
        for (Token token : random_text(random, 1 + int(random() % 3), 5)) text.push_back(token);
      }
      used.drafter->truncate(0, 0);
    }
  }
}

TEST(IndexDrafter, PrefillWorksInPieces) {
  std::mt19937 random(6);
  const Text text = random_text(random, 10001, 50);
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Rig rig(kind), direct(kind);
    const auto prompt = std::span(text).first(10000);
    EXPECT_FALSE(rig.drafter->prefill(0, prompt));
    EXPECT_FALSE(rig.drafter->prefill(0, prompt));
    EXPECT_TRUE(rig.drafter->prefill(0, prompt));
    EXPECT_TRUE(rig.drafter->prefill(0, prompt));
    EXPECT_EQ(content(rig.draft(text)), content(direct.draft(text)));
  }
}

TEST(IndexDrafter, ATextBeyondTheContextIsLeftAlone) {
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Rig rig(kind, 4, {}, 1, 20);
    EXPECT_EQ(rig.draft(Text(21, 1)).drafted(), 4);
    EXPECT_EQ(rig.draft(Text(22, 1)).drafted(), 0);
    EXPECT_EQ(rig.draft(Text(50, 1)).drafted(), 0);
  }
}

TEST(IndexDrafter, SetUpErrorsNameTheNumber) {
  TreeConfig tree;
  IndexConfig config;
  const IndexLimits limits{1, 100, 50};
  const auto message = [](auto make) -> std::string {
    try {
      make();
    } catch (const Error& e) { return e.what(); }
    return "";
  };
  config.ngram_min = 3, config.ngram_max = 2;
  EXPECT_NE(message([&] { make_ngram_drafter(config, tree, limits); }).find("ngram_min"), std::string::npos);
  config.match_max = 0;
  EXPECT_NE(message([&] { make_suffix_drafter(config, tree, limits); }).find("match of 0"), std::string::npos);
  EXPECT_NE(message([&] { make_suffix_drafter({}, tree, {0, 100, 50}); }).find("0 slots"), std::string::npos);
  tree.nodes = 512;
  EXPECT_NE(message([&] { make_suffix_drafter({}, tree, limits); }).find("512 nodes"), std::string::npos);
}

// --- measuring ---

// A text that quotes itself but goes on otherwise, then one that copies: being wrong costs little, the gain is found.
TEST(IndexDrafter, LosesLittleAndRecovers) {
  std::mt19937 random(8);
  // A pass over n nodes on two cores at 8K tokens.
  std::vector<float> cost;
  for (int n = 0; n <= 16; ++n) cost.push_back(n == 0 ? 1 : n == 1 ? 1.19f : 1.19f + 0.36f * float(n - 1));
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Text truth = random_text(random, 1000, 20000);
    while (truth.size() < 5000) {  // quotes that break off after their third token
      const size_t from = random() % 990;
      for (size_t i = 0; i < 3; ++i) truth.push_back(truth[from + i]);
      truth.push_back(Token(20000 + random() % 20000));
      truth.push_back(Token(random() % 20));
    }
    const size_t copy_at = truth.size();
    for (size_t i = 0; i < 900; ++i) truth.push_back(truth[i]);
    Rig rig(kind);
    rig.limits.verify_cost = cost.data();
    double spent = 0, copied = 0;
    size_t at = 1000;
    while (at < truth.size()) {
      const int drafted = rig.draft(std::span(truth).first(at)).drafted();
      (at < copy_at ? spent : copied) += double(cost[size_t(drafted)]);
      at += rig.accept(truth, at);
    }
    EXPECT_LT(spent, 1.03 * double(copy_at - 1000));
    EXPECT_LT(copied, 900 / 1.8);
  }
}

// What never came true is not worth its cost; tried now and then all the same, it is found when it comes true again.
TEST(IndexDrafter, WhatDoesNotPayIsTriedNowAndThen) {
  const Text text = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3};
  const float cost[] = {1, 1.2f, 1.5f, 1.8f, 2.1f};
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Rig rig(kind, 4);
    rig.limits.verify_cost = cost;
    const auto rounds = [&](int count, const Text& truth) {
      int drafted = 0;
      for (int i = 0; i < count; ++i) drafted += rig.draft(text).drafted() > 0, rig.accept(truth, text.size());
      return drafted;
    };
    const Text wrong = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 99}, right = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5, 6, 7};
    EXPECT_LT(rounds(400, wrong), 150);
    const int tried = rounds(1000, wrong);
    EXPECT_GE(tried, 20);
    EXPECT_LE(tried, 60);
    rounds(200, right);
    EXPECT_EQ(rounds(100, right), 100);
  }
}

TEST(IndexDrafter, ANewSequenceBeginsWithWhatOthersTaught) {
  const Text text = {1, 2, 3, 4, 5, 6, 7, 1, 2, 3};
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    Rig rig(kind, 8, {}, 2);
    const float before = rig.draft(text).score(1);
    for (int i = 0; i < 50; ++i) {
      rig.draft(text);
      Text truth = text;
      truth.push_back(99);
      rig.accept(truth, text.size());
    }
    const float own = rig.draft(text).score(1);
    rig.drafter->open(1);
    const float other = rig.draft(text, 1).score(1);
    EXPECT_LT(own, before - 0.5f);
    EXPECT_LT(other, before - 0.2f);
    EXPECT_GT(other, own);
  }
}

TEST(IndexDrafter, AllocatesNothingAfterOpen) {
  std::mt19937 random(9);
  IndexConfig config;
  config.min_prob = 0, config.factor = 8;
  for (Kind kind : {Kind::kNgram, Kind::kSuffix}) {
    for (int alphabet : {1, 3, 1000}) {
      Text truth = random_text(random, 3000, alphabet);
      for (size_t i = 0; i < 1000; ++i) truth.push_back(truth[i]);
      Rig rig(kind, 64, config, 1, 5000);
      rig.path.reserve(100);
      const long before = g_allocations.load();
      for (int round = 0; round < 2; ++round) {
        while (!rig.drafter->prefill(0, std::span(truth).first(1000))) {}
        for (size_t at = 1001; at < truth.size();) rig.draft(std::span(truth).first(at)), at += rig.accept(truth, at);
        rig.drafter->truncate(0, 10);
        rig.drafter->close(0);
        rig.drafter->open(0);
      }
      EXPECT_EQ(g_allocations.load(), before);
    }
  }
}

}  // namespace
}  // namespace sx
