#include "speculative/draft/level_draft.h"

#include <algorithm>

namespace sx {

LevelDraft::LevelDraft(int rows, const TreeConfig& tree) : rows_(rows) {
  const bool grown = tree.kind == TreeKind::kEagle2 || tree.kind == TreeKind::kOptTree;
  if (!grown) rows_ = 0;
  if (rows_ == 0) return;
  const size_t most = 1 + size_t(tree.nodes) * size_t(tree.depth);
  token_.resize(most);
  parent_.resize(most);
  score_.resize(most);
  ran_.resize(kMaxTreeNodes);
  positions_.resize(size_t(tree.depth));
}

bool LevelDraft::begin(const TreePolicy& policy, const KvGeometry& cells, int history, TreeGrowthArgs& args) {
  if (rows_ == 0 || !policy.levels(args.rules)) return false;
  const int tail = args.rules.rows * (args.rules.depth - 1);
  if (tail > kMaxTreeNodes || history + tail > cells.capacity) return false;
  grown_ = {1, token_.data(), parent_.data(), score_.data(), 0, ran_.data(), 0};
  args.history = history;
  args.positions = positions_.data();
  args.out = &grown_;
  return true;
}

void LevelDraft::take(TokenTree& tree, DraftTail& tail) const {
  for (int n = 1; n < grown_.size; ++n) tree.add(parent_[size_t(n)], token_[size_t(n)], score_[size_t(n)]);
  for (int i = 0; i < grown_.run; ++i) tail.add(tree, ran_[size_t(i)]);
}

}  // namespace sx
