// What passes cost: measured once for all presets of an engine, and weighed by everybody who waits for them.
#include <gtest/gtest.h>

#include "backend/registry.h"
#include "engine/engine.h"
#include "engine/round.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

class CountingBackend final : public testing::ForwardingBackend {
 public:
  explicit CountingBackend(int& passes) : ForwardingBackend(make_cpu_backend({1, std::nullopt})), passes_(passes) {}
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override {
    ++passes_;
    right_->run(inputs, key, body);
  }

 private:
  int& passes_;
};

class PriceTest : public ::testing::Test {
 protected:
  PriceTest() {
    testing::TinySpec spec;
    spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
  }

  SpecOptions preset(const std::string& name, int nodes, const char* price = "on") {
    SpecOptions spec;
    spec.preset = name;
    if (name == "sd") spec.draft_model = folder_.file("draft.gguf");
    spec.settings = {{"nodes", std::to_string(nodes)}, {"depth", std::to_string(std::min(nodes, 4))}, {"price", price}};
    return spec;
  }
  std::unique_ptr<EngineImpl> open(const std::vector<SpecOptions>& specs, int sessions = 1) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 300, o.chunk = 64, o.max_sessions = sessions;
    o.spec = specs[0], o.more_specs.assign(specs.begin() + 1, specs.end());
    passes_ = 0;
    return std::make_unique<EngineImpl>(o, std::make_unique<CountingBackend>(passes_));
  }
  int passes_to_open(const std::vector<SpecOptions>& specs) {
    open(specs);
    return passes_;
  }

  testing::TempFolder folder_;
  int passes_ = 0;
};

TEST_F(PriceTest, IsMeasuredOnceForAllPresets) {
  const int one = passes_to_open({preset("suffix", 7)});
  EXPECT_GT(one, 0);
  EXPECT_EQ(passes_to_open({preset("suffix", 7), preset("ngram", 7), preset("sd", 7)}), one);
  const int larger = passes_to_open({preset("ngram", 31)});
  EXPECT_GT(larger, one);  // the largest tree counts, wherever it is
  EXPECT_EQ(passes_to_open({preset("suffix", 7), preset("ngram", 31), preset("sd", 4)}), larger);
  EXPECT_EQ(passes_to_open({preset("suffix", 31, "off"), preset("ngram", 7)}), one);
  EXPECT_EQ(passes_to_open({preset("suffix", 7, "off"), {}}), 0);
}

TEST_F(PriceTest, IsThatOfThoseWhoWantIt) {
  const auto engine = open({preset("suffix", 7, "off"), preset("ngram", 15), preset("sd", 4), {}});
  const auto priced = [&](const char* name) { return engine->speculation(name).priced(); };
  EXPECT_TRUE(priced("ngram") && priced("sd"));
  EXPECT_FALSE(priced("suffix") || priced("off"));
  EXPECT_EQ(&engine->speculation("ngram").price(), &engine->price());
  EXPECT_EQ(&engine->speculation("sd").price(), &engine->price());
}

// A pass that is run teaches the price once, not once for each preset.
TEST_F(PriceTest, LearnsOnceFromAPass) {
  const auto engine = open({preset("suffix", 7), preset("ngram", 7), preset("sd", 4)});
  auto session = engine->start();
  GenerateOptions how;
  how.max_tokens = 1, how.ignore_end = true, how.speculate = false;
  for (int rows : {1, 2, 4, 8}) engine->price().set(rows, 0, 1e-3 * rows);  // a pass takes far longer, which counts as twice
  const std::vector<Token> prompt = {5, 6, 7};
  const double before = engine->price().predict(1, 2);
  session->generate(prompt, how);
  StepPrice expected;
  expected.set(1, 0, before);
  expected.observe(1, 0, 1e6);
  EXPECT_EQ(engine->price().predict(1, 2), expected.predict(1, 0));
}

// Nodes of a tree of one request hold up all of a batch.
TEST_F(PriceTest, OfNodesWeighsOnAllOfABatch) {
  for (int requests = 1; requests <= 4; ++requests) {
    const auto engine = open({preset("suffix", 7)}, 4);
    for (int rows : StepPrice::kRows)
      if (rows <= 64) engine->price().set(rows, 0, 1 + 0.25 * rows);
    GenerateOptions how;
    how.max_tokens = 20, how.ignore_end = true;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<std::vector<Token>> prompts;
    auto batch = engine->batch();
    for (int i = 0; i < requests; ++i) prompts.push_back({Token(5 + i), 9, 11, 9, 11});
    for (const auto& prompt : prompts) {
      sessions.push_back(engine->start());
      batch->add({sessions.back().get(), prompt, &how});
    }
    batch->step();  // the prompts
    for (const auto& session : sessions) ASSERT_EQ(session->length(), 4);
    Speculation& spec = engine->speculation();
    std::vector<float> cost(size_t(spec.nodes()) + 1);
    engine->price().costs(spec.nodes(), requests, 4, cost);
    batch->step();
    for (const auto& session : sessions) ASSERT_GT(session->length(), 4);
    for (size_t n = 0; n < cost.size(); ++n) {
      EXPECT_EQ(spec.costs()[n], 1 + float(requests) * (cost[n] - 1)) << requests << " requests, " << n << " nodes";
      if (n > 0) { EXPECT_GT(cost[n], 1); }
    }
  }
}

}  // namespace
}  // namespace sx
