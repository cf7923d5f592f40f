// How much a request may stake on drafts. Time is counted in plain steps: every round earns a little, accepted tokens earn a
// step each, passes cost what they cost; a draft is made only while its price is covered. So speculation can lose at most
// the stake at the start and a small share of the time, whatever is drafted.
#pragma once

namespace sx {

class Controller {
 public:
  // Plain steps that may be spent beyond those a plain round takes.
  double credit() const { return credit_; }
  // What drafting has cost lately, in plain steps, without verification.
  double draft_cost() const { return draft_cost_; }
  // Accepted tokens per token the drafter expected to be accepted, lately.
  double trust() const { return trust_; }

  // Whether the credit covers what drafting has cost lately (`expected`, before this request has drafted), and one node's verification.
  bool covers_draft(double node, double expected = 0) const { return credit_ >= (draft_cost_ > 0 ? draft_cost_ : expected) + node; }
  // Else: how many levels of at most `deepest` it covers, at `level` each, one node's verification included. A level or two that turn out
  // right earn a whole draft.
  int affordable_depth(int deepest, double level, double node) const;
  // Else: whether one level may be tried all the same, at a price that has faded for want of trying. What it really costs is paid for
  // later, by fewer tries.
  bool may_probe(double hoped_level, double node) const { return credit_ > 0 && credit_ >= hoped_level + node; }

  void plain_round();
  // A round that drafted. `expected`: sum of the path probabilities of the verified nodes; `drafting`, `verifying`: what it cost;
  // `whole`: the draft was not cut short by affordable_depth.
  void drafted_round(double expected, int accepted, double drafting, double verifying, bool whole = true);

 private:
  double credit_ = 1, draft_cost_ = 0, trust_ = 1;
  double sum_expected_ = 4, sum_accepted_ = 4;
};

}  // namespace sx
