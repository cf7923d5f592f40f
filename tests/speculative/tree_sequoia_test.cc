// The dynamic programme against all trees there are (small sizes), and against the best paths taken greedily, which is
// right when rates fall with the rank (large sizes).
#include "speculative/tree/sequoia.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <queue>
#include <random>

namespace sx {
namespace {

// Every ordered tree of up to `nodes` drafted nodes, in preorder: the next node goes below any node of the rightmost
// path.
class AllTrees {
 public:
  AllTrees(std::vector<double> rates, int nodes, int depth) : rates_(std::move(rates)), nodes_(nodes), depth_(depth) {}
  double best() {
    std::vector<Open> path = {{1, 0}};
    visit(path, 0, 0);
    return best_;
  }
  long count() const { return count_; }

 private:
  struct Open {
    double value;
    size_t children;
  };  // of a node that may get more children
  void visit(const std::vector<Open>& path, int nodes, double sum) {
    best_ = std::max(best_, sum);
    ++count_;
    if (nodes == nodes_) return;
    for (size_t d = 0; d < path.size() && d < size_t(depth_); ++d) {
      if (path[d].children == rates_.size()) continue;
      std::vector<Open> longer(path.begin(), path.begin() + ptrdiff_t(d) + 1);
      const double value = path[d].value * rates_[longer[d].children++];
      longer.push_back({value, 0});
      visit(longer, nodes + 1, sum + value);
    }
  }
  std::vector<double> rates_;
  int nodes_, depth_;
  double best_ = 0;
  long count_ = 0;
};

// The worth of a shape, checked to be breadth first, within the limits, without gaps in the ranks.
double worth(const TreeShape& shape, const std::vector<double>& rates, int nodes, int depth) {
  EXPECT_LE(shape.size(), nodes + 1);
  std::vector<double> value = {1};
  double sum = 0;
  for (size_t n = 1; n < size_t(shape.size()); ++n) {
    const auto parent = size_t(shape.parent[n]);
    EXPECT_LT(parent, n);
    EXPECT_EQ(shape.depth[n], shape.depth[parent] + 1);
    EXPECT_LE(shape.depth[n], depth);
    const bool sibling = n > 1 && shape.parent[n - 1] == shape.parent[n];
    EXPECT_EQ(shape.rank[n], sibling ? shape.rank[n - 1] + 1 : 0);
    EXPECT_GE(shape.parent[n], shape.parent[n - 1]);
    value.push_back(value[parent] * rates.at(size_t(shape.rank[n])));
    sum += value.back();
  }
  return sum;
}

TEST(Sequoia, TheCatalanNumbersOfTreesAreTried) {
  AllTrees all(std::vector<double>(7, 0.1), 7, 7);
  all.best();
  EXPECT_EQ(all.count(), 1 + 1 + 2 + 5 + 14 + 42 + 132 + 429);
}

TEST(Sequoia, BestOfAllSmallTrees) {
  std::mt19937_64 random(5);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 60; ++round) {
    const int branches = 1 + int(random() % 5), nodes = 1 + int(random() % 7), depth = 1 + int(random() % 7);
    std::vector<double> rates(static_cast<size_t>(branches));
    for (double& r : rates) r = random() % 5 == 0 ? 0 : uniform(random) / branches;
    if (round % 2) std::sort(rates.rbegin(), rates.rend());
    SequoiaSolver solver(nodes, depth, branches);
    solver.solve(rates);
    TreeShape shape;
    for (int d = 0; d <= depth; ++d)
      for (int n = 0; n <= nodes; ++n) {
        const double best = AllTrees(rates, n, d).best();
        EXPECT_NEAR(solver.expected(n, d), best, 1e-12) << n << " nodes, depth " << d;
        solver.shape(n, d, shape);
        EXPECT_NEAR(worth(shape, rates, n, d), best, 1e-12) << n << " nodes, depth " << d;
      }
  }
}

TEST(Sequoia, LargeTreesTakeTheBestPaths) {
  std::mt19937_64 random(6);
  std::uniform_real_distribution<double> uniform(0, 1);
  struct Case {
    int nodes, depth, branches;
  };
  for (const Case c : {Case{64, 16, 8}, Case{64, 3, 8}, Case{200, 12, 4}, Case{511, 8, 8}, Case{40, 40, 1}}) {
    std::vector<double> rates(static_cast<size_t>(c.branches));
    for (double& r : rates) r = uniform(random) / c.branches;
    rates[0] += 0.4;
    std::sort(rates.rbegin(), rates.rend());
    // Falling rates: parents and earlier siblings are always at least as good, so the best paths form a tree.
    std::priority_queue<std::pair<double, int>> open;  // value, -depth
    open.push({1, 0});
    double want = -1;
    for (int n = 0; n <= c.nodes && !open.empty(); ++n) {
      const auto [value, depth] = open.top();
      open.pop();
      want += value;
      if (-depth < c.depth)
        for (double r : rates) open.push({value * r, depth - 1});
    }
    SequoiaSolver solver(c.nodes, c.depth, c.branches);
    TreeShape shape;
    for (int again = 0; again < 2; ++again) {  // old tables leave no trace
      solver.solve(std::vector<double>(rates.size(), 0.01));
      solver.solve(rates);
      EXPECT_NEAR(solver.expected(c.nodes, c.depth), want, 1e-9);
      solver.shape(c.nodes, c.depth, shape);
      EXPECT_NEAR(worth(shape, rates, c.nodes, c.depth), want, 1e-9);
    }
  }
}

}  // namespace
}  // namespace sx
