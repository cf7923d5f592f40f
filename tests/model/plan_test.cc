// Layers left out by a plan, against a model whose same parts write nothing: equal logits, bit for bit, and the K/V
// cells of a skipped attention stay as they were.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "backend/cpu/kv/store.h"
#include "backend/registry.h"
#include "model/model.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::Bytes;
using testing::TempFolder;
using testing::TinySpec;

constexpr int kLayers = 4, kCapacity = 128;

struct Plan {
  uint8_t attention[kLayers] = {}, ffn[kLayers] = {};
  LayerPlan get() const { return {attention, ffn}; }
};

// A copy of the file in which what the plan skips has output matrices of zeros.
void write_muted(const std::string& from, const std::string& to, const Plan& plan) {
  Bytes bytes = testing::read_file(from);
  const auto file = ModelFile::open(from);
  for (int i = 0; i < kLayers; ++i)
    for (const bool ffn : {false, true}) {
      if (!(ffn ? plan.ffn[i] : plan.attention[i])) continue;
      const std::string name = "blk." + std::to_string(i) + (ffn ? ".ffn_down.weight" : ".attn_output.weight");
      const Tensor t = file->get(name);
      const auto* data = reinterpret_cast<const std::byte*>(t.data);
      const auto at = std::search(bytes.begin(), bytes.end(), data, data + t.bytes());
      ASSERT_NE(at, bytes.end()) << name;
      std::fill_n(at, t.bytes(), std::byte(0));
    }
  testing::write_file(to, bytes);
}

class Runner {
 public:
  explicit Runner(const std::string& path) : backend_(make_cpu_backend({2, cpu::default_isa()})) {
    ModelOptions o;
    o.max_rows = o.max_outputs = 64, o.context = kCapacity;
    model_ = Model::load(ModelFile::open(path), *backend_, o);
    kv_ = backend_->make_kv(model_->kv_geometry(1, kCapacity, DType::kF32));
  }
  std::vector<float> chain(int history, const std::vector<Token>& tokens, const LayerPlan& plan = {}) {
    std::vector<int32_t> positions, outputs;
    for (size_t i = 0; i < tokens.size(); ++i) positions.push_back(history + int32_t(i)), outputs.push_back(int32_t(i));
    const SeqRows seq = {0, int32_t(tokens.size()), 0, history};
    const float* logits = model_->forward({tokens, positions, {&seq, 1}, outputs}, *kv_, plan).logits;
    return {logits, logits + tokens.size() * size_t(model_->config().vocab)};
  }
  // All K and V of a layer.
  Bytes cells(int layer) const {
    const auto& store = static_cast<const cpu::CpuKvStore&>(*kv_);
    Bytes all;
    for (int h = 0; h < store.geometry().kv_heads; ++h)
      for (int b = 0; b < store.geometry().capacity / kBlock; ++b) {
        const std::byte *k = store.keys(0, layer, h, b), *v = store.values(0, layer, h, b);
        all.insert(all.end(), k, k + store.key_layout().bytes);
        all.insert(all.end(), v, v + store.value_layout().bytes);
      }
    return all;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::unique_ptr<KvStore> kv_;
};

std::vector<Token> random_text(int n, std::mt19937& random) {
  std::vector<Token> text(static_cast<size_t>(n));
  for (auto& t : text) t = Token(random() % 300);
  return text;
}

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class LayerPlans : public ::testing::Test {
 protected:
  LayerPlans() {
    TinySpec spec;
    spec.layers = kLayers;
    testing::write_tiny_gguf(whole(), spec);
  }
  std::string whole() const { return folder_.file("whole.gguf"); }
  TempFolder folder_;
};

TEST_F(LayerPlans, SkippedPartsAddNothing) {
  std::mt19937 random(1);
  Runner plain(whole());
  for (int trial = 0; trial < 8; ++trial) {
    Plan plan;
    for (int i = 0; i < kLayers; ++i) {
      plan.attention[i] = trial == 0 || random() % 2, plan.ffn[i] = trial == 0 || random() % 2;
    }
    if (trial == 1) plan = {{0, 1, 0, 0}, {}};
    if (trial == 2) plan = {{}, {0, 0, 0, 1}};
    write_muted(whole(), folder_.file("muted.gguf"), plan);
    Runner skipping(whole()), muted(folder_.file("muted.gguf"));
    const std::vector<Token> text = random_text(40, random), more = random_text(3, random);
    const auto expected = muted.chain(0, text), got = skipping.chain(0, text, plan.get());
    EXPECT_TRUE(same(got, expected)) << "trial " << trial;
    EXPECT_FALSE(same(got, plain.chain(0, text))) << "trial " << trial;
    EXPECT_TRUE(same(skipping.chain(40, more, plan.get()), muted.chain(40, more))) << "second step of trial " << trial;
  }
}

TEST_F(LayerPlans, AnEmptyPlanIsNoPlan) {
  std::mt19937 random(2);
  Runner a(whole()), b(whole());
  const std::vector<Token> text = random_text(20, random);
  EXPECT_TRUE(same(a.chain(0, text), b.chain(0, text, Plan().get())));
}

TEST_F(LayerPlans, CellsOfSkippedAttentionStay) {
  std::mt19937 random(3);
  Runner run(whole());
  run.chain(0, random_text(50, random));
  Plan plan;
  plan.attention[1] = plan.attention[2] = 1;
  plan.ffn[0] = plan.ffn[2] = 1;
  std::vector<Bytes> before;
  for (int i = 0; i < kLayers; ++i) before.push_back(run.cells(i));
  run.chain(30, random_text(30, random), plan.get());  // over old cells and new ones
  for (int i = 0; i < kLayers; ++i) {
    if (plan.attention[i]) EXPECT_EQ(run.cells(i), before[size_t(i)]) << "layer " << i;
    else EXPECT_NE(run.cells(i), before[size_t(i)]) << "layer " << i;
  }
}

}  // namespace
}  // namespace sx
