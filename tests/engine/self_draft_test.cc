// The target as its own draft (presets self and partial): whatever weights it drafts with and whatever cells it works
// on, the text never changes, for dense models, models with sliding windows and mixtures; drafts are a function of the
// text, alone and in batches; and sessions are saved and restored with them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "backend/registry.h"
#include "engine/engine.h"
#include "engine/head_allocations.h"
#include "engine/head_answers.h"
#include "specextend/specextend.h"
#include "support/forwarding_backend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;
using Settings = std::vector<std::pair<std::string, std::string>>;

struct Target {
  std::string name, path;
  bool copied;  // matrices of 8 bits a weight and more: `auto` makes a copy of them
};

struct Files {
  TempFolder folder;
  std::vector<Target> targets;
  Files() {
    TinySpec spec;
    spec.layers = 4, spec.gain = 2;
    for (const auto& [name, type] : {std::pair{"dense-bf16", DType::kBF16}, {"dense-q4_1", DType::kQ4_1}}) {
      spec.weights = type;
      testing::write_tiny_gguf(folder.file(name), spec);
      targets.push_back({name, folder.file(name), type != DType::kQ4_1});
    }
    spec.weights = DType::kQ8_0, spec.window = 40, spec.windowed_layers = {1, 0, 1, 0};
    testing::write_tiny_gguf(folder.file("windows"), spec);
    targets.push_back({"windows", folder.file("windows"), true});
    for (const char* family : {"gemma3", "qwen3moe", "gpt-oss"})
      targets.push_back({family, fmt::format("{}/{}", SX_GOLDEN_DIR, family), true});
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const std::string& model, const std::string& preset, int chunk, const Settings& more = {},
                      int sessions = 1) {
  EngineOptions o = testing::small_options(model, preset, "", chunk, sessions);
  if (preset.empty()) return o;
  return testing::with_settings(testing::with_settings(testing::with_settings(o, testing::kFewCells), {{"share", "0"}}),
                                more);
}

class SelfDraft : public ::testing::TestWithParam<Target> {};

TEST_P(SelfDraft, NeverChangesTheText) {
  const std::string& model = GetParam().path;
  const testing::PlainAnswers plain(model, {0.0f, 0.8f}, {1, 330});
  for (const char* preset : {"self", "partial"})
    for (const char* weights : {"own", "q4_0"})
      plain.expect_same_text(*Engine::open(options(model, preset, 33, {{"self-weights", weights}})), 30,
                             fmt::format("{} {}", preset, weights));
}

// `auto` makes a copy in 4 bits where there is something to gain; with own weights and all cells the draft is the
// target, and what it drafts is what it says.
TEST_P(SelfDraft, CopiesAreMadeWhereTheyAreSmaller) {
  const auto prompt = testing::any_text(200, 3);
  const auto trees = [&](const char* weights) {
    const Settings all = {{"self-weights", weights}, {"budget", "400"}, {"fuse-index", "ngram"}};
    return answer(*Engine::open(options(GetParam().path, "self", 64, all))->start(), prompt, 0, 40).trees;
  };
  const auto own = trees("own"), copy = trees("q4_0"), taken = trees("auto");
  EXPECT_NE(own, copy);  // all have more than 4.5 bits a weight
  EXPECT_EQ(taken, GetParam().copied ? copy : own);
}

// The target alone: how far copies are trusted beside it is learned from one answer to the next.
EngineOptions without_copies(const std::string& model, const char* preset, int chunk, int sessions = 1) {
  const Settings alone = {{"drafter", "self"}, {"tree", preset == std::string("self") ? "best-first" : "chain"}};
  return options(model, preset, chunk, alone, sessions);
}

TEST_P(SelfDraft, DraftsDependOnTheTextAlone) {
  for (const char* preset : {"self", "partial"})
    testing::expect_drafts_of_text_alone(
        [&](int chunk) { return Engine::open(without_copies(GetParam().path, preset, chunk)); }, {89}, 30, preset);
}

TEST_P(SelfDraft, BatchesAreLikeSingleRequests) {
  for (const char* preset : {"self", "partial"})
    testing::expect_batches_like_single(*Engine::open(without_copies(GetParam().path, preset, 64, 3)), 0.8f, preset);
}

// A restored session goes on as the saved one does, in an engine that drafts and in one that does not.
TEST_P(SelfDraft, SavedSessionsGoOn) {
  const std::string& model = GetParam().path;
  auto prompt = testing::any_text(150, 8);
  auto plain = Engine::open(options(model, "", 64)), engine = Engine::open(options(model, "self", 64, {}, 2)),
       other = Engine::open(options(model, "partial", 64));
  auto session = engine->start();
  const Answer begun = answer(*session, prompt, 0, 30);
  prompt.insert(prompt.end(), begun.tokens.begin(), begun.tokens.end());
  std::stringstream state;
  session->save(state);
  const Answer expected = answer(*plain->start(), prompt, 0.8f, 40);
  for (Engine* next : {engine.get(), other.get(), plain.get()}) {
    auto restored = next->start();
    state.clear(), state.seekg(0);
    restored->restore(state);
    testing::expect_same(answer(*restored, prompt, 0.8f, 40), expected, "restored");
  }
  testing::expect_same(answer(*session, prompt, 0.8f, 40), expected, "went on");
}

INSTANTIATE_TEST_SUITE_P(Targets, SelfDraft, ::testing::ValuesIn(files().targets), [](const auto& test) {
  std::string name = test.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

TEST(SelfDrafts, RoundsDoNotAllocate) {
  for (const char* preset : {"self", "partial"})
    for (const float temperature : {0.0f, 0.8f})
      testing::expect_rounds_do_not_allocate(
          *Engine::open(options(files().folder.file("dense-bf16"), preset, 64, {{"self-weights", "q4_0"}})),
          temperature, 150, preset);
}

// The whole text fits into a large share: then there is nothing to choose, and drafts are those of all cells.
TEST(SelfDrafts, AShareOfTheTextIsKept) {
  const auto prompt = testing::random_text(250, 5);
  const auto trees = [&](const Settings& more) {
    return answer(*Engine::open(options(files().folder.file("dense-bf16"), "self", 64, more))->start(), prompt, 0, 60)
        .trees;
  };
  const auto all = trees({{"budget", "400"}});
  EXPECT_EQ(trees({{"share", "1"}}), all);
  EXPECT_NE(trees({{"share", "0.2"}}), all);
}

// A backend that says it is a device.
struct SlowStarter final : testing::ForwardingBackend {
  SlowStarter() : ForwardingBackend(make_cpu_backend({1, std::nullopt})) {}
  DeviceTraits traits() const override {
    DeviceTraits traits = ForwardingBackend::traits();
    traits.records_steps = true;
    return traits;
  }
};

// Preset auto without a draft: the target drafts for itself on devices where a copy of it is much smaller and texts may
// be long; elsewhere the text's own suffixes do alone. The text is the same.
TEST(SelfDrafts, AutoTakesThemWhereTheyPay) {
  const auto prompt = testing::repeating_text(300, 2);
  for (const Target& target : files().targets) {
    if (!target.name.starts_with("dense")) continue;
    EngineOptions o = options(target.path, "", 64);
    const Answer plain = answer(*Engine::open(o)->start(), prompt, 0.8f, 60);
    o.spec.preset = "auto";
    for (const int context : {400, 4096})
      for (const bool device : {false, true}) {
        o.context = context;
        EngineImpl engine(o, device ? std::make_unique<SlowStarter>() : make_cpu_backend({1, std::nullopt}));
        const SpecConfig& config = engine.speculation("auto").config();
        EXPECT_EQ(config.drafts_with(DrafterKind::kSelf), device && target.copied && context == 4096) << target.name;
        EXPECT_EQ(config.drafter == DrafterKind::kSuffix, !config.drafts_with(DrafterKind::kSelf));
        testing::expect_same(answer(*engine.start(), prompt, 0.8f, 60), plain, target.name);
      }
  }
}

}  // namespace
}  // namespace sx
