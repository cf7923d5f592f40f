// Drafting with an EAGLE head: slot j of its cache pairs the target's state after token j with token j + 1. States of tokens
// whose successor is not known yet wait; deeper levels of a tree are fed the head's own states.
#pragma once
#include <memory>
#include <vector>

#include "model/heads/eagle.h"
#include "speculative/budget/average.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/draft/candidates.h"
#include "speculative/draft/drafter.h"
#include "speculative/draft/level_draft.h"
#include "speculative/cache/draft_tail.h"

namespace sx {

struct EagleDrafterOptions {
  Backend* backend = nullptr;
  EagleHead* head = nullptr;            // max_rows >= a chunk of a prompt + kWaiting
  DraftCache* cache = nullptr;          // of pairs
  TreeConfig tree;
  CandidateOptions guess;
  bool on_backend = true;               // trees are grown by the backend where it can
  int slots = 1;
};

class EagleDrafter : public Drafter {
 public:
  static constexpr int kWaiting = 64;   // states that may wait before they are run

  explicit EagleDrafter(const EagleDrafterOptions& options);

  void open(SeqId seq) override { truncate(seq, 0); }
  void close(SeqId seq) override { truncate(seq, 0); }
  void truncate(SeqId seq, int length) override;
  bool prefill(SeqId, std::span<const Token>) override { return true; }  // it follows the target's prompt
  // States that wait are not kept: the target runs the last tokens again (covered).
  void copy(SeqId from, SeqId to, int length) override;
  size_t save_bytes(SeqId seq) const override { return options_.cache->save_bytes(seq); }
  void save(SeqId seq, std::ostream& to) const override { options_.cache->save(seq, to); }
  void restore(SeqId seq, std::istream& from, int length) override { options_.cache->restore(seq, from, std::max(0, length - 1), length); }
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override;
  bool reads_target() const override { return true; }
  void prompt(const PromptChunk& chunk) override;
  int covered(SeqId seq) const override { return pairs(seq) + slots_[size_t(seq)].waiting; }
  double take_cache_ms() override { return options_.cache->take_ms(); }
  std::span<const int32_t> working_cells(SeqId seq, int& refreshes) const override;
  double take_forward_ms() override { return std::exchange(forward_ms_, 0.0); }
  double level_ms() const override { return level_ms_; }

 private:
  struct Slot {
    int waiting = 0;                    // states after the pairs in the cache
    float* features = nullptr;          // [kWaiting, feature_width()] of these: they become states when they are run
    float* tail_states = nullptr;      // [kMaxTreeNodes + 1, width] what each node of the tail, and last the root, gave
    DraftTail tail;                   // nodes that have been run
    std::unique_ptr<TreePolicy> policy;
    std::vector<NodeId> next;
    std::vector<NodeCandidates> distributions;
  };
  Slot& slot(SeqId seq);
  size_t width() const { return size_t(options_.head->config().cell.width); }
  int pairs(SeqId seq) const { return options_.cache->length(seq); }
  // Runs the waiting states whose tokens `text` has; keeps the others waiting.
  void flush(SeqId seq, std::span<const Token> text);
  void copy_states(float* to, const float* from, int rows);
  void begin_step(const SeqRows& rows);
  void forward(KvStore& kv, int window = 0, bool cells_only = false);
  void draft_one(DraftTask& task);
  bool run_level(DraftTask& task);
  void make_candidates(DraftTask& task, int count);
  void take_candidates();
  bool grow_on_backend(DraftTask& task, const TreeGrowthSampling& how);

  EagleDrafterOptions options_;
  std::vector<Slot> slots_;
  std::vector<int32_t> which_;           // rows to be copied
  std::vector<Token> tokens_;           // one step
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
  float* states_ = nullptr;             // [rows, width] of the step
  CandidateFinder guesser_;
  LevelDraft levels_;
  const Token* map_ = nullptr;          // the head's own tokens as the target's, where levels are grown; backend memory
  EagleOutputs result_;
  double forward_ms_ = 0;
  Average level_ms_;
  double step_ms_ = 0;                  // of the last step; where ops run behind the host's back, until they were asked for
};

}  // namespace sx
