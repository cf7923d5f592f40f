// A round: draft a tree after each request's pending token, verify all trees in one pass of the target, accept, commit
// the accepted paths. Plain decoding is a round whose trees have one node. Pieces of other requests' prompts are part
// of the same pass, or, where the backend runs prompts better on their own, of a second one.
#pragma once
#include <span>
#include <vector>

#include "engine/engine_parts.h"
#include "engine/generation.h"
#include "engine/round_drafts.h"
#include "engine/round_slot.h"
#include "engine/step_builder.h"

namespace sx {

// The next `rows` tokens of a request's prompt.
struct PromptPiece {
  Generation* request = nullptr;
  int rows = 0;
  int first_row = 0;  // in the pass
};

class Round {
 public:
  explicit Round(const EngineParts& parts);

  // Advances each request of `decoding` by at least one token, unless it ends, and the prompts by their pieces. At most
  // max_batch() requests decode. `answering`: requests of the batch, those included whose prompt has still to be run.
  void run(std::span<Generation* const> decoding, std::span<const PromptPiece> prompts, int answering);
  int max_batch() const { return max_outputs_; }
  PredictedTime take_predicted_time() { return drafts_.take_predicted_time(); }

 private:
  void begin(std::span<Generation* const> decoding, std::span<const PromptPiece> prompts);
  void draft();
  void verify();
  void accept();
  void commit();
  void finish_prompts();
  void settle(int answering);

  void drop_finished();  // requests that have ended or been cancelled leave the round
  void add_prompts();
  void run_pass(int tree_rows);
  void score_prompts();
  const float* logits_of(const RoundSlot& slot) const {
    return outputs_->logits + size_t(slot.first_row) * size_t(parts_.vocab());
  }

  EngineParts parts_;
  const int max_outputs_;
  const bool separate_prompts_;  // prompts run in a pass of their own
  StepBuilder step_;
  MatchWalks walks_;
  RoundDrafts drafts_;
  std::vector<RoundSlot> slots_;  // [max sessions]; they keep their memory between rounds
  std::span<RoundSlot> active_;   // of this round, the first of slots_
  std::vector<PromptPiece> prompts_;
  std::vector<KvMove> moves_;
  const StepOutputs* outputs_ = nullptr;  // of the last pass
  bool with_prompts_ = false;             // prompt pieces are part of the round; a device may still be running them
  double start_ = 0;
  PhaseTimes times_;
};

}  // namespace sx
