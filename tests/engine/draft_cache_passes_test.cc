// What drafters with a bounded cache ask of a backend: a listener between them and the CPU notes which positions RoPE
// is given in the working cache, and whether it is filled before or after cells are run in it.
#include <gtest/gtest.h>

#include <map>

#include "backend/registry.h"
#include "model/heads/eagle.h"
#include "model/heads/head_parts.h"
#include "speculative/draft/eagle.h"
#include "speculative/draft/model.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

constexpr int kContext = 900, kTrained = 400;

class Listener final : public testing::ForwardingBackend {
 public:
  Listener() : ForwardingBackend(make_cpu_backend({1, std::nullopt})) {}

  const KvStore* work = nullptr;
  int most = -1, least = 1 << 20;  // positions in the working cache
  std::string
      events;  // of it: 'g' cells were gathered from another store, 'r' cells were run (a step of one row or more)

  void rope_table(const RopeTableArgs& a) override {
    positions_[a.table].assign(a.positions, a.positions + a.rows);
    right_->rope_table(a);
  }
  void rope_store(const RopeStoreArgs& a) override {
    if (a.kv == work && a.layer == 0) {
      events += 'r';
      for (const int32_t p : positions_.at(a.table)) most = std::max(most, p), least = std::min(least, p);
    }
    right_->rope_store(a);
  }
  void kv_move(const KvMoveArgs& a) override {
    if (a.to == work && a.from != work) events += 'g';
    right_->kv_move(a);
  }

 private:
  std::map<const float*, std::vector<int32_t>> positions_;  // by table
};

// A draft, its cache and what a round needs around them. The target is there for heads only; nothing is ever accepted.
class Drafting {
 public:
  Listener backend;
  std::unique_ptr<DraftCache> cache;

  Drafting(bool with_head, const CacheConfig& config) {
    testing::TinySpec spec;
    spec.layers = 3;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    spec.context = kTrained;
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
    tree_.kind = TreeKind::kChain, tree_.nodes = tree_.depth = kDepth;
    ModelOptions options;
    options.max_rows = kContext, options.max_outputs = 8, options.context = kContext + kMaxTreeNodes;
    if (with_head) {
      auto file = ModelFile::open(folder_.file("target.gguf"));
      auto json = testing::eagle3_config(file->config(), 1, 160);
      json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
      json["max_position_embeddings"] = kTrained;
      testing::random_head(json, {"lm_head.weight", "d2t"}, file->config(), DType::kF32, 4).write(folder_.file("head"));
      const auto head_file = HeadFile::open(folder_.file("head"), file->config());
      options.taps = head_file->taps();
      model_ = Model::load(file, backend, options);
      target_kv_ = backend.make_kv(model_->kv_geometry(1, kContext, DType::kF32));
      EagleOptions eagle;
      eagle.max_outputs = 8, eagle.max_rows = kContext, eagle.context = kContext + kMaxTreeNodes;
      head_ = EagleHead::load(head_file, *model_, backend, eagle);
      make_cache(config, head_->kv_geometry(1, 0, DType::kF32), head_->config().cell, head_->rope_frequencies());
      EagleDrafterOptions drafter;
      drafter.backend = &backend, drafter.head = head_.get(), drafter.cache = cache.get(), drafter.tree = tree_;
      drafter_ = make_eagle_drafter(drafter);
    } else {
      model_ = Model::load(ModelFile::open(folder_.file("draft.gguf")), backend, options);
      make_cache(config, model_->kv_geometry(1, 0, DType::kF32), model_->config(), model_->rope_frequencies());
      ModelDrafterOptions drafter;
      drafter.backend = &backend, drafter.model = model_.get(), drafter.cache = cache.get(), drafter.tree = tree_;
      drafter.vocab = model_->config().vocab;
      drafter_ = make_model_drafter(drafter);
    }
  }

  void prompt(int tokens) {
    text_.clear();
    for (int i = 0; i < tokens; ++i) text_.push_back(Token(3 + i * i % 300));
    drafter_->open(0);
    if (head_) drafter_->prompt({0, 0, tokens, &run_target(0, tokens), text_});
    while (!drafter_->prefill(0, text_)) {}
    text_.push_back(7);
  }
  void round() {
    tree_now_.reset(text_.back());
    DraftTask task;
    const Sampling sampling;
    task.text = text_, task.sampling = &sampling, task.limits.nodes = kDepth, task.limits.depth = kDepth,
    task.tree = &tree_now_;
    drafter_->draft(std::span(&task, 1));
    EXPECT_EQ(tree_now_.drafted(), kDepth);
    const int history = int(text_.size()) - 1;
    const StepOutputs* outputs = head_ ? &run_target(history, 1) : nullptr;
    text_.push_back(Token(3 + history * 7 % 300));
    const NodeId root = 0;
    const Outcome outcome{0, &tree_now_, std::span(&root, 1), text_.back(), outputs, 0, history, text_};
    drafter_->observe(std::span(&outcome, 1));
  }

 private:
  static constexpr int kDepth = 4;

  void make_cache(const CacheConfig& config, KvGeometry cells, const ModelConfig& draft,
                  std::span<const double> frequencies) {
    DraftCacheParts parts;
    cells.capacity = DraftCache::work_cells(config, kContext) + kMaxTreeNodes;
    work_ = backend.make_kv(cells);
    cells.capacity = kContext;
    full_ = backend.make_kv(cells);
    parts.backend = &backend, parts.draft = &draft, parts.frequencies = frequencies, parts.work = work_.get(),
    parts.full = full_.get();
    parts.target = &model_->config(), parts.context = kContext;
    cache = std::make_unique<DraftCache>(config, parts);
    backend.work = work_.get();
  }
  const StepOutputs& run_target(int history, int rows) {
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) positions.push_back(history + i);
    const SeqRows seq{0, rows, 0, history};
    return model_->forward({std::span(text_).subspan(size_t(history), size_t(rows)), positions, std::span(&seq, 1), {}},
                           *target_kv_);
  }

  testing::TempFolder folder_;
  TreeConfig tree_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<EagleHead> head_;
  std::unique_ptr<KvStore> target_kv_, work_, full_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<Token> text_;
  TokenTree tree_now_{64};
};

CacheConfig config_of(std::string_view kind) {
  CacheConfig c;
  c.policy = &cache_policy(kind), c.budget = 200, c.interval = 3;
  return c;
}

TEST(DraftCachePasses, RunWithinTheTrainedLength) {
  for (const bool head : {false, true})
    for (const std::string_view kind : {"full", "window", "streaming", "random"})
      for (const CachePositions positions : {CachePositions::kCompact, CachePositions::kOriginal}) {
        if (kind == "full" && positions == CachePositions::kOriginal) continue;  // one store
        CacheConfig c = config_of(kind);
        c.positions = positions;
        Drafting d(head, c);
        d.prompt(520);
        for (int i = 0; i < 330; ++i) d.round();
        if (positions == CachePositions::kOriginal) {
          EXPECT_GT(d.backend.most, 840);
          continue;
        }
        EXPECT_LT(d.backend.most, kTrained);
        EXPECT_GT(d.backend.most, 100);  // and are not all the same
        EXPECT_GT(d.backend.least, 0);
      }
}

// The distribution after the pending token comes from the refreshed cache.
TEST(DraftCachePasses, AreRunAfterTheRefresh) {
  for (const bool head : {false, true}) {
    Drafting d(head, config_of("streaming"));
    d.prompt(520);
    int refreshes = 0;
    for (int i = 0; i < 10; ++i) {
      d.backend.events.clear();
      d.round();
      const bool due = i % 3 == 0;
      refreshes += due;
      EXPECT_EQ(d.cache->refreshes(0), refreshes);
      // The pending token, then three levels of nodes: those of the last level are not run.
      EXPECT_EQ(d.backend.events, due ? "grrrr" : "rrrr") << "round " << i << " head " << head;
    }
  }
}

}  // namespace
}  // namespace sx
