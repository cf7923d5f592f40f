// Drafting with the MTP blocks of the target's own file: the text never changes, drafts are a function of the text, and
// whoever does not ask for the blocks does not notice them.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/head_answers.h"
#include "specextend/specextend.h"
#include "support/mtp_model.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;

struct Files {
  TempFolder folder;
  std::string plain = folder.file("plain.gguf"), one = folder.file("one.gguf"), three = folder.file("three.gguf");
  Files() {
    TinySpec spec;
    spec.layers = 4, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(plain, spec);
    testing::write_mtp_gguf(one, spec, 1);
    spec.weights = DType::kF32;
    testing::write_mtp_gguf(three, spec, 3);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const std::string& model, const std::string& preset, int chunk, int sessions = 1) {
  return testing::small_options(model, preset, "", chunk, sessions);
}

TEST(Mtp, NeverChangesTheText) {
  for (const std::string& model : {files().one, files().three}) {
    const testing::PlainAnswers plain(model, {0.0f, 0.8f}, {1, 2, 34, 200});
    const auto expect_same = [&](const EngineOptions& o, const std::string& what) {
      plain.expect_same_text(*Engine::open(o), 40, fmt::format("{} {}", model, what));
    };
    expect_same(options(model, "mtp", 33), "mtp");
    expect_same(testing::with_settings(options(model, "specextend-mtp", 33), testing::kFewCells), "specextend-mtp");
    expect_same(testing::with_settings(options(model, "fuse", 33), {{"fuse-model", "mtp"}}), "fuse");
    for (const char* tree : {"chain", "best-first", "eagle2"})
      expect_same(testing::with_settings(options(model, "mtp", 33), {{"tree", tree}}), tree);
  }
}

TEST(Mtp, DraftsDependOnTheTextAlone) {
  testing::expect_drafts_of_text_alone([&](int chunk) { return Engine::open(options(files().one, "mtp", chunk)); },
                                       {64, 7, 65, 89}, 200, "one block");
}

// Chunks, batches and undrafted rounds are no matter to several blocks either.
TEST(Mtp, SeveralBlocksDraftTheSameWithOtherChunks) {
  const auto prompt = testing::random_text(90, 7);
  const Answer expected = answer(*Engine::open(options(files().three, "mtp", 256))->start(), prompt, 0, 40);
  EXPECT_GT(expected.drafted(), 200u);
  for (const int chunk : {64, 7, 89})
    EXPECT_EQ(answer(*Engine::open(options(files().three, "mtp", chunk))->start(), prompt, 0, 40).trees,
              expected.trees);
}

TEST(Mtp, BatchesAreLikeSingleRequests) {
  for (const std::string& model : {files().one, files().three})
    testing::expect_batches_like_single(*Engine::open(options(model, "mtp", 64, 3)), 0, model);
}

// Blocks that nobody asked for change nothing.
TEST(Mtp, BlocksAreNotReadWithoutThePreset) {
  auto without = Engine::open(options(files().plain, "", 64)), with = Engine::open(options(files().one, "", 64));
  const auto prompt = testing::random_text(50, 3);
  testing::expect_same(answer(*with->start(), prompt, 0.8f, 30), answer(*without->start(), prompt, 0.8f, 30), "plain");
}

TEST(Mtp, ModelsWithoutBlocksAreRefused) {
  EXPECT_THAT(testing::refusal(options(files().plain, "mtp", 64)), HasSubstr("has no MTP block"));
}

}  // namespace
}  // namespace sx
