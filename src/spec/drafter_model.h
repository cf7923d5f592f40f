// Drafting with a language model: a small one with a cache of its own, or the target itself with layers left out, on the
// target's cache. A tree policy says which nodes to run; the model's laws become candidates.
#pragma once
#include <memory>
#include <vector>

#include "kv/book.h"
#include "spec/drafter.h"
#include "spec/draft_laws.h"
#include "spec/strip.h"
#include "spec/tree_policy.h"

namespace sx {

struct ModelDrafterOptions {
  Backend* backend = nullptr;
  Model* model = nullptr;               // max_outputs >= rows of the policy
  KvStore* kv = nullptr;                // capacity >= context + strip when it is the drafter's own
  TreeConfig tree;
  GuessOptions guess;                   // how laws become candidates
  int slots = 1;
  int vocab = 0;                        // of the target; tokens beyond the smaller vocabulary are never drafted
  bool own_cache = true;                // false: the target's cache; the model is the target
  std::vector<uint8_t> skip_attention, skip_ffn;  // [layers] or empty
};

// Rows whose logits one step of the drafter needs.
int model_drafter_rows(const TreeConfig& tree, int slots);

class ModelDrafter : public Drafter {
 public:
  explicit ModelDrafter(const ModelDrafterOptions& options);

  void open(SeqId seq) override;
  void close(SeqId seq) override;
  void truncate(SeqId seq, int length) override;
  bool prefill(SeqId seq, std::span<const Token> text) override;
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override;
  double take_forward_ms() override;
  double level_ms() const override { return level_ms_; }

 private:
  struct Slot {
    int length = 0;                     // cells of the history (own cache)
    DraftStrip strip;                   // nodes that have been run; cells behind the history
    std::unique_ptr<TreePolicy> policy;
    std::vector<NodeId> next;
    std::vector<NodeLaw> laws;
    int first_row = 0;                  // of this task in the current step
  };

  Slot& slot(SeqId seq);
  void draft_group(std::span<DraftTask> tasks);
  void catch_up(std::span<DraftTask> tasks);
  bool run_level(std::span<DraftTask> tasks);
  void make_laws(DraftTask& task, int row, int count);
  int add_rows(const SeqRows& rows);
  const StepOutputs& forward();

  ModelDrafterOptions options_;
  int vocab_;                           // common to both models
  int rows_;                            // of one step
  std::vector<Slot> slots_;
  std::vector<Token> tokens_;           // one step, [rows]
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
  std::vector<KvMove> moves_;
  Guesser guesser_;
  const float* logits_ = nullptr;       // of the last step
  double forward_ms_ = 0, level_ms_ = 0;
};

}  // namespace sx
