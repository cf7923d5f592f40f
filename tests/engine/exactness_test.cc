// Batch invariance, end to end: a token's logits are the same bits however its prompt was cut into steps and however
// many threads ran. Compared with memcmp against processing one token at a time on one thread.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "backend/cpu/isa.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;

std::vector<Token> random_tokens(int count, int vocab, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(static_cast<size_t>(count));
  for (auto& t : tokens) t = Token(random() % unsigned(vocab));
  return tokens;
}

EngineOptions options(const std::string& model, int threads, int chunk, const std::string& kv, int context) {
  EngineOptions o;
  o.model = model, o.threads = threads, o.chunk = chunk, o.max_outputs = chunk, o.kv_type = kv, o.context = context;
  return o;
}

// Logits of every position, the text being processed in the given steps: [tokens, vocab].
std::vector<float> logits_of(Engine& engine, std::span<const Token> tokens, const std::vector<int>& steps) {
  auto session = engine.start();
  std::vector<float> all;
  size_t at = 0;
  for (int n : steps) {
    const auto part = session->evaluate(tokens.subspan(at, size_t(n)), n);
    all.insert(all.end(), part.begin(), part.end());
    at += size_t(n);
  }
  EXPECT_EQ(at, tokens.size());
  return all;
}

std::vector<int> random_steps(int total, int most, std::mt19937& random) {
  std::vector<int> steps;
  while (total > 0) {
    steps.push_back(std::min(total, 1 + int(random() % unsigned(most))));
    total -= steps.back();
  }
  return steps;
}

// First position whose bits differ, or -1.
int first_difference(const std::vector<float>& a, const std::vector<float>& b, int vocab) {
  if (a.size() != b.size()) return 0;
  for (size_t row = 0; row < a.size() / size_t(vocab); ++row)
    if (std::memcmp(&a[row * size_t(vocab)], &b[row * size_t(vocab)], size_t(vocab) * sizeof(float)) != 0)
      return int(row);
  return -1;
}

void check_invariance(const TinySpec& spec, const std::string& kv, int length, int groupings) {
  const TempFolder folder;
  const std::string path = folder.file("tiny.gguf");
  testing::write_tiny_gguf(path, spec);
  const auto tokens = random_tokens(length, spec.vocab, 7);
  std::mt19937 random(11);
  auto plain_engine = Engine::open(options(path, 1, 1, kv, length));
  const auto plain = logits_of(*plain_engine, tokens, std::vector<int>(size_t(length), 1));
  for (int i = 0; i < groupings; ++i) {
    const int threads = 1 + i % 4, chunk = i % 3 == 0 ? length : 1 + int(random() % 70);
    auto engine = Engine::open(options(path, threads, chunk, kv, length));
    const auto steps = random_steps(length, chunk, random);
    EXPECT_EQ(first_difference(plain, logits_of(*engine, tokens, steps), spec.vocab), -1)
        << spec.arch << " " << dtype_name(spec.weights) << " KV " << kv << ", " << threads << " threads, chunk "
        << chunk;
  }
}

TEST(Exactness, EveryWeightType) {
  for (DType type : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1,
                     DType::kQ8_0, DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K}) {
    TinySpec spec;
    spec.width = 256, spec.ffn = 256, spec.weights = type;
    check_invariance(spec, "", 140, 3);
  }
}

TEST(Exactness, EveryKvType) {
  for (const char* kv : {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q8_0/q4_0", "q4_1/bf16", "/q8_0"}) {
    TinySpec spec;
    spec.weights = DType::kQ8_0;
    check_invariance(spec, kv, 200, 6);
  }
}

TEST(Exactness, EveryArchitecture) {
  TinySpec qwen2, qwen3, window, wide;
  qwen2.arch = "qwen2", qwen2.kv_heads = 1;
  qwen3.arch = "qwen3", qwen3.head_dim = 32, qwen3.kv_heads = 4;
  window.window = 50;
  wide.heads = 6, wide.kv_heads = 2, wide.width = 96, wide.head_dim = 80;
  for (const TinySpec& spec : {qwen2, qwen3, window, wide}) check_invariance(spec, "", 150, 4);
}

TEST(Exactness, AcrossSpans) {
  TinySpec spec;
  spec.layers = 1, spec.weights = DType::kQ4_1;
  for (const char* kv : {"bf16", "q8_0"}) check_invariance(spec, kv, 1100, 3);
  spec.window = 600;
  check_invariance(spec, "bf16", 1100, 2);
}

// Cutting back and going another way leaves no trace.
TEST(Exactness, TruncationLeavesNoTrace) {
  const TempFolder folder;
  const std::string path = folder.file("tiny.gguf");
  TinySpec spec;
  testing::write_tiny_gguf(path, spec);
  const auto tokens = random_tokens(150, spec.vocab, 1), other = random_tokens(100, spec.vocab, 2);
  auto engine = Engine::open(options(path, 2, 64, "", 256));
  const auto plain = logits_of(*engine, tokens, {64, 64, 22});
  auto session = engine->start();
  session->evaluate(other, 0);
  session->truncate(0);
  session->evaluate(std::span(tokens).first(90), 0);
  session->evaluate(other, 0);
  session->truncate(90);
  const auto rest = session->evaluate(std::span(tokens).subspan(90), 60);
  EXPECT_EQ(std::memcmp(rest.data(), &plain[90 * size_t(spec.vocab)], rest.size_bytes()), 0);
}

// Sessions side by side do not disturb each other.
TEST(Exactness, NeighboursDoNotMatter) {
  const TempFolder folder;
  const std::string path = folder.file("tiny.gguf");
  TinySpec spec;
  testing::write_tiny_gguf(path, spec);
  auto o = options(path, 2, 64, "", 256);
  o.max_sessions = 3;
  auto engine = Engine::open(o);
  const auto a = random_tokens(130, spec.vocab, 1), b = random_tokens(130, spec.vocab, 2);
  const auto plain = logits_of(*engine, a, {64, 64, 2});
  auto first = engine->start(), second = engine->start(), third = engine->start();
  EXPECT_THROW(engine->start(), Error);
  std::vector<float> all;
  for (size_t i = 0; i < a.size(); i += 13) {
    first->evaluate(std::span(b).subspan(i, 13), 1);
    const auto part = second->evaluate(std::span(a).subspan(i, 13), 13);
    all.insert(all.end(), part.begin(), part.end());
    third->evaluate(std::span(b).subspan(0, 3), 1);
  }
  EXPECT_EQ(first_difference(plain, all, spec.vocab), -1);
}

// The comparison can fail: another instruction set sums in another order, and that is seen.
TEST(Exactness, AnotherOrderOfSummationIsSeen) {
  if (cpu::available_isas().size() < 2) GTEST_SKIP() << "this machine has one instruction set only";
  const TempFolder folder;
  const std::string path = folder.file("tiny.gguf");
  TinySpec spec;
  testing::write_tiny_gguf(path, spec);
  const auto tokens = random_tokens(80, spec.vocab, 1);
  auto engine = Engine::open(options(path, 1, 80, "bf16", 80));
  const auto plain = logits_of(*engine, tokens, {80});
  ::setenv("SPECEXTEND_ISA", "generic", 1);
  auto generic = Engine::open(options(path, 1, 80, "bf16", 80));
  ::unsetenv("SPECEXTEND_ISA");
  const auto other = logits_of(*generic, tokens, {80});
  EXPECT_NE(first_difference(plain, other, spec.vocab), -1);
  double worst = 0;
  for (size_t i = 0; i < plain.size(); ++i) worst = std::max(worst, std::abs(double(plain[i]) - double(other[i])));
  EXPECT_LT(worst, 0.2);  // and yet it is the same model
}

}  // namespace
}  // namespace sx
