// The speculation budget of a request: how deep they may be, and that a drafter that is never right costs no more than
// was promised.
#include "speculative/budget/speculation_budget.h"

#include <gtest/gtest.h>

namespace sx {
namespace {

constexpr double kLevel = 0.05, kNode = 0.02, kWhole = 8 * kLevel;

TEST(SpeculationBudget, DraftsAreAsDeepAsTheCreditCovers) {
  SpeculationBudget c;
  EXPECT_TRUE(c.covers_draft(kNode));  // nothing is known: the balance of the beginning
  c.drafted_round(3, 0, kWhole, 1 + kNode);
  EXPECT_TRUE(c.covers_draft(kNode));  // 0.6 of a step left
  c.drafted_round(3, 0, kWhole, 1 + kNode);
  EXPECT_FALSE(c.covers_draft(kNode));  // 0.19: not another 0.42
  EXPECT_EQ(c.depth_within_budget(8, kLevel, kNode), 3);
  EXPECT_EQ(c.depth_within_budget(2, kLevel, kNode), 2);
  EXPECT_EQ(c.depth_within_budget(8, 0, kNode), 0);  // levels without a cost of their own come all or not at all
  c.drafted_round(1, 0, 3 * kLevel, 1 + kNode, false);
  EXPECT_EQ(c.depth_within_budget(8, kLevel, kNode), 0);
  EXPECT_DOUBLE_EQ(c.draft_cost(), kWhole);  // what a whole draft costs is not known better by a part of one
}

TEST(SpeculationBudget, ALevelThatWasRightEarnsTheWholeDraft) {
  SpeculationBudget c;
  c.drafted_round(3, 0, 1.2, 1 + kNode);
  int waited = 0;
  for (; c.depth_within_budget(8, kLevel, kNode) == 0; ++waited) c.plain_round();
  EXPECT_EQ(waited, 19);  // from -0.2 to 0.07
  EXPECT_EQ(c.depth_within_budget(8, kLevel, kNode), 1);
  c.drafted_round(1, 1, kLevel, 1 + kNode, false);
  EXPECT_LT(c.balance(), 1.2);
  EXPECT_EQ(c.depth_within_budget(8, kLevel, kNode), 8);
}

TEST(SpeculationBudget, ADrafterThatIsNeverRightLosesWhatWasPromised) {
  for (const double level : {0.01, 0.03, 0.2}) {
    SpeculationBudget c;
    double lost = 0;
    const int rounds = 2000;
    for (int i = 0; i < rounds; ++i) {
      const int depth = c.covers_draft(kNode) ? 8 : c.depth_within_budget(8, level, kNode);
      if (depth == 0) {
        c.plain_round();
        continue;
      }
      c.drafted_round(depth, 0, depth * level, 1 + kNode, depth == 8);
      lost += depth * level + kNode;
    }
    EXPECT_LE(lost, 1 + 0.015 * rounds + 8 * level) << level;  // the first draft's cost is not known before
    EXPECT_GT(lost, 0.015 * rounds - 1) << level;              // and all of it is used for trying
  }
}

TEST(SpeculationBudget, TrustFollowsWhatIsAccepted) {
  SpeculationBudget c;
  for (int i = 0; i < 50; ++i) c.drafted_round(4, 1, 0.1, 1.1);
  EXPECT_NEAR(c.confidence(), 0.28, 0.03);
  for (int i = 0; i < 100; ++i) c.drafted_round(2, 2, 0.1, 1.1);
  EXPECT_NEAR(c.confidence(), 1, 0.02);
}

}  // namespace
}  // namespace sx
