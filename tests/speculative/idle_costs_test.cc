// Costs that are measured again while an engine is idle, on a clock of the test's own: they come to hold wherever they
// were wrong, stop at once when there is work, and take little time.
#include "speculative/budget/idle_costs.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace sx {
namespace {

constexpr int kFar = 2048;

// A machine: what passes take, and how much another process slows them down.
struct Machine {
  double ms = 0;  // its clock
  double slowed = 1;
  std::mt19937 random{7};

  static double truth(int rows, double history) { return 2 + 0.12 * rows + history * (0.0004 + 0.00005 * rows); }
  double run(int rows, int history) {
    const double jitter = 1 + 0.1 * std::uniform_real_distribution<double>(0, 1)(random);
    const double took = truth(rows, history) * slowed * jitter;
    ms += took;
    return took;
  }
};

// What the costs are wrong by: the passes that were timed while something else ran.
CostModel wrong_costs() {
  CostModel costs;
  for (const int rows : {1, 2, 4, 8, 16, 32, 64}) {
    costs.set(rows, 0, Machine::truth(rows, 0) * (rows == 4 || rows == 16 ? 3 : 1));
    costs.set(rows, kFar, Machine::truth(rows, kFar) * (rows >= 32 ? 2.5 : 1));
  }
  return costs;
}

double worst_error(const CostModel& costs) {
  double worst = 0;
  for (const int rows : {1, 2, 3, 5, 8, 12, 16, 24, 32, 48, 64})
    for (const int history : {0, 256, 1024, 2048, 4096})
      worst = std::max(worst, std::abs(costs.predict(rows, history) / Machine::truth(rows, history) - 1));
  return worst;
}

// So many passes at most, until nothing is to be measured.
int measure(IdleCosts& idle, CostModel& costs, Machine& machine, int history, int most = 1000) {
  int passes = 0;
  while (passes < most) {
    const auto rows = idle.next(costs, {.rows = 64, .history = history}, machine.ms);
    if (!rows) break;
    const double took = machine.run(*rows, history);
    idle.timed(costs, machine.ms, took);
    ++passes;
  }
  return passes;
}

TEST(IdleCosts, TimeIsToldWithinTenPercent) {
  Machine machine;
  CostModel costs = wrong_costs();
  IdleCosts idle;
  EXPECT_GT(worst_error(costs), 0.5);
  for (int i = 0; i < 8; ++i) {
    measure(idle, costs, machine, i % 2 ? 0 : kFar);  // a session with a long text, one that is empty
    machine.ms += IdleCosts::kMostGapMs;
  }
  EXPECT_LT(worst_error(costs), 0.10);
}

// A process that eats a core while costs are measured is believed by half, and forgotten at once when it has ended.
TEST(IdleCosts, ABusyMomentPasses) {
  Machine machine;
  CostModel costs = wrong_costs();
  IdleCosts idle;
  machine.slowed = 2;
  measure(idle, costs, machine, kFar);
  machine.slowed = 1;
  for (int i = 0; i < 6; ++i) {
    machine.ms += IdleCosts::kFirstGapMs;
    measure(idle, costs, machine, i % 2 ? 0 : kFar);
  }
  EXPECT_LT(worst_error(costs), 0.10);
}

TEST(IdleCosts, WorkInterruptsThemAndTheyGoOn) {
  Machine machine;
  CostModel costs = wrong_costs(), before = costs;
  IdleCosts idle;
  EXPECT_EQ(measure(idle, costs, machine, kFar, 5), 5);
  EXPECT_EQ(costs.predict(16, kFar), before.predict(16, kFar));  // not by one pass of each
  EXPECT_EQ(idle.sets(), 0);
  EXPECT_EQ(measure(idle, costs, machine, kFar + 8), 7 * IdleCosts::kSweeps - 5);
  EXPECT_EQ(idle.sets(), 1);
  machine.ms += IdleCosts::kFirstGapMs;
  EXPECT_EQ(measure(idle, costs, machine, kFar, 5), 5);
  EXPECT_EQ(measure(idle, costs, machine, 100), 7 * IdleCosts::kSweeps);  // another text: from the beginning
}

TEST(IdleCosts, TakeLittleTime) {
  Machine machine;
  CostModel costs = wrong_costs();
  IdleCosts idle;
  double measuring = 0;
  while (machine.ms < 3600e3) {
    const double start = machine.ms;
    measure(idle, costs, machine, kFar);
    measuring += machine.ms - start;
    machine.ms += 5000;
  }
  EXPECT_LT(measuring / machine.ms, 0.002);
  EXPECT_GE(idle.sets(), 6);
  // Passes that would make a request wait are not run.
  CostModel slow;
  slow.set(1, 0, 30), slow.set(2, 0, 40), slow.set(4, 0, 60);
  IdleCosts careful;
  for (int i = 0; i < 20; ++i) {
    const auto rows = careful.next(slow, {.rows = 64, .history = 0}, 0);
    if (!rows) break;
    EXPECT_LE(*rows, 2);
    careful.timed(slow, 0, 30);
  }
  EXPECT_EQ(careful.sets(), 1);
}

}  // namespace
}  // namespace sx
