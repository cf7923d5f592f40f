// How much is drafted: single streams with an unlucky start, readings that are made on trust, batches of unequal luck.
#include "speculative/budget/draft_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace sx {
namespace {

// A request alone, whose drafter is wrong for the first `unlucky` rounds and then right about a level with chance
// `right`.
struct Stream {
  double level = 0.1, right = 0.7;
  int unlucky = 1, drafts = 0;
  double ms = 0;
  int tokens = 0;

  double speedup(int wanted, unsigned seed) {
    CostModel cost_model;
    for (int rows : CostModel::kRows) cost_model.set(rows, 0, 10 * (1 + 0.03 * (rows - 1)));
    DraftPlanner planner(cost_model, {.nodes = 8, .depth = 8, .runs_model = true, .uses_costs = true});
    SpeculationBudget budget;
    TokenTree tree(9);
    std::mt19937 random(seed);
    std::uniform_real_distribution<double> chance(0, 1);
    while (tokens < wanted) {
      const DraftAsker asker{budget, tokens};
      tree.reset(1);
      DraftGrant grant;
      TreeLimits limits{.nodes = 8, .depth = 8};
      if (planner.count_drafting(1, 1, tokens) > 0) grant = planner.grant(asker, level * 10, limits);
      RoundCost cost;
      int accepted = 0;
      if (grant.draft) {
        for (int i = 0; i < std::min(limits.depth, limits.nodes); ++i) tree.add(i, 2, std::log(0.6f) * float(i + 1));
        cost.draft_ms = 10 * level * limits.depth;
        const int worth = planner.worthwhile(tree, asker, cost.draft_ms);
        if (worth < tree.drafted()) tree.keep_best(worth);
        while (drafts >= unlucky && accepted < tree.drafted() && chance(random) < right) ++accepted;
        ++drafts;
      }
      cost.nodes = tree.drafted();
      cost.verify_ms = 10 * (1 + 0.03 * tree.drafted());
      planner.settle(asker, cost, grant.draft ? &tree : nullptr, accepted, grant.whole);
      cost_model.observe(tree.size(), 0, cost.verify_ms);
      ms += cost.draft_ms + cost.verify_ms;
      tokens += 1 + accepted;
    }
    return tokens * 10 / ms;
  }
};

// Where levels are cheap the unluckiest of many streams still gains; where they are dear the first draft does not take
// all there is.
TEST(DraftPlanner, ASingleStreamGetsOverABadStart) {
  constexpr unsigned kStreams = 300;
  for (int unlucky : {1, 2, 3}) {
    double worst = 10, sum = 0;
    for (unsigned seed = 0; seed < kStreams; ++seed) {
      worst = std::min(worst, Stream{.level = 0.05, .unlucky = unlucky}.speedup(160, seed));
      sum += Stream{.level = 0.2, .unlucky = unlucky}.speedup(160, seed);
    }
    EXPECT_GT(worst, 1.42) << unlucky << " bad drafts";
    EXPECT_GT(sum / kStreams, 1.12) << unlucky << " bad drafts";
  }
}

TEST(DraftPlanner, ASingleStreamLosesWhatWasPromised) {
  for (double level : {0.03, 0.1, 0.4}) {
    Stream stream{.level = level, .right = 0};
    EXPECT_GT(stream.speedup(1000, 1), 1 - 0.015 - (1 + 8 * level) / 1000) << level;
  }
}

DraftPlanner reader(const CostModel& cost_model) {
  return {cost_model, {.nodes = 4, .depth = 4, .runs_model = true, .uses_costs = true}};
}

TEST(DraftPlanner, ABatchDoesNotReadWhatCannotPay) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 1000 * (1 + 0.35 * (rows - 1) / 31));
  DraftPlanner planner = reader(cost_model);
  planner.observe_reading(2000, 3000);  // three plain rounds
  for (int requests : {4, 16, 32}) {
    RoundOutcome plain{
        .requests = requests, .tokens = requests, .ms = cost_model.predict(requests, 0), .wanting = requests};
    planner.settle(plain);
    const UnreadText text{.requests = requests, .behind = 2000, .piece = 2048, .remaining = 128};
    EXPECT_EQ(planner.worth_reading(text, 0), requests == 4) << requests;
    if (requests > 4) continue;
    planner.finish_reading(text, 2000, 3000);
    EXPECT_LT(planner.batch_budget().balance(4), -1);  // it is charged,
    EXPECT_FALSE(planner.worth_reading(text, 0));      // no second one is made on trust,
    EXPECT_EQ(planner.count_drafting(4, 1, 0), 1);     // and it is tried
  }
}

// Six of sixteen get eleven tokens in each round, the others one or two, and a round with drafts takes as long as three
// plain ones: on average all are a little faster, but most answers would come much later. An index has no levels to
// wait for; there the average counts.
TEST(DraftPlanner, ABatchDoesNotMakeMostOfItWait) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 10 * (1 + 0.01 * (rows - 1)));
  for (const bool model : {true, false}) {
    DraftPlanner planner(cost_model, {.nodes = 15, .depth = 10, .runs_model = model, .uses_costs = true});
    const double plain = planner.plain_ms(16, 0);
    RoundOutcome round{.requests = 16, .tokens = 16, .ms = plain, .wanting = 16};
    for (int i = 0; i < 50; ++i) planner.settle(round);
    double ms = 0;
    int rounds = 0, drafted = 0;
    for (; rounds < 100; ++rounds) {  // 100 plain rounds' worth of the slower requests' answers
      const bool draft = planner.may_draft(16) && rounds % 32 != 0;
      round.drafting = draft ? 16 : 0, round.plain = !draft, round.nodes = draft ? 80 : 0;
      round.tokens = draft ? 6 * 11 + 5 * 2 + 5 : 16, round.slow_pace = draft ? 1.2 : 0;
      round.ms = draft ? 3 * plain : plain, round.draft_ms = draft ? plain : 0;
      planner.settle(round);
      ms += round.ms, drafted += draft;
    }
    if (model) {
      EXPECT_LE(ms, 108 * plain) << drafted;
    } else {
      EXPECT_GE(drafted, 80);
    }
  }
}

TEST(DraftPlanner, RoundsWithoutAnybodyWhoWouldDraftSaveNothingUp) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 1000);
  DraftPlanner planner = reader(cost_model);
  for (int i = 0; i < 500; ++i) planner.settle(RoundOutcome{.requests = 8, .tokens = 8, .ms = 1000});
  EXPECT_EQ(planner.batch_budget().balance(8), 1);
  for (int i = 0; i < 500; ++i) planner.settle(RoundOutcome{.requests = 8, .tokens = 8, .ms = 1000, .wanting = 8});
  EXPECT_LE(planner.batch_budget().balance(8), 2);
  // Beside a prompt the time of a round says nothing, but what its drafts cost is known.
  const double before = planner.batch_budget().balance(8);
  planner.settle(RoundOutcome{.requests = 8,
                              .tokens = 8,
                              .ms = 9000,
                              .draft_ms = 400,
                              .with_prompts = true,
                              .plain = false,
                              .drafting = 8,
                              .wanting = 8});
  EXPECT_NEAR(planner.batch_budget().balance(8), before + 0.01 - 0.4, 1e-6);
}

}  // namespace
}  // namespace sx
