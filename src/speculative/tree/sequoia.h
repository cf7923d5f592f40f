// Sequoia's dynamic programme: the tree of a given size and depth that accepts most tokens when the i-th child of a
// node is the accepted one at a known rate. A solver keeps its tables, so that solving again allocates nothing.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace sx {

// The shape of a tree, breadth first, children by rank; place 0 is node 0 of the tree.
struct TreeShape {
  std::vector<int16_t> parent, rank, depth;

  void reserve(int size);  // node 0 included
  void clear();            // just node 0
  void add(int parent_place, int child_rank);
  int size() const { return static_cast<int>(parent.size()); }
};

class SequoiaSolver {
 public:
  SequoiaSolver(int nodes, int depth, int branches);  // nodes without node 0

  // rates[i]: how often child i of a node is the accepted one, [branches]. A child may only be there if those of
  // smaller rank are. Takes nodes^2 * depth * branches / 2 steps, where depth is at most what such a tree makes use of.
  void solve(std::span<const double> rates);

  // The answers for any size and depth up to those of the constructor: accepted drafted tokens per round, and the
  // shape.
  double expected(int nodes, int depth) const { return best_[at(depth, nodes + 1)] - 1; }
  void shape(int nodes, int depth, TreeShape& shape);

 private:
  // Trees are counted with their root here: [level][1..total_], level = depth allowed below the root.
  size_t at(int level, int size) const { return static_cast<size_t>(std::min(level, solved_) * (total_ + 1) + size); }
  size_t split_at(int level, int branch, int size) const {
    return static_cast<size_t>(((std::min(level, solved_) - 1) * branches_ + branch - 1) * (total_ + 1) + size);
  }
  void add_branch(int level, int branch, double rate);

  int total_, depth_, branches_;
  int solved_;                          // levels in the tables; deeper ones would equal the last
  std::vector<double> best_;            // [depth + 1][total + 1] accepted tokens, the root's included
  std::vector<int16_t> best_branches_;  // [depth + 1][total + 1] children of the root in that tree
  std::vector<int16_t> split_;          // [depth][branches][total + 1] size of that tree without its last child's
  std::vector<double> fewer_, more_;    // [total + 1] trees with one child fewer, and with it
  std::vector<int16_t> budget_;         // [total] sizes granted to the places of a shape
};

}  // namespace sx
