// One request being answered: its options made ready, its text side (detokeniser, stop strings, penalties), its tree of the
// current round, and what came of it so far.
#pragma once
#include <vector>

#include "engine/session.h"
#include "engine/stop.h"
#include "spec/acceptance.h"
#include "spec/controller.h"
#include "spec/penalties.h"
#include "text/tokenizer.h"

namespace sx {

class Generation {
 public:
  // Checks the request; throws sx::Error naming what is wrong.
  Generation(const Request& request, EngineImpl& engine);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Runs the prompt through target and drafter, chunk by chunk.
  void prefill();
  bool done() const { return done_; }
  // Ends the request as cancelled if its owner says so.
  bool cancelled();
  void end(FinishReason reason);
  // True: out of room or at its limit, the request has ended.
  bool exhausted();
  // Takes a verdict's tokens into the text as far as they go; returns how many nodes of the path are to be committed. `logits`:
  // [tree size, vocab].
  int take(const float* logits);
  // Counts a round: `drafted` tokens proposed, `committed` nodes of the path kept.
  void count(int drafted, int committed, const PhaseTimes& times);
  void add_times(const PhaseTimes& times);
  GenerateResult finish();

  SessionImpl& session;
  const GenerateOptions& options;
  Sampling sampling;
  std::vector<TokenBias> bias;
  PenaltyWindow window;
  Controller controller;
  Verdict verdict;
  TokenTree* tree = nullptr;     // of the session's slot
  DraftLaws* laws = nullptr;
  bool drafting = false;         // in this round
  int first_row = 0;             // of its tree in this round's pass
  int drafted = 0;               // tokens proposed in this round
  int remaining() const { return limit_ - int(result_.tokens.size()); }

 private:
  bool show(const std::string& text);
  bool chunks(std::span<const Token> tokens, int done, int total);

  EngineImpl& engine_;
  std::span<const Token> prompt_;
  Detokenizer detokenizer_;
  StopWatch stops_;
  GenerateResult result_;
  int limit_;
  bool done_ = false;
  double start_ = 0, prompt_end_ = 0;
  std::vector<int32_t> parents_;  // scratch for on_round
  std::vector<float> logits_;            // of one token, where they are listened to
};

}  // namespace sx
