// One request: its options made ready, its text side (detokeniser, stop strings, penalties, grammar), and what came of
// it so far.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/cached_text.h"
#include "engine/engine_parts.h"
#include "engine/round_slot.h"
#include "engine/stop_strings.h"
#include "specextend/specextend.h"
#include "speculative/accept/accept.h"
#include "speculative/accept/penalties.h"
#include "speculative/budget/speculation_budget.h"
#include "speculative/draft/drafter.h"
#include "speculative/tree/tree_grammar.h"
#include "text/tokenizer.h"

namespace sx {

// The option `preset` of requests that do not speculate.
inline constexpr const char* kNoSpeculation = "off";

// Throws sx::Error naming what is wrong with a request's options or prompt.
void check_request(const Request& request, const EngineParts& engine);

class Generation {
 public:
  struct Parts {
    CachedText* text = nullptr;
    Speculation* spec = nullptr;
    std::unique_ptr<TreeGrammar> grammar;  // null: any text
  };
  // The request has been checked. `engine` and what the request points to outlive this.
  Generation(const Request& request, const EngineParts& engine, Parts parts);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  bool done() const { return done_; }
  bool decoding() const { return decoding_ && !done_; }
  const std::string& error() const { return error_; }
  bool models_fault() const { return models_fault_; }  // the error is not the request's
  bool no_memory() const { return no_memory_; }        // nor is it here
  int remaining() const { return limit_ - made(); }
  int made() const { return int(result_.tokens.size()); }
  const CachedText& text() const { return text_; }
  Speculation& spec() const { return spec_; }
  // The drafter that this request uses, or null.
  Drafter* drafter() const { return drafts_ ? spec_.drafter() : nullptr; }
  // Tokens of the text that its drafter has not read.
  int behind() const { return drafter()->behind(text_.seq(), text_.tokens()); }
  // Whether it cannot draft: it has to read that first, or has not seen the target run it.
  bool unread() const { return behind() > kMaxChain || !drafter()->follows(text_.seq(), text_.length()); }
  SpeculationBudget& budget() { return budget_; }
  double prompt_ms() const { return result_.timings.prompt_ms; }

  // Ends the request as cancelled if its owner says so; true if it has ended, now or before.
  bool poll_cancelled();
  // Memory for the cells of so many rows behind the text, of a tree if there are none, and for those of the drafter.
  // Where there is none for a drafter, the request goes on without it; where there is none at all, it ends.
  void hold_memory(int rows = 0);
  // Ends the request if the context is full or its limit reached.
  void end_if_exhausted();

  // The prompt. Tokens that are not in the KV cache yet; the last one stays pending and is not among them.
  std::span<const Token> waiting() const;
  // The logits of all its prompt are wanted.
  bool scored() const { return bool(options_.on_prompt_token); }
  // The first `rows` of the waiting tokens were rows of the last pass, from `row` on: tells their logits. Before
  // finish_piece().
  void score(int rows, int row);
  // The first `rows` of the waiting tokens were rows of a pass, from `row` of its outputs on.
  void finish_piece(int rows, const StepOutputs& outputs, int row);
  // Lets the drafter read a piece of the text it is behind with; returns the milliseconds that took.
  double catch_up();

  // A round. Fills the slot with a tree of the pending token and of what the grammar leaves no choice about; `share`:
  // drafted nodes it may have.
  void begin_tree(RoundSlot& slot, int share);
  // Whether its grammar has the next mask, or can make it before `until` (of now_ms()): only then may it be part of a
  // round. need_mask(): the round makes it, however long that takes.
  bool has_mask(double until) { return !grammar_ || grammar_->ready(until); }
  bool grammar_lent() const { return grammar_ && grammar_->lent(); }
  void need_mask() {
    if (grammar_) grammar_->take_back();
  }
  // What a drafter is asked for.
  DraftTask draft_task(const RoundSlot& slot, int share) const;
  // Drops nodes that the grammar forbids.
  void prune(RoundSlot& slot);
  // Walks the verified tree. `logits`: [tree size, vocab]. With `match` the walk is added to those of others and made
  // when these run, unless a grammar follows it.
  void accept(RoundSlot& slot, const float* logits, MatchWalks& walks);
  // Takes the accepted tokens into the text as far as they go; returns how many nodes of the path are to be committed,
  // 0 where the request failed before the first.
  int take(const RoundSlot& slot, const float* logits);
  // Counts a round in the statistics. `plain_ms`: what it would have taken without drafts; 0: not known.
  void count(const RoundSlot& slot, const PhaseTimes& times, double plain_ms);

  Timings timings() const;  // so far
  GenerateResult finish();

 private:
  bool show(const std::string& text);
  bool grammar_failed(NodeId node);
  void begin_decoding_if_prompt_done();
  bool reads_along() const;
  TreeLimits tree_limits(int share) const;
  bool may_end() const { return made() >= options_.min_tokens; }
  std::span<const TokenBias> bias() const { return may_end() ? bias_ : first_bias_; }
  void forbid_ends();
  void tell_round(const RoundSlot& slot, int accepted, const PhaseTimes& times, double plain_ms);
  void end(FinishReason reason);
  void fail(const std::string& why);
  // The model gave NaN or infinite logits for the token at this position of the text.
  void fail_at(size_t position);

  const EngineParts& engine_;
  CachedText& text_;
  const GenerateOptions& options_;
  Speculation& spec_;
  std::span<const Token> prompt_;
  Sampling sampling_;
  std::vector<TokenBias> bias_, first_bias_;  // first: of tokens before which the text must not end
  PenaltyWindow window_;
  std::unique_ptr<TreeGrammar> grammar_;
  SpeculationBudget budget_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  GenerateResult result_;
  std::string error_;
  int limit_;
  int most_nodes_ = 0, most_depth_ = 0;  // of its trees
  bool drafts_ = false, decoding_ = false, done_ = false, models_fault_ = false, no_memory_ = false;
  bool along_ = true;         // its drafter sees the target read the prompt
  size_t broken_prompt_ = 0;  // position of the first token of the prompt without logits; 0: they all have some
  double start_ = 0, prompt_end_ = 0;
  std::vector<int32_t> parents_;  // working memory for on_round
  std::vector<float> logits_;     // of one token, where a callback wants them
};

}  // namespace sx
