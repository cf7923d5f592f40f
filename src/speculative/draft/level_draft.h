// A tree whose levels the backend grows in one go: which drafts it may, what it is told, and what comes back as tree and tail.
#pragma once
#include <vector>

#include "backend/backend.h"
#include "speculative/cache/draft_tail.h"
#include "speculative/tree/policy.h"

namespace sx {

class LevelDraft {
 public:
  // `rows`: nodes of a level that the backend runs at most; 0: it grows no trees.
  LevelDraft(int rows, const TreeConfig& tree);
  // Nodes of a level that are run; 0: this backend grows no trees.
  int rows() const { return rows_; }
  // After policy.start(): what is to be grown behind `history` cells. False: the rules are others, or a tail may not fit.
  bool begin(const TreePolicy& policy, const KvGeometry& cells, int history, TreeGrowthArgs& args);
  std::vector<int32_t>& positions() { return positions_; }  // TreeGrowthArgs::positions, to be set after begin
  // What was grown: `tree` is just its root, `tail` empty.
  void take(TokenTree& tree, DraftTail& tail) const;
  int passes() const { return grown_.passes; }

 private:
  int rows_;
  std::vector<Token> token_;
  std::vector<int32_t> parent_, ran_, positions_;
  std::vector<float> score_;
  GrownTree grown_;
};

}  // namespace sx
