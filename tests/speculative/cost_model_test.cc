// Costs of passes: what is measured in a bad moment is corrected by what runs, and what nobody runs is doubted until it
// is tried.
#include "speculative/budget/cost_model.h"

#include <gtest/gtest.h>

#include "speculative/budget/speculation_budget.h"
#include "speculative/budget/batch_budget.h"

namespace sx {
namespace {

// A pass of a model whose rows are cheap: 8 rows cost a quarter more than one.
double truth(int rows) { return 10 * (1 + 0.035 * (rows - 1)); }

CostModel with_costs(double first, double others) {
  CostModel cost_model;
  for (int rows : {1, 2, 4, 8, 16, 32, 64}) cost_model.set(rows, 0, truth(rows) * (rows == 1 ? first : others));
  return cost_model;
}

float cost_of(const CostModel& cost_model, int nodes) {
  std::vector<float> cost(size_t(nodes) + 1);
  cost_model.costs(nodes, {1, 1, 0}, cost);
  return cost.back();
}

TEST(CostModel, WhatIsNotTriedIsDoubtedAndThenKnown) {
  CostModel cost_model = with_costs(1, 10);
  const float before = cost_of(cost_model, 4);
  EXPECT_GT(before, 10);
  for (int i = 0; i < 32; ++i) cost_model.observe(1, 0, truth(1));
  EXPECT_FLOAT_EQ(cost_of(cost_model, 4), before);  // believed for a while
  for (int i = 0; i < 64; ++i) cost_model.observe(1, 0, truth(1));
  EXPECT_LT(cost_of(cost_model, 4), 3);               // then worth a try
  EXPECT_GT(cost_model.predict(5, 0), 9 * truth(5));  // though nothing else is known about it
  cost_model.observe(5, 0, cost_model.predict(5, 0));
  EXPECT_NEAR(cost_of(cost_model, 4), before, 0.1 * before);  // it was right: no more doubt
  for (int i = 0; i < 16; ++i) cost_model.observe(5, 0, truth(5));
  EXPECT_LT(cost_model.predict(5, 0), 1.3 * truth(5));  // it was wrong
  EXPECT_LT(cost_of(cost_model, 4), 1.5);
}

// A tree as large as can be is no try: only the smallest pass that was not run lately is hoped to be cheaper than
// known.
TEST(CostModel, HopeIsForANodeNotForATree) {
  CostModel cost_model;
  for (int rows : {1, 2, 4, 8, 16, 32}) cost_model.set(rows, 0, 1 + 0.3 * (rows - 1));
  for (int i = 0; i < 300; ++i) cost_model.observe(1, 0, 1);
  std::vector<float> known(16), hoped(16);
  cost_model.costs(15, {1, 1, 0}, known, false);
  cost_model.costs(15, {1, 1, 0}, hoped);
  EXPECT_LT(hoped[1], 1.01f);
  EXPECT_NEAR(known[1], 1.3f, 1e-4);
  for (size_t n = 1; n < 16; ++n) EXPECT_NEAR(known[n] - hoped[n], 0.3f, 0.02f) << n;
}

TEST(CostModel, ASlowPassSaysLittleAFastOneMuch) {
  CostModel slow = with_costs(1, 1), fast = with_costs(1, 10);
  for (int i = 0; i < 10; ++i) slow.observe(4, 0, truth(4));
  slow.observe(4, 0, 100 * truth(4));
  EXPECT_LT(slow.predict(4, 0), 1.1 * truth(4));
  fast.observe(4, 0, truth(4));
  EXPECT_LT(fast.predict(4, 0), 5 * truth(4));
}

// Costs measured while something else ran: all of them three times too high. Plain passes show it, and what drafts cost
// in plain passes stays what it was.
TEST(CostModel, ABusyMomentAtTheStartDoesNotMakeDraftsDear) {
  CostModel cost_model = with_costs(3, 3);
  const float before = cost_of(cost_model, 4);
  for (int i = 0; i < 8; ++i) cost_model.observe(1, 0, truth(1));
  EXPECT_LT(cost_model.predict(1, 0), 1.1 * truth(1));
  EXPECT_NEAR(cost_of(cost_model, 4), before, 0.05);
  // A machine that is busy now says nothing about passes that are not run, and those that are run are not quickened.
  CostModel busy = with_costs(1, 1);
  for (int i = 0; i < 8; ++i) busy.observe(4, 0, truth(4)), busy.observe(1, 0, 0.6 * truth(1));
  EXPECT_NEAR(busy.predict(4, 0), truth(4), 0.01 * truth(4));
  for (int i = 0; i < 8; ++i) busy.observe(1, 0, 3 * truth(1));
  EXPECT_NEAR(busy.predict(64, 0), truth(64), 0.5 * truth(64));
}

// Passes that take now a little more, now a little less than expected say nothing about those that are not run.
TEST(CostModel, PassesThatVaryMakeNothingCheap) {
  CostModel cost_model = with_costs(1, 1);
  for (int i = 0; i < 4000; ++i) cost_model.observe(1, 0, truth(1) * (i % 2 ? 1.1 : 0.9));
  EXPECT_GT(cost_model.predict(64, 0), 0.8 * truth(64));
  cost_model.observe(24, 0, truth(24));
  EXPECT_GT(cost_model.predict(1, 0), 0.8 * truth(1));
}

TEST(CostModel, FewerRowsNeverCostMore) {
  CostModel cost_model;
  cost_model.set(1, 0, 10), cost_model.set(2, 0, 90), cost_model.set(4, 0, 11),
      cost_model.set(8, 0, 12);  // a busy moment at two rows
  EXPECT_DOUBLE_EQ(cost_model.predict(2, 0), 11);
  EXPECT_DOUBLE_EQ(cost_model.predict(1, 0), 10);
  EXPECT_DOUBLE_EQ(cost_model.predict(8, 0), 12);
  cost_model.set(2, 0, 10.5);  // another measurement: what was there is not lost
  EXPECT_DOUBLE_EQ(cost_model.predict(2, 0), 10.5);
}

// All who draft have as many nodes: the pass is as large as that.
TEST(CostModel, NodesOfABatchCostWhatAllOfThemCost) {
  CostModel cost_model;
  for (int rows : CostModel::kRows) cost_model.set(rows, 0, rows <= 16 ? 10 : 10 * rows / 16.0);  // free up to 16 rows
  std::vector<float> cost(5);
  cost_model.costs(4, {1, 1, 0}, cost);
  EXPECT_FLOAT_EQ(cost[4], 1);
  cost_model.costs(4, {8, 8, 0}, cost);
  EXPECT_FLOAT_EQ(cost[1], 1);      // 16 rows
  EXPECT_NEAR(cost[4], 2.5, 1e-5);  // 40 rows
  cost_model.costs(4, {8, 1, 0}, cost);
  EXPECT_FLOAT_EQ(cost[4], 1);  // 12 rows
  cost_model.costs(4, {16, 16, 0}, cost);
  EXPECT_NEAR(cost[1], 2, 1e-5);  // 32 rows
  cost_model.costs(4, {16, 4, 0}, cost);
  EXPECT_NEAR(cost[4], 5, 1e-5);  // 32 rows: all 16 lose what 4 must earn
}

// A request as Round runs it, with a drafter that is right about every token (or none) and costs nothing.
struct Request {
  CostModel cost_model;
  SpeculationBudget draft_budget;
  int drafted = 0, lost = 0;
  double ms = 0;
  int tokens = 0;

  bool round(double (*cost)(int), bool right, int most = 4) {
    std::vector<float> costs(size_t(most) + 1);
    cost_model.costs(most, {1, 1, 0}, costs);
    int nodes = most;
    while (nodes > 0 && double(costs[size_t(nodes)]) - 1 > draft_budget.balance()) --nodes;
    const double plain = cost_model.predict(1, 0), took = cost(1 + nodes), expected = cost_model.predict(1 + nodes, 0);
    cost_model.observe(1 + nodes, 0, took);
    ms += took, tokens += 1 + (right ? nodes : 0);
    if (nodes == 0) draft_budget.plain_round();
    else
      draft_budget.drafted_round(nodes, right ? nodes : 0, 0,
                                 std::min(took / plain, 2 * std::max(1.0, expected / plain)));
    drafted += nodes > 0;
    return nodes > 0;
  }
};

TEST(CostModel, DraftingResumesAfterCostsThatWereTenTimesTooHigh) {
  for (double wrong : {3.0, 10.0, 30.0}) {
    Request r{with_costs(1, wrong), {}};
    int first = 0;
    while (first < 1000 && !r.round(truth, true)) ++first;
    EXPECT_LT(first, 120) << wrong;
    for (int i = 0; i < 60; ++i) r.round(truth, true);
    r.drafted = 0;
    for (int i = 0; i < 100; ++i) r.round(truth, true);
    EXPECT_GE(r.drafted, 98) << wrong;
  }
}

double dear(int rows) { return 10 * (1 + 0.8 * (rows - 1)); }

TEST(CostModel, DraftingStopsAfterCostsThatWereTenTimesTooLow) {
  CostModel cost_model;
  for (int rows : {1, 2, 4, 8, 16, 32, 64}) cost_model.set(rows, 0, rows == 1 ? dear(1) : dear(rows) / 10);
  Request r{cost_model, {}};
  for (int i = 0; i < 2000; ++i) r.round(dear, false);
  EXPECT_LT(r.ms, 1.016 * 2000 * dear(1) + 20 * dear(1));  // the share for trying, and what it took to learn
  EXPECT_LT(r.drafted, 60);
}

// Trying what does not pay costs no more than was promised, however long it goes on.
TEST(CostModel, DoubtIsCheap) {
  Request r{with_costs(1, 1), {}};
  for (int rows : {1, 2, 4, 8}) r.cost_model.set(rows, 0, dear(rows));
  for (int i = 0; i < 5000; ++i) r.round(dear, false);
  EXPECT_LT(r.ms, 1.016 * 5000 * dear(1) + 6 * dear(1));
  EXPECT_GT(r.drafted, 5);  // but it goes on
}

struct Batch {
  BatchBudget batch_budget;
  double time = 0, tokens = 0;
  int drafted = 0;
  void round(int requests, double drafted_time, double drafted_tokens) {
    const bool draft = batch_budget.may_draft(requests);
    const double t = draft ? drafted_time : 1.1;
    time += t, tokens += draft ? drafted_tokens : 1, drafted += draft;
    if (draft) batch_budget.drafted_round(requests, drafted_tokens, t);
    else batch_budget.plain_round(requests, t);
  }
};

TEST(BatchBudget, ABatchThatLosesByDraftsDecodesPlainly) {
  Batch b;
  for (int i = 0; i < 3000; ++i) b.round(16, 4.4, 2);  // four times as long for twice the tokens
  EXPECT_GT(b.tokens * 1.1 / b.time, 0.97);
  EXPECT_LT(b.drafted, 40);
  EXPECT_GT(b.drafted, 5);  // and tries again
  EXPECT_LT(b.batch_budget.saved(16), 0);
  EXPECT_EQ(b.batch_budget.saved(8), 1);  // other sizes are other accounts
}

// A plain round may take less than expected: the average of such times is below 1 and must stay a fraction.
TEST(BatchBudget, AReadingCostsWhatItTook) {
  for (double plain : {0.8, 0.9999, 1.2}) {
    BatchBudget budget;
    budget.plain_round(4, plain, false);
    const double before = budget.balance(4);
    budget.reading(4, 0.05);
    EXPECT_NEAR(before - budget.balance(4), 0.05 / plain, 1e-9) << plain;
  }
}

TEST(BatchBudget, ABatchThatWinsGoesOn) {
  Batch b;
  for (int i = 0; i < 1000; ++i) b.round(4, 1.8, 2);
  EXPECT_GT(b.drafted, 985);
  EXPECT_LT(b.drafted, 1000);  // what a plain round takes is looked at now and then
  EXPECT_GT(b.batch_budget.saved(4), 0.1);
}

TEST(BatchBudget, ABatchThatBeginsToWinIsNoticed) {
  Batch b;
  for (int i = 0; i < 500; ++i) b.round(8, 5, 1);
  b.drafted = 0;
  for (int i = 0; i < 1500; ++i) b.round(8, 1.2, 2);
  EXPECT_GT(b.drafted, 600);
}

// Of 16 requests one drafts and gains three tokens, the others wait a third longer: more tokens in all, but nobody else
// has them.
TEST(BatchBudget, TrialsEarnNothing) {
  BatchBudget all, trials;
  for (BatchBudget* batch_budget : {&all, &trials}) batch_budget->plain_round(16, 1);
  const double before = trials.balance(16);
  all.drafted_round(16, 1.5, 1.3);
  trials.trial_round(16, 1.3, 1.5, 1.3);
  EXPECT_GT(all.balance(16), before);
  EXPECT_LT(trials.balance(16), before - 0.25);
  EXPECT_LT(trials.saved(16), all.saved(16));  // and promise less
}

TEST(BatchBudget, OneAloneLooksAfterItself) {
  Batch b;
  for (int i = 0; i < 300; ++i) b.round(1, 5, 1);
  EXPECT_GT(b.drafted, 295);
}

}  // namespace
}  // namespace sx
