// Decides how much is drafted: the one class a round asks before it drafts, and tells afterwards what the drafts cost
// and gave. Behind it stand the cost model (what passes take), every request's own speculation budget, and the batch
// budget (whether a batch as a whole gains by drafts). An engine has one planner for each of its presets. Without costs
// (setting cost_model off, or rules that rely on how a tree was drawn) a planner allows everything.
#pragma once
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "speculative/budget/average.h"
#include "speculative/budget/batch_budget.h"
#include "speculative/budget/cost_model.h"
#include "speculative/budget/speculation_budget.h"
#include "speculative/tree/policy.h"

namespace sx {

// What a preset drafts with.
struct DraftKind {
  int nodes = 0, depth = 0;  // of its largest tree, node 0 not counted
  bool runs_model = false;   // levels of a draft cost passes of a model
  bool has_index = false;    // something is drafted without a model: n-grams, suffixes
  bool uses_costs = false;   // the cost model decides how much is drafted
  bool controlled = false;   // each request's DraftController decides how deep the model drafts
  bool is_head = false;      // the model reads prompts along, in the target's passes
};

// What a planner allows one request to draft. Limits go into the request's TreeLimits.
struct DraftGrant {
  bool draft = false;
  bool whole = true;                                  // the draft is as deep as was wanted
  bool cheap_only = false;                            // only what needs no pass of a model
  int model_depth = std::numeric_limits<int>::max();  // levels that a model may add where an index drafts, too
  bool look = false;  // instead: the index proposes a token that is not verified, to see whether it would be right
  DraftDecision decision{};  // of a controller
  double draft_ms = 0;       // that drafting is expected to take
};

// One request that asks for a draft, or has drafted.
struct DraftAsker {
  SpeculationBudget& budget;
  int history = 0;           // tokens in its KV cache
  int remaining = 0;         // tokens it may still generate
  bool unread = false;       // the model has not read its text
  double waited_ms = 0;      // for its prompt
  DraftDecision decision{};  // that its round followed, where a controller decides
  double draft_ms = 0;       // that its draft was expected to take; 0: not known
};

// What a round took and how large it was, for the budgets of its requests.
struct RoundCost {
  double draft_ms = 0, verify_ms = 0, cache_ms = 0;
  int requests = 1;
  int nodes = 0;              // drafted nodes that were verified, of all requests
  bool with_prompts = false;  // prompt pieces ran in the round, too
};

// A whole round, for the budget of the batch.
struct RoundOutcome {
  int requests = 1;
  double history = 0;    // tokens in the KV cache, on average
  int tokens = 0;        // committed, of all requests
  double slow_pace = 0;  // tokens per round lately of the half that gets fewer (SpeculationBudget::pace); 0: not known
  int nodes = 0;         // drafted nodes that were verified, of all requests
  double ms = 0, draft_ms = 0;    // all of the round; drafting and its cache
  bool with_prompts = false;      // prompt pieces ran in the round, too: `ms` says nothing about drafts
  bool plain = true;              // nobody drafted, with any preset
  int drafting = 0, wanting = 0;  // requests that drafted with this planner's preset, that would have
  int by_model = 0;               // of those that drafted: with passes of a model (where a controller decides)
  int64_t model_tokens = 0;       // that these got
};

// A text that a drafter has not read yet.
struct UnreadText {
  int requests = 1;                             // that wait while the drafter reads
  int behind = 0;                               // tokens to be read
  int piece = 0;                                // tokens that are read at a time
  int remaining = 0;                            // tokens that the request may still generate
  int history = 0;                              // tokens in its KV cache
  int made = 0;                                 // tokens that the request has generated
  const DraftController* controller = nullptr;  // of the request
};

class DraftPlanner {
 public:
  DraftPlanner(const CostModel& cost_model, const DraftKind& kind);

  bool has_costs() const { return kind_.uses_costs && cost_model_.known(); }
  const DraftKind& kind() const { return kind_; }
  // Milliseconds of a round of so many requests without drafts; 0: not known.
  double plain_ms(int requests, int history) const;

  // Whether a batch of so many requests has anything to spend on drafts (preset auto: on the model's).
  bool may_draft(int requests) const {
    return requests == 1 || !has_costs() || (two_budgets(requests) ? model_budget_ : batch_budget_).may_draft(requests);
  }
  // Whether a request drafts although the model has not read its text: an index has.
  bool drafts_unread() const { return kind_.controlled && kind_.has_index && has_costs(); }
  // How many of the `ready` requests of a round may draft. Sets the costs of their nodes by `history`, the first one's.
  int count_drafting(int requests, int ready, int history);
  // What one of them may draft: sets costs in `limits` and lowers them to what its budget covers. `level_ms`: one more
  // level of a draft.
  DraftGrant grant(const DraftAsker& asker, double level_ms, TreeLimits& limits);
  // How many of a tree's drafted nodes are worth verifying, after a draft that took `draft_ms`.
  int worthwhile(const TokenTree& tree, const DraftAsker& asker, double draft_ms) const;

  // A round has ended: what it cost and gave one request. `tree`: null if the request did not draft; `whole`: as
  // granted.
  void settle(const DraftAsker& asker, const RoundCost& cost, const TokenTree* tree, int accepted, bool whole);
  // And all requests together.
  void settle(const RoundOutcome& outcome);
  // The token that an index proposed in a round that only looked at it was right or not.
  void look(DraftController& controller, bool right) const;
  void count_round() { ++rounds_; }
  // An answer has ended.
  void count_answer(int tokens) { experience_.answered(tokens); }

  // Whether it pays that the drafter reads a text while all requests wait.
  bool worth_reading(const UnreadText& text, double level_ms);
  // The drafter has read `tokens` of it.
  void finish_reading(const UnreadText& text, int tokens, double ms);
  // What reading takes, as measured when the engine opens.
  void observe_reading(int tokens, double ms);

  // Whether a head reads a prompt of so many tokens along, behind which the request may generate `limit`.
  bool reads_along(int tokens, int limit);
  // What that took, beside the target's pass.
  void observe_along(int tokens, double ms) { along_ms_.add(ms / tokens); }

  std::span<const float> costs() const { return costs_; }  // of the last round that drafted, [nodes + 1]
  const BatchBudget& batch_budget() const { return batch_budget_; }
  // Where a controller decides and an index drafts, too: whether a batch gains by the model's drafts beyond that.
  const BatchBudget& model_budget() const { return model_budget_; }
  const DraftExperience& experience() const { return experience_; }

 private:
  DraftGrant decide(const DraftAsker& asker, TreeLimits& limits);
  bool two_budgets(int requests) const;
  int count_controlled(int requests, int ready);
  void settle_batch(const RoundOutcome& outcome, double expected);
  void settle_controlled(const DraftAsker& asker, const RoundCost& cost, const TokenTree* tree, int accepted);
  void set_costs(const CostModel::BatchShape& batch);
  double controlled_level(double plain) const;
  double hoped_level(double level_ms, double plain_ms) const;
  double hoped_saving(double hoped_level) const;
  double verifying(const DraftAsker& asker, const RoundCost& cost, int nodes) const;
  double read_ms(int requests) const;
  bool repays_reading(const UnreadText& text, double level_ms, double reading) const;

  const CostModel& cost_model_;
  DraftKind kind_;
  std::vector<float> costs_;
  BatchBudget batch_budget_, model_budget_;
  int model_turns_ = 1;  // requests of the round that may still draft with the model
  int requests_ = 1;     // of the round whose costs are set
  bool index_ = true;    // in that round the index may draft alone
  bool trial_ = false;   // in that round one request drafts to see whether it pays

  DraftExperience experience_;        // of answers that a controller decided for
  double least_level_ms_ = 0;         // a level of a draft, undisturbed
  int64_t drafted_at_ = 0;            // the round in which the model last drafted
  Average read_ms_;                   // to read a token of a text; 0: not known
  Average along_ms_;                  // the same for a head that reads along
  int64_t rounds_ = 0, read_at_ = 0;  // rounds in all, and when a text was last read
};

}  // namespace sx
