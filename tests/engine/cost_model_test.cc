// The cost of passes: measured once for all presets of an engine, and weighed on all requests that wait for them.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <set>

#include "backend/registry.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/round.h"
#include "specextend/costs.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

class CountingBackend final : public testing::ForwardingBackend {
 public:
  CountingBackend(int& passes, bool& all_differ)
      : ForwardingBackend(make_cpu_backend({1, std::nullopt})), passes_(passes), all_differ_(all_differ) {}
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override {
    ++passes_;
    const std::set<Token> different(inputs.tokens.begin(), inputs.tokens.end());
    all_differ_ = all_differ_ && different.size() == inputs.tokens.size();
    right_->run(inputs, key, body);
  }

 private:
  int& passes_;
  bool& all_differ_;
};

class CostModelTest : public ::testing::Test {
 protected:
  CostModelTest() {
    testing::TinySpec spec;
    spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
    spec.seed = 99;
    testing::write_tiny_gguf(folder_.file("stranger.gguf"), spec);
  }

  SpecOptions preset(const std::string& name, int nodes, const char* cost_model = "on") {
    SpecOptions spec;
    spec.preset = name;
    if (name == "sd") spec.draft_model = folder_.file("draft.gguf");
    spec.settings = {
        {"nodes", std::to_string(nodes)}, {"depth", std::to_string(std::min(nodes, 4))}, {"cost-model", cost_model}};
    return spec;
  }
  std::unique_ptr<EngineImpl> open(const std::vector<SpecOptions>& specs, int sessions = 1) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 300, o.chunk = 64, o.max_sessions = sessions;
    o.spec = specs[0], o.more_specs.assign(specs.begin() + 1, specs.end());
    passes_ = 0;
    return std::make_unique<EngineImpl>(o, std::make_unique<CountingBackend>(passes_, all_differ_));
  }
  int passes_to_open(const std::vector<SpecOptions>& specs) {
    open(specs);
    return passes_;
  }

  testing::TempFolder folder_;
  int passes_ = 0;
  bool all_differ_ = true;  // the tokens of each pass
};

TEST_F(CostModelTest, IsMeasuredOnceForAllPresets) {
  const int one = passes_to_open({preset("suffix", 7)});
  EXPECT_GT(one, 0);
  EXPECT_EQ(passes_to_open({preset("suffix", 7), preset("ngram", 7), preset("sd", 7)}), one);
  const int larger = passes_to_open({preset("ngram", 31)});
  EXPECT_GT(larger, one);  // the largest tree counts, wherever it is
  EXPECT_EQ(passes_to_open({preset("suffix", 7), preset("ngram", 31), preset("sd", 4)}), larger);
  EXPECT_EQ(passes_to_open({preset("suffix", 31, "off"), preset("ngram", 7)}), one);
  EXPECT_EQ(passes_to_open({preset("suffix", 7, "off"), {}}), 0);
}

// Rows of equal tokens would share their experts in a mixture, and cost less than rows do.
TEST_F(CostModelTest, IsMeasuredWithRowsThatDiffer) {
  EXPECT_GT(passes_to_open({preset("ngram", 31)}), 5);
  EXPECT_TRUE(all_differ_);
}

TEST_F(CostModelTest, IsThatOfThoseWhoWantIt) {
  const auto engine = open({preset("suffix", 7, "off"), preset("ngram", 15), preset("sd", 4), {}});
  const auto with_costs = [&](const char* name) { return engine->speculation(name).has_costs(); };
  EXPECT_TRUE(with_costs("ngram") && with_costs("sd"));
  EXPECT_FALSE(with_costs("suffix") || with_costs("off"));
  EXPECT_EQ(&engine->speculation("ngram").cost_model(), &engine->cost_model());
  EXPECT_EQ(&engine->speculation("sd").cost_model(), &engine->cost_model());
}

// A pass that is run teaches the cost model once, not once for each preset.
TEST_F(CostModelTest, LearnsOnceFromAPass) {
  const auto engine = open({preset("suffix", 7), preset("ngram", 7), preset("sd", 4)});
  auto session = engine->start();
  GenerateOptions how;
  how.max_tokens = 1, how.ignore_end = true, how.speculate = false;
  for (int rows : {1, 2, 4, 8})
    engine->cost_model().set(rows, 0, 1e-3 * rows);  // a pass takes far longer, which counts as twice
  const std::vector<Token> prompt = {5, 6, 7};
  const double before = engine->cost_model().predict(1, 2);
  session->generate(prompt, how);
  CostModel expected;
  expected.set(1, 0, before);
  expected.observe(1, 0, 1e6);
  EXPECT_EQ(engine->cost_model().predict(1, 2), expected.predict(1, 0));
}

// Nodes of a tree of one request hold up all of a batch.
TEST_F(CostModelTest, OfNodesWeighsOnAllOfABatch) {
  for (int requests = 1; requests <= 4; ++requests) {
    const auto engine = open({preset("suffix", 7)}, 4);
    for (int rows : CostModel::kRows)
      if (rows <= 64) engine->cost_model().set(rows, 0, 1 + 0.25 * rows);
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
    if (requests > 1) batch->step();  // the first round of a batch of its size is a plain one
    Speculation& spec = engine->speculation();
    const int history = sessions[0]->length();
    std::vector<float> cost(size_t(spec.nodes()) + 1);
    for (size_t n = 0; n < cost.size(); ++n)  // all who draft have as many, and all wait for them
      cost[n] = float(engine->cost_model().predict(requests * (1 + int(n)), history) /
                      engine->cost_model().predict(requests, history));
    batch->step();
    for (const auto& session : sessions) ASSERT_GT(session->length(), history);
    for (size_t n = 0; n < cost.size(); ++n) {
      EXPECT_NEAR(spec.planner().costs()[n], cost[n], 1e-5 * cost[n]) << requests << " requests, " << n << " nodes";
      if (n > 0) { EXPECT_GT(cost[n], 1); }
    }
  }
}

// Passes take as long as the test says, by a clock that it moves on.
class TimedBackend final : public testing::ForwardingBackend {
 public:
  using Cost = std::function<double(int rows)>;
  struct Costs {
    Cost target, draft;
  };
  TimedBackend(const Costs& costs, bool device)
      : ForwardingBackend(make_cpu_backend({1, std::nullopt})), costs_(costs), device_(device) {}
  DeviceTraits traits() const override {
    DeviceTraits traits = right_->traits();
    traits.separate_prefill = traits.records_steps = device_;
    return traits;
  }
  void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override {
    right_->run(inputs, key, body);
    if (!target_) target_ = key.owner;  // costs come first
    const bool target = key.owner == target_;
    running_ms_ += (target ? costs_.target : costs_.draft)(int(inputs.tokens.size()));
    if (!device_ || !target) wait();  // a draft's candidates are read at once
  }
  void wait() override {
    skipped_ms.store(skipped_ms.load() + std::exchange(running_ms_, 0));
    right_->wait();
  }

 private:
  double running_ms_ = 0;  // of what a device has been given to do since it was waited for
  const Costs& costs_;
  const bool device_;
  const void* target_ = nullptr;
};

class TimedTest : public CostModelTest {
 protected:
  TimedTest() { only_skipped_ms = true; }
  ~TimedTest() override { only_skipped_ms = false; }
  std::unique_ptr<EngineImpl> open_timed(const SpecOptions& spec, int sessions, bool device = false) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 1200, o.chunk = device ? 512 : 64, o.max_sessions = sessions,
    o.spec = spec;
    return std::make_unique<EngineImpl>(o, std::make_unique<TimedBackend>(costs_, device));
  }
  // Milliseconds until each of `requests` answers of `tokens` tokens is there, on average; their texts go into `texts`.
  // `cached`: their prompts are in the KV cache already.
  double run(EngineImpl& engine, int requests, int tokens, bool speculate, std::vector<std::vector<Token>>& texts,
             int prompt_length = 8, bool cached = false) {
    std::vector<GenerateOptions> how(static_cast<size_t>(requests));
    std::vector<std::vector<Token>> prompts;
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Request> all;
    std::vector<double> done(how.size());
    for (int i = 0; i < requests; ++i) {
      GenerateOptions& o = how[size_t(i)];
      o.max_tokens = tokens, o.ignore_end = true, o.speculate = speculate;
      o.on_token = [&done, i](const TokenInfo&) { done[size_t(i)] = skipped_ms.load(); };
      prompts.emplace_back();
      for (int k = 0; k < prompt_length; ++k) prompts.back().push_back(Token(5 + (k + i) % 7));
      sessions.push_back(engine.start());
    }
    for (int i = 0; i < requests; ++i) all.push_back({sessions[size_t(i)].get(), prompts[size_t(i)], &how[size_t(i)]});
    if (cached)
      for (int i = 0; i < requests; ++i) sessions[size_t(i)]->evaluate(prompts[size_t(i)], 1);
    const double before = skipped_ms.load();
    texts.clear();
    for (const GenerateResult& r : engine.generate(all)) texts.push_back(r.tokens);
    return std::accumulate(done.begin(), done.end(), 0.0) / requests - before;
  }

  TimedBackend::Costs costs_;
};

TEST_F(TimedTest, DraftingResumesAfterCostsMeasuredInABusyMoment) {
  costs_.target = [](int rows) { return 1000 * (1 + 0.03 * (rows - 1)); };
  costs_.draft = [](int) { return 50.0; };
  for (const char* name : {"suffix", "sd"}) {
    std::vector<std::vector<Token>> plain, spec;
    const auto right = open_timed(preset(name, 4), 1), wrong = open_timed(preset(name, 4), 1);
    for (int rows : CostModel::kRows)
      if (rows <= 64) wrong->cost_model().set(rows, 0, costs_.target(rows) * (rows == 1 ? 1 : 10));
    const double before = run(*wrong, 1, 700, false, plain), best = run(*right, 1, 700, true, spec);
    EXPECT_EQ(plain, spec);
    EXPECT_LT(best, 0.8 * before) << name;
    const double after = run(*wrong, 1, 700, true, spec);
    EXPECT_EQ(plain, spec);
    EXPECT_LT(after, best + 150 * 1000) << name;                           // some hundred rounds late
    EXPECT_LT(run(*wrong, 1, 700, true, spec), best + 20 * 1000) << name;  // and then as with the right costs
  }
}

TEST_F(TimedTest, DraftingStopsAfterCostsThatWereTooLow) {
  costs_.target = [](int rows) { return 1000 * (1 + 0.9 * (rows - 1)); };
  costs_.draft = [](int) { return 900.0; };
  for (const char* name : {"suffix", "sd"}) {
    const auto engine = open_timed(preset(name, 4), 1);
    for (int rows : CostModel::kRows)
      if (rows <= 64) engine->cost_model().set(rows, 0, 1000 + rows);
    std::vector<std::vector<Token>> plain, spec;
    const double before = run(*engine, 1, 700, false, plain), after = run(*engine, 1, 700, true, spec);
    EXPECT_EQ(plain, spec);
    EXPECT_LT(after, 1.03 * before) << name;
  }
}

// A draft that is never right, or passes that cost all of a batch: as fast as without drafts, but for a try now and
// then.
TEST_F(TimedTest, ABatchThatLosesByDraftsDoesNotDraft) {
  costs_.target = [](int rows) { return rows <= 16 ? 1.0 : rows / 16.0; };
  for (const char* draft : {"stranger.gguf", "draft.gguf"})
    for (int requests : {8, 16}) {
      const bool stranger = draft[0] == 's';
      costs_.draft = [=](int rows) { return stranger ? 0.1 + 0.005 * rows : 0.6 + 0.02 * rows; };
      SpecOptions sd = preset("sd", 4);
      sd.draft_model = folder_.file(draft);
      const auto engine = open_timed(sd, 16);
      std::vector<std::vector<Token>> plain, spec;
      for (int prompt : {8, 200}) {  // 200: the draft has to read it first
        const double before = run(*engine, requests, 300, false, plain, prompt),
                     after = run(*engine, requests, 300, true, spec, prompt);
        EXPECT_EQ(plain, spec);
        EXPECT_LT(after, 1.03 * before) << draft << ", " << requests << " requests, prompts of " << prompt;
      }
    }
}

TEST_F(TimedTest, ABatchThatWinsDrafts) {
  costs_.target = [](int rows) { return 1000 + rows; };
  costs_.draft = [](int rows) { return 20.0 + rows; };
  const auto engine = open_timed(preset("sd", 4), 4);
  std::vector<std::vector<Token>> plain, spec;
  for (int prompt : {8, 200}) {
    const double before = run(*engine, 4, 300, false, plain, prompt), after = run(*engine, 4, 300, true, spec, prompt);
    EXPECT_EQ(plain, spec);
    EXPECT_LT(after, 0.6 * before) << prompt;
  }
}

// Costs like those of a large GPU: rows are cheap, but all of a large batch waits while a draft reads 2,000 tokens
// (here 500). Short answers to prompts that are in the cache leave little time to win that back.
class DeviceTimedTest : public TimedTest, public ::testing::WithParamInterface<bool> {
 protected:
  DeviceTimedTest() {
    testing::TinySpec spec;  // models that are sure of what they say
    spec.weights = DType::kQ8_0, spec.gain = 4;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
    costs_.target = [](int rows) { return 1000 * (1 + 0.35 * (rows - 1) / 31); };
    costs_.draft = [](int rows) { return rows <= 64 ? 100.0 : 6.0 * rows; };
  }
  // Time with drafts in units of that without, one generation after another.
  std::vector<double> ratios(const char* draft, int requests, int runs, bool cached = true) {
    SpecOptions sd = preset("sd", 4);
    sd.draft_model = folder_.file(draft);
    const auto engine = open_timed(sd, requests, GetParam());
    std::vector<std::vector<Token>> plain, spec;
    const double without = run(*engine, requests, 128, false, plain, 500, cached);
    std::vector<double> out;
    for (int i = 0; i < runs; ++i) {
      out.push_back(run(*engine, requests, 128, true, spec, 500, cached) / without);
      EXPECT_EQ(plain, spec);
    }
    return out;
  }
};

TEST_P(DeviceTimedTest, LargeBatchesLoseLittleByAPoorDraft) {
  for (int requests : {16, 32})
    for (double ratio : ratios("stranger.gguf", requests, 2)) EXPECT_LT(ratio, 1.03) << requests;
}

TEST_P(DeviceTimedTest, AFewRequestsLoseLittleByAPoorDraft) {
  for (int requests : {2, 4, 8})
    for (double ratio : ratios("stranger.gguf", requests, 2)) EXPECT_LT(ratio, 1.04) << requests;
}

TEST_P(DeviceTimedTest, DraftsBesidePromptsArePaidFor) {
  for (double ratio : ratios("stranger.gguf", 8, 2, false)) EXPECT_LT(ratio, 1.03);
}

TEST_P(DeviceTimedTest, AFewRequestsGainByAGoodDraft) {
  for (double ratio : ratios("draft.gguf", 4, 2)) EXPECT_LT(ratio, 0.75);
}

// A device runs prompts behind the host: drafts that wait for it are not charged with their time.
TEST_P(DeviceTimedTest, PromptsBesideAGoodDraftAreNotChargedToIt) {
  for (double ratio : ratios("draft.gguf", 4, 2, false)) EXPECT_LT(ratio, 0.8);
}

INSTANTIATE_TEST_SUITE_P(Traits, DeviceTimedTest, ::testing::Bool(),
                         [](const auto& p) { return p.param ? "Device" : "Host"; });

// Steps of an answer are not prompts of one token, nor are the few rows whose logits are all wanted (what `specextend
// bench` times).
TEST_F(CostModelTest, StepsAreNotRunAsPrompts) {
  struct Seen {
    int rows, outputs;
    bool prompt;
  };
  class Watching final : public testing::ForwardingBackend {
   public:
    explicit Watching(std::vector<Seen>& seen) : ForwardingBackend(make_cpu_backend({1, std::nullopt})), seen_(seen) {}
    int max_depth() const override { return 7; }
    void run(const StepInputs& inputs, const StepKey& key, FunctionRef body) override {
      seen_.push_back({int(inputs.tokens.size()), int(inputs.outputs.size()), inputs.prompt});
      right_->run(inputs, key, body);
    }

   private:
    std::vector<Seen>& seen_;
  };
  std::vector<Seen> seen;
  EngineOptions o;
  o.model = folder_.file("target.gguf"), o.context = 300, o.chunk = 64, o.max_outputs = 16;
  EngineImpl engine(o, std::make_unique<Watching>(seen));
  const auto session = engine.start();
  std::vector<Token> text;
  for (int i = 0; i < 40; ++i) text.push_back(5 + i % 9);
  session->evaluate(text, 0);
  seen.clear();
  GenerateOptions how;
  how.max_tokens = 5, how.ignore_end = true, how.speculate = false;
  text.push_back(7);
  const GenerateResult r = session->generate(text, how);
  EXPECT_EQ(r.timings.cached_tokens, 40);
  EXPECT_EQ(r.timings.prompt_tokens, 0);
  ASSERT_EQ(seen.size(), 5u);
  for (const Seen& s : seen) EXPECT_TRUE(s.rows == 1 && s.outputs == 1 && !s.prompt);
  for (const auto& [rows, outputs, prompt] :
       {Seen{1, 1, false}, Seen{8, 8, false}, Seen{8, 1, true}, Seen{16, 16, true}, Seen{30, 0, true}}) {
    seen.clear();
    session->evaluate(std::span(text).first(size_t(rows)), outputs);
    ASSERT_EQ(seen.size(), 1u);
    EXPECT_EQ(seen[0].prompt, prompt) << rows << " rows, " << outputs << " outputs";
  }
}

// Between two halves of an answer passes are timed behind its text: it goes on as if nothing had been, what was wrong
// about the costs is corrected, and it ends by itself.
TEST_F(CostModelTest, IsMeasuredAgainInIdleMoments) {
  const auto engine = open({preset("suffix", 7), preset("sd", 4)}, 2);
  GenerateOptions how;
  how.max_tokens = 40, how.ignore_end = true;
  const std::vector<Token> prompt = {5, 6, 7, 5, 6};
  const std::vector<Token> whole = engine->start()->generate(prompt, how).tokens;
  for (const char* name : {"", "sd"}) {
    how.preset = name, how.max_tokens = 20;
    auto session = engine->start(), other = engine->start();
    std::vector<Token> text = prompt;
    const auto go_on = [&](Session& with) {
      const auto made = with.generate(text, how).tokens;
      text.insert(text.end(), made.begin(), made.end());
    };
    go_on(*session);
    const std::vector<Token> held(session->text().begin(), session->text().end());
    for (int rows : {1, 2, 4, 8}) engine->cost_model().set(rows, 0, 20);  // far too much
    skipped_ms += IdleCosts::kMostGapMs;
    passes_ = 0;
    int measured = 0;
    while (measured < 200 && measure_when_idle(*engine)) ++measured;
    EXPECT_EQ(passes_, measured);
    EXPECT_EQ(measured, 4 * IdleCosts::kSweeps) << "1, 2, 4 and 8 rows";
    EXPECT_LT(engine->cost_model().predict(8, double(held.size())), 10);
    EXPECT_FALSE(measure_when_idle(*engine));
    EXPECT_EQ(held, std::vector<Token>(session->text().begin(), session->text().end()));
    go_on(*session);
    EXPECT_EQ(std::vector<Token>(text.begin() + ptrdiff_t(prompt.size()), text.end()), whole) << name;
  }
  EXPECT_FALSE(measure_when_idle(*open({preset("suffix", 7, "off")}))) << "nobody needs costs";
}

// What rounds were expected to take is told for those that could be, and for prompts never.
TEST_F(CostModelTest, TellsWhatRoundsWillTake) {
  const auto engine = open({preset("sd", 4)});
  take_predicted_time(*engine);
  GenerateOptions how;
  how.max_tokens = 30, how.ignore_end = true;
  std::vector<Token> prompt(150, 9);
  double rounds_ms = 0;
  how.on_round = [&](const RoundInfo& round) {
    const PhaseTimes& t = round.times;
    rounds_ms += t.draft + t.verify + t.accept + t.commit + t.score + t.host;
  };
  engine->start()->generate(prompt, how);
  const PredictedTime told = take_predicted_time(*engine);
  EXPECT_GT(told.predicted_ms, 0);
  EXPECT_GT(told.measured_ms, 0);
  EXPECT_LE(told.measured_ms, rounds_ms * 1.001) << "the prompt is not among them";
  const PredictedTime none = take_predicted_time(*engine);
  EXPECT_EQ(none.predicted_ms + none.measured_ms, 0);
}

}  // namespace
}  // namespace sx
