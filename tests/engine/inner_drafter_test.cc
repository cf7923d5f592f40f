// Drafters inside drafters: whatever the inner one guesses, the tree is the one that the outer one grows alone, to the
// bit of its scores; right guesses save passes.
#include <gtest/gtest.h>

#include <cstring>
#include <functional>

#include "backend/registry.h"
#include "speculative/draft/model.h"
#include "speculative/draft/drafters.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

constexpr int kContext = 700, kDepth = 8, kSlots = 2;

class Counting final : public testing::ForwardingBackend {
 public:
  Counting() : ForwardingBackend(make_cpu_backend({1, std::nullopt})) {}
  int passes = 0;
  void rope_store(const RopeStoreArgs& a) override {
    passes += a.layer == 0;
    right_->rope_store(a);
  }
};

// Guesses what it is told to.
class Told final : public Drafter {
 public:
  explicit Told(std::function<std::vector<Token>(SeqId)> tell) : tell_(std::move(tell)) {}
  void open(SeqId) override {}
  void close(SeqId) override {}
  void truncate(SeqId, int) override {}
  bool prefill(SeqId, std::span<const Token>) override { return true; }
  void draft(std::span<DraftTask> tasks) override {
    for (DraftTask& task : tasks) {
      NodeId last = 0;
      const auto tokens = tell_(task.seq);
      for (size_t i = 0; i < tokens.size() && int(i) < std::min(task.limits.nodes, task.limits.depth); ++i)
        last = task.tree->add(last, tokens[i], 0);
    }
  }
  void observe(std::span<const Outcome>) override {}

 private:
  std::function<std::vector<Token>(SeqId)> tell_;
};

enum class Room {
  kFull,
  kStreaming,
  kTargets
};  // the drafter's own cache, a bounded one, or none: the target's is used

// A drafter, alone or with one inside, and two texts.
class Drafting {
 public:
  using Inner = std::function<std::unique_ptr<Drafter>(const TreeConfig&, const IndexLimits&)>;

  Drafting(Room room, const Inner& inner, int depth = kDepth) : depth_(depth) {
    testing::TinySpec spec;
    spec.layers = 2, spec.gain = 2, spec.context = 2048;
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
    ModelOptions options;
    options.max_rows = kContext, options.max_outputs = 32, options.context = kContext + kMaxTreeNodes;
    model_ = Model::load(ModelFile::open(folder_.file("draft.gguf")), backend, options);
    ModelDrafterOptions drafter;
    drafter.tree.kind = TreeKind::kChain, drafter.tree.nodes = drafter.tree.depth = depth;
    drafter.backend = &backend, drafter.model = model_.get(), drafter.vocab = model_->config().vocab,
    drafter.slots = kSlots;
    if (room == Room::kTargets) {
      full_ = backend.make_kv(model_->kv_geometry(kSlots, kContext, DType::kF32));
      drafter.kv = full_.get();
    } else {
      CacheConfig config;
      if (room == Room::kStreaming) config.policy = &cache_policy("streaming"), config.budget = 96;
      make_cache(config);
      drafter.cache = cache_.get();
    }
    TreeConfig guessed;
    guessed.nodes = guessed.depth = depth - 1;
    auto made = inner ? inner(guessed, {kSlots, kContext, model_->config().vocab}) : nullptr;
    if (made) drafter.ahead = depth - 1;
    drafter_ = make_model_drafter(drafter, std::move(made));
    for (int s = 0; s < kSlots; ++s) drafter_->open(s);
  }

  void prompt(SeqId seq, std::vector<Token> text) {
    texts_[seq] = std::move(text);
    if (!cache_) {  // what the target would have done
      std::vector<int32_t> positions(texts_[seq].size() - 1);
      for (size_t i = 0; i < positions.size(); ++i) positions[i] = int32_t(i);
      const SeqRows rows{0, int(positions.size()), seq, 0};
      model_->forward({std::span(texts_[seq]).first(positions.size()), positions, std::span(&rows, 1), {}}, *full_);
    }
    while (!drafter_->prefill(seq, std::span(texts_[seq]).first(texts_[seq].size() - 1))) {}
  }
  // Chains of these sequences, drafted together.
  std::vector<TokenTree> draft(std::vector<SeqId> seqs, float temperature, int most = kDepth) {
    std::vector<TokenTree> trees;
    for (size_t i = 0; i < seqs.size(); ++i) trees.emplace_back(2 * depth_ + 2);
    Sampling sampling;
    sampling.temperature = temperature, sampling.seed = 5;
    std::vector<DraftTask> tasks;
    for (size_t i = 0; i < seqs.size(); ++i) {
      trees[i].reset(texts_[seqs[i]].back());
      DraftTask task;
      task.seq = seqs[i], task.text = texts_[seqs[i]], task.sampling = &sampling, task.tree = &trees[i];
      task.limits.nodes = task.limits.depth = std::min(depth_, most);
      tasks.push_back(task);
    }
    backend.passes = 0;
    drafter_->draft(tasks);
    return trees;
  }
  // The first tokens of a chain become text, and another one behind them.
  void accept(SeqId seq, const TokenTree& tree, int count, Token next) {
    std::vector<NodeId> path;
    for (NodeId n = 0; n <= count; ++n) path.push_back(n);
    const int history = int(texts_[seq].size()) - 1;
    for (NodeId n = 1; n <= count; ++n) texts_[seq].push_back(tree.token(n));
    texts_[seq].push_back(next);
    if (!cache_) {
      std::vector<int32_t> positions;
      for (int i = 0; i <= count; ++i) positions.push_back(history + i);
      const SeqRows rows{0, count + 1, seq, history};
      model_->forward(
          {std::span(texts_[seq]).subspan(size_t(history), positions.size()), positions, std::span(&rows, 1), {}},
          *full_);
    }
    const Outcome outcome{seq, &tree, path, next, nullptr, 0, history, texts_[seq]};
    drafter_->observe(std::span(&outcome, 1));
  }

  Counting backend;

 private:
  void make_cache(const CacheConfig& config) {
    DraftCacheParts parts;
    KvGeometry cells =
        model_->kv_geometry(kSlots, DraftCache::work_cells(config, kContext) + kMaxTreeNodes, DType::kF32);
    work_ = backend.make_kv(cells);
    if (DraftCache::two_stores(config, kContext, model_->config().context)) {
      cells.capacity = kContext;
      full_ = backend.make_kv(cells);
    }
    parts.backend = &backend, parts.draft = &model_->config(), parts.frequencies = model_->rope_frequencies(),
    parts.work = work_.get(), parts.full = full_.get(), parts.target = &model_->config(), parts.context = kContext,
    parts.slots = kSlots;
    cache_ = std::make_unique<DraftCache>(config, parts);
  }

  testing::TempFolder folder_;
  int depth_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> work_, full_;
  std::unique_ptr<DraftCache> cache_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<Token> texts_[kSlots];
};

std::vector<Token> some_text(int n, int kind) {
  std::vector<Token> text;
  for (int i = 0; i < n; ++i) text.push_back(Token(3 + (kind == 0 ? i * i % 290 : i % (9 + kind) * 13)));
  return text;
}

void expect_same(const TokenTree& a, const TokenTree& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (NodeId n = 0; n < a.size(); ++n) {
    EXPECT_EQ(a.token(n), b.token(n)) << what << ", node " << n;
    EXPECT_EQ(a.parent(n), b.parent(n)) << what << ", node " << n;
    const float x = a.score(n), y = b.score(n);
    EXPECT_EQ(std::memcmp(&x, &y, sizeof x), 0) << what << ", node " << n << ": " << x << " and " << y;
  }
}

std::unique_ptr<Drafter> suffixes(const TreeConfig& tree, const IndexLimits& limits) {
  return make_suffix_drafter({}, tree, limits);
}
std::unique_ptr<Drafter> ngrams(const TreeConfig& tree, const IndexLimits& limits) {
  return make_ngram_drafter({}, tree, limits);
}

TEST(InnerDrafter, TreesAreThoseOfTheOuterOneAlone) {
  for (const Room room : {Room::kFull, Room::kStreaming, Room::kTargets}) {
    for (const bool ngram : {false, true}) {
      Drafting alone(room, nullptr), nested(room, ngram ? ngrams : suffixes);
      for (Drafting* d : {&alone, &nested}) d->prompt(0, some_text(260, 2)), d->prompt(1, some_text(75, 0));
      int saved = 0;
      for (int round = 0; round < 12; ++round) {
        const std::string what = "room " + std::to_string(int(room)) + ", round " + std::to_string(round);
        const std::vector<SeqId> seqs = round % 3 == 0 ? std::vector<SeqId>{0, 1} : std::vector<SeqId>{round % 2};
        const float temperature = round % 4 == 3 ? 0.8f : 0;
        const auto a = alone.draft(seqs, temperature), b = nested.draft(seqs, temperature);
        saved += alone.backend.passes - nested.backend.passes;
        for (size_t i = 0; i < seqs.size(); ++i) {
          expect_same(a[i], b[i], what);
          const int count = (round * 5 + int(i)) % (kDepth + 1);
          for (Drafting* d : {&alone, &nested})
            d->accept(seqs[i], d == &alone ? a[i] : b[i], count, Token(3 + round * 13 % 117));
        }
      }
      EXPECT_GE(saved, 0);  // wrong guesses cost rows, not passes
    }
  }
}

TEST(InnerDrafter, RightGuessesSavePasses) {
  for (const Room room : {Room::kFull, Room::kStreaming, Room::kTargets}) {
    Drafting alone(room, nullptr);
    alone.prompt(0, some_text(100, 0));
    const auto chain = std::move(alone.draft({0}, 0)[0]);
    ASSERT_EQ(chain.drafted(), kDepth);
    EXPECT_EQ(alone.backend.passes, kDepth);
    for (int right = 0; right < kDepth; ++right) {  // so many tokens are guessed, then comes a wrong one
      const auto tell = [&](SeqId) {
        std::vector<Token> told;
        for (NodeId n = 1; n <= right; ++n) told.push_back(chain.token(n));
        told.push_back(chain.token(right + 1) == 5 ? 6 : 5);
        return told;
      };
      Drafting nested(room, [&](const TreeConfig&, const IndexLimits&) { return std::make_unique<Told>(tell); });
      nested.prompt(0, some_text(100, 0));
      expect_same(nested.draft({0}, 0)[0], chain, std::to_string(right) + " right");
      EXPECT_EQ(nested.backend.passes, kDepth - right) << right << " right";
    }
  }
}

TEST(InnerDrafter, TokensTheModelDoesNotKnowAreNotRun) {
  Drafting alone(Room::kFull, nullptr);
  alone.prompt(0, some_text(50, 0));
  const auto chain = std::move(alone.draft({0}, 0)[0]);
  Drafting nested(Room::kFull, [&](const TreeConfig&, const IndexLimits& limits) {
    return std::make_unique<Told>([&chain, limits](SeqId) {
      return std::vector<Token>{chain.token(1), limits.vocab, chain.token(3)};
    });
  });
  nested.prompt(0, some_text(50, 0));
  expect_same(nested.draft({0}, 0)[0], chain, "a token beyond the vocabulary");
  EXPECT_EQ(nested.backend.passes, kDepth - 1);
}

TEST(InnerDrafter, AChainOfOneNeedsNoGuess) {
  int asked = 0;
  Drafting nested(
      Room::kFull,
      [&](const TreeConfig&, const IndexLimits&) {
        return std::make_unique<Told>([&asked](SeqId) {
          ++asked;
          return std::vector<Token>{3};
        });
      },
      2);
  nested.prompt(0, some_text(50, 0));
  const auto tree = std::move(nested.draft({0}, 0)[0]);
  EXPECT_EQ(tree.drafted(), 2);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(nested.backend.passes, tree.token(1) == 3 ? 1 : 2);
  nested.accept(0, tree, 0, 9);
  EXPECT_EQ(nested.draft({0}, 0, 1)[0].drafted(), 1);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(nested.backend.passes, 1);
}

}  // namespace
}  // namespace sx
