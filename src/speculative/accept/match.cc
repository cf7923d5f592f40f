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

class MatchAcceptance final : public Acceptance {
 public:
  MatchAcceptance(Backend& backend, int nodes) : backend_(backend), all_nodes_(backend.traits().batch_choose) {
    if (!all_nodes_) return;
    rows_.reserve(size_t(nodes));
    chosen_.reserve(size_t(nodes));
  }

  void accept(const AcceptArgs& args, AcceptResult& result) override {
    if (all_nodes_ && args.tree->size() > 1 && plain(args)) return accept_all(args, result);
    walk(backend_, args, result, [&](NodeId node, Token chosen) { return args.tree->child(node, chosen); });
  }

 private:
  // Whether what is chosen at a node depends on its logits and position only, and is cheap to find.
  static bool plain(const AcceptArgs& args) {
    const Sampling& s = *args.sampling;
    const bool whole_row =
        s.temperature > 0 && s.top_k == 0 && (s.top_p < 1 || s.min_p > 0);  // all of it must be looked at
    return !whole_row && !args.grammar && args.bias.empty() && (!args.window || !args.window->active());
  }

  // All nodes at once, then the walk.
  void accept_all(const AcceptArgs& args, AcceptResult& result) {
    rows_.clear();
    for (NodeId node = 0; node < args.tree->size(); ++node) rows_.push_back(row_at(args, node, *args.sampling));
    chosen_.resize(rows_.size());
    backend_.choose({chosen_.data(), rows_, args.vocab});
    result.path.clear();
    for (NodeId node = 0; node != kNoNode; node = args.tree->child(node, result.next)) {
      result.path.push_back(node);
      result.next = chosen_[size_t(node)];
    }
  }

  Backend& backend_;
  const bool all_nodes_;  // at once
  std::vector<ChooseRow> rows_;
  std::vector<Token> chosen_;
};

}  // namespace

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
