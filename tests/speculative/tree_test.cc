// The token tree against a naive one: lists of nodes, ancestors by walking up, pruning by sorting everything.
#include "speculative/tree/tree.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>

#include "base/error.h"

namespace sx {
namespace {

struct Naive {
  Token token;
  int parent, depth, rank;
  float score;
  uint8_t source;
};

using Random = std::mt19937_64;
int below(Random& random, int n) { return int(random() % uint64_t(n)); }

// Scores are coarse, so that many tie, also between parents and children.
void add_random(Random& random, TokenTree& tree, std::vector<Naive>& naive, bool deep) {
  const int size = int(naive.size()), recent = std::min(size, 5);
  const int parent = deep ? size - 1 - below(random, recent) : below(random, size);
  const float score = naive[size_t(parent)].score - 0.5f * float(below(random, 4) - 1);
  const Token token = below(random, 6);
  const auto source = uint8_t(1 + below(random, 3));
  int rank = 0;
  for (const Naive& n : naive) rank += n.parent == parent;
  const float clamped = std::min(score, naive[size_t(parent)].score);
  naive.push_back({token, parent, naive[size_t(parent)].depth + 1, rank, clamped, source});
  EXPECT_EQ(tree.add(parent, token, score, source), size);
}

void expect_same(const TokenTree& tree, const std::vector<Naive>& naive) {
  ASSERT_EQ(tree.size(), int(naive.size()));
  int deepest = 0;
  for (int n = 0; n < tree.size(); ++n) {
    const Naive& want = naive[size_t(n)];
    ASSERT_EQ(std::tuple(tree.token(n), tree.parent(n), tree.depth(n), tree.rank(n), tree.score(n), tree.source(n)),
              std::tuple(want.token, want.parent, want.depth, want.rank, want.score, want.source))
        << n;
    ASSERT_EQ(tree.tokens()[size_t(n)], want.token);
    deepest = std::max(deepest, want.depth);
    NodeId walk = tree.first_child(n);
    for (int c = n + 1; c < tree.size(); ++c) {
      if (naive[size_t(c)].parent != n) continue;
      ASSERT_EQ(walk, c);
      walk = tree.next_sibling(walk);
    }
    ASSERT_EQ(walk, kNoNode);
    for (Token t = 0; t < 6; ++t) {
      int found = kNoNode;
      for (int c = tree.size() - 1; c > n; --c)
        if (naive[size_t(c)].parent == n && naive[size_t(c)].token == t) found = c;
      ASSERT_EQ(tree.child(n, t), found);
    }
  }
  ASSERT_EQ(tree.max_depth(), deepest);
}

std::vector<Naive> keep_naive(const std::vector<Naive>& all, const std::vector<NodeId>& kept) {
  std::vector<Naive> result;
  for (NodeId n : kept) {
    Naive node = all[size_t(n)];
    if (n != 0) node.parent = int(std::find(kept.begin(), kept.end(), node.parent) - kept.begin());
    result.push_back(node);
  }
  return result;
}

void make_random(Random& random, TokenTree& tree, std::vector<Naive>& naive, int size) {
  tree.reset(9);
  naive = {{9, kNoNode, 0, 0, 0, 0}};
  const bool deep = below(random, 2);
  while (tree.size() < size) add_random(random, tree, naive, deep);
}

TEST(TokenTree, HoldsWhatIsAdded) {
  Random random(1);
  TokenTree tree(200);
  std::vector<Naive> naive;
  for (int round = 0; round < 30; ++round) {
    make_random(random, tree, naive, 1 + below(random, 200));
    expect_same(tree, naive);
  }
}

TEST(TokenTree, AncestorBits) {
  Random random(2);
  TokenTree tree(600);
  std::vector<Naive> naive;
  for (int size : {512, 1, 2, 63, 64, 65, 127, 128, 129, 300, 448, 449, 511, 512}) {
    make_random(random, tree, naive, size);
    ASSERT_EQ(tree.words(), (size + 63) / 64);
    const uint64_t* bits = tree.ancestors();
    for (int n = 0; n < size; ++n) {
      std::vector<uint64_t> want(size_t(tree.words()));
      for (int a = n; a != kNoNode; a = naive[size_t(a)].parent) {
        want[size_t(a / 64)] |= uint64_t{1} << (a % 64);
        ASSERT_GE(a, naive[size_t(a)].parent) << "ids ascend along a path";
      }
      for (int w = 0; w < tree.words(); ++w) ASSERT_EQ(bits[n * tree.words() + w], want[size_t(w)]) << size << " " << n;
    }
  }
  make_random(random, tree, naive, 513);
  EXPECT_THROW(tree.ancestors(), InternalError);
}

TEST(TokenTree, KeepsTheBest) {
  Random random(3);
  TokenTree tree(300);
  std::vector<Naive> naive;
  for (int round = 0; round < 200; ++round) {
    make_random(random, tree, naive, 1 + below(random, 300));
    const int drafted = below(random, 310);
    std::vector<NodeId> order;
    for (int n = 1; n < tree.size(); ++n) order.push_back(n);
    std::sort(order.begin(), order.end(), [&](NodeId a, NodeId b) {
      const Naive &x = naive[size_t(a)], &y = naive[size_t(b)];
      return std::tuple(-x.score, x.depth, a) < std::tuple(-y.score, y.depth, b);
    });
    order.resize(std::min(order.size(), size_t(drafted)));
    order.push_back(0);
    std::sort(order.begin(), order.end());
    tree.keep_best(drafted);
    naive = keep_naive(naive, order);
    for (const Naive& n : naive) ASSERT_LT(n.parent, int(naive.size()));  // closed under parents
    expect_same(tree, naive);
  }
}

TEST(TokenTree, KeepsWhatIsNamedAndGrowsOn) {
  Random random(4);
  TokenTree tree(120);
  std::vector<Naive> naive;
  for (int round = 0; round < 100; ++round) {
    make_random(random, tree, naive, 1 + below(random, 100));
    std::vector<NodeId> kept = {0};
    for (int n = 1; n < tree.size(); ++n)
      if (below(random, 3) && std::count(kept.begin(), kept.end(), tree.parent(n))) kept.push_back(n);
    tree.keep(kept);
    naive = keep_naive(naive, kept);
    expect_same(tree, naive);
    const int parent = below(random, tree.size());
    int last = -1;
    for (const Naive& n : naive)
      if (n.parent == parent) last = n.rank;
    const NodeId added = tree.add(parent, 3, -100, kFromIndex);
    naive.push_back({3, parent, naive[size_t(parent)].depth + 1, last + 1, -100, kFromIndex});
    EXPECT_EQ(added, int(naive.size()) - 1);
    expect_same(tree, naive);
  }
}

TEST(TokenTree, ScoresNeverGrowAlongAPath) {
  TokenTree tree(10);
  tree.reset(0);
  const NodeId a = tree.add(0, 1, -1), b = tree.add(a, 2, -0.5f), c = tree.add(a, 3, std::nanf(""));
  EXPECT_EQ(tree.score(b), -1);
  EXPECT_EQ(tree.score(c), -std::numeric_limits<float>::infinity());
  EXPECT_EQ(tree.score(tree.add(0, 4, 2)), 0);
  const NodeId d = tree.add(b, 5, -4);
  tree.support(d, -6, kFromIndex);
  EXPECT_EQ(tree.score(d), -4);
  EXPECT_EQ(tree.source(d), kFromModel | kFromIndex);
  tree.support(d, -3, kFromIndex);
  EXPECT_EQ(tree.score(d), -3);
  tree.support(d, -0.25f, kFromIndex);
  EXPECT_EQ(tree.score(d), -1);
  tree.support(d, std::nanf(""), kFromIndex);
  EXPECT_EQ(tree.score(d), -1);
  tree.support(0, 5, kFromIndex);
  EXPECT_EQ(tree.score(0), 0);
  tree.keep_best(4);  // the impossible one goes
  EXPECT_EQ(tree.size(), 5);
  EXPECT_EQ(tree.child(tree.child(0, 1), 3), kNoNode);
}

TEST(TokenTree, RefusesMisuse) {
  TokenTree tree(3);
  tree.reset(0);
  EXPECT_FALSE(tree.full());
  EXPECT_THROW(tree.add(1, 1, 0), InternalError);
  tree.add(tree.add(0, 1, -1), 2, -2);
  EXPECT_TRUE(tree.full());
  EXPECT_EQ(tree.drafted(), 2);
  EXPECT_THROW(tree.add(0, 1, 0), InternalError);
  const NodeId orphan[] = {0, 2}, rootless[] = {1, 2}, descending[] = {0, 2, 1};
  EXPECT_THROW(TokenTree(tree).keep(orphan), InternalError);
  EXPECT_THROW(TokenTree(tree).keep(rootless), InternalError);
  EXPECT_THROW(TokenTree(tree).keep(descending), InternalError);
  EXPECT_THROW(TokenTree(0), InternalError);
}

}  // namespace
}  // namespace sx
