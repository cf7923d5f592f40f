// A round: draft a tree after each pending token, verify all trees in one pass of the target, accept, commit the accepted paths.
// Plain decoding is a round whose trees have one node. Pieces of prompts of other requests ride along in the same pass, or, where
// the backend runs prompts in another way, in one after it.
#pragma once
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/generation.h"
#include "speculative/draft/drafter.h"

namespace sx {

// The next `rows` tokens of a request's prompt.
struct PromptPiece {
  Generation* generation = nullptr;
  int rows = 0;
  int first_row = 0;             // in the pass
};

class Round {
 public:
  explicit Round(EngineImpl& engine);

  // Advances each request of `batch` by at least one token, unless it ends, and the prompts by their pieces. At most max_batch()
  // requests; prompts of EngineImpl::shared_prompt_rows() together, or a whole chunk where `batch` is empty. `company`: requests that are being
  // answered in all, those whose prompt has still to be read included.
  void run(std::span<Generation* const> batch, std::span<const PromptPiece> prompts, int company);
  int max_batch() const { return max_outputs_; }

 private:
  void draft();
  void draft_with(Speculation& spec);
  void draft_forced(Generation& g);
  TreeLimits limits_of(const Generation& g) const;
  double plain_ms(const Generation& g) const;
  double hoped_level(const Generation& g) const;
  void set_costs(const Generation& g, int drafting);
  double verifying(const Generation& g) const;
  double hoped_saving(const Generation& g) const;
  bool worth_reading(const Generation& g, int behind);
  bool within_budget(Generation& g, DraftTask& task);
  void begin_step();
  void add_trees();
  void add_prompts();
  void pass(int outputs, bool prompt);
  void verify(bool with_prompts);
  void accept();
  void commit();
  void observe(Speculation& spec);
  void run_prompts();
  bool scored() const;  // logits of prompts are wanted
  void score_prompts();
  void end_prompts();
  void count();
  void settle(double ms);
  void catch_up();
  // Drops requests that have ended; true if any is left.
  bool go_on();
  double since(double& mark) const;
  const float* logits_of(const Generation& g) const { return step_->logits + size_t(g.first_row) * size_t(engine_.vocab()); }

  EngineImpl& engine_;
  int max_outputs_;
  std::vector<Generation*> active_;
  std::vector<PromptPiece> prompts_;
  std::vector<DraftTask> tasks_;
  std::vector<Outcome> outcomes_;
  std::vector<Token> tokens_;           // the step, [rows]
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
  std::vector<KvMove> moves_;
  std::vector<int> committed_, histories_;  // per active request: nodes kept, tokens before the round
  const StepOutputs* step_ = nullptr;   // of the round's pass
  PhaseTimes times_;
  int company_ = 1;
  bool shared_pass_ = false;            // pieces of prompts were part of the round
};

}  // namespace sx
