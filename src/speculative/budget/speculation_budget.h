// A request's speculation budget, in units of one plain decode step. Every round adds a little (0.015), an accepted
// token adds 1, drafting and verifying subtract what they took; the balance is capped at 4. A draft is made only while
// the balance covers its cost, so speculation loses at most the balance at the start, 1, and a small share of the time,
// whatever is drafted.
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

  // Whether the balance covers what drafting has cost lately (`expected`, before this request has drafted), and one
  // node's verification.
  bool covers_draft(double node, double expected = 0) const {
    return balance_ >= (draft_cost_ > 0 ? draft_cost_ : expected) + node;
  }
  // Else: how many levels of at most `deepest` it covers, at `level` each, one node's verification included. A level or
  // two that turn out right earn a whole draft.
  int depth_within_budget(int deepest, double level, double node) const;
  // Else: whether one level may be tried all the same, at a cost that has faded because nobody has tried it lately.
  // What it really costs is paid for later, by fewer tries.
  bool may_probe(double hoped_level, double node) const { return balance_ > 0 && balance_ >= hoped_level + node; }

  // The last draft gave nothing, and little is left: what is left should buy many small tries.
  bool cautious() const { return missed_ && balance_ < kStart; }

  // Tokens per round lately, of the rounds of a batch in which somebody drafted; 0: there were none.
  double pace() const { return pace_; }
  void batch_round(int tokens) { pace_ = pace_ == 0 ? tokens : pace_ + kPaceWeight * (tokens - pace_); }

  void plain_round();
  // A round that drafted. `expected`: sum of the path probabilities of the verified nodes; `drafting`, `verifying`:
  // what it cost; `whole`: the draft was not cut short by depth_within_budget.
  void drafted_round(double expected, int accepted, double drafting, double verifying, bool whole = true);

 private:
  static constexpr double kStart = 1, kPaceWeight = 0.2;
  double balance_ = kStart, draft_cost_ = 0, confidence_ = 1, pace_ = 0;
  bool missed_ = false;  // nothing of the last draft was accepted
  double sum_expected_ = 4, sum_accepted_ = 4;
};

}  // namespace sx
