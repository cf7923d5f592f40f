// The calibration of index drafters: buckets, rates, exploring, what a result teaches, and the cut by cost.
#include "speculative/draft/copy_confidence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <vector>

#include "speculative/draft/drafter.h"

namespace sx {
namespace {

double worth(const std::vector<float>& best, size_t n, const std::vector<float>& cost) {
  double tokens = 1;
  for (size_t i = 0; i < n; ++i) tokens += double(best[i]);
  return tokens / double(cost[n]);
}

TEST(Calibration, TheCutMaximisesTokensPerCost) {
  std::mt19937 random(4);
  for (int repeat = 0; repeat < 2000; ++repeat) {
    const int nodes = int(random() % 20);
    std::vector<float> probabilities;
    for (int i = 0; i < nodes; ++i) probabilities.push_back(float(random() % 1000) / 1000);
    std::sort(probabilities.begin(), probabilities.end(), std::greater<>());
    std::vector<float> cost = {1};
    const float unit = repeat % 2 ? 1e-4f : 8e-4f;
    for (int i = 0; i < nodes; ++i) cost.push_back(cost.back() + unit * float(random() % 1000));
    double most = 0;
    for (int n = 0; n <= nodes; ++n) most = std::max(most, worth(probabilities, size_t(n), cost));
    const Cut cut = best_cut(probabilities, cost.data());
    ASSERT_NEAR(worth(probabilities, size_t(cut.nodes), cost), most, 1e-6);
    ASSERT_NEAR(double(cut.worth), most, 1e-5);
    ASSERT_EQ(best_cut(probabilities, nullptr).nodes, nodes);
  }
}

TEST(Calibration, Buckets) {
  const int lengths[] = {1, 2, 4, 8, 16, 32, 1000}, counts[] = {1, 3, 1000};
  int matched = 1;
  for (int l = 0; l < 7; ++l)
    for (; matched <= lengths[l]; ++matched) {
      int seen = 1;
      for (int c = 0; c < 3; ++c)
        for (; seen <= std::min(counts[c], 6); ++seen) ASSERT_EQ(Calibration::bucket(matched, seen), l * 3 + c);
    }
}

TEST(Calibration, FindsTheRateAndFollowsIt) {
  std::mt19937 random(7);
  Calibration calibration(64);
  for (double rate : {0.05, 0.9, 0.3, 0.98, 0.0, 0.6}) {
    double sum = 0;
    const float share = rate < 0.5 ? 0.5f : 1;  // half of what follows was tried: right half as often
    for (int i = 0; i < 600; ++i) {
      calibration.record(4, share, double(random() % 100000) < rate * double(share) * 100000);
      if (i >= 300) sum += double(calibration.chance(4)) / 300;
    }
    EXPECT_NEAR(sum, std::clamp(rate, 0.01, 0.99), 0.08);
  }
  EXPECT_EQ(calibration.chance(5), Calibration(64).chance(5)) << "other buckets stay";
}

TEST(Calibration, ExploringStaysWithinItsShare) {
  for (float cost_model : {0.05f, 0.2f, 1.0f}) {
    Calibration calibration(64);
    int tried = 0;
    for (int i = 0; i < 10000; ++i) tried += calibration.skip(3, cost_model);
    EXPECT_LE(float(tried) * cost_model, 10000 * Calibration::kExplore * 1.01f);
    EXPECT_GE(float(tried) * cost_model, 10000 * Calibration::kExplore * 0.7f);
  }
}

TEST(Calibration, LearnsFromWhatWasVerified) {
  // Proposed: 0 -> 10 (share 0.6), 0 -> 11 (0.4), 10 -> 12, 12 -> 13; buckets of the parents 2, 5, 7.
  Proposal proposal;
  proposal.nodes = {{-1, 1, 0, 1, 1, 2},
                    {0, 10, 1, 0.6f, 0.5f, 5},
                    {0, 11, 1, 0.4f, 0.3f, 0},
                    {1, 12, 2, 1, 0.4f, 7},
                    {3, 13, 3, 1, 0.3f, 0}};
  const auto chances = [](const Calibration& c) {
    std::vector<float> all;
    for (int b = 0; b < Calibration::kBuckets; ++b) all.push_back(c.chance(b));
    return all;
  };
  // Node 10 -> 20 was drafted by a model. `second`: who proposed node 11; 0: it was not verified.
  const auto expect = [&](int second, std::vector<Token> path, Token next, auto records) {
    TokenTree tree(8);
    tree.reset(1);
    const NodeId a = tree.add(0, 10, -1, kFromIndex);
    if (second) tree.add(0, 11, -2, uint8_t(second));
    const NodeId c = tree.add(a, 12, -2, kFromIndex | kFromModel);
    tree.add(a, 20, -3, kFromModel);
    tree.add(c, 13, -4, kFromIndex);
    std::vector<NodeId> ids = {0};
    for (Token token : path) ids.push_back(tree.child(ids.back(), token));
    Calibration own(64), shared(64), expected(64);
    learn({0, &tree, ids, next}, proposal, own, shared);
    records(expected);
    EXPECT_EQ(chances(own), chances(expected));
    EXPECT_EQ(chances(shared), chances(expected));
  };
  expect(kFromIndex, {}, 99, [](Calibration& c) { c.record(2, 1.0f, false); });
  expect(0, {}, 99, [](Calibration& c) { c.record(2, 0.6f, false); });
  expect(kFromModel, {}, 11, [](Calibration& c) { c.record(2, 0.6f, false); });
  expect(kFromIndex, {}, 11, [](Calibration& c) { c.record(2, 1.0f, true); });  // the text ended, the guess was right
  expect(kFromIndex, {}, kNoToken, [](Calibration&) {});
  expect(kFromIndex, {11}, 99, [](Calibration& c) { c.record(2, 1.0f, true); });
  expect(kFromIndex, {10}, 99, [](Calibration& c) { c.record(2, 1.0f, true), c.record(5, 1, false); });
  expect(kFromIndex, {10, 20}, 13, [](Calibration& c) { c.record(2, 1.0f, true), c.record(5, 1, false); });
  expect(kFromIndex, {10, 12}, kNoToken, [](Calibration& c) { c.record(2, 1.0f, true), c.record(5, 1, true); });
  expect(0, {10, 12, 13}, 4,
         [](Calibration& c) { c.record(2, 0.6f, true), c.record(5, 1, true), c.record(7, 1, true); });
}

}  // namespace
}  // namespace sx
