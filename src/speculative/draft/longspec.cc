#include "speculative/draft/longspec.h"

#include <algorithm>
#include <vector>

#include "backend/kv_stream.h"
#include "base/error.h"
#include "model/heads/longspec.h"
#include "speculative/draft/draft_step.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

struct LongSpecParts {
  Backend* backend = nullptr;
  std::unique_ptr<LongSpecHead> head;  // options().cells = two windows and a tree
  std::unique_ptr<KvStore> kv;         // its own cells
  const KvStore* target_kv = nullptr;
  DraftStores stores;  // of the target's cells; without a cache it attends to all of them
  int slots = 1, window = 512;
};

class LongSpecDraft final : public DraftModel {
 public:
  explicit LongSpecDraft(LongSpecParts parts);

  DraftShape shape() const override;
  DraftCache* cache() const override { return cache_; }
  void truncate(SeqId seq, int length) override;
  bool hold(SeqId seq, int length) override;
  bool ready(const DraftTask& task) const override {
    return task.text.size() > 1;
  }  // before that the target has no cells
  DraftLogits run_text(std::span<DraftRows> rows) override;
  bool has_room(const DraftTask& task, int uncommitted, int rows) const override;
  DraftLogits run_level(std::span<const DraftRows> level) override;
  // Cells of drafted nodes are not kept: they are made again as part of the text.

 private:
  struct Slot {
    int base = 0, length = 0;  // cells of tokens [base, length) of the text
  };
  int base_for(int length) const {
    return length < 2 * parts_.window ? 0 : (length / parts_.window - 1) * parts_.window;
  }
  void move_base(SeqId seq, int base);
  void run_own() { parts_.head->forward(step_.inputs(), *parts_.kv, parts_.window); }
  const KvStore& target() const { return cache_ ? cache_->store() : *parts_.target_kv; }
  int seen(SeqId seq) const { return cache_ ? cache_->work(seq) : slots_[size_t(seq)].length - 1; }
  DraftLogits look(SeqId seq) { return {parts_.head->look(target(), seq, seen(seq)), step_.outputs()}; }

  LongSpecParts parts_;
  DraftCache* cache_;  // or null
  std::vector<Slot> slots_;
  DraftStep step_;
  std::vector<KvMove> moves_;
};

LongSpecDraft::LongSpecDraft(LongSpecParts parts)
    : parts_(std::move(parts)),
      cache_(parts_.stores.cache.get()),
      slots_(size_t(parts_.slots)),
      step_(parts_.head->options().max_rows, parts_.head->options().max_outputs, 1) {
  moves_.reserve(size_t(2 * parts_.window));
}

DraftShape LongSpecDraft::shape() const {
  const int vocab = parts_.head->config().draft_vocab;
  return {
      .vocab = vocab, .stride = vocab, .map = parts_.head->token_map(), .outputs = parts_.head->options().max_outputs};
}

void LongSpecDraft::truncate(SeqId seq, int length) {
  Slot& s = slots_[size_t(seq)];
  const int held = s.length - s.base;
  s.length = std::min(s.length, length);
  if (s.length < s.base) s.base = s.length = 0;
  if (s.length == 0) forget_cells(*parts_.backend, *parts_.kv, seq, 0, held);
  DraftModel::truncate(seq, length);
}

// Cells of the text lie from its base on, and there are more of them before the base moves than behind it.
bool LongSpecDraft::hold(SeqId seq, int length) {
  return hold_cells(*parts_.kv, seq, 0, length + kMaxTreeNodes) && DraftModel::hold(seq, length);
}

// Cells before the new base go; if none of the others is there, or the base goes back, all are to be made again.
void LongSpecDraft::move_base(SeqId seq, int base) {
  Slot& s = slots_[size_t(seq)];
  if (base == s.base) return;
  if (base < s.base || s.length <= base) {
    s.base = s.length = base;
    return;
  }
  moves_.clear();
  for (int t = base; t < s.length; ++t) moves_.push_back({t - s.base, t - base, 0});
  parts_.backend->kv_move({parts_.kv.get(), parts_.kv.get(), seq, seq, moves_});
  s.base = base;
}

// Brings the cells up to the text; its last token, which is pending, is the row that attends to the target's cells.
DraftLogits LongSpecDraft::run_text(std::span<DraftRows> rows) {
  const DraftTask& task = *rows[0].task;
  Slot& s = slots_[size_t(task.seq)];
  const int known = int(task.text.size()), last = known - 1;
  s.length = std::min(s.length, last);
  move_base(task.seq, base_for(known));
  const auto run_up_to = [&](int end) {
    step_.clear();
    step_.add({0, end - s.length, task.seq, s.length - s.base});
    for (int i = s.length; i < end; ++i) step_.set(i - s.length, task.text[size_t(i)], i);
    if (end == known) step_.want(last - s.length);
    timer_.time([&] { run_own(); });
    s.length = end;
  };
  // Long stretches are run as prompts, without the last token: it is a row of a tree.
  while (last - s.length >= kMaxChain) run_up_to(std::min(last, s.length + parts_.head->options().max_rows));
  run_up_to(known);
  if (cache_) cache_->follow(task.seq, task.text);
  if (seen(task.seq) > target().geometry().capacity) return {};
  DraftLogits logits;
  timer_.time([&] { logits = look(task.seq); });
  return logits;
}

bool LongSpecDraft::has_room(const DraftTask& task, int uncommitted, int rows) const {
  const Slot& s = slots_[size_t(task.seq)];
  return s.length - s.base + uncommitted + rows <= parts_.kv->geometry().capacity &&
         seen(task.seq) - 1 + rows <= target().geometry().capacity;
}

DraftLogits LongSpecDraft::run_level(std::span<const DraftRows> level) {
  const DraftRows& r = level[0];
  const Slot& s = slots_[size_t(r.task->seq)];
  DraftLogits logits;
  timer_.time([&] {
    step_.clear();
    step_.add_level(r, s.length - s.base, [&](int depth) { return s.length - 1 + depth; });
    run_own();
    logits = look(r.task->seq);
  });
  return logits;
}

std::unique_ptr<Drafter> make_longspec(const DraftContext& context) {
  const auto& file = context.source.head;
  Model& target = *context.target;
  const int asked = context.cache.window < 0 ? file->config().window : context.cache.window;  // 0: the whole text
  LongSpecParts parts;
  parts.backend = context.backend, parts.target_kv = context.kv, parts.slots = context.slots;
  parts.window = asked == 0 ? context.context : std::min(asked, context.context);
  LongSpecOptions options;
  options.max_outputs = tree_drafter_rows(context.tree, 1);
  options.max_rows = std::max({context.chunk, options.max_outputs, kMaxChain});
  options.cells = 2 * parts.window + kMaxTreeNodes;
  parts.head = LongSpecHead::load(file, target, *context.backend, options);
  parts.kv = context.backend->make_kv(parts.head->kv_geometry(context.slots, draft_kv_type(context)));
  if (context.cache.chooses())
    parts.stores = make_draft_stores(context, target.kv_geometry(context.slots, 0, context.kv->geometry().type),
                                     target.config(), target.rope_frequencies(), target.config().layers - 1);
  return std::make_unique<TreeDrafter>(tree_options(context), std::make_unique<LongSpecDraft>(std::move(parts)));
}

bool claims_longspec(const DraftSource& source) {
  return source.kind == DrafterKind::kModel && source.head && source.head->config().kind == HeadConfig::Kind::kLongSpec;
}

}  // namespace

const DrafterEntry kLongSpecDrafter{
    .name = "longspec", .claims = claims_longspec, .make = make_longspec, .fit = fit_target_cells};

}  // namespace sx
