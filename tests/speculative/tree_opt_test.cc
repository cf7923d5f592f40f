// OPT-Tree against literal slow procedures: the most probable prefixes, and the improved rule without pruning.
#include <gtest/gtest.h>

#include <map>

#include "speculative/tree/policy.h"
#include "tree_language.h"

namespace sx {
namespace {

using namespace testing;

struct Size {
  int nodes, depth;
};
constexpr Size kSizes[] = {{1, 1}, {1, 4}, {7, 1}, {5, 3}, {12, 5}, {30, 5}, {60, 4}, {511, 4}};

TEST(OptTree, FindsTheMostProbablePrefixes) {
  for (uint64_t seed = 0; seed < 30; ++seed)
    for (const Size size : kSizes) {
      const Language language(seed, 4);
      TreeConfig config;
      config.kind = TreeKind::kOptTree;
      config.nodes = size.nodes, config.depth = size.depth, config.threshold = 0;
      const auto policy = make_tree_policy(config);
      TokenTree tree(policy->capacity());
      const Drafted drafted = draft(*policy, tree, limits_of(config), language);
      std::vector<Slow> want = all_prefixes(language, size.depth);
      sort_best(want);
      keep_first(want, size.nodes);
      ASSERT_EQ(drafted.paths, paths(want)) << seed << " " << size.nodes << " " << size.depth;
    }
}

// The improved OPT-Tree without pruning: the N best of each level are kept, all levels count. `run`: nodes that had to
// be run.
std::vector<Slow> literal_improved(const TreeConfig& config, const Language& language, const Costs& costs, int& run) {
  std::vector<Slow> all, newest = {{{}, 0}};
  double total = 0, last = 1;
  for (int level = 1; level <= config.depth; ++level) {
    std::vector<Slow> next;
    for (const Slow& n : newest)
      for (const Slow& c : children(n, language, config.nodes))
        if (c.p() > costs.row) next.push_back(c);
    sort_best(next);
    keep_first(next, config.nodes);
    newest = next;
    all.insert(all.end(), next.begin(), next.end());
    std::vector<Slow> best = all;
    sort_best(best);
    keep_first(best, config.nodes);
    const double gain = sum(best) - total;
    total += gain;
    const std::vector<Slow> useful = still_useful(newest, all, config.nodes);
    const double most = sum(useful);
    if (level == config.depth || most <= costs.level) break;
    if (costs.level == 0 && !(gain > double{config.threshold})) break;
    const double expected = std::min(most, gain * std::min(1.0, gain / last));
    const double spent = costs.level * level + 1 + costs.row * double(best.size());
    if (costs.level > 0 && !(expected / costs.level > (1 + total) / spent)) break;
    run += int(useful.size());
    last = gain;
  }
  sort_best(all);
  keep_first(all, config.nodes);
  return all;
}

TEST(OptTree, StopsByThresholdAndByCost) {
  std::map<int, int> depths;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Language language(seed, 10);
    TreeConfig config;
    config.kind = TreeKind::kOptTree;
    config.nodes = seed % 3 ? 40 : 6, config.depth = 7, config.threshold = 0.1f * float(seed % 8);
    const Costs costs(0.007 * double(seed % 5), seed % 2 ? 0.037 * double(seed % 9) : 0, config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    const Drafted drafted = draft(*policy, tree, costs.limits(config), language);
    int run = 0;
    EXPECT_EQ(drafted.paths, paths(literal_improved(config, language, costs, run))) << seed;
    EXPECT_EQ(drafted.run, run) << seed;
    ++depths[tree.max_depth()];
  }
  EXPECT_GT(depths.size(), 3u);
}

}  // namespace
}  // namespace sx
