// The rules on distributions against exact enumeration: the distribution of the text they emit is the target's, block
// and traversal verification accept no less than testing top-down, and wrong pairings of rule and draws are seen to be
// wrong.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "base/error.h"
#include "enumerate.h"
#include "speculative/accept/accept.h"

namespace sx {
namespace {

using testing::Case;
using testing::enumerate;
using testing::Output;
using testing::random_case;
using testing::total_variation;

// A shape of trees, and the largest vocabulary whose drafts are enumerated in no time.
struct Shape {
  std::vector<int> widths;
  int vocab;
};
const std::vector<Shape> kChains{{{1}, 5}, {{1, 1}, 5}, {{1, 1, 1}, 5}};
const std::vector<Shape> kIidTrees{{{2}, 5},    {{3}, 5},    {{2, 1}, 5},   {{2, 2}, 4},
                                   {{3, 1}, 4}, {{1, 2}, 5}, {{2, 1, 1}, 4}};
const std::vector<Shape> kDistinctTrees{{{2}, 5},    {{3}, 5},       {{1, 2}, 5}, {{2, 2}, 4},
                                        {{3, 1}, 5}, {{2, 1, 1}, 4}, {{4, 1}, 4}};

Case shaped_case(std::mt19937_64& random, const std::vector<Shape>& shapes, int i) {
  const Shape& shape = shapes[size_t(i) % shapes.size()];
  const int vocab = 3 + int(random() % uint64_t(shape.vocab - 2));
  Case c = random_case(random, vocab, shape.widths);
  for (int& width : c.widths) width = std::min(width, vocab);
  return c;
}

std::unique_ptr<Rule> rule_for(AcceptKind kind, const Case& c) {
  return make_rule(kind, c.vocab, kMaxTreeNodes, c.depth());
}

Output enumerate_rule(const Case& c, AcceptKind kind) {
  const auto rule = rule_for(kind, c);
  return enumerate(c, *rule, rule->draws());
}

void expect_exact(AcceptKind kind, const std::vector<Shape>& shapes, int cases) {
  std::mt19937_64 random(uint64_t(kind) + 1);
  double worst = 0;
  for (int i = 0; i < cases; ++i) {
    const Case c = shaped_case(random, shapes, i);
    const Output out = enumerate_rule(c, kind);
    ASSERT_NEAR(out.total, 1, 1e-9) << "case " << i;
    const double distance = total_variation(c, out);
    ASSERT_LT(distance, 1e-9) << "case " << i;
    worst = std::max(worst, distance);
  }
  ::testing::Test::RecordProperty("worst_total_variation", std::to_string(worst * 1e15) + "e-15");
}

TEST(AcceptRules, ChainKeepsTheDistribution) { expect_exact(AcceptKind::kChain, kChains, 600); }
TEST(AcceptRules, BlockwiseKeepsTheDistribution) { expect_exact(AcceptKind::kBlockwise, kChains, 600); }
TEST(AcceptRules, SpecInferKeepsTheDistribution) { expect_exact(AcceptKind::kSpecInfer, kIidTrees, 420); }
TEST(AcceptRules, NoReplacementKeepsTheDistribution) { expect_exact(AcceptKind::kNoReplacement, kDistinctTrees, 420); }
TEST(AcceptRules, TraversalKeepsTheDistribution) { expect_exact(AcceptKind::kTraversal, kDistinctTrees, 420); }

// Enumeration would notice: these look right and are badly biased.
TEST(AcceptRules, WrongPairingsAreBiased) {
  std::mt19937_64 random(77);
  double fixed_list = 0, distinct_draws = 0;
  for (int i = 0; i < 100; ++i) {
    const Case c = shaped_case(random, kDistinctTrees, i);
    const auto rule = rule_for(AcceptKind::kSpecInfer, c);
    // The multi-step residual on the most probable tokens, which were not drawn.
    fixed_list = std::max(fixed_list, total_variation(c, enumerate(c, *rule, DrawMode::kBest)));
    // Draws without replacement tested with the distribution of draws with replacement.
    distinct_draws = std::max(distinct_draws, total_variation(c, enumerate(c, *rule, DrawMode::kDistinct)));
  }
  EXPECT_GT(fixed_list, 0.01);
  EXPECT_GT(distinct_draws, 0.01);
  RecordProperty("worst_total_variation_fixed_list", std::to_string(fixed_list));
  RecordProperty("worst_total_variation_distinct_draws", std::to_string(distinct_draws));
}

void expect_accepts_more(AcceptKind better, AcceptKind worse, const std::vector<Shape>& shapes, int cases) {
  std::mt19937_64 random(5);
  double gain = 0, largest = 0;
  for (int i = 0; i < cases; ++i) {
    const Case c = shaped_case(random, shapes, i);
    const double more = enumerate_rule(c, better).accepted, less = enumerate_rule(c, worse).accepted;
    EXPECT_GE(more, less - 1e-12) << "case " << i;
    gain += (more - less) / cases;
    largest = std::max(largest, more - less);
  }
  EXPECT_GT(largest, 0.01);
  ::testing::Test::RecordProperty("mean_gain", std::to_string(gain));
  ::testing::Test::RecordProperty("largest_gain", std::to_string(largest));
}

TEST(AcceptRules, BlockwiseAcceptsNoLessThanChain) {
  expect_accepts_more(AcceptKind::kBlockwise, AcceptKind::kChain, kChains, 600);
}

TEST(AcceptRules, TraversalAcceptsNoLessThanNoReplacement) {
  expect_accepts_more(AcceptKind::kTraversal, AcceptKind::kNoReplacement, kDistinctTrees, 420);
}

void expect_same(AcceptKind a, AcceptKind b) {
  std::mt19937_64 random(6);
  for (int i = 0; i < 200; ++i) {
    const Case c = shaped_case(random, kChains, i);
    const Output x = enumerate_rule(c, a), y = enumerate_rule(c, b);
    EXPECT_NEAR(x.accepted, y.accepted, 1e-12);
    for (size_t j = 0; j < x.emitted.size(); ++j) ASSERT_NEAR(x.emitted[j], y.emitted[j], 1e-12) << i;
  }
}

TEST(AcceptRules, TraversalOfAChainIsBlockwise) { expect_same(AcceptKind::kTraversal, AcceptKind::kBlockwise); }
TEST(AcceptRules, SpecInferOfAChainIsChain) { expect_same(AcceptKind::kSpecInfer, AcceptKind::kChain); }
TEST(AcceptRules, NoReplacementOfAChainIsChain) { expect_same(AcceptKind::kNoReplacement, AcceptKind::kChain); }

TEST(AcceptRules, OneScratchServesManyTrees) {
  std::mt19937_64 random(8);
  for (AcceptKind kind : {AcceptKind::kSpecInfer, AcceptKind::kNoReplacement, AcceptKind::kTraversal}) {
    const auto rule = make_rule(kind, 3, kMaxTreeNodes, 3);
    for (const std::vector<int>& widths : std::vector<std::vector<int>>{{2, 1, 1}, {1}, {2, 2}, {}, {1, 1, 1}, {3}}) {
      const Case c = random_case(random, 3, widths);
      EXPECT_LT(total_variation(c, enumerate(c, *rule, rule->draws())), 1e-9);
    }
  }
}

TEST(AcceptRules, ChainRulesRefuseTrees) {
  std::mt19937_64 random(9);
  const Case c = random_case(random, 3, {2, 1});
  for (AcceptKind kind : {AcceptKind::kChain, AcceptKind::kBlockwise}) {
    const auto rule = rule_for(kind, c);
    EXPECT_TRUE(rule->chains_only());
    EXPECT_THROW(enumerate(c, *rule, DrawMode::kBest), InternalError);
  }
  EXPECT_FALSE(rule_for(AcceptKind::kSpecInfer, c)->chains_only());
  EXPECT_FALSE(rule_for(AcceptKind::kNoReplacement, c)->chains_only());
  EXPECT_FALSE(rule_for(AcceptKind::kTraversal, c)->chains_only());
  EXPECT_THROW(rule_for(AcceptKind::kMatch, c), InternalError);
}

// A greedy target is a point mass after every prefix: whatever the draft's distribution, the walk along its tokens
// comes out.
TEST(AcceptRules, PointMassesAreMatched) {
  std::mt19937_64 random(10);
  const AcceptKind kinds[] = {AcceptKind::kChain, AcceptKind::kBlockwise, AcceptKind::kSpecInfer,
                              AcceptKind::kNoReplacement, AcceptKind::kTraversal};
  for (int i = 0; i < 300; ++i) {
    const AcceptKind kind = kinds[size_t(i) % std::size(kinds)];
    const bool chain = kind == AcceptKind::kChain || kind == AcceptKind::kBlockwise;
    Case c = random_case(random, 4, chain ? std::vector<int>{1, 1, 1} : std::vector<int>{2, 1});
    for (auto& distribution : c.target) distribution.assign(4, 0.0), distribution[random() % 4] = 1;
    const auto greedy = [&](size_t prefix) {
      return Token(std::find(c.target[prefix].begin(), c.target[prefix].end(), 1.0) - c.target[prefix].begin());
    };
    const auto rule = rule_for(kind, c);
    TokenTree tree(16);
    testing::TableDistributions distributions(c, tree);
    testing::ScriptedRandom draft_random, scripted;
    AcceptResult result;
    draft_random.for_all([&] {
      testing::draft_tree(c, rule->draws(), draft_random, tree);
      scripted.for_all([&] {
        rule->accept(tree, distributions, scripted, result);
        ASSERT_EQ(scripted.probability(), 1);
        std::vector<NodeId> path{0};
        for (NodeId n = 0; (n = tree.child(n, greedy(c.prefix(tree, n)))) != kNoNode;) path.push_back(n);
        ASSERT_EQ(result.path, path);
        ASSERT_EQ(result.next, greedy(c.prefix(tree, path.back())));
      });
    });
  }
}

}  // namespace
}  // namespace sx
