// Drafting with Medusa's heads: head d guesses the token d + 1 places after the pending one from the target's state of the
// last committed token, whatever stands in between. So one pass gives the distributions of all nodes: nodes of a level share theirs.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "model/heads/medusa.h"
#include "speculative/draft/candidates.h"
#include "speculative/draft/drafter.h"

namespace sx {

struct MedusaDrafterOptions {
  Backend* backend = nullptr;
  MedusaHeads* heads = nullptr;         // max_rows >= slots
  TreeConfig tree;                      // levels beyond the heads stay empty
  CandidateOptions guess;
  int slots = 1;
};

class MedusaDrafter : public Drafter {
 public:
  explicit MedusaDrafter(const MedusaDrafterOptions& options);

  void open(SeqId seq) override { truncate(seq, 0); }
  void close(SeqId seq) override { truncate(seq, 0); }
  void truncate(SeqId seq, int length) override;
  bool prefill(SeqId, std::span<const Token>) override { return true; }  // it follows the target's prompt
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override;
  bool reads_target() const override { return true; }
  void prompt(const PromptChunk& chunk) override;
  int covered(SeqId seq) const override { return slots_[size_t(seq)].length; }
  double take_forward_ms() override { return std::exchange(forward_ms_, 0.0); }
  double level_ms() const override { return 0; }  // the first level's pass gives the others

 private:
  struct Slot {
    int length = 0;                     // tokens of the text up to the one whose state is kept
    bool known = false;                 // it is kept
    float* state = nullptr;             // [width]
    std::unique_ptr<TreePolicy> policy;
    std::vector<NodeId> next;
    std::vector<NodeCandidates> distributions;
    std::vector<std::span<const Candidate>> levels;  // [heads] candidates of each level, made when first asked for
  };
  Slot& slot(SeqId seq);
  size_t width() const { return size_t(options_.heads->config().cell.width); }
  bool ready(const DraftTask& task) const;
  void keep(Slot& slot, const StepOutputs& outputs, int row, int length);
  void forward(std::span<const DraftTask> tasks);
  void draft_one(DraftTask& task, int row);
  void make_candidates(DraftTask& task, int row);
  std::span<const Candidate> candidates(DraftTask& task, int row, NodeId node, int place);

  MedusaDrafterOptions options_;
  std::vector<Slot> slots_;
  float* states_ = nullptr;             // [slots, width] of the pass
  const float* logits_ = nullptr;       // [slots, heads, draft_vocab] of the pass
  CandidateFinder guesser_;
  double forward_ms_ = 0;
};

}  // namespace sx
