// What the controller of preset auto decides, on scripted texts and a table of costs instead of a clock: it comes close
// to the best fixed depth of each text, loses next to nothing where drafts do not help, and notices changes.
#include "speculative/budget/draft_controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace sx {
namespace {

constexpr int kDeepest = 16;

// In plain steps.
struct Machine {
  double level, node;
  double time(int depth) const { return 1 + depth * (level + node); }
};
constexpr Machine kMachines[] = {{0.03, 0.03}, {0.1, 0.03}, {0.1, 0.15}, {0.25, 0.05}, {0.5, 0.1}, {0.1, 0.5}};

// [i]: the model's guess of token i is right, if all before it are there.
using Text = std::vector<char>;

struct Script {
  std::string name;
  int tokens;
  std::function<double(int place)> right;  // chance
};
const std::vector<Script>& scripts() {
  static const std::vector<Script> all{{"random tokens", 256, [](int) { return 0.0; }},
                                       {"hard", 256, [](int) { return 0.1; }},
                                       {"0.3", 256, [](int) { return 0.3; }},
                                       {"0.5", 256, [](int) { return 0.5; }},
                                       {"0.7", 256, [](int) { return 0.7; }},
                                       {"0.9", 256, [](int) { return 0.9; }},
                                       {"a copy", 256, [](int) { return 1.0; }},
                                       {"hard and easy", 512, [](int i) { return i / 64 % 2 ? 0.9 : 0.05; }},
                                       {"easy and hard", 512, [](int i) { return i / 64 % 2 ? 0.05 : 0.9; }},
                                       {"easy in the end", 400, [](int i) { return i < 200 ? 0.05 : 0.95; }},
                                       {"easy at first", 400, [](int i) { return i < 50 ? 0.95 : 0.05; }},
                                       {"short", 64, [](int) { return 0.5; }}};
  return all;
}

Text text_of(const Script& script, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<double> chance(0, 1);
  Text text;
  for (int i = 0; i < script.tokens; ++i) text.push_back(chance(random) < script.right(i));
  return text;
}

int accepted(const Text& text, size_t at, int depth) {
  int n = 0;
  while (n < depth && text[at + size_t(n)]) ++n;
  return n;
}

double fixed_time(const Text& text, const Machine& machine, int depth) {
  double time = 0;
  for (size_t at = 0; at < text.size();) {
    const int deep = std::min(depth, int(text.size() - at) - 1);
    time += machine.time(deep);
    at += size_t(accepted(text, at, deep)) + 1;
  }
  return time;
}

struct Decided {
  double time = 0;
  std::vector<std::pair<size_t, DraftDecision>> decisions;  // by place in the text
};
Decided controlled(const Text& text, const Machine& machine, DraftExperience& shared) {
  std::vector<float> verify;
  for (int n = 0; n <= kDeepest; ++n) verify.push_back(float(1 + n * machine.node));
  DraftController controller;
  Decided out;
  for (size_t at = 0; at < text.size();) {
    const DraftDecision d =
        controller.decide({machine.level, verify, kDeepest, kDeepest}, shared, int(text.size() - at));
    out.decisions.push_back({at, d});
    EXPECT_LT(d.depth, int(text.size() - at)) << "a draft beyond the end";
    const double time = machine.time(d.depth);
    const int right = accepted(text, at, d.depth);
    if (d.depth == 0) controller.settle_without(1, 1);
    else controller.settle({.depth = d.depth, .nodes = d.depth, .accepted = right, .time = time}, shared);
    out.time += time, at += size_t(right) + 1;
  }
  shared.answered(int(text.size()));
  return out;
}

// Over many texts of a kind, with an engine that has answered before and with one that has not.
TEST(DraftController, ComesCloseToTheBestFixedDepth) {
  constexpr unsigned kTexts = 40;
  for (const Machine& machine : kMachines)
    for (const Script& script : scripts()) {
      std::vector<double> fixed(9, 0);
      double first = 0, later = 0;
      DraftExperience shared;
      for (unsigned seed = 0; seed < kTexts; ++seed) {
        const Text text = text_of(script, seed);
        for (size_t d = 0; d < fixed.size(); ++d) fixed[d] += fixed_time(text, machine, int(d));
        DraftExperience fresh;
        first += controlled(text, machine, fresh).time, later += controlled(text, machine, shared).time;
      }
      const double best = *std::min_element(fixed.begin(), fixed.end());
      const std::string what =
          script.name + ", level " + std::to_string(machine.level) + ", node " + std::to_string(machine.node);
      EXPECT_LT(later / best, 1.05) << what;
      EXPECT_LT(first / best, 1.08) << what << ", the first answer of an engine";
      EXPECT_GT(kTexts * script.tokens / later, 0.98) << what;
    }
}

TEST(DraftController, NoAnswerIsMuchSlowerThanPlain) {
  for (const Machine& machine : kMachines)
    for (const Script& script : scripts())
      for (const int tokens : {16, 64, script.tokens}) {
        DraftExperience shared;
        for (unsigned seed = 0; seed < 25; ++seed) {
          Text text = text_of(script, seed);
          text.resize(std::min(text.size(), size_t(tokens)));
          DraftExperience fresh;
          EXPECT_GT(double(text.size()) / controlled(text, machine, fresh).time, 0.98) << script.name << ", " << tokens;
          // An engine that knows drafts to pay lends an answer three quarters of a step.
          EXPECT_GT(double(text.size()) / controlled(text, machine, shared).time,
                    0.98 - 0.75 / double(text.size()) - 0.02)
              << script.name << ", " << tokens;
        }
      }
}

// Answers of 16 tokens, each too short to pay for a try where levels are dear: those before it have left something.
TEST(DraftController, ShortAnswersLearnFromEachOther) {
  for (const Machine& machine : kMachines) {
    double easy = 0, hard = 0, plain = 0;
    std::vector<double> fixed(9, 0);
    DraftExperience for_easy, for_hard;
    for (unsigned seed = 0; seed < 60; ++seed) {
      const Text text = text_of({"", 16, [](int) { return 0.9; }}, seed), never(16, 0);
      hard += controlled(never, machine, for_hard).time, plain += 16;
      const double time = controlled(text, machine, for_easy).time;
      if (seed < 20) continue;  // an engine that has answered before
      easy += time;
      for (size_t d = 0; d < fixed.size(); ++d) fixed[d] += fixed_time(text, machine, int(d));
    }
    const double best = *std::min_element(fixed.begin(), fixed.end());
    const std::string what = "level " + std::to_string(machine.level) + ", node " + std::to_string(machine.node);
    EXPECT_LT(easy / best, 1.10) << what;  // a try of a dear level is a large part of so short an answer
    EXPECT_GT(plain / hard, 0.98) << what;
  }
}

TEST(DraftController, NoticesWithinSixteenTokensThatATextTurnsEasy) {
  for (const Machine& machine : {Machine{0.03, 0.03}, Machine{0.1, 0.03}, Machine{0.1, 0.06}}) {
    std::vector<int> waits;
    for (unsigned seed = 0; seed < 50; ++seed) {
      Text text = text_of({"", 400, [](int i) { return i < 200 ? 0.05 : 1.0; }}, seed);
      DraftExperience shared;
      const Decided all = controlled(text, machine, shared);
      int wait = 200;
      for (const auto& [at, d] : all.decisions)
        if (at >= 200 && d.kind == DraftDecision::Kind::kModel && d.depth >= 2) {
          wait = std::min(wait, int(at) - 200);
        }
      waits.push_back(wait);
    }
    std::sort(waits.begin(), waits.end());
    EXPECT_LE(waits[waits.size() / 2], 16) << machine.level << " " << machine.node;
    EXPECT_LE(waits.back(), 24) << machine.level << " " << machine.node;
  }
}

TEST(DraftController, DoesNotDraftWithAModelWhereAnIndexGivesMore) {
  const std::vector<float> verify{1, 1.05f, 1.1f, 1.15f, 1.2f};
  DraftExperience shared;
  DraftController controller;
  int with_model = 0;
  for (int round = 0; round < 100; ++round) {
    const DraftDecision d = controller.decide({0.2, verify, 4, 4, true}, shared, 1000);
    if (d.depth > 0) {
      with_model += round >= 30;
      controller.settle({.depth = d.depth, .nodes = d.depth, .accepted = 1, .time = 1 + 0.25 * d.depth}, shared);
    } else {
      controller.settle_without(5, 1.3);  // a loop that the index knows by heart
    }
  }
  EXPECT_LE(with_model, 8);
}

TEST(DraftController, LevelsThatWillNotBeVerifiedAreNotDrafted) {
  const std::vector<float> verify{1, 1.02f, 1.04f, 1.06f, 1.08f, 1.1f, 1.12f, 1.14f, 1.16f};
  DraftExperience shared;
  DraftController controller;
  int late = 0;
  for (int round = 0; round < 60; ++round) {  // never more than two tokens are right
    const DraftDecision d = controller.decide({0.1, verify, 8, 8}, shared, 1000);
    if (round >= 20) late = std::max(late, d.depth);
    if (d.depth == 0) controller.settle_without(1, 1);
    else
      controller.settle(
          {.depth = d.depth, .nodes = d.depth, .accepted = std::min(2, d.depth), .time = 1 + 0.12 * d.depth}, shared);
  }
  EXPECT_LE(late, 3);
  EXPECT_GE(late, 2);
}

TEST(DraftController, AShortAnswerDoesNotRepayALongReading) {
  const std::vector<float> verify{1, 1.03f, 1.06f, 1.09f, 1.12f};
  const DraftCosts costs{.level = 0.1, .verify = verify, .depth = 4, .nodes = 4};
  DraftExperience shared;
  for (int i = 0; i < 8; ++i) shared.answered(50);
  EXPECT_NEAR(shared.usual_answer(), 50, 1);
  EXPECT_TRUE(shared.repays(5, costs, 0, 4000));
  EXPECT_FALSE(shared.repays(40, costs, 0, 4000)) << "answers end after fifty tokens, whatever the limit";
  EXPECT_FALSE(shared.repays(5, costs, 0, 8)) << "no more are wanted";
  EXPECT_TRUE(shared.repays(40, costs, 400, 4000)) << "this one is longer than usual";
  for (int i = 0; i < 20; ++i) shared.answered(400);
  EXPECT_TRUE(shared.repays(40, costs, 0, 4000));
  for (int i = 0; i < 60; ++i) shared.drafted(4, 0, 1, 1.5);  // drafts that are never right
  EXPECT_FALSE(shared.repays(5, costs, 0, 4000));
}

TEST(AcceptanceByDepth, LearnsEachDepth) {
  AcceptanceByDepth a;
  for (int i = 0; i < 40; ++i) a.observe(4, i % 2 ? 2 : 1);
  EXPECT_GT(a.at(1), 0.9);
  EXPECT_NEAR(a.at(2), 0.5, 0.1);
  EXPECT_LT(a.at(3), 0.3);
  EXPECT_NEAR(a.expected(2), a.at(1) * (1 + a.at(2)), 1e-12);
  a.observe(0, 0);
  EXPECT_EQ(a.drafts(), 40);
  for (int i = 0; i < 3; ++i) a.observe(4, 0);  // the text has changed
  EXPECT_LT(a.at(1), 0.45);
  AcceptanceByDepth b;
  b.believe(a);
  EXPECT_EQ(b.drafts(), 0);
}

// What an index may lose to begin with is a share of what the user waits for.
TEST(DraftController, AShortAnswerToAShortPromptGivesTheIndexLittle) {
  const DraftExperience fresh;
  const auto index = [&](double waited, int limit) {
    DraftController controller;
    controller.begin(waited, fresh, limit, true);
    return controller.index_balance();
  };
  EXPECT_NEAR(index(5, 16), 0.42, 1e-9);
  EXPECT_NEAR(index(1, 1000), 0.02 * (1 + fresh.usual_answer()), 1e-9);
  EXPECT_EQ(index(80, 16), 1);
  DraftExperience lost;
  for (int i = 0; i < 40; ++i) lost.drafted(2, 0, 1, 1.4);
  DraftController trusted, tried, alone;
  trusted.begin(80, fresh, 100, true), tried.begin(80, lost, 100, true), alone.begin(80, lost, 100, false);
  EXPECT_NEAR(tried.balance(), 0.35 * trusted.balance(), 1e-9) << "beside an index";
  EXPECT_EQ(alone.balance(), trusted.balance());
}

}  // namespace
}  // namespace sx
