// A drafter proposes a tree of tokens after the pending token. It may keep state per sequence; the text it is given
// with each draft is authoritative, and the drafter catches up with it by itself (a text only grows between calls of
// truncate and close).
#pragma once
#include <iosfwd>
#include <limits>
#include <span>
#include <string>

#include "backend/ops.h"
#include "model/model.h"
#include "speculative/draft/draft_probs.h"
#include "speculative/tree/tree.h"
#include "speculative/tree/policy.h"

namespace sx {

class TreeGrammar;

inline constexpr int kMaxChain = 64;  // rows of a sequence that are run as a tree; longer chains are run like prompts

struct DraftTask {
  SeqId seq = 0;
  std::span<const Token> text;         // all of it; the last token is pending and is node 0 of the tree
  const Sampling* sampling = nullptr;  // the request's own
  std::span<const TokenBias> bias;
  std::span<const TokenCount> counts;  // penalty window at the pending token; empty: no penalties
  TreeLimits limits;                   // of this round, within what the configuration allows
  TokenTree* tree = nullptr;           // just node 0; to be grown and finished
  bool cheap_only = false;  // no model passes in this round; drafters that only run a model are not asked then
  int model_depth = std::numeric_limits<int>::max();  // levels that a model may add where an index drafts, too
  DraftProbs* distributions =
      nullptr;  // where distributions are kept when children are drawn (DrawMode other than kBest)
  TreeGrammar* grammar =
      nullptr;  // that the text follows; null: none. Drafters may propose tokens that it forbids: the tree is pruned
};

// The result of a round.
struct Outcome {
  SeqId seq = 0;
  const TokenTree* tree = nullptr;  // as verified
  std::span<const NodeId> path;     // committed nodes, ascending, beginning with node 0
  Token next = kNoToken;            // chosen after the last of them: the new pending token
  // For drafters that read the target's hidden states or queries: the pass, the row of node 0 in it, and the text with
  // the new pending token.
  const StepOutputs* outputs = nullptr;
  int first_row = 0;
  int history = 0;  // tokens committed before the round
  std::span<const Token> text{};
  bool may_draft = true;  // the request may draft in the next round; else the target's queries need not be kept
};

// A chunk of a prompt went through the target: rows [first_row, first_row + rows) of the outputs are tokens [first,
// first + rows) of the text, which ends with them.
struct PromptChunk {
  SeqId seq = 0;
  int first = 0, rows = 0;
  const StepOutputs* outputs = nullptr;
  std::span<const Token> text;
  int first_row = 0;
};

// What a drafter keeps of its texts, for sessions that are copied, saved and restored, and for those who want to see
// it. Drafters that make everything from the text again keep nothing.
class DraftState {
 public:
  virtual ~DraftState() = default;
  // The text of `to`, which was empty, is now the first `length` tokens of that of `from`: takes over what is known of
  // them.
  virtual void copy(SeqId, SeqId, int) {}
  // What is known of the text, to be restored behind a truncate(seq, 0) by this or another drafter with the same
  // fingerprint.
  virtual size_t save_bytes(SeqId) const { return 0; }
  virtual void save(SeqId, std::ostream&) const {}
  virtual void restore(SeqId, std::istream&, int length) { (void)length; }  // throws sx::Error on what it did not save
  virtual std::string fingerprint() const { return {}; }
  // The cells of the text that the drafter attends to where these are not all, ascending; `refreshes`: how often they
  // have been chosen.
  virtual std::span<const int32_t> working_cells(SeqId, int& refreshes) const {
    return refreshes = 0, std::span<const int32_t>();
  }
};

struct DraftTimes {
  double forward = 0;  // milliseconds in forward passes; the rest of draft() is host work
  double cache = 0;    // in choosing and gathering the cells that the drafter works on
};

class Drafter {
 public:
  virtual ~Drafter() = default;

  virtual void open(SeqId seq) = 0;  // a slot is taken: an empty text
  virtual void close(SeqId seq) = 0;
  // Forgets everything about the text from `length` tokens on.
  virtual void truncate(SeqId seq, int length) = 0;
  // Memory for what it keeps of a text of so many tokens and of the drafts behind it. False: there is none, and it must
  // not be asked to read or to draft.
  virtual bool hold(SeqId, int length) { return (void)length, true; }
  // Does a piece of the work of catching up with `text` (without the pending token); true when there is nothing left.
  // The engine calls it after the target's prompt, and may stop in between.
  virtual bool prefill(SeqId seq, std::span<const Token> text) = 0;
  // Tokens of `text` that the drafter would still have to run before it can draft.
  virtual int behind(SeqId, std::span<const Token>) const { return 0; }
  virtual void draft(std::span<DraftTask> tasks) = 0;
  virtual void observe(std::span<const Outcome> outcomes) = 0;
  // A request has ended; the last `answer` tokens of the text are what it wrote. Drafters that look earlier texts up
  // may keep them.
  virtual void remember(std::span<const Token> text, int answer) { (void)text, (void)answer; }
  // Drafters that read the target's hidden states or queries see every chunk of a prompt and the outcome of every
  // round, drafted or not.
  virtual bool reads_target() const { return false; }
  virtual void prompt(const PromptChunk&) {}
  // Tokens of the text whose pass such a drafter has seen and kept; the target must run the others again.
  virtual int covered(SeqId) const { return std::numeric_limits<int>::max(); }
  // Whether it has seen all of a text of so many tokens. If it has not, it drafts nothing until the target has run them
  // again.
  virtual bool follows(SeqId, int length) const { return (void)length, true; }
  virtual DraftState& state() {
    static DraftState nothing;
    return nothing;
  }
  // Expected milliseconds of one more level; 0: levels are free.
  virtual double level_ms() const { return 0; }
  // Time spent since the last call.
  virtual DraftTimes take_times() { return {}; }
};

}  // namespace sx
