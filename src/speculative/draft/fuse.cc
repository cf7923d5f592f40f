// One tree from two drafters: the index proposes first because it costs nothing; the model drafts unless the index is
// as good as certain; the union of their paths competes for the budget by score. After RASD (union under one budget)
// and HOWL (no model pass while the text is being copied).
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "base/error.h"
#include "speculative/draft/copy_confidence.h"
#include "speculative/draft/drafters.h"
#include "speculative/draft/registry.h"
#include "speculative/tree/tree_grammar.h"

namespace sx {
namespace {

// The index alone drafts from this chance of its first token and this many tokens it expects to be accepted.
constexpr double kSureFirst = 0.8, kSureTokens = 3;

class FuseDrafter final : public Drafter {
 public:
  FuseDrafter(std::unique_ptr<Drafter> model, std::unique_ptr<Drafter> index, int slots, int nodes)
      : model_(std::move(model)), index_(std::move(index)) {
    if (!model_ || !index_) fail("fusing drafters: two are needed");
    if (slots < 1 || nodes < 1)
      fail("fusing drafters: {} slots and {} nodes, expected at least one of each", slots, nodes);
    found_.reserve(size_t(slots));
    for (int i = 0; i < slots; ++i) found_.emplace_back(nodes + 1);
    index_tasks_.reserve(size_t(slots));
    model_tasks_.reserve(size_t(slots));
    place_.reserve(size_t(nodes) + 1);
    missing_.reserve(size_t(nodes));
    scores_.reserve(kMaxTreeNodes);
  }

  void open(SeqId seq) override { model_->open(seq), index_->open(seq); }
  void close(SeqId seq) override { model_->close(seq), index_->close(seq); }
  void truncate(SeqId seq, int length) override { model_->truncate(seq, length), index_->truncate(seq, length); }
  bool hold(SeqId seq, int length) override { return model_->hold(seq, length) && index_->hold(seq, length); }
  bool prefill(SeqId seq, std::span<const Token> text) override {
    const bool indexed = index_->prefill(seq, text);
    return model_->prefill(seq, text) && indexed;
  }
  int behind(SeqId seq, std::span<const Token> text) const override { return model_->behind(seq, text); }
  void draft(std::span<DraftTask> tasks) override;
  void observe(std::span<const Outcome> outcomes) override {
    model_->observe(outcomes);
    index_->observe(outcomes);
  }
  void remember(std::span<const Token> text, int answer) override {
    model_->remember(text, answer), index_->remember(text, answer);
  }
  bool reads_target() const override { return model_->reads_target(); }
  void prompt(const PromptChunk& chunk) override { model_->prompt(chunk); }
  int covered(SeqId seq) const override { return model_->covered(seq); }
  bool follows(SeqId seq, int length) const override { return model_->follows(seq, length); }
  DraftState& state() override { return model_->state(); }  // the index is made of the text
  double level_ms() const override { return model_->level_ms(); }
  DraftTimes take_times() override {
    const DraftTimes model = model_->take_times(), index = index_->take_times();
    return {model.forward + index.forward, model.cache + index.cache};
  }

 private:
  static bool sure(const TokenTree& found, const TreeLimits& limits);
  void merge(const DraftTask& task, const TokenTree& found);
  float make_room(TokenTree& tree, int nodes);
  void finish(TokenTree& tree, const TreeLimits& limits);

  std::unique_ptr<Drafter> model_, index_;
  std::vector<TokenTree> found_;  // [slots] what the index proposes
  std::vector<DraftTask> index_tasks_, model_tasks_;
  std::vector<NodeId> place_;  // of the index's nodes in the merged tree
  std::vector<float> missing_, scores_;
};

void FuseDrafter::draft(std::span<DraftTask> tasks) {
  SX_ASSERT(tasks.size() <= found_.size());
  index_tasks_.clear();
  model_tasks_.clear();
  for (size_t i = 0; i < tasks.size(); ++i) {
    index_tasks_.push_back(tasks[i]);
    found_[i].reset(tasks[i].text.back());
    index_tasks_[i].tree = &found_[i];
    // Costs count once, for the whole tree: a node the model proposes too is worth more than the index knows.
    index_tasks_[i].limits.verify_cost = nullptr;
  }
  index_->draft(index_tasks_);
  for (DraftTask& task : index_tasks_)
    if (task.grammar) task.grammar->prune(*task.tree);
  for (size_t i = 0; i < tasks.size(); ++i)
    if (!tasks[i].cheap_only && !sure(found_[i], tasks[i].limits)) {
      model_tasks_.push_back(tasks[i]);
      model_tasks_.back().limits.depth = std::min(tasks[i].limits.depth, tasks[i].model_depth);
    }
  if (!model_tasks_.empty()) model_->draft(model_tasks_);
  for (size_t i = 0; i < tasks.size(); ++i) {
    merge(tasks[i], found_[i]);
    finish(*tasks[i].tree, tasks[i].limits);
  }
}

// Without costs nothing says that a pass of the model is dear.
bool FuseDrafter::sure(const TokenTree& found, const TreeLimits& limits) {
  if (!limits.verify_cost || limits.level_cost <= 0) return false;
  double first = 0, tokens = 0;
  for (NodeId n = 1; n < found.size(); ++n) {
    const double chance = std::exp(static_cast<double>(found.score(n)));
    tokens += chance;
    if (found.depth(n) == 1) first = std::max(first, chance);
  }
  return first >= kSureFirst && tokens >= kSureTokens;
}

// Parents come first in both trees, so each node of the index finds its parent's place made.
void FuseDrafter::merge(const DraftTask& task, const TokenTree& found) {
  TokenTree& tree = *task.tree;
  SX_ASSERT(tree.drafted() <= std::max(task.limits.nodes, 0) && tree.drafted() < kMaxTreeNodes);
  place_.assign(size_t(found.size()), kNoNode);
  missing_.clear();
  place_[0] = 0;
  for (NodeId n = 1; n < found.size(); ++n) {
    const NodeId parent = place_[size_t(found.parent(n))];
    NodeId& place = place_[size_t(n)];
    if (parent != kNoNode) place = tree.child(parent, found.token(n));
    if (place != kNoNode) tree.support(place, found.score(n), kFromIndex);
    else missing_.push_back(found.score(n));
  }
  if (missing_.empty()) return;
  float least = -std::numeric_limits<float>::infinity();
  if (tree.size() + static_cast<int>(missing_.size()) > tree.capacity()) least = make_room(tree, task.limits.nodes);
  std::fill(place_.begin() + 1, place_.end(), kNoNode);
  for (NodeId n = 1; n < found.size(); ++n) {
    const NodeId parent = place_[size_t(found.parent(n))];
    if (parent == kNoNode || found.score(n) < least) continue;
    NodeId& place = place_[size_t(n)];
    place = tree.child(parent, found.token(n));
    if (place == kNoNode && !tree.full()) place = tree.add(parent, found.token(n), found.score(n), kFromIndex);
  }
}

// Drops those nodes of the tree that would not be among the best `nodes` once the missing ones have come. Returns the
// score a missing one needs to be among them.
float FuseDrafter::make_room(TokenTree& tree, int nodes) {
  scores_.clear();
  for (NodeId n = 1; n < tree.size(); ++n) scores_.push_back(tree.score(n));
  std::sort(scores_.begin(), scores_.end(), std::greater<>());
  std::sort(missing_.begin(), missing_.end(), std::greater<>());
  size_t kept = 0, added = 0;
  while (kept + added < size_t(nodes) && kept < scores_.size()) {
    if (added < missing_.size() && missing_[added] > scores_[kept]) ++added;
    else ++kept;
  }
  const size_t room = std::min(missing_.size(), size_t(nodes) - kept);
  tree.keep_best(static_cast<int>(kept));
  return room == 0 ? std::numeric_limits<float>::infinity() : missing_[room - 1];
}

void FuseDrafter::finish(TokenTree& tree, const TreeLimits& limits) {
  tree.keep_best(std::max(limits.nodes, 0));
  if (!limits.verify_cost || tree.drafted() == 0) return;
  scores_.clear();
  for (NodeId n = 1; n < tree.size(); ++n) scores_.push_back(std::exp(tree.score(n)));
  std::sort(scores_.begin(), scores_.end(), std::greater<>());
  tree.keep_best(best_cut(scores_, limits.verify_cost).nodes);
}

}  // namespace

std::unique_ptr<Drafter> make_fuse_drafter(std::unique_ptr<Drafter> model, std::unique_ptr<Drafter> index, int slots,
                                           int nodes) {
  return std::make_unique<FuseDrafter>(std::move(model), std::move(index), slots, nodes);
}

const DrafterEntry kFuseDrafter{
    .name = "fuse",
    .claims = [](const DraftSource& source) { return source.kind == DrafterKind::kFuse; },
    .make =
        [](const DraftContext& c) {
          return make_fuse_drafter(make_part(c, c.config->fuse_model), make_part(c, c.config->fuse_index), c.slots,
                                   c.nodes);
        },
};

}  // namespace sx
