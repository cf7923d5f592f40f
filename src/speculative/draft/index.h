// The base class of drafters that look a text up in itself: it catches up with the text, cuts a draft to what pays and
// learns from the results. A derived class has the index and proposes continuations.
#pragma once
#include <span>
#include <vector>

#include "speculative/draft/copy_confidence.h"
#include "speculative/draft/drafter.h"
#include "speculative/draft/drafters.h"

namespace sx {

class IndexDrafter : public Drafter {
 public:
  // Tokens indexed by one call of prefill.
  static constexpr int kPiece = 4096;

  void open(SeqId seq) final;
  void close(SeqId seq) final;
  void truncate(SeqId seq, int length) final;
  bool prefill(SeqId seq, std::span<const Token> text) final;
  void draft(std::span<DraftTask> tasks) final;
  void observe(std::span<const Outcome> outcomes) final;

 protected:
  IndexDrafter(const TreeConfig& tree, const IndexLimits& limits);

  // The slot is used for the first time: takes the memory for `capacity` tokens.
  virtual void make_index(SeqId seq, int capacity) = 0;
  // The indexed text is empty again.
  virtual void clear_index(SeqId seq) = 0;
  // Indexes text[from, to); everything before is indexed.
  virtual void extend_index(SeqId seq, std::span<const Token> text, int from, int to) = 0;
  // Fills the proposal (just node 0), best first, within the limits except for the costs, and says how much of it pays.
  virtual Cut propose(SeqId seq, std::span<const Token> text, const TreeLimits& limits, Proposal& proposal) = 0;

  const Calibration& calibration(SeqId seq) const { return slots_[size_t(seq)].calibration; }
  Cut cut(const Proposal& proposal, const float* cost);
  int max_nodes() const { return max_nodes_; }

 private:
  struct Slot {
    Slot();
    bool made = false, open = false;
    int indexed = 0;  // tokens
    Calibration calibration;
    Proposal proposal;  // of the round in flight
  };
  Slot& slot(SeqId seq);
  // At most `most` tokens; true when there is nothing left.
  bool catch_up(SeqId seq, std::span<const Token> text, int most);
  void draft_one(DraftTask& task);

  int max_nodes_, capacity_;
  std::vector<Slot> slots_;
  Calibration shared_;  // what all sequences taught: where a new one begins
  std::vector<float> probabilities_;
};

}  // namespace sx
