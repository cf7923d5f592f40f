// Trees that follow the candidates, against literal slow procedures that enumerate everything: the most probable
// prefixes there are, EAGLE-2 as published, and the rules that stop growth by cost.
#include "speculative/tree/policy.h"

#include <gtest/gtest.h>

#include "tree_language.h"

namespace sx {
namespace {

using namespace testing;

constexpr TreeKind kFollowing[] = {TreeKind::kBestFirst, TreeKind::kOptTree, TreeKind::kEagle2};

struct Size {
  int nodes, depth;
};
constexpr Size kSizes[] = {{1, 1}, {1, 4}, {7, 1}, {5, 3}, {12, 5}, {30, 5}, {60, 4}, {511, 4}};

TEST(BestFirstTree, FindsTheMostProbablePrefixes) {
  for (uint64_t seed = 0; seed < 30; ++seed)
    for (const Size size : kSizes)
      for (const int beams : {1, 3, 511}) {
        const Language language(seed, 4);
        TreeConfig config;
        config.kind = TreeKind::kBestFirst;
        config.nodes = size.nodes, config.depth = size.depth, config.beams = beams, config.topk = 4, config.decay = 1;
        const auto policy = make_tree_policy(config);
        TokenTree tree(policy->capacity());
        const Drafted drafted = draft(*policy, tree, limits_of(config), language);
        std::vector<Slow> want = all_prefixes(language, size.depth);
        sort_best(want);
        keep_first(want, size.nodes);
        ASSERT_EQ(drafted.paths, paths(want)) << seed << " " << size.nodes << " " << size.depth << " " << beams;
        if (beams == 511) { ASSERT_LT(drafted.passes, size.depth); }  // as few as there are levels
        if (beams == 1) { ASSERT_LE(drafted.run, size.nodes); }       // nothing in vain
      }
}

TEST(BestFirstTree, DecayFavoursShallowNodes) {
  int differ = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const Language language(seed, 4);
    TreeConfig config;
    config.kind = TreeKind::kBestFirst;
    config.nodes = 20, config.depth = 5, config.beams = 4, config.topk = 4, config.decay = 0.6f;
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    std::vector<Slow> want = all_prefixes(language, 5), plain = want;
    std::sort(want.begin(), want.end(), [](const Slow& a, const Slow& b) {
      return double{a.score} + a.depth() * std::log(0.6) > double{b.score} + b.depth() * std::log(0.6);
    });
    keep_first(want, 20);
    sort_best(plain);
    keep_first(plain, 20);
    EXPECT_EQ(draft(*policy, tree, limits_of(config), language).paths, paths(want)) << seed;
    differ += paths(want) != paths(plain);
  }
  EXPECT_GT(differ, 20);
}

// Children are cut to topk before anything else.
TEST(BestFirstTree, TopkBoundsTheChildren) {
  const Language language(11, 30);
  TreeConfig config;
  config.kind = TreeKind::kBestFirst;
  config.nodes = 50, config.depth = 4, config.beams = 8, config.topk = 3;
  const auto policy = make_tree_policy(config);
  EXPECT_EQ(policy->width(), 3);
  TokenTree tree(policy->capacity());
  draft(*policy, tree, limits_of(config), language);
  EXPECT_EQ(tree.size(), 51);
  for (NodeId n = 1; n < tree.size(); ++n) EXPECT_LT(tree.rank(n), 3);
}

// Where a child is certain it ties with its parent: sets may differ, but never in their worth, and trees stay whole.
TEST(AllTrees, TiesKeepTreesWholeAndBest) {
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const TreeKind kind : kFollowing) {
      const Language language(seed, 3, 0.6);
      TreeConfig config;
      config.kind = kind;
      config.nodes = 1 + int(seed % 14), config.depth = 6, config.threshold = 0;
      config.topk = 3, config.beams = 2, config.decay = 1;
      const auto policy = make_tree_policy(config);
      EXPECT_FALSE(policy->fixed_shape());
      TokenTree tree(policy->capacity());
      draft(*policy, tree, limits_of(config), language);  // checks scores, paths, sizes
      std::vector<Slow> want = all_prefixes(language, 6);
      sort_best(want);
      keep_first(want, config.nodes);
      if (kind != TreeKind::kBestFirst && kind != TreeKind::kOptTree) continue;
      EXPECT_EQ(scores(tree), scores(want)) << seed;
    }
}

// EAGLE-2 as published: every child is recorded, the k best of the newest level are run. With costs, nodes below the
// cost of a row are not recorded, and a pass that cannot bring its cost is not run.
std::vector<Slow> literal_eagle2(const TreeConfig& config, const Language& language, const Costs& costs, int& run) {
  std::vector<Slow> all, frontier = {{{}, 0}};
  for (int level = 1; level <= config.depth && !frontier.empty(); ++level) {
    std::vector<Slow> recorded;
    for (const Slow& n : frontier)
      for (const Slow& c : children(n, language, config.topk))
        if (c.p() > costs.row) recorded.push_back(c);
    all.insert(all.end(), recorded.begin(), recorded.end());
    sort_best(recorded);
    keep_first(recorded, config.topk);
    frontier = recorded;
    const std::vector<Slow> useful = still_useful(frontier, all, config.nodes);
    if (level == config.depth || sum(useful) <= costs.level) break;
    run += int(useful.size());
  }
  sort_best(all);
  keep_first(all, config.nodes);
  return all;
}

TEST(Eagle2Tree, IsThePublishedOne) {
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const Size size : {Size{59, 8}, Size{1, 3}, Size{4, 6}, Size{20, 1}, Size{200, 3}, Size{511, 6}})
      for (const int k : {1, 3, 10}) {
        const Language language(seed, 12, seed % 2 ? 0 : 0.3);
        TreeConfig config;
        config.kind = TreeKind::kEagle2;
        config.nodes = size.nodes, config.depth = size.depth, config.topk = k;
        const auto policy = make_tree_policy(config);
        EXPECT_LE(policy->capacity(), 1 + k + (size.depth - 1) * k * k);
        TokenTree tree(policy->capacity());
        const Drafted drafted = draft(*policy, tree, limits_of(config), language);
        int run = 0;
        const auto want = literal_eagle2(config, language, Costs(0, 0, size.nodes), run);
        ASSERT_EQ(drafted.run, run) << seed;
        ASSERT_EQ(scores(tree), scores(want)) << seed;
        if (seed % 2 == 0) continue;  // ties
        ASSERT_EQ(drafted.paths, paths(want)) << seed << " " << size.nodes << " " << size.depth << " " << k;
      }
}

TEST(Eagle2Tree, StopsByCost) {
  int cut = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Language language(seed, 8, 0);
    TreeConfig config;
    config.kind = TreeKind::kEagle2;
    config.nodes = 40, config.depth = 6, config.topk = 6;
    const Costs costs(0.013 * double(seed % 4), 0.05 * double(seed % 7), config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    const Drafted drafted = draft(*policy, tree, costs.limits(config), language);
    int run = 0;
    const auto want = literal_eagle2(config, language, costs, run);
    EXPECT_EQ(drafted.paths, paths(want)) << seed;
    EXPECT_EQ(drafted.run, run) << seed;
    cut += want.size() < 40;
  }
  EXPECT_GT(cut, 20);
}

// With a cost per row the tree is what pays: all prefixes above it, no more than the budget.
TEST(BestFirstTree, LeavesOutWhatDoesNotPay) {
  int cut = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Language language(seed, 4);
    TreeConfig config;
    config.kind = TreeKind::kBestFirst;
    config.nodes = 40, config.depth = 5, config.beams = 5, config.topk = 4, config.decay = 1;
    const Costs costs(0.0113 * double(seed % 6), 0, config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    std::vector<Slow> want = all_prefixes(language, 5, costs.row);
    cut += want.size() < 40;
    sort_best(want);
    keep_first(want, 40);
    EXPECT_EQ(draft(*policy, tree, costs.limits(config), language).paths, paths(want)) << seed;
    const TreeLimits dear{40, 5, nullptr, 100};  // no pass is worth it: only what node 0 offers
    EXPECT_EQ(draft(*policy, tree, dear, language).passes, 0);
    EXPECT_EQ(tree.size(), 5);
  }
  EXPECT_GT(cut, 10);
}

// Best-first with a list of everything: each pass runs the best that have not been run and are among the budget's best.
std::vector<Slow> literal_best_first(const TreeConfig& config, const Language& language, const Costs& costs,
                                     int& passes) {
  std::vector<Slow> all = children({{}, 0}, language, config.topk);
  std::erase_if(all, [&](const Slow& n) { return n.p() <= costs.row; });
  std::set<Path> run;
  while (true) {
    sort_best(all);
    keep_first(all, config.nodes);
    std::vector<Slow> frontier;
    for (const Slow& n : all)
      if (!run.contains(n.path) && n.depth() < config.depth) frontier.push_back(n);
    keep_first(frontier, config.beams);
    double most = 0;
    for (const Slow& n : frontier) most += n.p();
    if (frontier.empty() || most <= costs.level) return all;
    ++passes;
    for (const Slow& n : frontier) {
      run.insert(n.path);
      for (const Slow& c : children(n, language, config.topk))
        if (c.p() > costs.row) all.push_back(c);
    }
  }
}

TEST(BestFirstTree, StopsByCost) {
  std::set<int> counts;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const Language language(seed, 6);
    TreeConfig config;
    config.kind = TreeKind::kBestFirst;
    config.nodes = 30, config.depth = 6, config.beams = 1 + int(seed % 6), config.topk = 4, config.decay = 1;
    const Costs costs(0.009 * double(seed % 3), 0.06 * double(seed % 7), config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    int passes = 0;
    const auto want = literal_best_first(config, language, costs, passes);
    const Drafted drafted = draft(*policy, tree, costs.limits(config), language);
    EXPECT_EQ(drafted.paths, paths(want)) << seed;
    EXPECT_EQ(drafted.passes, passes) << seed;
    counts.insert(passes);
  }
  EXPECT_GT(counts.size(), 5u);
}

// After the likeliest token again and again the others grow likelier by the level: wide passes run many nodes that fall
// out.
class Rising : public Language {
 public:
  Rising() : Language(0, 25) {}
  std::vector<Candidate> distribution(const Path& path) const override {
    const bool spine = std::count(path.begin(), path.end(), 0) == ptrdiff_t(path.size());
    std::vector<Candidate> all = {{0, -0.01f}};
    for (Token t = 1; t < vocab(); ++t)
      all.push_back({t, spine ? -9 + 0.4f * float(path.size()) - 0.001f * float(t) : -9});
    return all;
  }
};

TEST(BestFirstTree, WastedNodesAreBounded) {
  const Rising language;
  TreeConfig config;
  config.kind = TreeKind::kBestFirst;
  config.nodes = 24, config.depth = 20, config.beams = 24, config.topk = 25, config.decay = 1;
  const auto policy = make_tree_policy(config);
  EXPECT_LT(policy->capacity(), 100);
  TokenTree tree(policy->capacity());
  std::vector<Slow> want = all_prefixes(language, 20, 1e-3);
  ASSERT_GT(want.size(), 24u);
  sort_best(want);
  keep_first(want, 24);
  const Drafted drafted = draft(*policy, tree, limits_of(config), language);
  EXPECT_EQ(drafted.paths, paths(want));
  EXPECT_GT(drafted.run, 60);  // it did waste
}

// The most that fits: no promise is broken at the ends of the ranges.
TEST(AllTrees, Limits) {
  for (const TreeKind kind : kFollowing) {
    TreeConfig config;
    config.kind = kind;
    config.nodes = 511, config.depth = 32, config.threshold = 0;
    config.topk = 24, config.beams = 511;
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    EXPECT_LE(policy->capacity(), 16384);
    const Language language(1, 24);
    const Drafted drafted = draft(*policy, tree, limits_of(config), language);
    EXPECT_EQ(tree.drafted(), 511);
    EXPECT_LE(drafted.run, 511);  // what a draft tail holds
    EXPECT_EQ(draft(*policy, tree, {1, 1}, language).paths, std::set<Path>{{language.distribution({})[0].token}});
    EXPECT_EQ(draft(*policy, tree, {3, 1}, language).paths.size(), 3u);
    EXPECT_EQ(draft(*policy, tree, {0, 5}, language).paths.size(), 0u);
    EXPECT_EQ(draft(*policy, tree, {5, 0}, language).paths.size(), 0u);
    EXPECT_EQ(draft(*policy, tree, {1000, 1000}, language).paths, drafted.paths);  // the configuration bounds
  }
}

}  // namespace
}  // namespace sx
