// Cells behind sliding windows are given back, and nothing shows it: an engine whose released cells are overwritten
// with huge numbers gives the bits of one that keeps all cells, after cutting, copying, saving and restoring texts.
#include "engine/window_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <sstream>

#include "backend/cpu/kv/store.h"
#include "backend/registry.h"
#include "engine/engine.h"
#include "specextend/specextend.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

constexpr int kWindow = 40, kLength = 3900;  // of which the first 1,024 cells are given back

// Keeps all cells, or spoils those that are released.
class SpoilingBackend final : public testing::ForwardingBackend {
 public:
  explicit SpoilingBackend(bool keeps) : ForwardingBackend(make_cpu_backend({2, std::nullopt})), keeps_(keeps) {}
  DeviceTraits traits() const override { return {.releases_cells = !keeps_}; }
  void kv_release(KvStore& kv, const KvReleaseArgs& a) override {
    ForwardingBackend::kv_release(kv, a);
    const size_t cell = kv_cell_bytes(kv), layer = cell / static_cast<size_t>(kv.geometry().layers);
    const KvCellsArgs cells{.slot = a.slot, .first = a.first, .count = a.end - a.first};
    std::vector<std::byte> bytes(static_cast<size_t>(cells.count) * cell);
    kv_read(kv, cells, bytes.data());
    for (size_t i = 0; i < static_cast<size_t>(cells.count); ++i)
      std::memset(bytes.data() + i * cell + static_cast<size_t>(a.first_layer) * layer, 0x5a,
                  static_cast<size_t>(a.layers) * layer);  // 1.5e16 as f32 and as bf16
    kv_write(kv, cells, bytes.data());
    released += cells.count;
  }
  int released = 0;

 private:
  bool keeps_;
};

std::vector<Token> random_tokens(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Token> tokens(static_cast<size_t>(count));
  for (auto& t : tokens) t = Token(random() % 250);
  return tokens;
}

std::vector<float> next(Session& session) {
  const auto logits = session.evaluate(random_tokens(5, 3), 1);
  return {logits.begin(), logits.end()};
}

class WindowMemoryTest : public ::testing::Test {
 protected:
  WindowMemoryTest() {
    testing::TinySpec spec;
    spec.window = kWindow, spec.context = 6000, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(folder_.file("tiny.gguf"), spec);
    for (const bool keeps : {false, true}) {
      EngineOptions o;
      o.model = folder_.file("tiny.gguf"), o.context = 5000, o.chunk = 512, o.max_sessions = 2;
      o.spec.preset = keeps ? "off" : "suffix";
      auto backend = std::make_unique<SpoilingBackend>(keeps);
      if (!keeps) spoiling_ = backend.get();
      engines_.push_back(std::make_unique<EngineImpl>(o, std::move(backend)));
      sessions_.push_back(engines_.back()->start());
      if (!keeps) spoiling_->released = 0;  // what was measured when it was opened
      sessions_.back()->evaluate(text_, 0);
    }
  }
  // Both sessions go on alike.
  void expect_same(const char* what) {
    ASSERT_EQ(sessions_[0]->length(), sessions_[1]->length()) << what;
    const auto a = next(*sessions_[0]), b = next(*sessions_[1]);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << what;
    EXPECT_TRUE(std::ranges::equal(sessions_[0]->text(), sessions_[1]->text())) << what;
  }
  bool can_return(int length) { return engines_[0]->parts().windows->can_return(0, length); }

  const std::vector<Token> text_ = random_tokens(kLength, 1);
  testing::TempFolder folder_;
  SpoilingBackend* spoiling_ = nullptr;
  std::vector<std::unique_ptr<EngineImpl>> engines_;  // one that gives back, one that keeps
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST_F(WindowMemoryTest, CutTexts) {
  EXPECT_EQ(spoiling_->released, 1024);
  EXPECT_EQ(engines_[1]->parts().windows, nullptr);
  expect_same("as it grew");
  EXPECT_TRUE(can_return(1024 + kWindow - 1));
  EXPECT_FALSE(can_return(1024 + kWindow - 2));
  for (const int length : {3700, 1024 + kWindow - 1, 500, 30, 0}) {
    for (auto& session : sessions_) session->truncate(length);
    EXPECT_EQ(sessions_[0]->length(), length);
    expect_same("cut");
  }
  EXPECT_TRUE(can_return(3));  // a new text that has lost nothing
}

TEST_F(WindowMemoryTest, GeneratedTexts) {
  GenerateOptions options;
  options.max_tokens = 40, options.ignore_end = true;
  const auto expect_same_answers = [&](std::span<const Token> prompt, int cached) {
    const GenerateResult a = sessions_[0]->generate(prompt, options), b = sessions_[1]->generate(prompt, options);
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.timings.cached_tokens, cached);
  };
  std::vector<Token> prompt = text_;
  prompt.insert(prompt.end(), {1, 2, 3, 1, 2, 3, 1, 2});
  expect_same_answers(prompt, kLength);
  prompt.resize(2000);
  prompt.push_back(9);
  expect_same_answers(prompt, 2000);
  prompt[300] ^= 1;
  expect_same_answers(prompt, 0);  // the text returns to its beginning
}

TEST_F(WindowMemoryTest, CopiedTexts) {
  for (const int length : {3800, 200}) {
    std::vector<std::unique_ptr<Session>> copies;
    for (int i : {0, 1}) {
      copies.push_back(engines_[size_t(i)]->start());
      copies.back()->copy_from(*sessions_[size_t(i)], length);
    }
    const auto a = next(*copies[0]), b = next(*copies[1]);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0) << length;
    for (auto& copy : copies) copy->truncate(length / 2);
    const auto c = next(*copies[0]), d = next(*copies[1]);
    EXPECT_EQ(std::memcmp(c.data(), d.data(), c.size() * sizeof(float)), 0) << length;
  }
  expect_same("the originals");
}

TEST_F(WindowMemoryTest, SavedTexts) {
  for (auto& session : sessions_) {
    std::stringstream state;
    session->save(state);
    session->truncate(0);
    session->restore(state);
  }
  EXPECT_TRUE(can_return(kLength));
  EXPECT_FALSE(can_return(kLength - 1));  // nothing else is known of a saved text
  expect_same("restored");
  for (auto& session : sessions_) session->truncate(kLength - 100);
  expect_same("restored and cut");
}

// What is asked of a backend, for a model in which some layers see everything.
TEST(WindowMemory, NeighbouringLayersGoTogether) {
  struct Listening final : testing::ForwardingBackend {
    Listening() : ForwardingBackend(make_cpu_backend({1, std::nullopt})) {}
    void kv_release(KvStore&, const KvReleaseArgs& a) override { calls.push_back(a); }
    std::vector<KvReleaseArgs> calls;
  } backend;
  const auto kv = backend.make_kv({.layers = 5, .kv_heads = 1, .head_dim = 16, .slots = 2, .capacity = 9000});
  const int windows[] = {100, 300, 0, 100, 0};
  WindowMemory memory(backend, *kv, windows);
  memory.grow(1, 2048 + 1024 + 298);
  EXPECT_TRUE(backend.calls.empty());
  memory.grow(1, 2048 + 1024 + 299);
  ASSERT_EQ(backend.calls.size(), 2u);
  EXPECT_EQ(backend.calls[0].first_layer, 0);
  EXPECT_EQ(backend.calls[0].layers, 2);
  EXPECT_EQ(backend.calls[1].first_layer, 3);
  EXPECT_EQ(backend.calls[1].layers, 1);
  EXPECT_EQ(backend.calls[1].slot, 1);
  EXPECT_EQ(backend.calls[1].end, 1024);
  memory.grow(1, 8000);
  ASSERT_EQ(backend.calls.size(), 4u);
  EXPECT_EQ(backend.calls[3].first, 1024);
  EXPECT_EQ(backend.calls[3].end, 5120);
  EXPECT_TRUE(memory.can_return(0, 1));
  EXPECT_FALSE(memory.can_return(1, 5000));
  memory.forget(1);
  EXPECT_TRUE(memory.can_return(1, 0));
}

TEST(WindowMemory, ReleasedCellsReadAsZerosAndOthersStay) {
  const auto store = cpu::make_kv_store({.layers = 3, .kv_heads = 2, .head_dim = 64, .slots = 1, .capacity = 3000},
                                        cpu::available_isas().front());
  auto& kv = static_cast<cpu::CpuKvStore&>(*store);
  const std::vector<float> ones(64, 1.0f);
  for (int layer = 0; layer < 3; ++layer)
    for (int head = 0; head < 2; ++head)
      for (int cell = 0; cell < 3000; ++cell) {
        cpu::store_key(kv.key_layout(), kv.keys(0, layer, head, cell / kBlock), cell % kBlock, ones.data());
        cpu::store_value(kv.value_layout(), kv.values(0, layer, head, cell / kBlock), cell % kBlock, ones.data());
      }
  kv.release({.slot = 0, .first_layer = 1, .layers = 1, .first = 0, .end = 2000});
  for (int layer = 0; layer < 3; ++layer)
    for (int head = 0; head < 2; ++head)
      for (int cell = 0; cell < 3000; ++cell) {
        float k[64], v[64];
        kv.load_key(0, layer, head, cell, k);
        kv.load_value(0, layer, head, cell, v);
        const float expected = layer == 1 && cell < 1024 ? 0.0f : 1.0f;
        ASSERT_EQ(k[63], expected) << layer << " " << head << " " << cell;
        ASSERT_EQ(v[63], expected) << layer << " " << head << " " << cell;
      }
}

}  // namespace
}  // namespace sx
