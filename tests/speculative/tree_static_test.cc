// Shapes settled beforehand: widths and rank paths against a literal listing, chains with and without costs, Sequoia's
// learning; and what check_tree_config refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "speculative/tree/policy.h"
#include "speculative/tree/sequoia.h"
#include "tree_language.h"

namespace sx {
namespace {

using testing::draft;
using testing::Drafted;
using testing::Language;
using testing::Path;

using RankPaths = std::vector<std::vector<int>>;

RankPaths paths_of_widths(const std::vector<int>& widths) {
  RankPaths all, level = {{}};
  for (int width : widths) {
    RankPaths below;
    for (const auto& path : level)
      for (int r = 0; r < width; ++r) {
        below.push_back(path);
        below.back().push_back(r);
      }
    level = below;
    all.insert(all.end(), level.begin(), level.end());
  }
  return all;
}

// The tokens of rank paths (breadth first), those beyond the limits and those a distribution has no candidate for left
// out.
std::vector<Path> literal(RankPaths ranks, const TreeLimits& limits, const Language& language) {
  std::stable_sort(ranks.begin(), ranks.end(),
                   [](const auto& a, const auto& b) { return a.size() != b.size() ? a.size() < b.size() : a < b; });
  std::erase_if(ranks, [&](const auto& path) { return int(path.size()) > limits.depth; });
  if (int(ranks.size()) > limits.nodes) ranks.resize(size_t(std::max(0, limits.nodes)));
  std::vector<Path> result;
  for (const auto& path : ranks) {
    Path tokens;
    for (int r : path) {
      const auto distribution = language.distribution(tokens);
      if (r >= int(distribution.size())) break;
      tokens.push_back(distribution[size_t(r)].token);
    }
    if (tokens.size() == path.size()) result.push_back(tokens);
  }
  return result;
}

void expect_literal(TreePolicy& policy, const RankPaths& ranks, const TreeLimits& limits, const Language& language) {
  EXPECT_TRUE(policy.fixed_shape());
  TokenTree tree(policy.capacity());
  const Drafted drafted = draft(policy, tree, limits, language);
  std::vector<Path> got;
  for (NodeId n = 1; n < tree.size(); ++n) got.push_back(testing::path_of(tree, n));
  EXPECT_EQ(got, literal(ranks, limits, language));
  int expanded = 0;  // only nodes that get children are run, a level at a time
  for (NodeId n = 1; n < tree.size(); ++n) expanded += tree.first_child(n) != kNoNode;
  EXPECT_EQ(drafted.run, expanded);
  EXPECT_LE(drafted.passes, std::max(0, limits.depth - 1));
}

constexpr TreeLimits kLimits[] = {{511, 511}, {1, 9}, {9, 1}, {9, 3}, {10, 3}, {0, 4}, {5, 0}, {10, 4}, {3, 4}};

TEST(StaticTree, WidthsAndPathsAreLiteral) {
  const std::vector<std::vector<int>> shapes = {{1},    {3},  {1, 1, 3, 1, 1}, {4, 2, 2, 1}, {2, 2, 2, 2, 2, 2, 2},
                                                {7, 3}, {510}};
  const RankPaths medusa = {{0},    {0, 0},    {1}, {0, 1},       {2}, {0, 0, 0},
                            {1, 0}, {0, 0, 2}, {3}, {0, 0, 2, 1}, {5}, {1, 0, 4}};
  TreeConfig config;
  config.nodes = 6;
  const auto chain = make_tree_policy(config);
  config.kind = TreeKind::kStatic;
  config.widths = shapes[2];
  config.paths = medusa;  // wins over widths
  const auto listed = make_tree_policy(config);
  config.paths.clear();
  for (const auto& widths : shapes) {
    config.widths = widths;
    const auto policy = make_tree_policy(config);
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const Language language(seed, 5, 0.1);  // fewer candidates than some widths
      for (const TreeLimits& limits : kLimits) {
        expect_literal(*policy, paths_of_widths(widths), limits, language);
        expect_literal(*listed, medusa, limits, language);
        expect_literal(*chain, paths_of_widths({1, 1, 1, 1, 1, 1}), limits, language);
      }
    }
  }
}

TEST(StaticTree, LargestShapes) {
  TreeConfig config;
  config.kind = TreeKind::kStatic;
  config.widths = {511};
  expect_literal(*make_tree_policy(config), paths_of_widths({511}), {511, 5}, Language(1, 600));
  config.kind = TreeKind::kChain;
  config.nodes = 511;
  EXPECT_EQ(make_tree_policy(config)->capacity(), 512);
  expect_literal(*make_tree_policy(config), paths_of_widths(std::vector<int>(40, 1)), {40, 100}, Language(2, 3));
}

TEST(StaticTree, RowsAreTheParentsOfALevel) {
  TreeConfig config;
  config.kind = TreeKind::kStatic;
  config.widths = {4, 2, 3};
  EXPECT_EQ(make_tree_policy(config)->rows(), 8);
  EXPECT_EQ(make_tree_policy(config)->width(), 4);
  EXPECT_EQ(make_tree_policy(config)->capacity(), 1 + 4 + 8 + 24);
  config.paths = {{0}, {1}, {2}, {0, 6}, {2, 0}};
  EXPECT_EQ(make_tree_policy(config)->rows(), 2);
  EXPECT_EQ(make_tree_policy(config)->width(), 7);
}

// Draws may bring a token twice: both are nodes, only the first is run.
TEST(StaticTree, DrawnTwiceRunOnce) {
  TreeConfig config;
  config.kind = TreeKind::kStatic;
  config.widths = {3, 2};
  const auto policy = make_tree_policy(config);
  TokenTree tree(policy->capacity());
  tree.reset(0);
  policy->start({9, 2});
  std::vector<NodeId> next;
  const Candidate first[] = {{8, -0.5f}, {8, -0.5f}, {4, -1}}, second[] = {{6, -0.1f}, {6, -0.1f}};
  const NodeCandidates root = {0, first};
  policy->grow(tree, std::span(&root, 1), next);
  EXPECT_THAT(next, ::testing::ElementsAre(1, 3));
  const NodeCandidates distributions[] = {{1, second}, {3, second}};
  next.clear();
  policy->grow(tree, distributions, next);
  policy->finish(tree);
  EXPECT_THAT(next, ::testing::IsEmpty());
  EXPECT_THAT(tree.tokens(), ::testing::ElementsAre(0, 8, 8, 4, 6, 6, 6, 6));
  EXPECT_EQ(tree.first_child(2), kNoNode);
  EXPECT_EQ(tree.rank(2), 1);
}

// A chain ends where a further row would cost more than it is likely to bring.
TEST(ChainTree, StopsWhereRowsDoNotPay) {
  TreeConfig config;
  config.nodes = 12;
  const auto policy = make_tree_policy(config);
  TokenTree tree(policy->capacity());
  int short_ones = 0;
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const Language language(seed, 3, 0.4);
    const float row = float(seed % 17) / 64, level = float(seed % 5) / 32;  // exact in sums
    std::vector<float> cost(13);
    for (int n = 0; n <= 12; ++n) cost[size_t(n)] = 1 + row * float(n);
    TreeLimits limits{12, 12, cost.data(), level};
    Path want;
    float score = 0;
    while (want.size() < 12) {
      if (!want.empty() && std::exp(score) <= level + row) break;
      const Candidate best = language.distribution(want)[0];
      if (std::exp(score + best.logp) <= row) break;
      score += best.logp;
      want.push_back(best.token);
    }
    draft(*policy, tree, limits, language);
    EXPECT_EQ(testing::path_of(tree, tree.size() - 1), want) << seed;
    short_ones += want.size() < 12;
  }
  EXPECT_GT(short_ones, 50);
}

// A jump of the cost is paid for by the free rows behind it, if enough of them are likely to count.
TEST(ChainTree, LooksBeyondAStep) {
  TreeConfig config;
  config.nodes = 8;
  const auto policy = make_tree_policy(config);
  TokenTree tree(policy->capacity());
  const float cost[] = {1, 1, 1, 2, 2, 2, 2, 2, 2};  // six rows for one plain step
  for (const auto& [p, length] : {std::pair(0.9, 8), std::pair(0.2, 8), std::pair(0.15, 2)}) {
    tree.reset(0);
    policy->start({8, 8, cost, 0});
    std::vector<NodeId> next = {0};
    const Candidate first[] = {{3, float(std::log(p))}}, sure[] = {{4, 0}};
    while (!next.empty()) {
      const NodeCandidates distribution = {next[0], next[0] == 0 ? std::span(first) : std::span(sure)};
      next.clear();
      policy->grow(tree, std::span(&distribution, 1), next);
    }
    policy->finish(tree);
    EXPECT_EQ(tree.drafted(), length) << p;
  }
}

TEST(SequoiaTree, IsTheSolversShape) {
  TreeConfig config;
  config.kind = TreeKind::kSequoia;
  config.nodes = 30;
  config.depth = 6;
  config.rates = {0.4, 0.2, 0.1, 0.05};
  SequoiaSolver solver(30, 6, 4);
  solver.solve(config.rates);
  const auto policy = make_tree_policy(config);
  for (const TreeLimits& limits : kLimits) {
    TreeShape shape;
    solver.shape(std::min(30, limits.nodes), std::min(6, limits.depth), shape);
    RankPaths ranks(size_t(shape.size()));
    for (size_t n = 1; n < ranks.size(); ++n) {
      ranks[n] = ranks[size_t(shape.parent[n])];
      ranks[n].push_back(shape.rank[n]);
    }
    ranks.erase(ranks.begin());
    for (uint64_t seed = 0; seed < 5; ++seed) expect_literal(*policy, ranks, limits, Language(seed, 6));
  }
}

// When another child than thought is the accepted one, the shape moves to it.
TEST(SequoiaTree, LearnsTheRates) {
  TreeConfig config;
  config.kind = TreeKind::kSequoia;
  config.nodes = 16;
  config.depth = 5;
  const auto policy = make_tree_policy(config);
  TokenTree tree(policy->capacity());
  const Language language(3, 10);
  std::vector<double> hits(8), trials(8), rates = {0.55, 0.12, 0.05, 0.03, 0.02, 0.015, 0.01, 0.008};
  const std::vector<double> prior = rates;
  SequoiaSolver solver(16, 5, 8);
  solver.solve(rates);
  TreeShape shape;
  const std::vector<double> truth = {0.1, 0.7, 0.1};
  std::vector<std::set<Path>> seen;
  for (int round = 0; round < 64 * 40; ++round) {
    const Drafted drafted = draft(*policy, tree, {16, 5}, language);
    if (round % 64 == 0) {
      seen.push_back(drafted.paths);
      solver.shape(16, 5, shape);
      ASSERT_EQ(tree.size(), shape.size());
      for (NodeId n = 1; n < tree.size(); ++n) {
        ASSERT_EQ(tree.parent(n), shape.parent[size_t(n)]);
        ASSERT_EQ(tree.rank(n), shape.rank[size_t(n)]);
      }
    }
    std::vector<NodeId> path = {0};
    for (uint64_t turn = 0; path.back() != kNoNode; ++turn) {
      double u = uniform_from(hash_key(99, uint64_t(round), turn));
      size_t accepted = 0;
      while (accepted < truth.size() && u >= truth[accepted]) u -= truth[accepted++];
      NodeId found = kNoNode;
      for (NodeId c = tree.first_child(path.back()); c != kNoNode; c = tree.next_sibling(c)) {
        trials[size_t(tree.rank(c))] += 1;
        if (tree.rank(c) == int(accepted)) found = c;
      }
      if (found != kNoNode) hits[accepted] += 1;
      path.push_back(found);
    }
    path.pop_back();
    policy->observe(tree, path);
    for (size_t r = 0; r < 8; ++r) {
      if (trials[r] >= 4000) trials[r] /= 2, hits[r] /= 2;
      rates[r] = (50 * prior[r] + hits[r]) / (50 + trials[r]);
    }
    if (round % 64 == 63) solver.solve(rates);
  }
  EXPECT_NE(seen.front(), seen.back());
  const Path second = {language.distribution({})[1].token};
  const NodeId node = tree.child(0, second[0]);
  ASSERT_NE(node, kNoNode);
  EXPECT_GT(tree.max_depth(), 3);
  EXPECT_NE(tree.first_child(node), kNoNode) << "the favourite is expanded";
}

std::string refusal(const TreeConfig& config) {
  try {
    check_tree_config(config);
  } catch (const Error& e) { return e.what(); }
  return "";
}

TEST(TreeConfig, NamesWhatIsOutOfRange) {
  using ::testing::HasSubstr;
  struct Case {
    void (*change)(TreeConfig&);
    const char* word;
  };
  const Case cases[] = {
      {[](TreeConfig& c) { c.nodes = 0; }, "nodes is 0"},
      {[](TreeConfig& c) { c.nodes = 512; }, "nodes is 512"},
      {[](TreeConfig& c) { c.depth = 0; }, "depth is 0"},
      {[](TreeConfig& c) { c.kind = TreeKind::kStatic; }, "widths or paths"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kStatic, c.widths = {2, 0};
       },
       "widths has 0"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kStatic, c.widths = {4, 4, 4, 4, 4};
       },
       "more than 511"},
      {[](TreeConfig& c) { c.kind = TreeKind::kStatic, c.widths = std::vector<int>(100, 500); }, "more than 511"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kStatic, c.paths = {{0}, {0, 0}, {1, 0}};
       },
       "[1, 0] but not [1]"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kStatic, c.paths = {{0}, {}};
       },
       "empty"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kStatic, c.paths = {{0}, {0}};
       },
       "twice"},
      {[](TreeConfig& c) { c.kind = TreeKind::kStatic, c.paths = {{-1}}; }, "[-1]"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kSequoia, c.rates = {0.5, 1.5};
       },
       "1.5"},
      {[](TreeConfig& c) {
         c.kind = TreeKind::kSequoia, c.rates = {0.5, 0.4, 0.3};
       },
       "add up"},
      {[](TreeConfig& c) { c.kind = TreeKind::kSequoia, c.rates.assign(17, 0.01); }, "17 rates"},
      {[](TreeConfig& c) { c.kind = TreeKind::kSequoia, c.depth = 65; }, "depth of sequoia is 65"},
      {[](TreeConfig& c) { c.kind = TreeKind::kEagle2, c.topk = 0; }, "topk is 0"},
      {[](TreeConfig& c) { c.kind = TreeKind::kEagle2, c.topk = 100, c.nodes = 511, c.depth = 40; }, "16384"},
      {[](TreeConfig& c) { c.kind = TreeKind::kOptTree, c.threshold = -1; }, "threshold is -1"},
      {[](TreeConfig& c) { c.kind = TreeKind::kOptTree, c.threshold = std::nanf(""); }, "threshold"},
      {[](TreeConfig& c) { c.kind = TreeKind::kOptTree, c.nodes = 511, c.depth = 33; }, "16384"},
      {[](TreeConfig& c) { c.kind = TreeKind::kBestFirst, c.beams = 0; }, "beams is 0"},
      {[](TreeConfig& c) { c.kind = TreeKind::kBestFirst, c.decay = 0; }, "decay is 0"},
      {[](TreeConfig& c) { c.kind = TreeKind::kBestFirst, c.decay = 1.01f; }, "decay is 1.01"},
  };
  for (const Case& c : cases) {
    TreeConfig config;
    EXPECT_EQ(refusal(config), "");
    c.change(config);
    EXPECT_THAT(refusal(config), HasSubstr(c.word));
    EXPECT_THROW(make_tree_policy(config), Error);
  }
}

}  // namespace
}  // namespace sx
