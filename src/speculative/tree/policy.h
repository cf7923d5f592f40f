// How a drafter's guesses become a tree: which nodes to add below those whose distributions are known, which to run
// next, what to keep in the end. A policy grows one tree at a time and keeps its working memory between rounds; it
// allocates in its constructor only.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/tree_growth.h"
#include "backend/ops.h"
#include "speculative/tree/tree.h"

namespace sx {

enum class TreeKind { kChain, kStatic, kSequoia, kEagle2, kOptTree, kBestFirst };

// The numbers of all policies; each reads its own. Limits that must hold for every tree: nodes in [1, 511] drafted.
struct TreeConfig {
  TreeKind kind = TreeKind::kChain;
  int nodes = 5;                        // drafted nodes in the final tree; chain: its length
  int depth = 5;                        // deepest level
  int topk = 10;                        // eagle2: frontier and children per node; best-first: children per node
  float threshold = 0.7f;               // opt-tree: least gain of a further level, in tokens
  int beams = 32;                       // best-first: nodes run at a time
  float decay = 0.95f;                  // best-first: factor on a path's probability per level
  std::vector<int> widths;              // static: children per node by level (SpecInfer)
  std::vector<std::vector<int>> paths;  // static: rank paths (Medusa); wins over widths
  std::vector<double> rates;            // sequoia: rate at which the i-th child is the accepted one
};

// What is known after node `node` has been run: candidates, best first (or in the order they were drawn).
struct NodeCandidates {
  NodeId node;
  std::span<const Candidate> best;
};

struct TreeLimits {
  int nodes = 0;  // drafted nodes the final tree may have (<= TreeConfig::nodes)
  int depth = 0;  // deepest level
  // Costs in plain steps (0 and null: not known, everything is free). verify_cost[n]: a pass over n drafted nodes and
  // node 0, n = 0..nodes, non-decreasing, verify_cost[0] = 1. level_cost: one more pass of the drafter.
  const float* verify_cost = nullptr;
  float level_cost = 0;
  int rows = kMaxTreeNodes;  // nodes run at a time
};

class TreePolicy {
 public:
  virtual ~TreePolicy() = default;
  virtual int width() const = 0;     // candidates wanted per node
  virtual int capacity() const = 0;  // nodes the tree may have while growing, node 0 included
  virtual int rows() const = 0;      // most nodes run at a time

  // A new tree (just node 0). The first call of grow() brings the distribution of node 0.
  virtual void start(const TreeLimits& limits) = 0;
  // Adds nodes below those whose distributions are given; fills `next` (cleared by the caller) with the nodes to be run
  // now, each at most once, at most rows(), in ascending order. Empty: the tree is grown.
  virtual void grow(TokenTree& tree, std::span<const NodeCandidates> distributions, std::vector<NodeId>& next) = 0;
  // Cuts the tree to what is to be verified.
  virtual void finish(TokenTree& tree) = 0;
  // The result on a finished tree: the accepted path, beginning with node 0. Policies that measure learn from it.
  virtual void observe(const TokenTree&, std::span<const NodeId> path) { (void)path; }
  // True if the shape never depends on the candidates (rules that need draws from a distribution allow only such
  // trees).
  virtual bool fixed_shape() const = 0;
  // After start(): the rules by which a backend may grow this tree in place of the calls of grow(). False: it must be
  // these.
  virtual bool levels(TreeGrowthRules&) const { return false; }
};

std::unique_ptr<TreePolicy> make_tree_policy(const TreeConfig& config);
// Throws sx::Error naming the number that is out of range.
void check_tree_config(const TreeConfig& config);

}  // namespace sx
