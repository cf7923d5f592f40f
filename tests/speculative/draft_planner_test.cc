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

// Preset auto, alone: the controller sets how deep the model drafts; an index drafts all the same, and where the model
// has not read the text it drafts alone.
TEST(DraftPlanner, AControllerLimitsTheModelAndNotTheIndex) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 10 * (1 + 0.03 * (rows - 1)));
  DraftPlanner planner(
      cost_model,
      {.nodes = 16, .depth = 16, .runs_model = true, .has_index = true, .uses_costs = true, .controlled = true});
  SpeculationBudget budget;
  ASSERT_TRUE(planner.drafts_unread());
  const auto grant = [&](bool unread, TreeLimits& limits) {
    EXPECT_EQ(planner.count_drafting(1, 1, 0), 1);
    return planner.grant({.budget = budget, .history = 0, .remaining = 200, .unread = unread}, 1, limits);
  };
  TreeLimits limits{.nodes = 16, .depth = 16};
  DraftGrant unread = grant(true, limits);
  EXPECT_TRUE(unread.draft && unread.cheap_only);
  EXPECT_EQ(limits.depth, 16);
  EXPECT_STRNE(unread.decision.why, "");
  int model_rounds = 0, levels = 0;
  TokenTree tree(33);
  for (int round = 0; round < 60; ++round) {  // the model is never right
    limits = {.nodes = 16, .depth = 16};
    const DraftGrant g = grant(false, limits);
    EXPECT_EQ(limits.depth, 16);
    EXPECT_EQ(g.cheap_only, g.model_depth == 0);
    tree.reset(1);
    for (int i = 0; i < g.model_depth; ++i) tree.add(i, 2, std::log(0.6f) * float(i + 1));
    model_rounds += g.model_depth > 0, levels += g.model_depth;
    const RoundCost cost{.draft_ms = double(g.model_depth), .verify_ms = 10, .nodes = tree.drafted()};
    planner.settle({.budget = budget, .decision = g.decision}, cost, &tree, 0, true);
  }
  EXPECT_GE(model_rounds, 3) << "it is tried again";
  EXPECT_LE(levels, 14);
  EXPECT_EQ(planner.experience().acceptance().drafts(), model_rounds);
}

// A long prompt is not read for an answer that will be short.
TEST(DraftPlanner, AControllerReadsWhatTheAnswerRepays) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 10 * (1 + 0.03 * (rows - 1)));
  DraftPlanner planner(
      cost_model,
      {.nodes = 8, .depth = 8, .runs_model = true, .has_index = true, .uses_costs = true, .controlled = true});
  planner.observe_reading(1000, 300);  // a plain step for 33 tokens
  for (int i = 0; i < 10; ++i) planner.count_answer(50);
  const UnreadText text{.requests = 1, .behind = 4000, .piece = 512, .remaining = 4000, .history = 4000};
  EXPECT_FALSE(planner.worth_reading(text, 1));
  UnreadText little = text, going_on = text;
  little.behind = 300, going_on.made = 900;
  EXPECT_TRUE(planner.worth_reading(little, 1));
  EXPECT_TRUE(planner.worth_reading(going_on, 1));
}

// What the index gives alone is known before a long prompt is read, and the model has to give more than that.
TEST(DraftPlanner, AControllerLooksAtTheIndexBeforeTheModelReads) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 10 * (1 + 0.03 * (rows - 1)));
  DraftPlanner planner(
      cost_model,
      {.nodes = 8, .depth = 8, .runs_model = true, .has_index = true, .uses_costs = true, .controlled = true});
  planner.observe_reading(1000, 300);
  for (int i = 0; i < 10; ++i) planner.count_answer(200);
  DraftController plain, copying;
  const auto worth = [&](int behind, const DraftController& controller) {
    return planner.worth_reading(
        {.behind = behind, .piece = 512, .remaining = 4000, .history = 4000, .controller = &controller}, 1);
  };
  EXPECT_FALSE(worth(500, plain));
  EXPECT_TRUE(worth(30, plain)) << "so little is read at once";
  for (int i = 0; i < 6; ++i) plain.settle_without(1, 1), copying.settle_without(4, 1.2);
  EXPECT_TRUE(worth(500, plain));
  EXPECT_FALSE(worth(500, copying));
}

// A head reads a prompt along unless the answer has to be so short that good drafts could not repay it.
TEST(DraftPlanner, AHeadReadsAlongWhatAnAnswerCanRepay) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, 10 * (1 + 0.03 * (rows - 1)));
  const DraftKind kind{.nodes = 8,
                       .depth = 8,
                       .runs_model = true,
                       .has_index = true,
                       .uses_costs = true,
                       .controlled = true,
                       .is_head = true};
  DraftPlanner planner(cost_model, kind);
  EXPECT_FALSE(planner.reads_along(2000, 16))
      << "a share of what the prompt is expected to take, before it is measured";
  EXPECT_TRUE(planner.reads_along(2000, 64));
  planner.observe_along(1000, 21);  // two plain steps
  EXPECT_FALSE(planner.reads_along(1000, 17));
  EXPECT_TRUE(planner.reads_along(1000, 64));
  EXPECT_TRUE(planner.reads_along(80, 16)) << "a short prompt costs next to nothing";
  EXPECT_FALSE(planner.reads_along(4000, 64));
  EXPECT_TRUE(planner.reads_along(4000, 256));
  EXPECT_FALSE(planner.reads_along(10, 8)) << "so few tokens are hardly drafted at all";
  EXPECT_TRUE(planner.reads_along(4000, 0)) << "who wants no answer wants the text to be ready for a later one";
  // A level takes a twentieth of a step, not a quarter.
  SpeculationBudget budget;
  TokenTree tree(9);
  tree.reset(1);
  tree.add(0, 2, -0.5f, kFromModel);
  planner.settle({.budget = budget, .decision = {.depth = 1, .time = 1.1}},
                 {.draft_ms = 0.5, .verify_ms = 10.3, .nodes = 1}, &tree, 1, true);
  EXPECT_TRUE(planner.reads_along(1000, 17));
  EXPECT_FALSE(planner.reads_along(1000, 12));
  // Whom nobody asks.
  DraftKind alone = kind, model = kind, fixed = kind, free = kind;
  alone.has_index = model.is_head = fixed.controlled = free.uses_costs = false;
  for (const DraftKind& other : {alone, model, fixed, free})
    EXPECT_TRUE(DraftPlanner(cost_model, other).reads_along(4000, 16));
}

// Preset auto in a batch whose index finds a token for every second request and whose model is right with `right`.
struct AutoBatch {
  int requests = 8;
  double level = 0.1, right = 0.8;  // a level in plain rounds; a token of the model
  bool model = true;                // has read the texts

  struct Result {
    double tokens_per_round_time = 0;  // of each request, in plain rounds
    int by_model = 0, rounds = 0;
  };
  Result run(int rounds) const {
    CostModel cost_model;
    const auto truth = [](int rows) { return 10 * (1 + 0.004 * (rows - 1)); };
    for (int rows : CostModel::kRows) cost_model.set(rows, 0, truth(rows));
    DraftPlanner planner(
        cost_model,
        {.nodes = 8, .depth = 8, .runs_model = true, .has_index = true, .uses_costs = true, .controlled = true});
    std::vector<SpeculationBudget> budgets(size_t(requests), SpeculationBudget{});
    std::vector<TokenTree> trees;
    for (int i = 0; i < requests; ++i) trees.emplace_back(9);
    std::mt19937 random(1);
    std::uniform_real_distribution<double> chance(0, 1);
    const double plain = truth(requests);
    double ms = 0, tokens = 0;
    Result out;
    for (int round = 0; round < rounds; ++round) {
      const int allowed = planner.count_drafting(requests, requests, 0);
      std::vector<DraftGrant> grants(size_t(requests), DraftGrant{});
      std::vector<int> accepted(size_t(requests), 0);
      RoundOutcome o{.requests = requests, .wanting = requests};
      int deepest = 0;
      for (size_t i = 0; i < size_t(requests); ++i) {
        trees[i].reset(1);
        if (o.drafting == allowed) continue;
        TreeLimits limits{.nodes = 8, .depth = 8};
        grants[i] = planner.grant({.budget = budgets[i], .remaining = 500, .unread = !model}, level * plain, limits);
        if (!grants[i].draft) continue;
        ++o.drafting;
        const int depth = grants[i].model_depth;
        for (int n = 0; n < depth; ++n) trees[i].add(n, 2, std::log(0.6f) * float(n + 1), kFromModel);
        while (accepted[i] < depth && chance(random) < right) ++accepted[i];
        if (depth == 0 && i % 2 == 0) trees[i].add(0, 2, std::log(0.9f), kFromIndex), accepted[i] = 1;
        deepest = std::max(deepest, depth);
        if (depth > 0) ++o.by_model, o.model_tokens += accepted[i] + 1;
      }
      for (size_t i = 0; i < size_t(requests); ++i)
        o.nodes += trees[i].drafted(), o.tokens += accepted[i] + 1, o.plain &= !grants[i].draft;
      o.draft_ms = deepest * level * plain;
      o.ms = truth(requests + o.nodes) + o.draft_ms;
      o.slow_pace = double(o.tokens) / requests;
      const RoundCost cost{
          .draft_ms = o.draft_ms, .verify_ms = truth(requests + o.nodes), .requests = requests, .nodes = o.nodes};
      for (size_t i = 0; i < size_t(requests); ++i)
        planner.settle({.budget = budgets[i], .decision = grants[i].decision}, cost,
                       grants[i].draft ? &trees[i] : nullptr, accepted[i], true);
      planner.settle(o);
      ms += o.ms, tokens += double(o.tokens) / requests, out.by_model += o.by_model, ++out.rounds;
    }
    out.tokens_per_round_time = tokens * plain / ms;
    return out;
  }
};

TEST(DraftPlanner, InABatchTheModelDraftsWhereItGivesMoreThanTheIndex) {
  for (const int requests : {2, 8, 16}) {
    const double index = AutoBatch{.requests = requests, .model = false}.run(300).tokens_per_round_time;
    EXPECT_GT(index, 1.35) << requests;  // half of them get a second token
    const auto good = AutoBatch{.requests = requests, .level = 0.05, .right = 0.85}.run(300);
    EXPECT_GT(good.tokens_per_round_time, 0.98 * index) << requests;
    if (requests <= 8) {  // of larger batches a trial must promise more (BatchBudget)
      EXPECT_GT(good.tokens_per_round_time, 1.5 * index) << requests;
      EXPECT_GT(good.by_model, 0.7 * 300 * requests) << requests;
    }
    for (const double level : {0.1, 0.5}) {
      const auto bad = AutoBatch{.requests = requests, .level = level, .right = 0.1}.run(300);
      EXPECT_GT(bad.tokens_per_round_time, 0.97 * index) << requests << ", " << level;
      EXPECT_LT(bad.by_model, 40) << requests << ", " << level;
    }
    const auto dear = AutoBatch{.requests = requests, .level = 1, .right = 0.6}.run(300);
    EXPECT_GT(dear.tokens_per_round_time, 0.97 * index) << requests;
  }
}

}  // namespace
}  // namespace sx
