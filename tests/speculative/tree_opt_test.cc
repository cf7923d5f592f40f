// OPT-Tree against literal slow procedures: as published with its matrices, and improved but without pruning.
#include <gtest/gtest.h>

#include <map>

#include "speculative/tree/policy.h"
#include "tree_language.h"

namespace sx {
namespace {

using namespace testing;

struct Size { int nodes, depth; };
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

// OPT-Tree as published, with its matrices of weights, tokens and parents by level.
std::set<Path> literal_opt(const TreeConfig& config, const Language& language, const TreeLimits& limits, int& run) {
  const int n = limits.nodes, levels = std::min(config.depth, limits.depth + 1);
  struct Cell { double weight; Path path; };  // the path is its token and its parent
  std::vector<std::vector<Cell>> rows;
  const auto top = [n](std::vector<Cell>& row) {
    std::stable_sort(row.begin(), row.end(), [](const Cell& a, const Cell& b) { return a.weight > b.weight; });
    row.resize(std::min(row.size(), size_t(n)));
  };
  const auto children_of = [&](const Path& path, double weight, std::vector<Cell>& out) {
    int count = 0;
    for (const Candidate& c : language.distribution(path)) {
      if (count++ == n) break;
      out.push_back({weight * std::exp(double{c.logp}), path});
      out.back().path.push_back(c.token);
    }
  };
  rows.emplace_back();
  children_of({}, 1, rows[0]);
  top(rows[0]);
  const auto best = [&](size_t m) {
    std::vector<Cell> all;
    for (size_t level = 0; level < m; ++level) all.insert(all.end(), rows[level].begin(), rows[level].end());
    top(all);
    return all;
  };
  size_t m = 1;
  double before = 0;
  for (int k = 1; k < levels; ++k) {
    run += int(rows.back().size());
    std::vector<Cell> next;
    for (const Cell& c : rows.back()) children_of(c.path, c.weight, next);
    top(next);
    rows.push_back(next);
    m = size_t(k);
    double sum = 0;
    for (const Cell& c : best(m)) sum += c.weight;
    if (!(sum - before > double{config.threshold})) break;
    before = sum;
  }
  std::set<Path> result;
  for (const Cell& c : best(m)) result.insert(c.path);
  return result;
}

TEST(OptTreeReference, IsThePublishedOne) {
  std::map<int, int> depths;
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const Size size : {Size{50, 10}, Size{10, 10}, Size{1, 3}, Size{8, 1}, Size{8, 2}, Size{20, 4}})
      for (const float threshold : {0.7f, 0.3f, 0.1f, 0.01f}) {
        const Language language(seed, 12);
        TreeConfig config;
        config.kind = TreeKind::kOptTreeReference;
        config.nodes = size.nodes, config.depth = size.depth, config.threshold = threshold;
        const auto policy = make_tree_policy(config);
        EXPECT_EQ(policy->capacity(), 1 + size.nodes * size.depth);
        TokenTree tree(policy->capacity());
        for (const TreeLimits& limits : {limits_of(config), TreeLimits{(size.nodes + 1) / 2, 3}}) {
          const Drafted drafted = draft(*policy, tree, limits, language);
          int run = 0;
          ASSERT_EQ(drafted.paths, literal_opt(config, language, limits, run)) << seed << " " << threshold;
          ASSERT_EQ(drafted.run, run);
          ++depths[tree.max_depth()];
        }
      }
  EXPECT_GT(depths.size(), 4u);
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
