#include "speculative/draft/dflash.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "model/heads/dflash.h"
#include "speculative/draft/draft_step.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

constexpr int kMostWaiting = 64;  // states that may wait before their cells are made

struct DFlashParts {
  Backend* backend = nullptr;
  std::unique_ptr<DFlashHead> head;  // options().max_rows >= a chunk of a prompt + kMostWaiting
  DraftStores stores;
  int slots = 1;
};

class DFlashDraft final : public DraftModel {
 public:
  explicit DFlashDraft(DFlashParts parts);

  DraftShape shape() const override;
  DraftCache* cache() const override { return parts_.stores.cache.get(); }
  std::string fingerprint() const override {
    return cells_fingerprint(cache()->store().geometry().type, head().rope_frequencies(), 1);
  }
  void truncate(SeqId seq, int length) override;
  bool reads_states() const override { return true; }
  bool follows(SeqId seq, int tokens) const override { return covered(seq) == tokens; }
  int covered(SeqId seq) const override { return cache()->length(seq) + slots_[size_t(seq)].waiting; }
  void read_prompt(const PromptChunk& chunk) override;
  bool ready(const DraftTask& task) const override {
    return task.text.size() > 1 && follows(task.seq, int(task.text.size()) - 1);
  }
  DraftLogits run_text(std::span<DraftRows> rows) override;
  bool has_room(const DraftTask&, int, int) const override { return true; }  // nodes have no cells
  DraftLogits run_level(std::span<const DraftRows> level) override;
  void accept(const Outcome& outcome, const DraftTail&) override;

 private:
  struct Slot {
    int waiting = 0;            // states behind the cells
    float* features = nullptr;  // [kMostWaiting, feature_width()] of these
  };
  DFlashHead& head() const { return *parts_.head; }
  float* feature_row(float* rows, int i) const { return rows + size_t(i) * head().feature_width(); }
  void copy_waiting(const Slot& s, float* to) const;
  void flush(SeqId seq, std::span<const Token> text);
  void run_block(SeqId seq, Token pending);

  DFlashParts parts_;
  std::vector<Slot> slots_;
  DraftStep step_, in_order_;
  std::vector<uint64_t> all_;   // every row of a block sees all of them
  std::vector<int32_t> which_;  // rows to be copied, levels of nodes
  float* features_ = nullptr;   // [max_rows, feature_width()] of a pass
};

DFlashDraft::DFlashDraft(DFlashParts parts)
    : parts_(std::move(parts)),
      slots_(size_t(parts_.slots)),
      step_(head().options().max_rows, std::max(head().options().max_nodes, head().config().block), 1),
      in_order_(head().config().block, head().config().block, 1) {
  const int block = head().config().block;
  all_.assign(size_t(block), block == 64 ? ~uint64_t(0) : (uint64_t(1) << block) - 1);
  which_.reserve(size_t(std::max(head().options().max_rows, kMaxTreeNodes)));
  const size_t width = head().feature_width();
  features_ = parts_.backend->allocate(size_t(head().options().max_rows) * width, "states of the draft head");
  for (Slot& s : slots_) s.features = parts_.backend->allocate(kMostWaiting * width, "states of the draft head");
}

DraftShape DFlashDraft::shape() const {
  const int vocab = head().config().draft_vocab;
  const bool markov = head().markov_rank() > 0;  // what follows a node depends on its token
  return {.vocab = vocab,
          .stride = vocab,
          .map = head().token_map(),
          .outputs = markov ? head().options().max_nodes : head().levels(),
          .parallel_levels = markov ? 0 : head().levels()};
}

// Where the target's last queries must be noted again, it runs the last token again, and the cell is made again too.
void DFlashDraft::truncate(SeqId seq, int length) {
  Slot& s = slots_[size_t(seq)];
  const int known = cache()->length(seq), seen = std::min(known + s.waiting, length);
  cache()->truncate(seq, std::min(known, length), length);
  const int most = cache()->covered(seq);
  if (cache()->length(seq) > most) cache()->truncate(seq, most, length);
  s.waiting = cache()->length(seq) < known ? 0 : std::max(0, std::min(seen, most) - known);
}

void DFlashDraft::copy_waiting(const Slot& s, float* to) const {
  const int width = int(head().feature_width());
  parts_.backend->copy_rows(
      {.to = to, .from = s.features, .rows = s.waiting, .width = width, .to_stride = width, .from_stride = width});
}

void DFlashDraft::read_prompt(const PromptChunk& chunk) {
  Slot& s = slots_[size_t(chunk.seq)];
  const int known = cache()->length(chunk.seq), rows = s.waiting + chunk.rows;
  step_.clear();
  step_.add({0, rows, chunk.seq, known});
  for (int i = 0; i < rows; ++i) step_.set(i, chunk.text[size_t(known + i)], known + i);
  if (s.waiting > 0) copy_waiting(s, features_);
  which_.resize(size_t(chunk.rows));
  std::iota(which_.begin(), which_.end(), chunk.first_row);
  head().take(chunk.outputs->hidden, which_, feature_row(features_, s.waiting));
  timer_.time([&] { head().context(step_.inputs(), features_, cache()->prompt_store()); });
  cache()->prompted(chunk.seq, rows);
  s.waiting = 0;
}

// Makes the cells of the states that wait.
void DFlashDraft::flush(SeqId seq, std::span<const Token> text) {
  Slot& s = slots_[size_t(seq)];
  cache()->prepare(seq, text, s.waiting);
  if (s.waiting == 0) return;
  const int known = cache()->length(seq);
  step_.clear();
  step_.add({0, s.waiting, seq, cache()->work(seq)});
  for (int i = 0; i < s.waiting; ++i) step_.set(i, text[size_t(known + i)], cache()->position(seq, i));
  copy_waiting(s, features_);
  timer_.time([&] { head().context(step_.inputs(), features_, cache()->store()); });
  cache()->appended(seq, s.waiting);
  s.waiting = 0;
}

void DFlashDraft::run_block(SeqId seq, Token pending) {
  const HeadConfig& c = head().config();
  const int work = cache()->work(seq);
  step_.clear(), in_order_.clear();
  step_.add({0, c.block, seq, work, all_.data(), 1, 0});
  in_order_.add({0, c.block, seq, work});
  for (DraftStep* step : {&step_, &in_order_})
    for (int i = 0; i < c.block; ++i) {
      step->set(i, i == 0 ? pending : Token(c.mask_token), cache()->position(seq, i));
      if (i > 0 || c.from_anchor) step->want(i);
    }
}

DraftLogits DFlashDraft::run_text(std::span<DraftRows> rows) {
  const DraftTask& task = *rows[0].task;
  flush(task.seq, task.text);
  run_block(task.seq, task.text.back());
  DraftLogits logits{nullptr, head().levels()};
  timer_.time([&] { logits.rows = head().block(step_.inputs(), in_order_.inputs(), cache()->store()); });
  if (head().markov_rank() == 0) return logits;
  step_.clear();
  step_.add({0, 1, task.seq, cache()->work(task.seq)});
  step_.set(0, task.text.back(), 0);
  step_.want(0);
  which_.assign(1, 0);
  return {head().markov_logits(step_.inputs(), which_), 1};
}

// DSpark: the block's logits of the level below each node, with the bias of its token.
DraftLogits DFlashDraft::run_level(std::span<const DraftRows> level) {
  const DraftRows& r = level[0];
  const TokenTree& tree = *r.task->tree;
  const int rows = int(r.nodes.size()), last = head().levels() - 1;
  step_.clear();
  step_.add({0, rows, r.task->seq, cache()->work(r.task->seq)});
  which_.clear();
  for (int i = 0; i < rows; ++i) {
    const NodeId node = r.nodes[size_t(i)];
    step_.set(i, tree.token(node), 0);
    step_.want(i);
    which_.push_back(std::min(tree.depth(node), last));
  }
  DraftLogits logits{nullptr, rows};
  timer_.time([&] { logits.rows = head().markov_logits(step_.inputs(), which_); });
  return logits;
}

void DFlashDraft::accept(const Outcome& o, const DraftTail&) {
  Slot& s = slots_[size_t(o.seq)];
  for (size_t first = 0; first < o.path.size();) {
    if (s.waiting == kMostWaiting) flush(o.seq, o.text);
    const size_t end = std::min(o.path.size(), first + size_t(kMostWaiting - s.waiting));
    which_.clear();
    for (; first < end; ++first) which_.push_back(o.first_row + o.path[first]);
    head().take(o.outputs->hidden, which_, feature_row(s.features, s.waiting));
    s.waiting += int(which_.size());
  }
}

std::unique_ptr<Drafter> make_dflash(const DraftContext& context) {
  DFlashOptions options;
  options.max_nodes = std::max(1, tree_drafter_rows(context.tree, 1));
  options.max_rows = std::max(context.chunk, options.max_nodes) + kMostWaiting;
  options.context = context.context + kMaxTreeNodes;
  DFlashParts parts;
  parts.backend = context.backend, parts.slots = context.slots;
  parts.head = DFlashHead::load(context.source.head, *context.target, *context.backend, options);
  parts.stores = make_draft_stores(context, parts.head->kv_geometry(context.slots, 0, draft_kv_type(context)),
                                   parts.head->config().cell, parts.head->rope_frequencies());
  return std::make_unique<TreeDrafter>(tree_options(context), std::make_unique<DFlashDraft>(std::move(parts)));
}

bool claims_dflash(const DraftSource& source) {
  return source.kind == DrafterKind::kModel && source.head && source.head->config().kind == HeadConfig::Kind::kDFlash;
}

// A tree cannot be deeper than what a block predicts.
void fit_dflash(SpecConfig& config, const HeadFile& head) {
  if (config.cache.reads_draft())
    fail(
        "draft '{}': the cells of a DFlash drafter have no queries of their own; cache {} does not go with it: take {}",
        head.path(), config.cache.policy->name,
        cache_policy_names([](const CachePolicy& policy) { return !policy.reads_draft(); }));
  const int levels = head.config().block - (head.config().from_anchor ? 0 : 1);
  config.tree.depth = std::min(config.tree.depth, levels);
}

}  // namespace

const DrafterEntry kDFlashDrafter{.name = "dflash", .claims = claims_dflash, .make = make_dflash, .fit = fit_dflash};

}  // namespace sx
