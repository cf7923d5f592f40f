// Drafting with Gemma 4's form of an assistant: the text never changes, on targets with windows and without, whatever
// cells it looks at; drafts are a function of the text.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/head_answers.h"
#include "model/heads/head_parts.h"
#include "specextend/inspect.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;

struct Pair {
  std::string target, head;
};

struct Files {
  TempFolder folder;
  Pair plain{folder.file("plain.gguf"), folder.file("plain")},
      windows{folder.file("windows.gguf"), folder.file("windows")};
  Files() {
    TinySpec spec;
    spec.layers = 4, spec.gain = 2, spec.weights = DType::kQ8_0;
    write(spec, plain);
    spec.window = 24, spec.windowed_layers = {1, 0, 1, 1};
    write(spec, windows);
  }
  static void write(const TinySpec& spec, const Pair& pair) {
    testing::write_tiny_gguf(pair.target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    testing::random_head(testing::assistant_config(config), testing::kAssistantParts, config, DType::kF32, 3)
        .write(pair.head);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const Pair& pair, const std::string& preset, int chunk, int sessions = 1) {
  return testing::small_options(pair.target, preset, pair.head, chunk, sessions);
}
EngineOptions few_cells(EngineOptions o, const char* cache) {
  return testing::with_settings(testing::with_settings(std::move(o), testing::kFewCells), {{"cache", cache}});
}

TEST(Assistant, NeverChangesTheText) {
  for (const Pair& pair : {files().plain, files().windows}) {
    const testing::PlainAnswers plain(pair.target, {0.0f, 0.8f}, {1, 2, 34, 355});
    for (const char* preset : {"sd", "eagle2-tree", "opt-tree", "specexec", "specinfer", "fuse"})
      plain.expect_same_text(*Engine::open(options(pair, preset, 33)), 40, fmt::format("{} {}", pair.head, preset));
    for (const char* cache : {"retrieval", "streaming", "window"})
      plain.expect_same_text(*Engine::open(few_cells(options(pair, "eagle2-tree", 33), cache)), 40, cache);
  }
}

TEST(Assistant, DraftsDependOnTheTextAlone) {
  for (const Pair& pair : {files().plain, files().windows})
    for (const char* cache : {"full", "retrieval"})
      testing::expect_drafts_of_text_alone(
          [&](int chunk) { return Engine::open(few_cells(options(pair, "eagle2-tree", chunk), cache)); }, {64, 7, 89},
          200, pair.head + " " + cache);
}

TEST(Assistant, BatchesAreLikeSingleRequests) {
  for (const Pair& pair : {files().plain, files().windows})
    for (const char* cache : {"full", "retrieval"})
      testing::expect_batches_like_single(*Engine::open(few_cells(options(pair, "eagle2-tree", 64, 3), cache)), 0.8f,
                                          cache);
}

// Layers without a window work on the chosen cells; with room for all of them nothing changes.
TEST(Assistant, ChosenCellsAreSeen) {
  const auto prompt = testing::random_text(150, 7);
  const auto trees = [&](const Pair& pair, const char* budget) {
    return answer(*Engine::open(
                       testing::with_settings(few_cells(options(pair, "sd", 64), "retrieval"), {{"budget", budget}}))
                       ->start(),
                  prompt, 0, 60)
        .trees;
  };
  for (const Pair& pair : {files().plain, files().windows}) {
    const auto all = answer(*Engine::open(options(pair, "sd", 64))->start(), prompt, 0, 60).trees;
    EXPECT_EQ(trees(pair, "400"), all);
    EXPECT_NE(trees(pair, "40"), all);
  }
}

TEST(Assistant, IsInspectedAndRefused) {
  const HeadSummary summary = inspect_head(files().windows.head);
  EXPECT_EQ(summary.kind, "assistant");
  EXPECT_THAT(summary.reads, HasSubstr("with and without a window"));
  EXPECT_EQ(summary.width, 48);
  EXPECT_EQ(summary.target_width, 64);
  EXPECT_EQ(summary.cell_values, 0u);
  EXPECT_THAT(testing::refusal(testing::with_settings(options(files().plain, "sd", 64), {{"cache", "quest"}})),
              HasSubstr("target's cache"));
  Pair wrong = files().windows;
  wrong.target = files().plain.target;
  EXPECT_THAT(testing::refusal(options(wrong, "sd", 64)), HasSubstr("sliding window"));
}

}  // namespace
}  // namespace sx
