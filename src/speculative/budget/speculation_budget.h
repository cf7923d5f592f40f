// How much a request may stake on drafts. Time is counted in plain steps: every round earns a little, accepted tokens earn a
// step each, passes cost what they cost; a draft is made only while its cost_model is covered. So speculation can lose at most
// the stake at the start and a small share of the time, whatever is drafted.
#pragma once

namespace sx {

class SpeculationBudget {
 public:
  // Plain steps that may be spent beyond those a plain round takes.
  double balance() const { return balance_; }
  // What drafting has cost lately, in plain steps, without verification.
  double draft_cost() const { return draft_cost_; }
  // Accepted tokens per token the drafter expected to be accepted, lately.
  double confidence() const { return confidence_; }

  // Whether the balance covers what drafting has cost lately (`expected`, before this request has drafted), and one node's verification.
  bool covers_draft(double node, double expected = 0) const { return balance_ >= (draft_cost_ > 0 ? draft_cost_ : expected) + node; }
  // Else: how many levels of at most `deepest` it covers, at `level` each, one node's verification included. A level or two that turn out
  // right earn a whole draft.
  int depth_within_budget(int deepest, double level, double node) const;
  // Else: whether one level may be tried all the same, at a cost_model that has faded for want of trying. What it really costs is paid for
  // later, by fewer tries.
  bool may_probe(double hoped_level, double node) const { return balance_ > 0 && balance_ >= hoped_level + node; }

  void plain_round();
  // A round that drafted. `expected`: sum of the path probabilities of the verified nodes; `drafting`, `verifying`: what it cost;
  // `whole`: the draft was not cut short by depth_within_budget.
  void drafted_round(double expected, int accepted, double drafting, double verifying, bool whole = true);

 private:
  double balance_ = 1, draft_cost_ = 0, confidence_ = 1;
  double sum_expected_ = 4, sum_accepted_ = 4;
};

}  // namespace sx
