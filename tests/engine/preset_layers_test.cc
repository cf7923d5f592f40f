// Presets of one engine may read different layers of the target: each drafts what it drafts in an engine of its own,
// cell for cell, and the text is that of plain decoding. Alone, together in a batch, and with the target over ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "backend/registry.h"
#include "comm/thread_ranks.h"
#include "engine/engine.h"
#include "model/heads/head_parts.h"
#include "speculative/cache/retrieval_layers.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;
using Settings = std::vector<std::pair<std::string, std::string>>;

constexpr int kLayers = 10, kContext = 2048, kTrained = 128, kTokens = 26;  // the probe's text fits into the context

struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf"), eagle1 = folder.file("eagle1"),
              low = folder.file("low"), high = folder.file("high"), block = folder.file("block");
  Files() {
    TinySpec spec;
    spec.layers = kLayers, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    spec.weights = DType::kQ4_0, spec.context = kTrained;
    testing::write_tiny_gguf(draft, spec);
    auto json = testing::eagle1_config(config);
    json["max_position_embeddings"] = kTrained;
    testing::random_head(json, {"fc.weight", "fc.bias"}, config, DType::kF32, 3).write(eagle1);
    for (const bool upper : {false, true}) {
      json = testing::eagle3_config(config, 1, 160);
      json["eagle_aux_hidden_state_layer_ids"] = upper ? std::vector{3, 8, 10} : std::vector{1, 3, 4};
      json["max_position_embeddings"] = kTrained;
      testing::random_head(json, {"lm_head.weight", "d2t"}, config, DType::kBF16, upper ? 5 : 4)
          .write(upper ? high : low);
    }
    json = testing::dflash_config(config, 7, false);
    json["dflash_config"]["target_layer_ids"] = {6, 0, 3};  // in no order: the inputs of layers 7, 1 and 4
    json["max_position_embeddings"] = kTrained;
    testing::random_head(json, testing::dflash_extra(false), config, DType::kBF16, 7).write(block);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

// Sizes and times that do not depend on the clock; few cells, so that retrieval has to choose.
SpecOptions way(const std::string& name, const std::string& preset, const std::string& draft, const Settings& more) {
  SpecOptions out{.preset = preset, .draft_model = draft, .settings = {}, .json = {}, .name = name};
  out.settings = {{"cost-model", "off"}, {"defer-prefill", "off"}};
  out.settings.insert(out.settings.end(), more.begin(), more.end());
  return out;
}
Settings retrieving(const std::string& layers, Settings more = {}) {
  Settings out = {{"cache", "retrieval"}, {"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}};
  if (!layers.empty()) out.emplace_back("layers", layers);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}
std::string text_of(const std::vector<int>& layers) { return fmt::format("{}", fmt::join(layers, ",")); }

// The queries of all layers below 9 are kept: places of `even` are equally far apart, those of `uneven` are not.
std::vector<SpecOptions> ways() {
  const Files& f = files();
  const std::string likely = text_of(likely_retrieval_layers(kLayers));
  return {way("uneven", "sd", f.draft, retrieving("0,3,4")),
          way("even", "sd", f.draft, retrieving("1,3,5")),
          way("likely", "sd", f.draft, retrieving(likely)),
          way("found", "specextend", f.draft, retrieving("")),
          way("low", "sd", f.low, retrieving("2,-2")),
          way("high", "eagle3", f.high, {}),
          way("eagle1", "eagle1", f.eagle1, {}),
          way("block", "dflash", f.block, {}),
          way("suffix", "suffix", "", {})};
}
bool retrieves(const SpecOptions& spec) {
  return std::find(spec.settings.begin(), spec.settings.end(),
                   std::pair<std::string, std::string>{"cache", "retrieval"}) != spec.settings.end();
}

std::unique_ptr<EngineImpl> open(const std::vector<SpecOptions>& specs, std::unique_ptr<Backend> backend = nullptr) {
  EngineOptions o;
  o.model = files().target, o.context = kContext, o.threads = 1, o.chunk = 50;
  o.max_sessions = std::max(1, int(specs.size()));
  if (!specs.empty()) o.spec = specs[0], o.more_specs.assign(specs.begin() + 1, specs.end());
  return std::make_unique<EngineImpl>(o, backend ? std::move(backend) : make_cpu_backend({1, std::nullopt}));
}

struct RoundSeen {
  std::vector<Token> tree;
  std::vector<int32_t> parents, cells;
  int accepted, refreshes;
  bool operator==(const RoundSeen&) const = default;
};
struct Answer {
  std::vector<Token> tokens;
  std::vector<float> logits;
  std::vector<RoundSeen> rounds;
  int drafted = 0, left_out = 0;  // tokens; cells of the text that the draft did not work on, at most
};

std::vector<Token> prompt(size_t i) { return testing::repeating_text(i % 3 == 0 ? 60 : 290 + int(i), unsigned(i) + 1); }

GenerateOptions asked(const std::string& preset, float temperature, size_t length, Answer& out) {
  GenerateOptions o;
  o.preset = preset, o.max_tokens = kTokens, o.ignore_end = true;
  o.sampling.temperature = temperature, o.sampling.seed = 5;
  o.on_logits = [&out](std::span<const float> row) { out.logits.insert(out.logits.end(), row.begin(), row.end()); };
  o.on_round = [&out, length](const RoundInfo& r) {
    out.rounds.push_back({{r.tokens.begin(), r.tokens.end()},
                          {r.parents.begin(), r.parents.end()},
                          {r.cells.begin(), r.cells.end()},
                          r.accepted,
                          r.refreshes});
    out.drafted += r.verified;
    if (!r.cells.empty()) out.left_out = std::max(out.left_out, int(length) - int(r.cells.size()));
  };
  return o;
}
Answer answer(Engine& engine, const std::string& preset, const std::vector<Token>& text, float temperature) {
  Answer out;
  const GenerateOptions how = asked(preset, temperature, text.size(), out);
  out.tokens = engine.start()->generate(text, how).tokens;
  return out;
}
void expect_same_text(const Answer& found, const Answer& expected) {
  EXPECT_EQ(found.tokens, expected.tokens);
  ASSERT_EQ(found.logits.size(), expected.logits.size());
  EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(), found.logits.size() * sizeof(float)), 0);
}

// Answers to a short and a long prompt, greedy and sampled.
std::vector<Answer> answers(Engine& engine, const std::string& preset) {
  std::vector<Answer> out;
  for (size_t i = 0; i < 2; ++i)
    for (const float temperature : {0.0f, 0.9f}) out.push_back(answer(engine, preset, prompt(i), temperature));
  return out;
}
void expect_as_alone(Engine& shared, const std::vector<SpecOptions>& specs) {
  const auto plain = answers(*open({}), "");
  for (const SpecOptions& spec : specs) {
    SCOPED_TRACE(spec.name);
    const auto alone = answers(*open({spec}), spec.name), found = answers(shared, spec.name);
    int drafted = 0, left_out = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      SCOPED_TRACE(i);
      expect_same_text(found[i], plain[i]);
      EXPECT_TRUE(found[i].rounds == alone[i].rounds);
      drafted += found[i].drafted, left_out = std::max(left_out, found[i].left_out);
    }
    EXPECT_GT(drafted, 20);
    if (retrieves(spec)) { EXPECT_GT(left_out, 100); }
  }
}

TEST(PresetLayers, EachPresetDraftsAsItDoesAlone) {
  const auto engine = open(ways());
  const TapSpec& taps = engine->model().options().taps;
  EXPECT_EQ(taps.hidden, (std::vector<int>{1, 3, 4, 7, 8, 10}));
  std::vector<int> query = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  const auto found = engine->speculation("found").config().cache.layers;
  EXPECT_EQ(found, open({way("found", "specextend", files().draft, retrieving(""))})->model().options().taps.query);
  if (found.back() == 9) query.push_back(9);
  EXPECT_EQ(taps.query, query);
  expect_as_alone(*engine, ways());
}

// The engine is set up with the likely layers, before it knows those that it will find.
TEST(PresetLayers, LayersThatAreFoundLeaveThoseOfOthersAsTheyAre) {
  const auto likely = likely_retrieval_layers(kLayers);
  const std::vector<SpecOptions> specs = {way("likely", "sd", files().draft, retrieving(text_of(likely))),
                                          way("found", "specextend", files().draft, retrieving(""))};
  const auto engine = open(specs);
  auto found = engine->speculation("found").config().cache.layers;
  EXPECT_NE(found, likely);  // or this shows nothing
  std::vector<int> both;
  std::set_union(likely.begin(), likely.end(), found.begin(), found.end(), std::back_inserter(both));
  EXPECT_EQ(engine->model().options().taps.query, both);
  expect_as_alone(*engine, specs);
}

TEST(PresetLayers, TheTargetsOwnDraftReadsAllLayersBesideOthers) {
  const std::vector<SpecOptions> specs = {
      way("self", "self", "", {{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}}),
      way("specextend", "specextend", files().draft, retrieving("")), way("eagle1", "eagle1", files().eagle1, {})};
  const auto engine = open(specs);
  EXPECT_EQ(engine->model().options().taps.query, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}));
  expect_as_alone(*engine, specs);
}

// One request for each preset, all in one batch.
std::vector<Answer> in_a_batch(Engine& engine, const std::vector<SpecOptions>& specs, float temperature) {
  std::vector<Answer> out(specs.size());
  std::vector<std::unique_ptr<Session>> sessions;
  std::vector<std::vector<Token>> prompts;
  std::vector<GenerateOptions> how;
  std::vector<Request> requests;
  for (size_t i = 0; i < specs.size(); ++i) {
    sessions.push_back(engine.start());
    prompts.push_back(prompt(i));
    how.push_back(asked(specs[i].name, temperature, prompts[i].size(), out[i]));
  }
  for (size_t i = 0; i < specs.size(); ++i) requests.push_back({sessions[i].get(), prompts[i], &how[i]});
  const auto results = engine.generate(requests);
  for (size_t i = 0; i < specs.size(); ++i) out[i].tokens = results[i].tokens;
  return out;
}

TEST(PresetLayers, RequestsOfAllPresetsShareABatch) {
  auto specs = ways();
  specs.pop_back();  // eight requests: of more only some draft
  const auto engine = open(specs), plain = open({});
  for (const float temperature : {0.0f, 0.9f}) {
    const auto found = in_a_batch(*engine, specs, temperature);
    for (size_t i = 0; i < specs.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} at {}", specs[i].name, temperature));
      expect_same_text(found[i], answer(*plain, "", prompt(i), temperature));
      EXPECT_TRUE(found[i].rounds == answer(*open({specs[i]}), specs[i].name, prompt(i), temperature).rounds);
      EXPECT_GT(found[i].drafted, 0);
    }
  }
}

TEST(PresetLayers, RanksKeepWhatAllPresetsRead) {
  const auto specs = ways();
  const auto one = in_a_batch(*open(specs), specs, 0);
  for (const RankSplit split : {RankSplit::kLayers, RankSplit::kColumns}) {
    testing::ThreadRanks ranks(3, split);
    const auto many = in_a_batch(*open(specs, ranks.backend()), specs, 0);
    for (size_t i = 0; i < specs.size(); ++i) {
      SCOPED_TRACE(fmt::format("{} by {}", specs[i].name, split_name(split)));
      expect_same_text(many[i], one[i]);
      EXPECT_TRUE(many[i].rounds == one[i].rounds);
    }
  }
}

}  // namespace
}  // namespace sx
