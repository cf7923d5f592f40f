// Sample and match: the target chooses at every node of the walk as plain decoding would, and the walk follows the
// child that carries its choice. Also what all walks need: rows of a tree as the backend takes them.
#include "base/error.h"
#include "speculative/accept/accept_internal.h"

namespace sx {
namespace {

ChooseRow row_at(const AcceptArgs& args, NodeId node, const Sampling& sampling) {
  SX_ASSERT(node >= 0 && node < args.tree->size());
  return {args.logits + size_t(node) * size_t(args.vocab),
          args.position + uint64_t(args.tree->depth(node)),
          &sampling,
          args.bias,
          args.window ? args.window->counts() : std::span<const TokenCount>{},
          args.grammar ? args.grammar->mask(*args.tree, node) : nullptr,
          args.broken ? args.broken + node : nullptr};
}

// Top-down: a window forgets in the order of the text.
void push_path(PenaltyWindow& window, const TokenTree& tree, NodeId node) {
  if (node == 0) return;
  push_path(window, tree, tree.parent(node));
  window.push(tree.token(node));
}

// Whether what is chosen at a node depends on its logits and position only, and is cheap to find.
bool plain(const AcceptArgs& args) {
  const Sampling& s = *args.sampling;
  const bool whole_row =
      s.temperature > 0 && s.top_k == 0 && (s.top_p < 1 || s.min_p > 0);  // all of it must be looked at
  return !whole_row && !args.grammar && args.bias.empty() && (!args.window || !args.window->active());
}

class MatchAcceptance final : public Acceptance {
 public:
  MatchAcceptance(Backend& backend, int nodes) : walks_(backend, 1, nodes) {}
  bool matches() const override { return true; }
  void accept(const AcceptArgs& args, AcceptResult& result) override {
    walks_.add(args, result);
    walks_.run();
  }

 private:
  MatchWalks walks_;
};

}  // namespace

MatchWalks::MatchWalks(Backend& backend, int walks, int nodes)
    : backend_(backend), all_nodes_(backend.traits().batch_choose) {
  walks_.reserve(size_t(walks));
  rows_.reserve(size_t(nodes));
  chosen_.reserve(size_t(nodes));
}

void MatchWalks::add(const AcceptArgs& args, AcceptResult& result) {
  result.path.clear();
  walks_.push_back({args, &result, 0, all_nodes_ && args.tree->size() > 1 && plain(args), 0});
}

void MatchWalks::run() {
  for (;;) {
    rows_.clear();
    for (Walk& walk : walks_)
      if (walk.node != kNoNode) ask(walk);
    if (rows_.empty()) break;
    chosen_.resize(rows_.size());
    backend_.choose({chosen_.data(), rows_, walks_[0].args.vocab});
    for (Walk& walk : walks_)
      if (walk.node != kNoNode) follow(walk);
  }
  walks_.clear();
}

void MatchWalks::ask(Walk& walk) {
  const AcceptArgs& args = walk.args;
  walk.first = rows_.size();
  const NodeId end = walk.all_nodes ? args.tree->size() : walk.node + 1;
  for (NodeId node = walk.node; node < end; ++node) rows_.push_back(row_at(args, node, *args.sampling));
}

// Where a grammar has taken long enough for one round, the rest is left to the next.
void MatchWalks::follow(Walk& walk) {
  const AcceptArgs& args = walk.args;
  AcceptResult& result = *walk.result;
  do {
    result.path.push_back(walk.node);
    result.next = chosen_[walk.first + (walk.all_nodes ? size_t(walk.node) : 0)];
    walk.node = args.tree->child(walk.node, result.next);
    if (args.grammar && !args.grammar->allows_drafts()) walk.node = kNoNode;
    if (walk.node != kNoNode && args.window) args.window->push(args.tree->token(walk.node));
  } while (walk.all_nodes && walk.node != kNoNode);
  if (walk.node != kNoNode || !args.window) return;
  for (size_t i = 1; i < result.path.size(); ++i) args.window->pop();
}

PathInWindow::PathInWindow(const AcceptArgs& args, NodeId node)
    : window_(args.window), pushed_(args.tree->depth(node)) {
  if (window_) push_path(*window_, *args.tree, node);
}

PathInWindow::~PathInWindow() {
  if (!window_) return;
  for (int i = 0; i < pushed_; ++i) window_->pop();
}

Token choose_at(Backend& backend, const AcceptArgs& args, NodeId node) {
  const ChooseRow row = row_at(args, node, *args.sampling);
  Token chosen = kNoToken;
  backend.choose({&chosen, std::span(&row, 1), args.vocab});
  return chosen;
}

void distribution_at(Backend& backend, const AcceptArgs& args, NodeId node, const Sampling& sampling,
                     std::span<double> distribution) {
  SX_ASSERT(distribution.size() == size_t(args.vocab));
  backend.probabilities({distribution.data(), row_at(args, node, sampling), args.vocab});
}

std::unique_ptr<Acceptance> make_match(Backend& backend, const AcceptLimits& limits) {
  return std::make_unique<MatchAcceptance>(backend, limits.nodes);
}

}  // namespace sx
