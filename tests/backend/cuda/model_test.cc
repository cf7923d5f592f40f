// Models on a device: trees against plain decoding, prompts in any chunks, recorded steps, and the CPU backend's
// logits, nearly.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "model/model.h"
#include "subject.h"
#include "support/model_writer.h"
#include "support/share.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;
using testing::TreeSubject;

constexpr KvTypes kKvTypes[] = {DType::kBF16,
                                DType::kF16,
                                DType::kQ8_0,
                                DType::kQ4_0,
                                DType::kQ4_1,
                                KvTypes(DType::kQ8_0, DType::kQ4_0),
                                KvTypes(DType::kBF16, DType::kQ8_0)};
constexpr DType kWeightTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0, DType::kQ4_1,
                                  DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K, DType::kQ3_K,
                                  DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

class InCases : public testing::OnDevice {
 protected:
  TestCases cases_;
  void TearDown() override {
    if (!IsSkipped()) cases_.expect_some();
  }
};
class Trees : public InCases {
 protected:
  void check_tree(const std::string& path, const KvTypes& kv, std::pair<int, int> histories, int nodes, unsigned seed) {
    if (cases_.next()) testing::check_tree(path, GetParam(), kv, histories, nodes, seed);
  }
  void check_grown(const std::string& path, const KvTypes& kv, std::pair<int, int> histories, int nodes, bool levels,
                   unsigned seed) {
    if (cases_.next()) testing::check_grown(path, GetParam(), kv, histories, nodes, levels, seed);
  }
};
class Steps : public InCases {};

TinySpec wide(DType weights) {
  TinySpec spec;
  spec.width = 256, spec.ffn = 256, spec.head_dim = 64, spec.weights = weights;
  return spec;
}

TEST_P(Trees, EveryWeightType) {
  const TempFolder folder;
  unsigned seed = 1;
  for (const DType type : kWeightTypes) {
    SCOPED_TRACE(dtype_name(type));
    testing::write_tiny_gguf(folder.file("tiny.gguf"), wide(type));
    check_tree(folder.file("tiny.gguf"), DType::kBF16, {63, 100}, 1 + int(seed * 7 % 40), seed), ++seed;
  }
}

TEST_P(Trees, WideFeedForward) {  // GEMMs of many rows end with their glu, and leave 16-bit copies only
  const TempFolder folder;
  unsigned seed = 40;
  for (const DType type : {DType::kBF16, DType::kF16}) {
    SCOPED_TRACE(dtype_name(type));
    TinySpec spec = wide(type);
    spec.layers = 2, spec.width = 512, spec.ffn = 4612;
    testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
    for (const int nodes : {10, 33, 60}) check_tree(folder.file("tiny.gguf"), DType::kBF16, {63, 20}, nodes, ++seed);
  }
}

// One row takes the kernels for few rows, a tree those that sort rows by expert. Experts of more than 128 and used by
// more than a warp has places; inner dimensions of one split-K part and of several, with ends inside a group.
TEST_P(Trees, Mixtures) {
  const TempFolder folder;
  unsigned seed = 180;
  struct Shape {
    DType type;
    int width, ffn, experts, used;
  };
  for (const Shape& s : {Shape{DType::kQ4_0, 256, 96, 16, 8},
                         {DType::kMXFP4, 2112, 160, 5, 2},
                         {DType::kQ4_1, 128, 1056, 8, 3},
                         {DType::kQ8_0, 64, 64, 140, 40},
                         {DType::kQ6_K, 256, 256, 12, 9},
                         {DType::kBF16, 192, 96, 6, 2}}) {
    TinySpec spec;
    spec.arch = "qwen3_moe", spec.layers = 2, spec.width = s.width, spec.heads = 4, spec.head_dim = 32;
    spec.ffn = s.ffn, spec.experts = s.experts, spec.experts_used = s.used, spec.weights = s.type;
    if (s.type == DType::kQ6_K) spec.head_dim = 64;
    SCOPED_TRACE(fmt::format("{} width {}, ffn {}", dtype_name(s.type), s.width, s.ffn));
    testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
    for (const int nodes : {2, 17}) check_tree(folder.file("tiny.gguf"), DType::kBF16, {63, 20}, nodes, ++seed);
    check_grown(folder.file("tiny.gguf"), DType::kBF16, {30, 5}, 9, true, ++seed);
  }
}

TEST_P(Trees,
       EveryFormOfProducts) {  // matrices that are not small: tiles of 64, 96 and 128 outputs; steps of two launches
  const TempFolder folder;
  unsigned seed = 140;
  for (const int ffn : {2560, 3600}) {
    SCOPED_TRACE(ffn);
    TinySpec spec = wide(DType::kBF16);
    spec.layers = 2, spec.width = 1536, spec.heads = 24, spec.kv_heads = 8, spec.ffn = ffn;
    testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
    for (const int nodes : {12, 40, 60}) check_tree(folder.file("tiny.gguf"), DType::kBF16, {63, 20}, nodes, ++seed);
  }
}

TEST_P(Trees, EveryKvType) {
  const TempFolder folder;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), wide(DType::kQ8_0));
  unsigned seed = 50;
  for (const KvTypes& kv : kKvTypes)
    for (const auto& histories : {std::pair{0, 5}, {63, 64}, {255, 511}, {700, 130}})
      check_tree(folder.file("tiny.gguf"), kv, histories, 1 + int(seed * 11 % 70), seed), ++seed;
}

TEST_P(Trees, EveryShapeOfHeads) {
  const TempFolder folder;
  struct Shape {
    int heads, kv_heads, head_dim, window;
  };
  unsigned seed = 80;
  for (const Shape& s : {Shape{4, 4, 64, 0},
                         {6, 2, 96, 0},
                         {8, 2, 128, 0},
                         {2, 1, 256, 0},
                         {9, 3, 32, 0},
                         {4, 2, 80, 0},
                         {4, 1, 64, 40}}) {
    TinySpec spec;
    spec.layers = 1, spec.heads = s.heads, spec.kv_heads = s.kv_heads, spec.head_dim = s.head_dim,
    spec.window = s.window;
    spec.weights = DType::kQ4_0;
    SCOPED_TRACE(
        fmt::format("{} heads, {} of them keys', of {}, window {}", s.heads, s.kv_heads, s.head_dim, s.window));
    testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
    for (const KvTypes& kv : kKvTypes) {
      if (kv != DType::kBF16 && kv != DType::kF16 && s.head_dim % 32 != 0) continue;
      check_tree(folder.file("tiny.gguf"), kv, {130, 30}, 30, ++seed);
    }
  }
}

TEST_P(Trees, LargeAndGrowing) {
  const TempFolder folder;
  TinySpec spec = wide(DType::kQ4_1);
  spec.layers = 1;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), spec);
  unsigned seed = 200;
  check_tree(folder.file("tiny.gguf"), DType::kBF16, {600, 1}, 300, ++seed);
  for (const bool levels : {false, true}) {
    for (const KvTypes& kv : kKvTypes)
      check_grown(folder.file("tiny.gguf"), kv, {levels ? 500 : 60, levels ? 3 : 490}, 60, levels, ++seed);
    check_grown(folder.file("tiny.gguf"), DType::kBF16, {400, 820}, 400, levels, ++seed);
  }
}

// One sequence at a time on a model, slot by slot.
class Runner {
 public:
  Runner(const std::string& path, const TreeSubject& subject, const KvTypes& kv, int rows = 512, int context = 800)
      : backend_(subject.make(2)) {
    ModelOptions o;
    o.max_rows = rows, o.max_outputs = 64, o.context = context;
    model_ = Model::load(ModelFile::open(path), *backend_, o);
    kv_ = backend_->make_kv(model_->kv_geometry(3, context, kv));
  }
  int vocab() const { return model_->config().vocab; }
  // Logits of the last `outputs` rows of a chain.
  std::vector<float> chain(int slot, int history, std::span<const Token> tokens, int outputs, bool prompt) {
    std::vector<int32_t> positions(tokens.size()), rows(static_cast<size_t>(outputs));
    std::iota(positions.begin(), positions.end(), history);
    std::iota(rows.begin(), rows.end(), int32_t(tokens.size()) - outputs);
    const SeqRows seq{0, int(tokens.size()), slot, history};
    const float* logits = model_->forward({tokens, positions, std::span(&seq, 1), rows, prompt}, *kv_).logits;
    std::vector<float> out(rows.size() * size_t(vocab()));
    if (outputs > 0) backend_->download(out.data(), logits, out.size());
    return out;
  }
  // A prompt in chunks, then a few tokens one by one: the logits of its last row and of these.
  std::vector<float> text(int slot, std::span<const Token> prompt, std::span<const Token> rest, size_t chunk) {
    std::vector<float> all;
    for (size_t at = 0; at < prompt.size(); at += chunk) {
      const auto part = prompt.subspan(at, std::min(chunk, prompt.size() - at));
      const bool last = at + part.size() == prompt.size();
      const auto logits = chain(slot, int(at), part, last ? 1 : 0, true);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    for (size_t i = 0; i < rest.size(); ++i) {
      const auto logits = chain(slot, int(prompt.size() + i), rest.subspan(i, 1), 1, false);
      all.insert(all.end(), logits.begin(), logits.end());
    }
    return all;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
};

std::vector<Token> random_text(int n, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> text(static_cast<size_t>(n));
  for (auto& t : text) t = Token(random() % unsigned(vocab));
  return text;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(Steps, PromptsInAnyChunks) {
  const TempFolder folder;
  for (const DType weights : {DType::kBF16, DType::kF16, DType::kQ8_0, DType::kQ4_K}) {
    testing::write_tiny_gguf(folder.file("tiny.gguf"), wide(weights));
    const auto prompt = random_text(333, 300, 7), rest = random_text(4, 300, 8), other = random_text(333, 300, 9);
    for (const KvTypes& kv : kKvTypes) {
      if (!cases_.next()) continue;
      SCOPED_TRACE(fmt::format("{} KV {}", dtype_name(weights), kv_types_name(kv)));
      Runner run(folder.file("tiny.gguf"), GetParam(), kv);
      const auto whole = run.text(0, prompt, rest, prompt.size());
      for (const size_t chunk : {1, 7, 64, 200})
        EXPECT_TRUE(same(run.text(1, prompt, rest, chunk), whole)) << "chunks of " << chunk;
      EXPECT_FALSE(same(run.text(1, other, rest, 64), whole));
    }
  }
}

// A device pads a prompt's rows to one of several counts: each of them gives the same bits, and so do two in a row.
TEST_P(Steps, PromptsOfEveryPaddedSize) {
  const TempFolder folder;
  for (const DType weights : {DType::kBF16, DType::kQ4_0}) {
    if (!cases_.next()) continue;
    SCOPED_TRACE(dtype_name(weights));
    testing::write_tiny_gguf(folder.file("tiny.gguf"), wide(weights));
    const auto prompt = random_text(1100, 300, 17), rest = random_text(2, 300, 18);
    Runner run(folder.file("tiny.gguf"), GetParam(), DType::kBF16, 1200, 1200);
    const auto whole = run.text(0, prompt, rest, prompt.size());
    for (const size_t chunk : {30, 128, 190, 250, 370, 500, 700, 1024})
      EXPECT_TRUE(same(run.text(1, prompt, rest, chunk), whole)) << "chunks of " << chunk;
  }
}

// Steps of the same shape, so that what was recorded for one is repeated for the others.
TEST_P(Steps, RepeatedStepsUseTheirOwnInputs) {
  if (!cases_.next()) return;
  const TempFolder folder;
  testing::write_tiny_gguf(folder.file("tiny.gguf"), wide(DType::kQ8_0));
  const auto a = random_text(100, 300, 1), b = random_text(90, 300, 2), rows = random_text(6, 300, 3),
             others = random_text(6, 300, 4);
  Runner run(folder.file("tiny.gguf"), GetParam(), DType::kBF16),
      fresh(folder.file("tiny.gguf"), GetParam(), DType::kBF16);
  run.chain(0, 0, a, 0, true);
  run.chain(1, 0, b, 0, true);
  fresh.chain(1, 0, b, 0, true);
  const auto first = run.chain(0, 100, rows, 6, false);
  const auto between = run.chain(1, 90, others, 6, false);
  EXPECT_TRUE(same(between, fresh.chain(1, 90, others, 6, false)));
  EXPECT_FALSE(same(between, first));
  EXPECT_TRUE(same(run.chain(0, 100, rows, 6, false), first));
  for (const int n : {1, 2, 3, 5}) {  // shapes that may share padding
    const auto few = run.chain(0, 100, std::span(rows).first(size_t(n)), n, false);
    EXPECT_EQ(std::memcmp(few.data(), first.data(), few.size() * sizeof(float)), 0) << n << " rows";
  }
}

TEST_P(Steps, GoldenModelsAreNearTheCpu) {
  const TreeSubject cpu{"cpu", [](int threads) { return make_cpu_backend({threads, std::nullopt}); }};
  for (const char* name : {"llama", "llama-linear", "llama-llama3", "llama-yarn", "llama-bias", "mistral", "qwen2",
                           "qwen2-window", "qwen3"}) {
    if (!cases_.next()) continue;
    SCOPED_TRACE(name);
    const std::string path = fmt::format("{}/{}", SX_GOLDEN_DIR, name);
    Runner right(path, cpu, DType::kBF16), run(path, GetParam(), DType::kBF16);
    const auto prompt = random_text(150, run.vocab(), 5), rest = random_text(8, run.vocab(), 6);
    const auto expected = right.text(0, prompt, rest, 150), found = run.text(0, prompt, rest, 150);
    ASSERT_EQ(found.size(), expected.size());
    double error = 0, size = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      error += std::pow(double(found[i]) - double(expected[i]), 2);
      size += std::pow(double(expected[i]), 2);
    }
    EXPECT_LT(std::sqrt(error / size), 0.03);
  }
}

const auto name_of = [](const ::testing::TestParamInfo<TreeSubject>& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Far, Trees, ::testing::Values(testing::far_subject()), name_of);
INSTANTIATE_TEST_SUITE_P(Far, Steps, ::testing::Values(testing::far_subject()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, Trees, ::testing::Values(testing::cuda_subject()), name_of);
INSTANTIATE_TEST_SUITE_P(Cuda, Steps, ::testing::Values(testing::cuda_subject()), name_of);

}  // namespace
}  // namespace sx
