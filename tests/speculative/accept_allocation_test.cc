// Acceptance allocates nothing: a counting operator new watches every rule on chains and trees, greedy and sampled,
// with penalties.
#include <gtest/gtest.h>

#include <random>

#include "backend/registry.h"
#include "speculative/accept/accept.h"
#include "support/counting_new.h"

namespace sx {
namespace {

constexpr int kVocab = 40, kNodes = 24;

// Accepts trees of all depths; returns the tokens accepted.
size_t accept_many(Acceptance& rule, bool chain, float temperature, PenaltyWindow& window, AcceptResult& result,
                   long& allocations) {
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal(0, 1);
  TokenTree tree(kNodes);
  DraftProbs distributions(kNodes, kVocab);
  std::vector<float> logits(size_t(kNodes) * kVocab);
  for (float& x : logits) x = normal(random);
  std::fill_n(distributions.row(0), logits.size(), 1.0f / kVocab);
  Sampling sampling;
  sampling.temperature = temperature, sampling.top_p = 0.95f, sampling.repeat_penalty = 1.1f;
  const TokenBias bias[] = {{3, 1.0f}};
  size_t accepted = 0;
  for (uint64_t trial = 0; trial < 200; ++trial) {
    tree.reset(1);
    while (!tree.full()) {
      const NodeId parent = chain ? tree.size() - 1 : NodeId(random() % uint64_t(tree.size()));
      Token x = Token(random() % kVocab);
      while (tree.child(parent, x) != kNoNode) x = (x + 1) % kVocab;
      tree.add(parent, x, 0);
    }
    sampling.seed = trial;
    AcceptArgs args;
    args.tree = &tree, args.logits = logits.data(), args.vocab = kVocab, args.position = trial;
    args.sampling = &sampling, args.bias = bias, args.window = &window, args.draft_probs = &distributions;
    const long before = g_allocations.load();
    rule.accept(args, result);
    allocations += g_allocations.load() - before;
    accepted += result.path.size() - 1;
  }
  return accepted;
}

TEST(AcceptAllocation, JudgingAllocatesNothing) {
  const auto backend = make_cpu_backend({1, std::nullopt});
  StepLimits limits;
  limits.rows = 1, limits.vocab = kVocab;
  backend->reserve(limits);
  PenaltyWindow window(kVocab, 16, kNodes);
  window.push(1);
  AcceptResult result;
  result.path.reserve(kNodes);
  for (AcceptKind kind :
       {AcceptKind::kMatch, AcceptKind::kChain, AcceptKind::kBlockwise, AcceptKind::kSpecInfer,
        AcceptKind::kNoReplacement, AcceptKind::kTraversal, AcceptKind::kTypical, AcceptKind::kMargin}) {
    AcceptConfig config;
    config.kind = kind;
    const auto rule = make_acceptance(config, *backend, {kVocab, kNodes, kNodes - 1});
    for (float temperature : {0.0f, 0.8f}) {
      const bool chain = kind == AcceptKind::kChain || kind == AcceptKind::kBlockwise;
      long allocations = 0;
      const size_t accepted = accept_many(*rule, chain, temperature, window, result, allocations);
      EXPECT_GT(accepted, 0u) << int(kind) << " " << temperature;
      EXPECT_EQ(allocations, 0) << int(kind) << " " << temperature;
    }
  }
}

// The counter counts.
TEST(AcceptAllocation, TheCounterSeesAllocations) {
  const long before = g_allocations.load();
  const auto p = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(g_allocations.load() - before, 2);
  EXPECT_EQ(p->size(), 100u);
}

}  // namespace
}  // namespace sx
