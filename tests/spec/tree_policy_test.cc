// Trees that follow the candidates, against literal slow procedures that enumerate everything: the most probable prefixes there
// are, EAGLE-2 and OPT-Tree as published, and the rules that stop growth by price.
#include "spec/tree_policy.h"

#include <gtest/gtest.h>

#include "tree_language.h"

namespace sx {
namespace {

using testing::draft;
using testing::Drafted;
using testing::Language;
using testing::limits_of;
using testing::Path;

struct Slow {
  Path path;
  float score;
  double p() const { return std::exp(double{score}); }
  int depth() const { return int(path.size()); }
};

// Best first, ties to the shallower, then in the order of arrival.
void sort_best(std::vector<Slow>& all) {
  std::stable_sort(all.begin(), all.end(), [](const Slow& a, const Slow& b) {
    return a.score != b.score ? a.score > b.score : a.depth() < b.depth();
  });
}

void keep_first(std::vector<Slow>& all, int n) { all.resize(std::min(all.size(), size_t(n))); }

std::vector<Slow> children(const Slow& of, const Language& language, int most) {
  std::vector<Slow> result;
  for (const Candidate& c : language.law(of.path)) {
    if (int(result.size()) == most || c.logp == -std::numeric_limits<float>::infinity()) break;
    result.push_back({of.path, of.score + std::min(c.logp, 0.0f)});
    result.back().path.push_back(c.token);
  }
  return result;
}

std::set<Path> paths(const std::vector<Slow>& nodes) {
  std::set<Path> result;
  for (const Slow& n : nodes) result.insert(n.path);
  return result;
}

std::multiset<float> scores(const std::vector<Slow>& nodes) {
  std::multiset<float> result;
  for (const Slow& n : nodes) result.insert(n.score);
  return result;
}

std::multiset<float> scores(const TokenTree& tree) {
  std::multiset<float> result;
  for (NodeId n = 1; n < tree.size(); ++n) result.insert(tree.score(n));
  return result;
}

// Every prefix up to a depth whose score beats `floor`.
std::vector<Slow> all_prefixes(const Language& language, int depth, double floor = 0) {
  std::vector<Slow> all, level = {{{}, 0}};
  for (int d = 0; d < depth; ++d) {
    std::vector<Slow> below;
    for (const Slow& n : level)
      for (const Slow& c : children(n, language, language.vocab()))
        if (c.p() > floor) below.push_back(c);
    all.insert(all.end(), below.begin(), below.end());
    level = below;
  }
  return all;
}

struct Size { int nodes, depth; };
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

// Where a child is certain it ties with its parent: sets may differ, but never in their worth, and trees stay whole.
TEST(AllTrees, TiesKeepTreesWholeAndBest) {
  for (uint64_t seed = 0; seed < 60; ++seed)
    for (const TreeKind kind : {TreeKind::kBestFirst, TreeKind::kOptTree, TreeKind::kEagle2, TreeKind::kOptTreeReference}) {
      const Language language(seed, 3, 0.6);
      TreeConfig config;
      config.kind = kind;
      config.nodes = 1 + int(seed % 14), config.depth = 6, config.threshold = 0, config.topk = 3, config.beams = 2, config.decay = 1;
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

// The budget's best so far: what a further node must beat.
float floor_of(std::vector<Slow> all, int nodes) {
  sort_best(all);
  return int(all.size()) < nodes ? -std::numeric_limits<float>::infinity() : all[size_t(nodes) - 1].score;
}

double sum_best(std::vector<Slow> all, int nodes) {
  sort_best(all);
  keep_first(all, nodes);
  double sum = 0;
  for (const Slow& n : all) sum += n.p();
  return sum;
}

struct Prices {
  double row = 0, level = 0;  // of one more row, of one more pass
  std::vector<float> cost;
  Prices(double r, double l, int nodes) : row(r), level(l) {
    for (int n = 0; n <= nodes; ++n) cost.push_back(float(1 + r * n));
  }
  TreeLimits limits(const TreeConfig& c) const { return {c.nodes, c.depth, cost.data(), float(level)}; }
};

// EAGLE-2 as published: every child is recorded, the k best of the newest level are run. With prices, nodes below the price of a
// row are not recorded, and a pass that cannot bring its price is not run.
std::vector<Slow> literal_eagle2(const TreeConfig& config, const Language& language, const Prices& prices) {
  std::vector<Slow> all, frontier = {{{}, 0}};
  for (int level = 1; level <= config.depth && !frontier.empty(); ++level) {
    std::vector<Slow> recorded;
    for (const Slow& n : frontier)
      for (const Slow& c : children(n, language, config.topk))
        if (c.p() > prices.row) recorded.push_back(c);
    all.insert(all.end(), recorded.begin(), recorded.end());
    sort_best(recorded);
    keep_first(recorded, config.topk);
    frontier = recorded;
    if (prices.level == 0) continue;
    double gain = 0;
    for (const Slow& n : frontier) gain += n.score > floor_of(all, config.nodes) ? n.p() : 0;
    if (gain <= prices.level) break;
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
        const auto want = literal_eagle2(config, language, Prices(0, 0, size.nodes));
        ASSERT_LE(drafted.run, k * (size.depth - 1));
        ASSERT_EQ(scores(tree), scores(want)) << seed;
        if (seed % 2 == 0) continue;  // ties
        ASSERT_EQ(drafted.paths, paths(want)) << seed << " " << size.nodes << " " << size.depth << " " << k;
      }
}

TEST(Eagle2Tree, StopsByPrice) {
  int cut = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const Language language(seed, 8, 0);
    TreeConfig config;
    config.kind = TreeKind::kEagle2;
    config.nodes = 40, config.depth = 6, config.topk = 6;
    const Prices prices(0.013 * double(seed % 4), 0.05 * double(seed % 7), config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    const Drafted drafted = draft(*policy, tree, prices.limits(config), language);
    const auto want = literal_eagle2(config, language, prices);
    EXPECT_EQ(drafted.paths, paths(want)) << seed;
    cut += want.size() < 40;
  }
  EXPECT_GT(cut, 20);
}

// OPT-Tree as published, with its matrices of weights, tokens and parents by level.
std::set<Path> literal_opt(const TreeConfig& config, const Language& language, const TreeLimits& limits, int& run) {
  const int n = limits.nodes, levels = std::min(config.depth, limits.depth + 1);
  struct Cell { double weight; Token token; int parent; Path path; };
  std::vector<std::vector<Cell>> rows;
  const auto top = [n](std::vector<Cell>& row) {
    std::stable_sort(row.begin(), row.end(), [](const Cell& a, const Cell& b) { return a.weight > b.weight; });
    row.resize(std::min(row.size(), size_t(n)));
  };
  const auto children_of = [&](const Path& path, double weight, int parent, std::vector<Cell>& out) {
    int count = 0;
    for (const Candidate& c : language.law(path)) {
      if (count++ == n) break;
      out.push_back({weight * std::exp(double{c.logp}), c.token, parent, path});
      out.back().path.push_back(c.token);
    }
  };
  rows.emplace_back();
  children_of({}, 1, -1, rows[0]);
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
    for (size_t i = 0; i < rows.back().size(); ++i) children_of(rows.back()[i].path, rows.back()[i].weight, int(i), next);
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
          ASSERT_EQ(drafted.paths, literal_opt(config, language, limits, run)) << seed << " " << size.nodes << " " << threshold;
          ASSERT_EQ(drafted.run, run);
          ++depths[tree.max_depth()];
        }
      }
  EXPECT_GT(depths.size(), 4u);
}

// The improved OPT-Tree without pruning: the N best of each level are kept, all levels count.
std::vector<Slow> literal_improved(const TreeConfig& config, const Language& language, const Prices& prices) {
  std::vector<Slow> all, newest = {{{}, 0}};
  double sum = 0, last = 1;
  for (int level = 1; level <= config.depth; ++level) {
    std::vector<Slow> next;
    for (const Slow& n : newest)
      for (const Slow& c : children(n, language, config.nodes))
        if (c.p() > prices.row) next.push_back(c);
    sort_best(next);
    keep_first(next, config.nodes);
    newest = next;
    all.insert(all.end(), next.begin(), next.end());
    const double now = sum_best(all, config.nodes), gain = now - sum;
    sum = now;
    double most = 0;
    for (const Slow& n : newest) most += n.score > floor_of(all, config.nodes) ? n.p() : 0;
    if (most <= prices.level) break;
    if (prices.level == 0 && !(gain > double{config.threshold})) break;
    const double expected = std::min(most, gain * std::min(1.0, gain / last));
    const double spent = prices.level * level + 1 + prices.row * std::min<int>(int(all.size()), config.nodes);
    if (prices.level > 0 && !(expected / prices.level > (1 + sum) / spent)) break;
    last = gain;
  }
  sort_best(all);
  keep_first(all, config.nodes);
  return all;
}

TEST(OptTree, StopsByThresholdAndByPrice) {
  std::map<int, int> depths;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Language language(seed, 10);
    TreeConfig config;
    config.kind = TreeKind::kOptTree;
    config.nodes = seed % 3 ? 40 : 6, config.depth = 7, config.threshold = 0.1f * float(seed % 8);
    const Prices prices(0.007 * double(seed % 5), seed % 2 ? 0.037 * double(seed % 9) : 0, config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    const Drafted drafted = draft(*policy, tree, prices.limits(config), language);
    EXPECT_EQ(drafted.paths, paths(literal_improved(config, language, prices))) << seed;
    ++depths[tree.max_depth()];
  }
  EXPECT_GT(depths.size(), 3u);
}

// With a price per row the tree is what pays: all prefixes above it, no more than the budget.
TEST(BestFirstTree, LeavesOutWhatDoesNotPay) {
  int cut = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    const Language language(seed, 4);
    TreeConfig config;
    config.kind = TreeKind::kBestFirst;
    config.nodes = 40, config.depth = 5, config.beams = 5, config.topk = 4, config.decay = 1;
    const Prices prices(0.0113 * double(seed % 6), 0, config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    std::vector<Slow> want = all_prefixes(language, 5, prices.row);
    cut += want.size() < 40;
    sort_best(want);
    keep_first(want, 40);
    EXPECT_EQ(draft(*policy, tree, prices.limits(config), language).paths, paths(want)) << seed;
    const TreeLimits dear{40, 5, nullptr, 100};  // no pass is worth it: only what node 0 offers
    EXPECT_EQ(draft(*policy, tree, dear, language).passes, 0);
    EXPECT_EQ(tree.size(), 5);
  }
  EXPECT_GT(cut, 10);
}

// Best-first with a list of everything: each pass runs the best that have not been run and are among the budget's best.
std::vector<Slow> literal_best_first(const TreeConfig& config, const Language& language, const Prices& prices, int& passes) {
  std::vector<Slow> all = children({{}, 0}, language, config.topk);
  std::erase_if(all, [&](const Slow& n) { return n.p() <= prices.row; });
  std::set<Path> run;
  while (true) {
    sort_best(all);
    keep_first(all, config.nodes);
    std::vector<Slow> frontier;
    for (const Slow& n : all)
      if (!run.contains(n.path) && n.depth() < config.depth && int(frontier.size()) < config.beams) frontier.push_back(n);
    double most = 0;
    for (const Slow& n : frontier) most += n.p();
    if (frontier.empty() || most <= prices.level) return all;
    ++passes;
    for (const Slow& n : frontier) {
      run.insert(n.path);
      for (const Slow& c : children(n, language, config.topk))
        if (c.p() > prices.row) all.push_back(c);
    }
  }
}

TEST(BestFirstTree, StopsByPrice) {
  std::set<int> counts;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const Language language(seed, 6);
    TreeConfig config;
    config.kind = TreeKind::kBestFirst;
    config.nodes = 30, config.depth = 6, config.beams = 1 + int(seed % 6), config.topk = 4, config.decay = 1;
    const Prices prices(0.009 * double(seed % 3), 0.06 * double(seed % 7), config.nodes);
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    int passes = 0;
    const auto want = literal_best_first(config, language, prices, passes);
    const Drafted drafted = draft(*policy, tree, prices.limits(config), language);
    EXPECT_EQ(drafted.paths, paths(want)) << seed;
    EXPECT_EQ(drafted.passes, passes) << seed;
    counts.insert(passes);
  }
  EXPECT_GT(counts.size(), 5u);
}

// The most that fits: no promise is broken at the ends of the ranges.
TEST(AllTrees, Limits) {
  for (const TreeKind kind : {TreeKind::kBestFirst, TreeKind::kOptTree, TreeKind::kEagle2, TreeKind::kOptTreeReference}) {
    TreeConfig config;
    config.kind = kind;
    config.nodes = 511, config.depth = kind == TreeKind::kOptTreeReference ? 3 : 32, config.threshold = 0, config.topk = 24;
    config.beams = 511;
    const auto policy = make_tree_policy(config);
    TokenTree tree(policy->capacity());
    EXPECT_LE(policy->capacity(), 16384);
    const Language language(1, 24);
    const Drafted drafted = draft(*policy, tree, limits_of(config), language);
    EXPECT_EQ(tree.drafted(), 511);
    EXPECT_LE(drafted.run, kind == TreeKind::kOptTreeReference ? 2 * 511 : 511);  // what a drafter can stage
    EXPECT_EQ(draft(*policy, tree, {1, 1}, language).paths, std::set<Path>{{language.law({})[0].token}});
    EXPECT_EQ(draft(*policy, tree, {3, 1}, language).paths.size(), 3u);
    EXPECT_EQ(draft(*policy, tree, {0, 5}, language).paths.size(), 0u);
    EXPECT_EQ(draft(*policy, tree, {5, 0}, language).paths.size(), 0u);
    EXPECT_EQ(draft(*policy, tree, {1000, 1000}, language).paths, drafted.paths);  // the configuration bounds
  }
}

}  // namespace
}  // namespace sx
