// Drafting with a language model: a small one with a cache of its own, or the target itself with layers left out, on the
// target's cache. A tree policy says which nodes to run; the model's distributions become candidates.
//
// A drafter inside this one may guess ahead (uncommitted speculation, TriForce): what it proposes goes through the model in the same pass as the
// pending token, and as far as the model agrees the levels need no passes of their own. The tree is the same as without.
#pragma once
#include <memory>
#include <vector>

#include "kv/sequence_table.h"
#include "speculative/budget/average.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/draft/drafter.h"
#include "speculative/draft/candidates.h"
#include "speculative/draft/level_draft.h"
#include "speculative/cache/draft_tail.h"
#include "speculative/tree/policy.h"

namespace sx {

struct ModelDrafterOptions {
  Backend* backend = nullptr;
  Model* model = nullptr;               // max_outputs >= rows of the policy; keeps its queries if the cache reads them
  DraftCache* cache = nullptr;          // null: the target drafts for itself on its own cache, `kv`
  KvStore* kv = nullptr;
  TreeConfig tree;
  CandidateOptions guess;                   // how distributions become candidates
  bool on_backend = true;               // trees are grown by the backend where it can
  int slots = 1;
  int ahead = 0;                        // nodes the inner drafter guesses at most
  int vocab = 0;                        // of the target; tokens beyond the smaller vocabulary are never drafted
  std::vector<uint8_t> skip_attention, skip_ffn;  // [layers] or empty
};

// Rows whose logits one step of the drafter needs.
int model_drafter_rows(const TreeConfig& tree, int slots, int ahead = 0);

class ModelDrafter : public Drafter {
 public:
  explicit ModelDrafter(const ModelDrafterOptions& options, std::unique_ptr<Drafter> inner = nullptr);

  void open(SeqId seq) override;
  void close(SeqId seq) override;
  void truncate(SeqId seq, int length) override;
  bool prefill(SeqId seq, std::span<const Token> text) override;
  int behind(SeqId seq, std::span<const Token> text) const override;
  void copy(SeqId from, SeqId to, int length) override;
  size_t save_bytes(SeqId seq) const override;
  void save(SeqId seq, std::ostream& to) const override;
  void restore(SeqId seq, std::istream& from, int length) override;
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override;
  void remember(std::span<const Token> text, int answer) override {
    if (inner_) inner_->remember(text, answer);
  }
  double take_forward_ms() override;
  double take_cache_ms() override { return (options_.cache ? options_.cache->take_ms() : 0) + (inner_ ? inner_->take_cache_ms() : 0); }
  double level_ms() const override { return level_ms_; }
  bool reads_target() const override { return options_.cache && options_.cache->reads_target(); }
  void prompt(const PromptChunk& chunk) override;
  int covered(SeqId seq) const override {
    return options_.cache ? options_.cache->covered(seq) : Drafter::covered(seq);
  }
  std::span<const int32_t> working_cells(SeqId seq, int& refreshes) const override;

 private:
  struct Slot {
    DraftTail tail;                   // nodes that have been run; cells behind the history
    std::unique_ptr<TreePolicy> policy;
    std::vector<NodeId> next;
    std::vector<NodeCandidates> distributions;
    int first_row = 0;                  // of this task in the current step
    int first_output = 0;               // the row of logits of node 0 in the first step; those of guesses follow
  };

  Slot& slot(SeqId seq);
  KvStore& kv() { return options_.cache ? options_.cache->store() : *options_.kv; }
  void draft_group(std::span<DraftTask> tasks);
  bool read_piece(SeqId seq, std::span<const Token> text);
  void catch_up(std::span<DraftTask> tasks);
  bool run_level(std::span<DraftTask> tasks);
  void guess_ahead(std::span<DraftTask> tasks);
  int place_guesses(const DraftTask& task, int most);
  void add_known_and_guessed(DraftTask& task, int from, int most);
  void take_guessed(DraftTask& task);
  void make_candidates(DraftTask& task, int row, int count);
  int add_rows(const SeqRows& rows);
  const StepOutputs& forward(KvStore& kv, int window = 0);
  LayerPlan plan(int window) const;
  void take_candidates();
  bool grow_on_backend(DraftTask& task, const TreeGrowthSampling& how);

  ModelDrafterOptions options_;
  std::unique_ptr<Drafter> inner_;      // or null
  std::vector<DraftTask> inner_tasks_;
  std::vector<TokenTree> guesses_;      // [slots] what it proposes
  std::vector<int> places_, depths_;    // of its nodes on the tail, -2: not run; levels of those that are
  std::vector<uint64_t> ahead_bits_;    // [slots][kMaxChain][DraftTail::kWords] ancestors of known and guessed rows
  int vocab_;                           // common to both models
  int rows_;                            // of one step
  int most_new_;                        // cells that are run on the working cache at once
  std::vector<Slot> slots_;
  std::vector<Token> tokens_;           // one step, [rows]
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
  std::vector<KvMove> moves_;
  CandidateFinder guesser_;
  LevelDraft levels_;
  const float* logits_ = nullptr;       // of the last step
  double forward_ms_ = 0;
  Average level_ms_;
  double step_ms_ = 0;                  // of the last step; where ops run behind the host's back, until they were asked for
};

}  // namespace sx
