// Drafting allocates nothing: a counting operator new watches whole rounds of every policy, observing and solving
// included.
#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "speculative/tree/policy.h"
#include "support/counting_new.h"

namespace sx {
namespace {

constexpr int kDistributions = 97, kVocab = 64;

std::vector<TreeConfig> configs() {
  std::vector<TreeConfig> all(7);
  all[0].kind = TreeKind::kChain;
  all[1].kind = TreeKind::kStatic, all[1].widths = {4, 2, 2, 1};
  all[2].kind = TreeKind::kStatic, all[2].paths = {{0}, {0, 0}, {1}, {0, 1}, {2}, {0, 0, 3}};
  all[3].kind = TreeKind::kSequoia, all[3].nodes = 40, all[3].depth = 6;
  all[4].kind = TreeKind::kEagle2, all[4].nodes = 59, all[4].depth = 8;
  all[5].kind = TreeKind::kOptTree, all[5].nodes = 50, all[5].depth = 10, all[5].threshold = 0.1f;
  all[6].kind = TreeKind::kBestFirst, all[6].nodes = 64, all[6].depth = 12;
  return all;
}

// A round on a language of kDistributions distributions; the walk of the result takes any child.
struct Scratch {
  std::vector<NodeCandidates> distributions;
  std::vector<NodeId> next, path;
};
void round(TreePolicy& policy, TokenTree& tree, const TreeLimits& limits, uint64_t number,
           std::span<const Candidate> table, Scratch& scratch) {
  auto& [distributions, next, path] = scratch;
  tree.reset(Token(number % kVocab));
  policy.start(limits);
  const auto distribution = [&](NodeId n) {
    const size_t row = hash_key(number, uint64_t(tree.depth(n)), uint64_t(tree.token(n))) % kDistributions;
    return NodeCandidates{n, table.subspan(row * kVocab, size_t(std::min(kVocab, policy.width())))};
  };
  distributions.assign(1, distribution(0));
  while (!distributions.empty()) {
    next.clear();
    policy.grow(tree, distributions, next);
    distributions.clear();
    for (NodeId n : next) distributions.push_back(distribution(n));
  }
  policy.finish(tree);
  tree.ancestors();
  path.clear();
  for (NodeId n = 0; n != kNoNode; n = tree.first_child(n)) path.push_back(n);
  policy.observe(tree, path);
}

TEST(TreeAllocation, RoundsAllocateNothing) {
  std::vector<Candidate> table;  // [kDistributions][kVocab], best first
  for (int l = 0; l < kDistributions; ++l)
    for (int t = 0; t < kVocab; ++t)
      table.push_back({Token((t * 5 + l) % kVocab), float(std::log(0.3 + 0.006 * l) * (t + 1) - (l % 3 == 0))});
  std::vector<float> cost;
  for (int n = 0; n <= 511; ++n) cost.push_back(1 + 0.01f * float(n));
  for (const TreeConfig& config : configs()) {
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    Scratch scratch;
    scratch.distributions.reserve(size_t(policy->rows()));
    scratch.next.reserve(size_t(policy->rows()));
    scratch.path.reserve(kMaxTreeNodes);
    const long before = g_allocations.load();
    int deepest = 0;
    for (uint64_t number = 0; number < 200; ++number) {
      TreeLimits limits{511, 511};
      if (number % 3 == 1) limits.nodes = int(number), limits.depth = 1 + int(number % 7);
      if (number % 3 == 2) limits.verify_cost = cost.data(), limits.level_cost = 0.02f;
      round(*policy, tree, limits, number, table, scratch);
      deepest = std::max(deepest, tree.max_depth());
    }
    EXPECT_EQ(g_allocations.load() - before, 0) << int(config.kind);
    EXPECT_GT(deepest, 2);
  }
}

// The counter counts.
TEST(TreeAllocation, TheCounterSeesAllocations) {
  const long before = g_allocations.load();
  const auto p = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(g_allocations.load() - before, 2);
  EXPECT_EQ(p->size(), 100u);
}

}  // namespace
}  // namespace sx
