#include "speculative/draft/medusa.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "model/heads/medusa.h"
#include "speculative/draft/medusa_paths.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

class MedusaDraft final : public DraftModel {
 public:
  explicit MedusaDraft(const DraftContext& context)
      : backend_(*context.backend),
        heads_(MedusaHeads::load(context.source.head, *context.target, backend_, context.slots)),
        slots_(size_t(context.slots)) {
    states_ = backend_.allocate(slots_.size() * size_t(width()), "states of the Medusa heads");
    for (Slot& s : slots_) s.state = backend_.allocate(size_t(width()), "states of the Medusa heads");
  }

  DraftShape shape() const override {
    const int vocab = heads_->config().draft_vocab, heads = heads_->heads();
    return {.vocab = vocab,
            .stride = vocab,
            .map = heads_->token_map(),
            .outputs = int(slots_.size()) * heads,
            .sequences = int(slots_.size()),
            .parallel_levels = heads};
  }

  // Of a shorter text the last state is gone: the target must run its last token again.
  void truncate(SeqId seq, int length) override {
    Slot& s = slots_[size_t(seq)];
    if (s.known && length >= s.length) return;
    s.known = false;
    s.length = std::min(s.length, std::max(0, length - 1));
  }

  bool reads_states() const override { return true; }
  int covered(SeqId seq) const override { return slots_[size_t(seq)].length; }
  void read_prompt(const PromptChunk& chunk) override {
    keep(chunk.seq, *chunk.outputs, chunk.first_row + chunk.rows - 1, chunk.first + chunk.rows);
  }
  void accept(const Outcome& o, const DraftTail&) override {
    keep(o.seq, *o.outputs, o.first_row + o.path.back(), o.history + int(o.path.size()));
  }

  bool ready(const DraftTask& task) const override {
    const Slot& s = slots_[size_t(task.seq)];
    return s.known && s.length == int(task.text.size()) - 1;
  }

  // One pass for all sequences gives a row of logits for each level of each.
  DraftLogits run_text(std::span<DraftRows> rows) override {
    const int w = width(), heads = heads_->heads(), count = int(rows.size());
    DraftLogits logits{nullptr, count * heads};
    timer_.time([&] {
      for (int i = 0; i < count; ++i) {
        rows[size_t(i)].output = i * heads;
        backend_.copy_rows(
            {states_ + size_t(i) * size_t(w), slots_[size_t(rows[size_t(i)].task->seq)].state, 1, w, w, w});
      }
      logits.rows = heads_->forward(states_, count);
    });
    return logits;
  }

 private:
  struct Slot {
    int length = 0;          // tokens of the text up to the one whose state is kept
    bool known = false;      // a state is kept
    float* state = nullptr;  // [width]
  };
  int width() const { return heads_->config().cell.width; }
  void keep(SeqId seq, const StepOutputs& outputs, int row, int length) {
    Slot& s = slots_[size_t(seq)];
    const int w = width();
    backend_.copy_rows({s.state, outputs.hidden[0] + size_t(row) * size_t(w), 1, w, w, w});
    s.length = length;
    s.known = true;
  }

  Backend& backend_;
  std::unique_ptr<MedusaHeads> heads_;
  std::vector<Slot> slots_;
  float* states_ = nullptr;  // [slots, width] of the pass
};

std::unique_ptr<Drafter> make_medusa(const DraftContext& context) {
  return std::make_unique<TreeDrafter>(tree_options(context), std::make_unique<MedusaDraft>(context));
}

bool claims_medusa(const DraftSource& source) {
  return source.kind == DrafterKind::kModel && source.head && source.head->config().kind == HeadConfig::Kind::kMedusa;
}

// The tree of preset medusa stands for that of the heads it will meet. Other limits that were set stay.
void take_tree(const HeadConfig& head, TreeConfig& tree) {
  const auto preset = medusa_paths(kMedusaHeads);
  if (tree.kind != TreeKind::kStatic || tree.paths != preset) return;
  tree.paths = head.medusa_choices.empty() ? medusa_paths(head.medusa_heads) : head.medusa_choices;
  if (tree.nodes == int(preset.size())) tree.nodes = int(tree.paths.size());
  if (tree.depth == kMedusaHeads) tree.depth = head.medusa_heads;
}

void fit_medusa(SpecConfig& config, const HeadFile& head) {
  if (config.cache.chooses())
    fail(
        "draft '{}': Medusa heads have no cache that could be {}: leave setting cache out, or use a preset like medusa",
        head.path(), setting_value(config, "cache"));
  take_tree(head.config(), config.tree);
  try {
    check_config(config);
  } catch (const Error& error) {
    fail("draft '{}': its tree (medusa_choices) does not fit: {}", head.path(), error.what());
  }
}

}  // namespace

const DrafterEntry kMedusaDrafter{.name = "medusa", .claims = claims_medusa, .make = make_medusa, .fit = fit_medusa};

}  // namespace sx
