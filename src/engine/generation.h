// One request being answered: its options made ready, its text side (detokeniser, stop strings, penalties), its tree of the
// current round, and what came of it so far.
#pragma once
#include <vector>

#include "engine/session.h"
#include "engine/stop_strings.h"
#include "speculative/accept/accept.h"
#include "speculative/budget/speculation_budget.h"
#include "speculative/accept/penalties.h"
#include "speculative/tree/tree_grammar.h"
#include "text/tokenizer.h"

namespace sx {

class Generation {
 public:
  // Checks the request; throws sx::Error naming what is wrong.
  Generation(const Request& request, EngineImpl& engine);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  bool done() const { return done_; }
  bool decoding() const { return decoding_ && !done_; }
  // Tokens of the prompt that are not in the cache yet; the last one stays pending and is not among them.
  std::span<const Token> waiting() const;
  // The logits of all its prompt are wanted.
  bool scored() const { return bool(options.on_prompt_token); }
  // The first `rows` of those that wait were rows of the last pass, from `row` on: tells their logits. Before prompted().
  void score(int rows, int row);
  // The first `rows` of them were rows of a pass, from `row` of its outputs on.
  void prompted(int rows, const StepOutputs& outputs, int row);
  // The drafter that this request uses, or null.
  Drafter* drafter() const { return drafts_ ? spec.drafter() : nullptr; }
  // Lets the drafter read a piece of the text it is behind with.
  void catch_up();
  // Ends the request as cancelled if its owner says so.
  bool cancelled();
  void fail(const std::string& why);
  const std::string& error() const { return error_; }
  bool models_fault() const { return models_fault_; }  // the error is not the request's
  void end(FinishReason reason);
  // True: out of room or at its limit, the request has ended.
  bool exhausted();
  // Takes a result's tokens into the text as far as they go; returns how many nodes of the path are to be committed, 0 where the request failed
  // before the first. `logits`: [tree size, vocab].
  int take(const float* logits);
  // Counts a round: `drafted` tokens proposed, `committed` nodes of the path kept.
  void count(int drafted, int committed, const PhaseTimes& times, double plain_ms);
  void add_times(const PhaseTimes& times);
  GenerateResult finish();
  Timings timings() const;         // so far

  SessionImpl& session;
  const GenerateOptions& options;
  Speculation& spec;
  Sampling sampling;
  std::vector<TokenBias> bias;
  PenaltyWindow window;
  std::unique_ptr<TreeGrammar> grammar;  // null: any text
  SpeculationBudget draft_budget;
  AcceptResult result;
  TokenTree* tree = nullptr;     // of the session's slot
  DraftProbs* distributions = nullptr;
  std::vector<uint8_t> broken;   // [tree size]: nodes whose logits are no numbers
  bool drafting = false;         // in this round
  bool shallow = false;          // and less deep than wanted, for want of balance
  int first_row = 0;             // of its tree in this round's pass
  int drafted = 0;               // tokens proposed in this round
  int most_nodes = 0, most_depth = 0;  // of its trees
  int64_t arrival = 0;           // for whoever decides which prompt comes first
  int remaining() const { return limit_ - int(result_.tokens.size()); }

 private:
  bool show(const std::string& text);  // false: the request is cancelled
  bool failed(NodeId node);
  // Tells how far the prompt is; begins to decode when it is done.
  void go_on();
  // The model gave no logits for the token at this place of the text.
  void fail_at(size_t position);

  EngineImpl& engine_;
  std::span<const Token> prompt_;
  Detokenizer detokenizer_;
  StopMatcher stops_;
  GenerateResult result_;
  std::string error_;
  int limit_;
  bool drafts_ = false, decoding_ = false, done_ = false, models_fault_ = false;
  size_t broken_prompt_ = 0;      // place of the first token of the prompt without logits; 0: they all have some
  double start_ = 0, prompt_end_ = 0;
  std::vector<int32_t> parents_;  // scratch for on_round
  std::vector<float> logits_;     // of one token, where they are listened to
};

}  // namespace sx
