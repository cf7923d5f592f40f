// Sample and match: the target chooses at every node of the walk as plain decoding would, and the walk follows the
// child that carries its choice. Also what all walks need: rows of a tree as the backend takes them.
#include "base/error.h"
#include "spec/accept_parts.h"

namespace sx {
namespace {

ChooseRow row_at(const JudgeArgs& args, NodeId node, const Sampling& sampling) {
  SX_ASSERT(node >= 0 && node < args.tree->size());
  return {args.logits + size_t(node) * size_t(args.vocab), args.position + uint64_t(args.tree->depth(node)), &sampling,
          args.bias, args.window ? args.window->counts() : std::span<const TokenCount>{}};
}

// Top-down: a window forgets in the order of the text.
void push_path(PenaltyWindow& window, const TokenTree& tree, NodeId node) {
  if (node == 0) return;
  push_path(window, tree, tree.parent(node));
  window.push(tree.token(node));
}

class MatchAcceptance final : public Acceptance {
 public:
  explicit MatchAcceptance(Backend& backend) : backend_(backend) {}

  void judge(const JudgeArgs& args, Verdict& verdict) override {
    walk(backend_, args, verdict, [&](NodeId node, Token chosen) { return args.tree->child(node, chosen); });
  }

 private:
  Backend& backend_;
};

}  // namespace

PathInWindow::PathInWindow(const JudgeArgs& args, NodeId node) : window_(args.window), pushed_(args.tree->depth(node)) {
  if (window_) push_path(*window_, *args.tree, node);
}

PathInWindow::~PathInWindow() {
  if (!window_) return;
  for (int i = 0; i < pushed_; ++i) window_->pop();
}

Token choose_at(Backend& backend, const JudgeArgs& args, NodeId node) {
  const ChooseRow row = row_at(args, node, *args.sampling);
  Token chosen = kNoToken;
  backend.choose({&chosen, std::span(&row, 1), args.vocab});
  return chosen;
}

void law_at(Backend& backend, const JudgeArgs& args, NodeId node, const Sampling& sampling, std::span<double> law) {
  SX_ASSERT(law.size() == size_t(args.vocab));
  backend.law({law.data(), row_at(args, node, sampling), args.vocab});
}

std::unique_ptr<Acceptance> make_match(Backend& backend) { return std::make_unique<MatchAcceptance>(backend); }

}  // namespace sx
