// Trees that a backend grows itself are those that the host grows level by level: same nodes, same parents, scores of
// the same bits, round after round with accepted paths between them. On the CUDA backend, and on the CPU backend behind
// support/levels_backend.h.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "backend/registry.h"
#include "base/fixed_math.h"
#include "model/heads/eagle.h"
#include "model/heads/head_parts.h"
#include "speculative/draft/eagle.h"
#include "speculative/draft/model.h"
#include "support/far_backend.h"
#include "support/levels_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::FarBackend;
using testing::RefusingBackend;
using testing::TreeGrowthBackend;

constexpr int kContext = 700, kTrained = 256, kRounds = 9, kMostNodes = 60, kMostDepth = 10;

struct Case {
  std::string name;
  bool eagle;
  TreeConfig tree;
  float level_cost, row_cost;  // 0: no costs
  std::string_view cache;
  int prompt;
  Sampling sampling{};
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Tree {
  std::vector<Token> tokens;
  std::vector<NodeId> parents;
  std::vector<float> scores;
  bool operator==(const Tree&) const = default;
};

struct Files {
  testing::TempFolder folder;
  std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf"), head = folder.file("head");
  Files() {
    testing::TinySpec spec;
    spec.layers = 3, spec.gain = 2, spec.head_dim = 32, spec.weights = DType::kBF16;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    spec.context = kTrained, spec.seed = 2, spec.gain = 6;
    testing::write_tiny_gguf(draft, spec);
    auto json = testing::eagle3_config(config, 1, 160);
    json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
    json["max_position_embeddings"] = kTrained, json["head_dim"] = 32;
    auto parts = testing::random_head(json, {"lm_head.weight", "d2t"}, config, DType::kBF16, 4);
    testing::Bytes& norm = parts.get("norm.weight").data;  // larger logits: some tokens are likely
    for (size_t at = 0; at < norm.size(); at += sizeof(float)) {
      float value;
      std::memcpy(&value, &norm[at], sizeof value);
      value *= 4;
      std::memcpy(&norm[at], &value, sizeof value);
    }
    parts.write(head);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

// A drafter, its cache and its target. Half of the rounds accept a path of the tree.
class Drafting {
 public:
  Drafting(const Case& c, std::unique_ptr<Backend> backend) : case_(c), backend_(std::move(backend)) {
    auto file = ModelFile::open(files().target);
    ModelOptions options;
    options.max_rows = kContext, options.max_outputs = kMostNodes + 1, options.context = kContext + kMaxTreeNodes;
    std::shared_ptr<const HeadFile> head_file;
    if (c.eagle) head_file = HeadFile::open(files().head, file->config()), options.taps = head_file->taps();
    if (c.cache == "retrieval") options.taps.query = {2};
    target_ = Model::load(file, *backend_, options);
    kv_ = backend_->make_kv(target_->kv_geometry(1, kContext + kMaxTreeNodes, backend_->default_kv_type()));
    cache_config_.policy = &cache_policy(c.cache), cache_config_.budget = 96, cache_config_.chunk = 8,
    cache_config_.recent = 16, cache_config_.interval = 2;
    if (c.cache == "retrieval") cache_config_.layers = {2};
    if (c.eagle) {
      EagleOptions eagle;
      eagle.max_outputs = tree_drafter_rows(c.tree, 1), eagle.max_rows = kContext,
      eagle.context = kContext + kMaxTreeNodes;
      head_ = EagleHead::load(head_file, *target_, *backend_, eagle);
      make_cache(head_->kv_geometry(1, 0, backend_->default_kv_type()), head_->config().cell,
                 head_->rope_frequencies());
      EagleDrafterOptions drafter;
      drafter.backend = backend_.get(), drafter.head = head_.get(), drafter.cache = cache_.get(), drafter.tree = c.tree;
      drafter_ = make_eagle_drafter(drafter);
    } else {
      options.taps = {};
      options.max_outputs = tree_drafter_rows(c.tree, 1);
      draft_ = Model::load(ModelFile::open(files().draft), *backend_, options);
      make_cache(draft_->kv_geometry(1, 0, backend_->default_kv_type()), draft_->config(), draft_->rope_frequencies());
      ModelDrafterOptions drafter;
      drafter.backend = backend_.get(), drafter.model = draft_.get(), drafter.cache = cache_.get(),
      drafter.tree = c.tree;
      drafter.vocab = target_->config().vocab;
      drafter_ = make_model_drafter(drafter);
    }
    for (int n = 0; n <= kMostNodes; ++n) costs_.push_back(1 + c.row_cost * float(n));
  }

  std::vector<Tree> run() {
    drafter_->open(0);
    for (int i = 0; i < case_.prompt; ++i) text_.push_back(Token(3 + i * i % 300));
    const StepOutputs& outputs = run_target(0, case_.prompt, nullptr);
    if (drafter_->reads_target()) drafter_->prompt({0, 0, case_.prompt, &outputs, text_});
    while (!drafter_->prefill(0, text_)) {}
    text_.push_back(7);
    std::vector<Tree> trees;
    for (int i = 0; i < kRounds; ++i) trees.push_back(round(i));
    return trees;
  }

 private:
  Tree round(int number) {
    TokenTree tree(make_tree_policy(case_.tree)->capacity());
    tree.reset(text_.back());
    DraftTask task;
    task.text = text_, task.sampling = &case_.sampling, task.tree = &tree;
    task.limits.nodes = case_.tree.nodes - number % 3, task.limits.depth = number == 4 ? 1 : case_.tree.depth;
    if (case_.level_cost > 0) task.limits.level_cost = case_.level_cost, task.limits.verify_cost = costs_.data();
    drafter_->draft(std::span(&task, 1));
    Tree found;
    for (NodeId n = 0; n < tree.size(); ++n)
      found.tokens.push_back(tree.token(n)), found.parents.push_back(tree.parent(n)),
          found.scores.push_back(tree.score(n));
    std::vector<NodeId> path{0};
    for (int i = 0; i < number % 4; ++i) {
      NodeId child = tree.first_child(path.back());
      if (number == 3 && child != kNoNode && tree.next_sibling(child) != kNoNode) child = tree.next_sibling(child);
      if (child != kNoNode) path.push_back(child);
    }
    const int history = int(text_.size()) - 1;
    const StepOutputs& outputs = run_target(history, tree.size(), &tree);
    for (size_t i = 1; i < path.size(); ++i) text_.push_back(tree.token(path[i]));
    text_.push_back(Token(3 + history * 7 % 300));
    const Outcome outcome{0, &tree, path, text_.back(), &outputs, 0, history, text_};
    drafter_->observe(std::span(&outcome, 1));
    run_target(history, int(path.size()), nullptr);  // the cells of the path, at their places
    return found;
  }

  void make_cache(KvGeometry cells, const ModelConfig& draft, std::span<const double> frequencies) {
    DraftCacheParts parts;
    cells.capacity = DraftCache::work_cells(cache_config_, kContext) + kMaxTreeNodes;
    work_ = backend_->make_kv(cells);
    cells.capacity = kContext;
    if (DraftCache::two_stores(cache_config_, kContext, draft.context)) full_ = backend_->make_kv(cells);
    parts.backend = backend_.get(), parts.draft = &draft, parts.frequencies = frequencies, parts.work = work_.get(),
    parts.full = full_.get();
    parts.target = &target_->config(), parts.target_kv = kv_.get(), parts.context = kContext;
    cache_ = std::make_unique<DraftCache>(cache_config_, parts);
  }

  const StepOutputs& run_target(int history, int rows, TokenTree* tree) {
    std::vector<Token> tokens;
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) tokens.push_back(tree ? tree->token(i) : text_[size_t(history + i)]);
    for (int i = 0; i < rows; ++i) positions.push_back(history + (tree ? tree->depth(i) : i));
    SeqRows seq{0, rows, 0, history};
    if (tree && rows > 1) seq.ancestors = tree->ancestors(), seq.words = tree->words();
    return target_->forward({tokens, positions, std::span(&seq, 1), {}, !tree && rows > kMaxChain}, *kv_);
  }

  Case case_;
  std::unique_ptr<Backend> backend_;
  CacheConfig cache_config_;
  std::unique_ptr<Model> target_, draft_;
  std::unique_ptr<EagleHead> head_;
  std::unique_ptr<KvStore> kv_, work_, full_;
  std::unique_ptr<DraftCache> cache_;
  std::unique_ptr<Drafter> drafter_;
  std::vector<float> costs_;
  std::vector<Token> text_;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  TreeConfig eagle2, wide, opt;
  eagle2.kind = wide.kind = TreeKind::kEagle2, opt.kind = TreeKind::kOptTree;
  eagle2.nodes = 59, eagle2.depth = 8, eagle2.topk = 10;
  wide.nodes = 20, wide.depth = 5, wide.topk = 24;
  opt.nodes = 50, opt.depth = 10, opt.threshold = 0.01f;
  const auto add = [&](const char* name, bool eagle, const TreeConfig& tree, float level, float row, const char* cache,
                       int prompt) {
    all.push_back({fmt::format("{}_{}", eagle ? "eagle3" : "model", name), eagle, tree, level, row, cache, prompt});
  };
  for (const bool eagle : {false, true}) {
    add("eagle2", eagle, eagle2, 0, 0, "full", 150);
    add("wide", eagle, wide, 0, 0, "full", 130);
    add("opt_tree", eagle, opt, 0, 0, "full", 70);
    add("opt_tree_priced", eagle, opt, eagle ? 0.001f : 0.02f, 0.0005f, "full", 150);
    add("eagle2_priced", eagle, eagle2, 0.01f, 0.0005f, "streaming", 300);
    add("sampled", eagle, eagle2, 0, 0, "full", 120);
    all.back().sampling.temperature = 0.8f, all.back().sampling.seed = 7;
    add("filtered", eagle, opt, 0.001f, 0.0005f, "full", 120);
    all.back().sampling = {.temperature = 1.3f, .top_k = 30, .top_p = 0.95f, .min_p = 0.001f, .seed = 8};
    add("opt_tree_retrieval", eagle, opt, eagle ? 0.001f : 0.01f, 0.0002f, "retrieval", 320);
  }
  return all;
}

std::string difference(const std::vector<Tree>& found, const std::vector<Tree>& expected) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (found[i] != expected[i])
      return fmt::format("round {}: {} nodes, {} expected; {}", i, found[i].tokens.size(), expected[i].tokens.size(),
                         found[i].parents == expected[i].parents && found[i].tokens == expected[i].tokens
                             ? "only scores differ"
                             : "other nodes");
  return "";
}

std::unique_ptr<Backend> far() { return std::make_unique<FarBackend>(make_cpu_backend({1, std::nullopt})); }

class FarLevels : public ::testing::TestWithParam<Case> {};
class CudaLevels : public ::testing::TestWithParam<Case> {};

TEST_P(FarLevels, AreThoseOfTheHost) {
  for (const int rows : {16, 5}) {
    auto grows = std::make_unique<TreeGrowthBackend>(far(), rows);
    auto refuses = std::make_unique<RefusingBackend>(far(), rows);
    TreeGrowthBackend& counted = *grows;
    RefusingBackend& asked = *refuses;
    Drafting ours(GetParam(), std::move(grows)), hosts(GetParam(), std::move(refuses));
    const auto trees = ours.run();
    EXPECT_EQ(difference(trees, hosts.run()), "") << rows << " rows";
    EXPECT_EQ(counted.trees(), kRounds);
    EXPECT_GT(counted.passes(), kRounds) << "too few levels to see anything";
    EXPECT_EQ(asked.refused(), kRounds);
  }
}

TEST(FarLevelsPlain, OtherLimitsAreSeen) {  // the comparison can fail
  const Case c = cases()[2];
  Drafting five(c, std::make_unique<TreeGrowthBackend>(far(), 5)), six(c, std::make_unique<RefusingBackend>(far(), 6));
  EXPECT_NE(difference(five.run(), six.run()), "");
}

TEST_P(CudaLevels, AreThoseOfTheHost) {
  if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  for (const char* rows : {"8", "16"}) {
    ::setenv("SPECEXTEND_LEVELS", rows, 1);
    auto grows = make_cuda_backend({});
    ::unsetenv("SPECEXTEND_LEVELS");
    if (grows->level_rows() == 0) GTEST_SKIP() << "the driver's graphs have no loops";
    auto refuses = std::make_unique<RefusingBackend>(make_cuda_backend({}), grows->level_rows());
    Backend& looped = *grows;
    Drafting ours(GetParam(), std::move(grows)), hosts(GetParam(), std::move(refuses));
    EXPECT_EQ(difference(ours.run(), hosts.run()), "") << rows << " rows";
    EXPECT_GT(looped.level_rows(), 0) << "it could not record a loop and has left it to the host";
  }
}

const auto kName = [](const ::testing::TestParamInfo<Case>& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Far, FarLevels, ::testing::ValuesIn(cases()), kName);
INSTANTIATE_TEST_SUITE_P(Cuda, CudaLevels, ::testing::ValuesIn(cases()), kName);

TEST(FarLevelsPlain, FixedMathIsMath) {
  for (double x = 0; x > -699; x -= 0.0137) {
    const double exact = std::exp(x);
    ASSERT_NEAR(fixed_exp(x), exact, 3e-16 * exact) << x;
  }
  for (double x = 1e-300; x < 1e300; x *= 1.37)
    ASSERT_NEAR(fixed_log(x), std::log(x), 5e-16 * std::abs(std::log(x))) << x;
  for (double x = 1e-16; x < 1; x *= 1.7) ASSERT_NEAR(fixed_log(1 - x), std::log(1 - x), 5e-16 * -std::log(1 - x)) << x;
  EXPECT_EQ(fixed_log(1), 0);
  EXPECT_EQ(fixed_log(0), -INFINITY);
  for (uint64_t token = 0; token < 1000; ++token)
    ASSERT_EQ(float(fixed_gumbel(3, 4, token)), float(gumbel(3, 4, token))) << token;
  EXPECT_EQ(fixed_exp(0), 1);
  EXPECT_EQ(fixed_exp(-701), 0);
  EXPECT_EQ(fixed_exp(-INFINITY), 0);
}

}  // namespace
}  // namespace sx
