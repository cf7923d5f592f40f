// Internal to the acceptance rules: the arithmetic on distributions that the exact rules share, the rows of a verified
// tree in the form the backend takes, and the functions that make each rule.
#pragma once
#include <algorithm>
#include <memory>
#include <span>

#include "speculative/accept/accept.h"
#include "speculative/tree/tree_grammar.h"

namespace sx {

// --- Arithmetic on distributions. p: target, q: draft.

// The probability that a child x drawn from q passes, on a path that has passed with `weight`. q(x) is 0 for a drawn
// token by rounding only.
inline double pass_probability(double weight, double p, double q) {
  return q > 0 ? std::min(1.0, weight * p / q) : 0.0;
}

// Sum of max(0, weight p - q).
double residual_mass(std::span<const double> p, double weight, std::span<const double> q);

// p := norm(max(0, weight p - q)); returns the mass before normalising. Mass 0 leaves p as it is: then p = q, the draw
// cannot be rejected, and what rounding lets through takes the target's own distribution.
double subtract_draft(std::span<double> p, double weight, std::span<const double> q);

// The weight of a path that has lost what its drafted continuations were offered: mass / (mass + 1 - weight), with 0 /
// 0 = 1.
inline double remaining_weight(double mass, double weight) {
  const double whole = mass + (1 - weight);
  return whole > 0 ? mass / whole : 1.0;
}

// The distribution the next sibling of `child` was drawn from when drawing without replacement: q without the child's
// token, or, when that leaves nothing, uniform over the tokens that `child` and its elder siblings do not carry.
void draw_out(const TokenTree& tree, NodeId child, std::span<double> q);

bool is_chain(const TokenTree& tree);

// --- Rows of a verified tree.

// Tokens of a node's path are in the penalty window while this lives. The window already holds node 0.
class PathInWindow {
 public:
  PathInWindow(const AcceptArgs& args, NodeId node);
  ~PathInWindow();
  PathInWindow(const PathInWindow&) = delete;
  PathInWindow& operator=(const PathInWindow&) = delete;

 private:
  PenaltyWindow* window_;
  int pushed_;
};

// The target's choice and distribution at a node whose path is in the window.
Token choose_at(Backend& backend, const AcceptArgs& args, NodeId node);
void distribution_at(Backend& backend, const AcceptArgs& args, NodeId node, const Sampling& sampling,
                     std::span<double> distribution);

// Goes down from node 0, the target choosing at every node: follow(node, chosen) names the child to go to, or kNoNode.
// Where a grammar has taken long enough for one round, the rest is left to the next.
template <class Follow>
void walk(Backend& backend, const AcceptArgs& args, AcceptResult& result, Follow follow) {
  result.path.clear();
  for (NodeId node = 0; node != kNoNode;) {
    result.path.push_back(node);
    result.next = choose_at(backend, args, node);
    node = follow(node, result.next);
    if (args.grammar && !args.grammar->allows_drafts()) node = kNoNode;
    if (node != kNoNode && args.window) args.window->push(args.tree->token(node));
  }
  if (!args.window) return;
  for (size_t i = 1; i < result.path.size(); ++i) args.window->pop();
}

// --- Makers.

std::unique_ptr<Acceptance> make_match(Backend& backend, const AcceptLimits& limits);
std::unique_ptr<Acceptance> make_typical(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits);
std::unique_ptr<Acceptance> make_margin(const AcceptConfig& config, Backend& backend, const AcceptLimits& limits);

std::unique_ptr<Rule> make_top_down_rule(AcceptKind kind, int vocab);  // kChain, kSpecInfer, kNoReplacement
std::unique_ptr<Rule> make_block_rule(int vocab, int depth);
std::unique_ptr<Rule> make_traversal_rule(int vocab, int depth);

}  // namespace sx
