// Drafting with the MTP blocks of the target's own file: the text never changes, drafts are a function of the text, and
// whoever does not ask for the blocks does not notice them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/head_answers.h"
#include "specextend/specextend.h"
#include "support/mtp_model.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
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
  EngineOptions o;
  o.model = model, o.context = 400, o.threads = 1, o.chunk = chunk, o.max_sessions = sessions;
  if (!preset.empty()) o.spec.preset = preset, o.spec.settings = {{"cost-model", "off"}};
  return o;
}

TEST(Mtp, NeverChangesTheText) {
  const std::vector<std::pair<std::string, std::string>> small = {
      {"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}};
  for (const std::string& model : {files().one, files().three}) {
    auto plain = Engine::open(options(model, "", 64));
    for (const char* preset : {"mtp", "specextend-mtp", "mtp chain", "mtp best-first", "mtp eagle2", "fuse"}) {
      EngineOptions o = options(model, std::string(preset).substr(0, std::string_view(preset).find(' ')), 33);
      if (const size_t space = std::string_view(preset).find(' '); space != std::string_view::npos)
        o.spec.settings.push_back({"tree", preset + space + 1});
      if (o.spec.preset == "specextend-mtp") o.spec.settings.insert(o.spec.settings.end(), small.begin(), small.end());
      if (o.spec.preset == "fuse") o.spec.settings.push_back({"fuse-model", "mtp"});
      auto engine = Engine::open(o);
      for (float temperature : {0.0f, 0.8f})
        for (int length : {1, 2, 34, 200}) {
          const auto prompt = testing::random_text(length, unsigned(length));
          const Answer expected = answer(*plain->start(), prompt, temperature, 40);
          const Answer found = answer(*engine->start(), prompt, temperature, 40);
          testing::expect_same(found, expected, fmt::format("{} {} {}", model, preset, length));
          EXPECT_GT(found.drafted(), 40u) << preset << " " << length;
        }
    }
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
  try {
    Engine::open(options(files().plain, "mtp", 64));
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("has no MTP block"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sx
