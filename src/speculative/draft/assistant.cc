#include "speculative/draft/assistant.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "model/heads/assistant.h"
#include "speculative/draft/last_states.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

class AssistantDraft final : public DraftModel {
 public:
  AssistantDraft(const DraftContext& context, std::unique_ptr<AssistantHead> head, DraftStores stores, int rows);

  DraftShape shape() const override {
    const int vocab = head_->config().draft_vocab;
    return {.vocab = vocab, .stride = vocab, .outputs = rows_};
  }
  DraftCache* cache() const override { return stores_.cache.get(); }
  void truncate(SeqId seq, int length) override {
    DraftModel::truncate(seq, length);
    last_.truncate(seq, length);
  }
  bool reads_states() const override { return true; }
  int covered(SeqId seq) const override { return std::min(last_.covered(seq), DraftModel::covered(seq)); }
  void read_prompt(const PromptChunk& chunk) override { last_.read_prompt(chunk); }
  void accept(const Outcome& outcome, const DraftTail&) override { last_.accept(outcome); }
  bool ready(const DraftTask& task) const override { return last_.ready(task); }
  DraftLogits run_text(std::span<DraftRows> rows) override;
  bool has_room(const DraftTask& task, int, int rows) const override {
    return fits(int(task.text.size()) - 1, *target_kv_, rows) &&
           (!cache() || fits(cache()->work(task.seq), stores_.cache->store(), rows));
  }
  DraftLogits run_level(std::span<const DraftRows> level) override;

 private:
  static bool fits(int seen, const KvStore& kv, int rows) { return seen - 1 + rows <= kv.geometry().capacity; }
  float* row(int place) { return tail_states_ + size_t(place) * size_t(width_); }
  DraftLogits run(const DraftTask& task, int rows);

  std::unique_ptr<AssistantHead> head_;
  Backend& backend_;
  const KvStore* target_kv_;
  DraftStores stores_;  // of the target's cells; without a cache it attends to all of them
  int rows_, width_;
  LastStates last_;
  AssistantOutputs out_;        // of the last pass
  std::vector<Token> tokens_;   // [rows]
  std::vector<int32_t> which_;  // [rows]
  float* states_ = nullptr;     // [rows, width] of the pass
  // [kMaxTreeNodes + 1, width] what the head gave for each node of the tail, and last for the root.
  float* tail_states_ = nullptr;
};

AssistantDraft::AssistantDraft(const DraftContext& context, std::unique_ptr<AssistantHead> head, DraftStores stores,
                               int rows)
    : head_(std::move(head)),
      backend_(*context.backend),
      target_kv_(context.kv),
      stores_(std::move(stores)),
      rows_(rows),
      width_(head_->config().target_width),
      last_(backend_, context.slots, width_),
      tokens_(size_t(rows)),
      which_(size_t(rows)),
      states_(backend_.allocate(size_t(backend_.row_capacity(rows)) * size_t(width_), "states of the draft head")),
      tail_states_(backend_.allocate(size_t(kMaxTreeNodes + 1) * size_t(width_), "states of the draft head")) {}

// Logits of the first rows of tokens_ and states_.
DraftLogits AssistantDraft::run(const DraftTask& task, int rows) {
  const int committed = int(task.text.size()) - 1;
  const TargetCells all{target_kv_, task.seq, committed};
  const AssistantRows in{.tokens = std::span(tokens_).first(size_t(rows)),
                         .states = states_,
                         .position = committed,
                         .whole = cache() ? TargetCells{&cache()->store(), task.seq, cache()->work(task.seq)} : all,
                         .windows = all};
  timer_.time([&] { out_ = head_->forward(in); });
  return {out_.logits, rows};
}

// What the head gives is kept for the levels below: of the root behind all nodes of the tail.
DraftLogits AssistantDraft::run_text(std::span<DraftRows> rows) {
  const DraftTask& task = *rows[0].task;
  if (cache()) cache()->follow(task.seq, task.text);
  if (!has_room(task, 0, 1)) return {};
  tokens_[0] = task.text.back();
  head_->take(last_.state(task.seq), 1, states_);
  const DraftLogits logits = run(task, 1);
  backend_.copy_rows({row(kMaxTreeNodes), out_.states, 1, width_, width_, width_});
  return logits;
}

DraftLogits AssistantDraft::run_level(std::span<const DraftRows> level) {
  const DraftRows& r = level[0];
  const int rows = int(r.nodes.size());
  for (int i = 0; i < rows; ++i) {
    const int parent = r.tail->parent(r.first + i);
    tokens_[size_t(i)] = r.tail->token(r.first + i);
    which_[size_t(i)] = parent < 0 ? kMaxTreeNodes : parent;
  }
  backend_.copy_rows({states_, tail_states_, rows, width_, width_, width_, which_.data()});
  const DraftLogits logits = run(*r.task, rows);
  backend_.copy_rows({row(r.first), out_.states, rows, width_, width_, width_});
  return logits;
}

std::unique_ptr<Drafter> make_assistant(const DraftContext& context) {
  Model& target = *context.target;
  const int rows = tree_drafter_rows(context.tree, 1);
  auto head = AssistantHead::load(context.source.head, target, *context.backend, rows);
  const std::vector<int>& layers = head->config().target_layers;
  const auto whole =
      std::find_if(layers.begin(), layers.end(), [&](int layer) { return target.config().layer(layer).window == 0; });
  DraftStores stores;
  if (context.cache.chooses() && whole != layers.end())
    stores = make_draft_stores(context, target.kv_geometry(context.slots, 0, context.kv->geometry().type),
                               target.config(), target.rope_frequencies(), *whole);
  return std::make_unique<TreeDrafter>(
      tree_options(context), std::make_unique<AssistantDraft>(context, std::move(head), std::move(stores), rows));
}

bool claims_assistant(const DraftSource& source) {
  return source.kind == DrafterKind::kModel && source.head &&
         source.head->config().kind == HeadConfig::Kind::kAssistant;
}

}  // namespace

const DrafterEntry kAssistantDrafter{
    .name = "assistant", .claims = claims_assistant, .make = make_assistant, .fit = fit_target_cells};

}  // namespace sx
