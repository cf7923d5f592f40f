#include "speculative/draft/medusa.h"

#include "base/error.h"
#include "model/heads/medusa.h"
#include "speculative/draft/last_states.h"
#include "speculative/draft/medusa_paths.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

class MedusaDraft final : public DraftModel {
 public:
  explicit MedusaDraft(const DraftContext& context)
      : backend_(*context.backend),
        heads_(MedusaHeads::load(context.source.head, *context.target, backend_, context.slots)),
        slots_(context.slots),
        last_(backend_, context.slots, width()) {
    states_ = backend_.allocate(size_t(slots_) * size_t(width()), "states of the Medusa heads");
  }

  DraftShape shape() const override {
    const int vocab = heads_->config().draft_vocab, heads = heads_->heads();
    return {.vocab = vocab,
            .stride = vocab,
            .map = heads_->token_map(),
            .outputs = slots_ * heads,
            .sequences = slots_,
            .parallel_levels = heads};
  }

  void truncate(SeqId seq, int length) override { last_.truncate(seq, length); }
  bool reads_states() const override { return true; }
  int covered(SeqId seq) const override { return last_.covered(seq); }
  void read_prompt(const PromptChunk& chunk) override { last_.read_prompt(chunk); }
  void accept(const Outcome& o, const DraftTail&) override { last_.accept(o); }
  bool ready(const DraftTask& task) const override { return last_.ready(task); }

  // One pass for all sequences gives a row of logits for each level of each.
  DraftLogits run_text(std::span<DraftRows> rows) override {
    const int w = width(), heads = heads_->heads(), count = int(rows.size());
    DraftLogits logits{nullptr, count * heads};
    timer_.time([&] {
      for (int i = 0; i < count; ++i) {
        rows[size_t(i)].output = i * heads;
        backend_.copy_rows({states_ + size_t(i) * size_t(w), last_.state(rows[size_t(i)].task->seq), 1, w, w, w});
      }
      logits.rows = heads_->forward(states_, count);
    });
    return logits;
  }

 private:
  int width() const { return heads_->config().cell.width; }

  Backend& backend_;
  std::unique_ptr<MedusaHeads> heads_;
  int slots_;
  LastStates last_;
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
