// Weights and logits that are no numbers: the file is refused with the tensor's name, the request fails with its
// position, and nobody else does.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "backend/registry.h"
#include "engine/engine.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"
#include "support/random_text.h"
#include "tensor/finite.h"

namespace sx {
namespace {

using testing::TinySpec;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
constexpr uint16_t kHalfNan = 0x7e00, kHalfInfinity = 0x7c00;

class BrokenWeights : public ::testing::Test {
 protected:
  template <class Value>
  void write(DType type, const std::string& tensor, size_t at, Value value) {
    TinySpec spec;
    spec.weights = type;
    auto file = testing::tiny_gguf(spec);
    std::memcpy(file.data_of(tensor).data() + at, &value, sizeof value);
    testing::write_file(path_, file.bytes());
  }
  EngineOptions options() const {
    EngineOptions o;
    o.model = path_, o.threads = 1, o.context = 128, o.max_sessions = 3;
    return o;
  }
  std::string refusal() const {
    try {
      Engine::open(options());
    } catch (const Error& error) { return error.what(); }
    return {};
  }
  testing::TempFolder folder_;
  std::string path_ = folder_.file("tiny.gguf");
};

TEST_F(BrokenWeights, AreRefusedByName) {
  const auto refuses = [&](const char* tensor, const char* place) {
    const std::string why = refusal();
    EXPECT_NE(why.find(std::string("'") + tensor + "'"), why.npos) << tensor << ": " << why;
    EXPECT_NE(why.find(place), why.npos) << tensor << ": " << why;
  };
  write(DType::kF32, "blk.1.attn_norm.weight", 4 * 5, kNan);
  refuses("blk.1.attn_norm.weight", "column 5");
  write(DType::kF32, "output_norm.weight", 0, -kInfinity);
  refuses("output_norm.weight", "column 0");
  write(DType::kF32, "blk.0.attn_v.weight", 4 * (64 * 3 + 7), kInfinity);
  refuses("blk.0.attn_v.weight", "row 3, column 7");
  write(DType::kF32, "token_embd.weight", 4 * 64 * 319, kNan);
  refuses("token_embd.weight", "row 319");
  write(DType::kF16, "blk.0.attn_q.weight", 2 * 64 * 2, kHalfNan);
  refuses("blk.0.attn_q.weight", "row 2, column 0");
  write(DType::kBF16, "output.weight", 2 * 9, uint16_t(0xff81));
  refuses("output.weight", "column 9");
  write(DType::kQ4_1, "output.weight", 20 * 5 + 2, kHalfInfinity);  // the offset of block 5: row 2, columns 32 to 63
  refuses("output.weight", "row 2, column 32");
  write(DType::kQ8_0, "blk.1.ffn_down.weight", 0, kHalfNan);
  refuses("blk.1.ffn_down.weight", "row 0, column 0");
  write(DType::kQ8_0, "blk.1.ffn_down.weight", 2, kHalfNan);  // codes may be anything
  EXPECT_EQ(refusal(), "");
}

TEST_F(BrokenWeights, ScalesOfEveryTypeAreLookedAt) {
  const std::pair<DType, std::vector<size_t>> places[] = {
      {DType::kQ4_0, {0}},    {DType::kQ4_1, {0, 2}},   {DType::kQ5_0, {0}},   {DType::kQ5_1, {0, 2}},
      {DType::kQ8_0, {0}},    {DType::kQ2_K, {80, 82}}, {DType::kQ3_K, {108}}, {DType::kQ4_K, {0, 2}},
      {DType::kQ5_K, {0, 2}}, {DType::kQ6_K, {208}}};
  for (const auto& [type, offsets] : places) {
    const DTypeInfo& info = dtype_info(type);
    const int64_t blocks = 3000, count = blocks * info.block;
    for (const size_t offset : offsets)
      for (const int64_t block : {int64_t(0), int64_t(1500), blocks - 1}) {
        std::vector<std::byte> data(size_t(blocks) * size_t(info.bytes), std::byte(0x3b));
        EXPECT_EQ(first_not_finite(type, data.data(), count), -1) << info.name;
        std::memcpy(data.data() + size_t(block) * size_t(info.bytes) + offset, &kHalfInfinity, 2);
        EXPECT_EQ(first_not_finite(type, data.data(), count), block * info.block) << info.name << " " << offset;
      }
  }
}

// Weights that are numbers, and logits that are not.
TEST_F(BrokenWeights, LogitsFailTheRequestAndName) {
  testing::write_file(path_, testing::tiny_gguf_with_infinite_logits({}).bytes());
  const auto engine = Engine::open(options());
  const auto prompt = testing::random_text(9, 1);
  const auto why = [&](auto&& body) {
    try {
      body();
    } catch (const Error& error) { return std::string(error.what()); }
    return std::string("no error");
  };
  for (float temperature : {0.0f, 1.0f}) {
    GenerateOptions o;
    o.sampling.temperature = temperature, o.max_tokens = 5;
    const std::string said = why([&] { engine->start()->generate(prompt, o); });
    EXPECT_NE(said.find("position 9"), said.npos) << said;
  }
  EXPECT_NE(why([&] { engine->start()->evaluate(prompt, 2); }).find("position 8"), std::string::npos);
  GenerateOptions scored;
  scored.max_tokens = 0;
  int told = 0;
  scored.on_prompt_token = [&](const TokenInfo&) { ++told; };
  EXPECT_NE(why([&] { engine->start()->generate(prompt, scored); }).find("position 1 "), std::string::npos);
  EXPECT_EQ(told, 0);
}

// Says of the logits for one place of texts that they are broken.
class BrokenAt final : public testing::ForwardingBackend {
 public:
  explicit BrokenAt(uint64_t position) : ForwardingBackend(make_cpu_backend({1, std::nullopt})), position_(position) {}
  void choose(const ChooseArgs& a) override {
    right_->choose(a);
    for (const ChooseRow& row : a.rows)
      if (row.broken && row.position == position_) *row.broken = 1;
  }
  void probabilities(const ProbabilitiesArgs& a) override {
    right_->probabilities(a);
    if (a.row.broken && a.row.position == position_) *a.row.broken = 1;
  }

 private:
  const uint64_t position_;
};

// With and without drafts the same text comes before the same error; requests that end earlier are not touched.
TEST_F(BrokenWeights, FailAtTheSamePlaceWithDrafts) {
  testing::write_tiny_gguf(path_, {});
  const auto prompt = testing::random_text(20, 3);
  struct Outcome {
    std::string text, error;
    bool operator==(const Outcome&) const = default;
  };
  std::vector<Outcome> outcomes;
  for (const char* rule : {"", "match", "chain", "typical"}) {
    EngineOptions o = options();
    if (*rule)
      o.spec = {"sd", path_, {{"cost-model", "off"}, {"accept", rule}, {"allow-lossy", "on"}, {"nodes", "4"}}, {}};
    EngineImpl engine(o, std::make_unique<BrokenAt>(33));
    GenerateOptions ask, brief;
    Outcome outcome;
    ask.max_tokens = 40, ask.ignore_end = true;
    brief = ask, brief.max_tokens = 13;  // its last token is at position 32
    ask.on_text = [&](std::string_view text) { outcome.text += text; };
    auto a = engine.start(), b = engine.start();
    auto batch = engine.batch();
    batch->add({a.get(), prompt, &ask});
    batch->add({b.get(), prompt, &brief});
    while (batch->step()) {}
    const auto done = batch->take_finished();
    ASSERT_EQ(done.size(), 2u);
    for (const Finished& f : done) {
      if (f.session == a.get()) {
        outcome.error = f.error;
        EXPECT_TRUE(f.models_fault);
      } else {
        EXPECT_EQ(f.error, "");
        EXPECT_FALSE(f.models_fault);
        EXPECT_EQ(f.result.tokens.size(), 13u);
      }
    }
    EXPECT_NE(outcome.error.find("position 33"), std::string::npos) << rule << ": " << outcome.error;
    if (rule != std::string("typical")) outcomes.push_back(outcome);
  }
  EXPECT_FALSE(outcomes[0].text.empty());
  EXPECT_EQ(outcomes[0], outcomes[1]);
  EXPECT_EQ(outcomes[0], outcomes[2]);  // greedy
}

}  // namespace
}  // namespace sx
