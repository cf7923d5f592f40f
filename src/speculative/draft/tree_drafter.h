// The one loop by which networks draft trees: catch up with the text, then level by level run the nodes that the tree
// policy asks for and turn their logits into candidates. It owns what all networks share: per sequence a draft tail and
// a policy, candidates, the measured time of a level, device-side growth, copying, saving and restoring.
//
// An inner drafter may propose tokens first (staged drafting, as in TriForce): the network runs what it proposes in the
// same pass as the pending token, and as far as the network agrees the levels need no passes of their own. The tree is
// the same as without.
#pragma once
#include <memory>
#include <vector>

#include "speculative/budget/average.h"
#include "speculative/draft/candidates.h"
#include "speculative/draft/draft_model.h"
#include "speculative/draft/drafter.h"
#include "speculative/draft/level_draft.h"

namespace sx {

struct TreeDrafterOptions {
  Backend* backend = nullptr;
  TreeConfig tree;
  CandidateOptions guess;  // how logits become candidates
  bool on_backend = true;  // the backend grows trees where it can
  int slots = 1;
  int ahead = 0;  // nodes that the inner drafter guesses at most
};

// Rows whose logits one pass of a network needs.
int tree_drafter_rows(const TreeConfig& tree, int slots, int ahead = 0);

class TreeDrafter final : public Drafter, private DraftState {
 public:
  // `inner` goes with options.ahead > 0 and a chain.
  TreeDrafter(const TreeDrafterOptions& options, std::unique_ptr<DraftModel> model,
              std::unique_ptr<Drafter> inner = nullptr);

  void open(SeqId seq) override;
  void close(SeqId seq) override;
  void truncate(SeqId seq, int length) override;
  bool hold(SeqId seq, int length) override {
    return model_->hold(seq, length) && (!inner_ || inner_->hold(seq, length));
  }
  bool prefill(SeqId seq, std::span<const Token> text) override;
  int behind(SeqId seq, std::span<const Token> text) const override;
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override;
  void remember(std::span<const Token> text, int answer) override;
  bool reads_target() const override;
  void prompt(const PromptChunk& chunk) override;
  int covered(SeqId seq) const override { return model_->covered(seq); }
  bool follows(SeqId seq, int length) const override { return model_->follows(seq, length); }
  DraftState& state() override { return *this; }
  double level_ms() const override { return level_ms_; }
  DraftTimes take_times() override;

 private:
  void copy(SeqId from, SeqId to, int length) override;
  size_t save_bytes(SeqId seq) const override;
  void save(SeqId seq, std::ostream& to) const override;
  void restore(SeqId seq, std::istream& from, int length) override;
  std::string fingerprint() const override {
    return model_->fingerprint() + (inner_ ? inner_->state().fingerprint() : "");
  }
  std::span<const int32_t> working_cells(SeqId seq, int& refreshes) const override;

  struct Slot {
    DraftTail tail;  // nodes that have been run; their cells lie behind the history
    std::unique_ptr<TreePolicy> policy;
    std::vector<NodeId> next;  // nodes that the policy wants to be run
    std::vector<NodeCandidates> candidates;
  };
  Slot& slot(SeqId seq);
  void draft_group(std::span<DraftTask> tasks);
  void guess_ahead();
  void prepare_candidates();
  bool grow_on_backend(DraftTask& task, const TreeGrowthSampling& how);
  void expand(DraftTask& task, int row, int count);
  void expand_text(const DraftRows& rows);
  void expand_parallel(const DraftRows& rows);
  bool run_level();
  void observe_level(double ms);

  const TreeDrafterOptions options_;
  const std::unique_ptr<DraftModel> model_;
  const std::unique_ptr<Drafter> inner_;  // or null
  const DraftShape shape_;
  std::vector<Slot> slots_;
  size_t group_;  // sequences drafted together
  CandidateFinder finder_;
  LevelDraft levels_;                    // has no rows where the backend or the network cannot grow trees
  std::vector<DraftRows> rows_, level_;  // sequences of the group, and those of them whose level is run now
  DraftLogits logits_;                   // of the last pass
  std::vector<AcceptedTree> accepted_;
  std::vector<DraftTask> inner_tasks_;
  std::vector<TokenTree> guesses_;  // [slots] what the inner drafter proposes
  double candidates_ms_ = 0;
  double step_ms_ = 0;  // the last pass and its candidates: a device may work until these are asked for
  Average level_ms_;
};

}  // namespace sx
