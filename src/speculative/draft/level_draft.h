// Device-side tree growth: prepares the arguments for a backend that grows all levels of a tree in one call, and turns
// its result into tree and draft tail.
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
  // Nodes of a level that are run at most; 0: the backend grows no trees of this kind.
  int rows() const { return rows_; }
  // After policy.start(): fills the arguments for a tree behind `history` cells. False: the policy has other rules, or
  // a tail may not fit.
  bool begin(const TreePolicy& policy, const KvGeometry& cells, int history, TreeGrowthArgs& args);
  std::vector<int32_t>& positions() { return positions_; }  // TreeGrowthArgs::positions, to be set after begin
  // Puts what was grown into `tree`, which is just its root, and `tail`, which is empty.
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
