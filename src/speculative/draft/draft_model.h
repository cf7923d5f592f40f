// What a TreeDrafter asks of the network behind it: a small language model, an EAGLE or LongSpec head, Medusa's heads,
// the target itself with layers left out. A network owns its weights, its KV stores and what it keeps of each text.
// Trees, levels, draft tails, candidates, timing, device-side growth, saving and restoring are the TreeDrafter's work.
#pragma once
#include <limits>
#include <span>
#include <string>
#include <utility>

#include "backend/tree_growth.h"
#include "base/clock.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/cache/draft_tail.h"
#include "speculative/draft/drafter.h"

namespace sx {

// The sizes of a network.
struct DraftShape {
  int vocab = 0;                 // tokens that the network may propose
  int stride = 0;                // floats from one row of its logits to the next
  std::span<const Token> map{};  // the target's token for each of its own; empty: they are the same
  int outputs = 1;               // rows of logits of one pass at most
  int sequences = 1;             // sequences that share a pass at most
  int parallel_levels = 0;  // levels whose logits the first pass gives (Medusa); 0: every level takes a pass of its own
  bool grows = false;       // grow() may be asked; cache() is not null then
};

// One sequence of a pass.
struct DraftRows {
  DraftTask* task = nullptr;
  DraftTail* tail = nullptr;
  // In: the tree that an inner drafter expects to follow, or null. run_text() may put its nodes on the tail and run
  // them in the same pass.
  const TokenTree* guesses = nullptr;
  std::span<const NodeId> nodes{};  // run_level: the nodes to run; they are on the tail already, from place `first` on
  int first = 0;
  int output = 0;  // the row of logits of node 0 (set by run_text) or of the first of `nodes`; the others follow
  int root = -1;   // set by run_text: where node 0 stands on the tail; -1: in the history
};

struct AcceptedTree {
  const Outcome* outcome = nullptr;
  const DraftTail* tail = nullptr;
};

// Rows of logits, in backend memory, valid until the next pass.
struct DraftLogits {
  const float* rows = nullptr;  // null: nothing can be drafted now
  int count = 0;
};

// Milliseconds spent in passes.
class PassTimer {
 public:
  template <class Pass>
  void time(const Pass& pass) {
    const double start = now_ms();
    pass();
    add(last_ = now_ms() - start);
  }
  void add(double ms) { total_ += ms; }
  double last() const { return last_; }  // of the last pass
  double take() { return std::exchange(total_, 0.0); }

 private:
  double last_ = 0, total_ = 0;
};

class DraftModel {
 public:
  virtual ~DraftModel() = default;

  virtual DraftShape shape() const = 0;
  // The cache that the network attends to; null: it has none. The TreeDrafter copies, saves and restores it.
  virtual DraftCache* cache() const { return nullptr; }
  // How many cells the cache has of a text of `tokens` tokens.
  virtual int cells(int tokens) const { return tokens; }
  // Equal: saved caches of the two networks mean the same.
  virtual std::string fingerprint() const { return {}; }

  // The text of `seq` ends after `length` tokens.
  virtual void truncate(SeqId seq, int length) {
    if (cache()) cache()->truncate(seq, length, length);
  }
  // Drafter::hold
  virtual bool hold(SeqId seq, int length) { return !cache() || cache()->hold(seq, length); }
  // Drafter::prefill and Drafter::behind: networks that read the text by themselves.
  virtual bool read(SeqId, std::span<const Token>) { return true; }
  virtual int behind(SeqId, std::span<const Token>) const { return 0; }

  // Networks that are fed the target's hidden states see every chunk of a prompt and the outcome of every round.
  virtual bool reads_states() const { return false; }
  // Whether the network has seen exactly the first `tokens` tokens. If it has not, it is shown nothing until the target
  // has run the text from covered() on again.
  virtual bool follows(SeqId, int) const { return true; }
  virtual int covered(SeqId seq) const { return cache() ? cache()->covered(seq) : std::numeric_limits<int>::max(); }
  virtual void read_prompt(const PromptChunk&) {}

  // Whether the network can draft after this text.
  virtual bool ready(const DraftTask&) const { return true; }
  // Catches up with the texts up to their pending tokens; the logits after these come first.
  virtual DraftLogits run_text(std::span<DraftRows> rows) = 0;
  // Whether `rows` more nodes fit behind the `uncommitted` ones on the tail.
  virtual bool has_room(const DraftTask& task, int uncommitted, int rows) const {
    return cache()->work(task.seq) + uncommitted + rows <= cache()->store().geometry().capacity;
  }
  // Runs one level of each tree: one row of logits per node. Networks with parallel levels are not asked.
  virtual DraftLogits run_level(std::span<const DraftRows>) { return {}; }
  // Grows the whole tree on the device, behind run_text(). False: nothing has been done.
  virtual bool grow(const DraftTask&, TreeGrowthArgs&) { return false; }

  // A round has ended; the target accepted a path of the tree. `tail`: the nodes that were run, their cells behind the
  // history.
  virtual void accept(const Outcome&, const DraftTail&) {}
  // The same for all sequences of a round.
  virtual void accept_all(std::span<const AcceptedTree> trees) {
    for (const AcceptedTree& t : trees) accept(*t.outcome, *t.tail);
  }

  PassTimer& timer() { return timer_; }

 protected:
  PassTimer timer_;
};

}  // namespace sx
