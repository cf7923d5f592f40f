// Drafting with LongSpec's head: it looks at its own cells of the last tokens and at the target's cells of the whole text. Cells of its own
// are made of tokens alone, so it has no prompt to read: what its window needs is run when it drafts for the first time.
//
// The store holds the text from `base` on, which depends on the text's length only and moves by a window at a time. Instead of all of
// the target's cells it may look at chosen ones (DraftCache), which stand at their positions in the text.
#pragma once
#include <memory>
#include <utility>
#include <vector>

#include "model/heads/longspec.h"
#include "speculative/budget/average.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/draft/candidates.h"
#include "speculative/draft/drafter.h"
#include "speculative/cache/draft_tail.h"

namespace sx {

struct LongSpecDrafterOptions {
  Backend* backend = nullptr;
  LongSpecHead* head = nullptr;          // options().cells = longspec_cells(window)
  KvStore* kv = nullptr;                 // its own cells
  const KvStore* target_kv = nullptr;
  DraftCache* cache = nullptr;           // of the target's cells; null: it looks at all of them
  TreeConfig tree;
  CandidateOptions guess;
  int slots = 1;
  int window = 512;
};

// Cells of its own store: two windows and a tree.
int longspec_cells(int window);

class LongSpecDrafter : public Drafter {
 public:
  explicit LongSpecDrafter(const LongSpecDrafterOptions& options);

  void open(SeqId seq) override { truncate(seq, 0); }
  void close(SeqId seq) override { truncate(seq, 0); }
  void truncate(SeqId seq, int length) override;
  bool prefill(SeqId, std::span<const Token>) override { return true; }
  void copy(SeqId from, SeqId to, int length) override;
  size_t save_bytes(SeqId seq) const override { return options_.cache ? options_.cache->save_bytes(seq) : 0; }
  void save(SeqId seq, std::ostream& to) const override;
  void restore(SeqId seq, std::istream& from, int length) override;
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override;
  bool reads_target() const override { return options_.cache && options_.cache->reads_target(); }
  void prompt(const PromptChunk& chunk) override;
  int covered(SeqId seq) const override { return options_.cache ? options_.cache->covered(seq) : Drafter::covered(seq); }
  std::span<const int32_t> working_cells(SeqId seq, int& refreshes) const override;
  double take_cache_ms() override { return options_.cache ? options_.cache->take_ms() : 0; }
  double take_forward_ms() override { return std::exchange(forward_ms_, 0.0); }
  double level_ms() const override { return level_ms_; }

 private:
  struct Slot {
    int base = 0, length = 0;            // cells of tokens [base, length) of the text
    DraftTail tail;                    // nodes that have been run
    std::unique_ptr<TreePolicy> policy;
    std::vector<NodeId> next;
    std::vector<NodeCandidates> distributions;
  };
  Slot& slot(SeqId seq);
  int base_for(int length) const { return length < 2 * options_.window ? 0 : (length / options_.window - 1) * options_.window; }
  void move_base(SeqId seq, int base);
  void add(Token token, int position);
  void run_own(const SeqRows& rows);
  bool look(SeqId seq);
  bool run_text(DraftTask& task);
  bool run_level(DraftTask& task);
  void make_candidates(DraftTask& task);
  void draft_one(DraftTask& task);

  LongSpecDrafterOptions options_;
  std::vector<Slot> slots_;
  std::vector<Token> tokens_;            // one step
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
  std::vector<KvMove> moves_;
  CandidateFinder guesser_;
  const float* logits_ = nullptr;        // of the last step
  double forward_ms_ = 0;
  Average level_ms_;
};

}  // namespace sx
