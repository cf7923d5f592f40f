// A round: draft a tree after each pending token, verify all trees in one pass of the target, judge, commit the accepted paths.
// Plain decoding is a round whose trees have one node.
#pragma once
#include <span>
#include <vector>

#include "engine/engine.h"
#include "engine/generation.h"
#include "spec/drafter.h"

namespace sx {

class Round {
 public:
  explicit Round(EngineImpl& engine);

  // Advances each request by at least one token, unless it ends. At most max_batch() requests at a time.
  void run(std::span<Generation* const> batch);
  int max_batch() const { return max_rows_; }

 private:
  void draft();
  double plain_ms(const Generation& g) const;
  bool affordable(Generation& g, DraftTask& task);
  void verify();
  void judge();
  void commit();
  void count();
  // Drops requests that have ended; true if any is left.
  bool go_on();
  double since(double& mark) const;
  const float* logits_of(const Generation& g) const { return step_->logits + size_t(g.first_row) * size_t(engine_.vocab()); }

  EngineImpl& engine_;
  Speculation& spec_;
  int max_rows_;
  std::vector<Generation*> active_;
  std::vector<DraftTask> tasks_;
  std::vector<Outcome> outcomes_;
  std::vector<Token> tokens_;           // the step, [rows]
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
  std::vector<KvMove> moves_;
  std::vector<int> committed_;          // per active request
  const StepOutputs* step_ = nullptr;   // of the round's pass
  PhaseTimes times_;
};

}  // namespace sx
