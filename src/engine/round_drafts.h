// What a round does with drafters: asks them for trees, tells them what was accepted, settles the speculation budgets,
// and lets drafters that are behind read prompts. How much is drafted is decided by each preset's DraftPlanner.
#pragma once
#include <span>
#include <utility>
#include <vector>

#include "engine/engine_parts.h"
#include "engine/generation.h"
#include "engine/round_slot.h"
#include "speculative/budget/average.h"
#include "speculative/draft/drafter.h"
#include "specextend/costs.h"

namespace sx {

class RoundDrafts {
 public:
  explicit RoundDrafts(const EngineParts& parts);

  // Grows a tree after each request's pending token; `share`: drafted nodes that each may have. Adds to times.draft and
  // times.score.
  void grow_trees(std::span<RoundSlot> slots, int share, PhaseTimes& times);
  // Tells drafters which nodes were committed. `outputs`: the pass that verified them. Adds to times.draft, times.score
  // and times.commit.
  void observe(std::span<const RoundSlot> slots, const StepOutputs* outputs, PhaseTimes& times);
  // What the pass that verifies the trees will take by the cost model; 0: not known, or it runs prompts, too.
  void expect_pass(double ms) { verifying_ms_ = ms; }
  PredictedTime take_predicted_time() { return std::exchange(predicted_, {}); }
  // Counts the round: in the statistics of its requests, in their budgets, and in that of the batch.
  void settle(std::span<const RoundSlot> slots, const PhaseTimes& times, bool with_prompts, double round_ms);
  // Lets one drafter that is behind read a piece of a text. Draft prefill is deferred and chunked: one piece in a
  // round, after the first token, so it never adds to the time to first token. `answering`: requests that wait for it.
  void prefill_one(std::span<const RoundSlot> slots, int answering);

 private:
  void draft_with(Speculation& spec, std::span<RoundSlot> slots, int share, PhaseTimes& times);
  void cut_trees(Speculation& spec, std::span<RoundSlot> slots, double draft_ms);
  // Holds what the round was expected to take against what it took.
  void count_predicted(const PhaseTimes& times, double round_ms, bool drafted);
  // Notes what each request of a round with drafts got; returns the pace of the slower half.
  double slow_pace(std::span<const RoundSlot> slots);
  void observe_with(Speculation& spec, std::span<const RoundSlot> slots, const StepOutputs* outputs, PhaseTimes& times);

  const EngineParts& parts_;
  std::vector<DraftTask> tasks_;
  std::vector<Outcome> outcomes_;
  std::vector<double> paces_;
  double drafting_ms_ = 0, verifying_ms_ = 0;  // that the round is expected to take
  Average others_ms_[2];                       // all else of a round without and with drafts
  PredictedTime predicted_;
};

}  // namespace sx
