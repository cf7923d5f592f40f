// Drafting with drafters that give all levels in one pass (DFlash, DSpark, P-EAGLE): the text never changes, and drafts
// are a function of the text.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/head_answers.h"
#include "model/heads/head_parts.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;

constexpr int kBlock = 7;

struct Files {
  TempFolder folder;
  std::string target = folder.file("target.gguf"), dflash = folder.file("dflash"), dspark = folder.file("dspark"),
              parallel = folder.file("p-eagle");
  Files() {
    TinySpec spec;
    spec.layers = 4, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(target, spec);
    const ModelConfig config = testing::tiny_config(spec);
    for (const bool markov : {false, true})
      testing::random_head(testing::dflash_config(config, kBlock, markov), testing::dflash_extra(markov), config,
                           DType::kF32, 4)
          .write(markov ? dspark : dflash);
    auto json = testing::eagle3_config(config, 2, 160);
    json["ptd_token_id"] = 5, json["eagle_aux_hidden_state_layer_ids"] = {1, 2, 3};
    testing::random_head(json, {"lm_head.weight", "d2t", "mask_hidden"}, config, DType::kF32, 6).write(parallel);
  }
};
const Files& files() {
  static const Files all;
  return all;
}

EngineOptions options(const std::string& head, const std::string& preset, int chunk, int sessions = 1) {
  return testing::small_options(files().target, preset, head, chunk, sessions);
}

TEST(DFlash, NeverChangesTheText) {
  const testing::PlainAnswers plain(files().target, {0.0f, 0.8f}, {1, 2, 34, 200});
  for (const std::string& head : {files().dflash, files().dspark, files().parallel}) {
    for (const char* preset : {"dflash", "sd", "opt-tree", "eagle2-tree", "specinfer", "fuse"})
      plain.expect_same_text(*Engine::open(options(head, preset, 33)), 40, fmt::format("{} {}", head, preset));
    plain.expect_same_text(*Engine::open(testing::with_settings(options(head, "specextend", 33), testing::kFewCells)),
                           40, head);
  }
}

TEST(DFlash, DraftsDependOnTheTextAlone) {
  for (const std::string& head : {files().dflash, files().dspark, files().parallel})
    testing::expect_drafts_of_text_alone([&](int chunk) { return Engine::open(options(head, "dflash", chunk)); },
                                         {64, 7, 65, 89}, 200, head);
}

TEST(DFlash, BatchesAreLikeSingleRequests) {
  for (const std::string& head : {files().dflash, files().dspark, files().parallel})
    testing::expect_batches_like_single(*Engine::open(options(head, "dflash", 64, 3)), 0, head);
}

// All nodes of a level of a DFlash tree share their candidates; DSpark's depend on the token before.
TEST(DFlash, TreesAreAsDeepAsTheBlock) {
  const std::pair<std::string, int> depths[] = {
      {files().dflash, kBlock - 1}, {files().dspark, kBlock}, {files().parallel, 16}};
  for (const auto& [head, depth] : depths) {
    const EngineOptions o = testing::with_settings(options(head, "sd", 64), {{"nodes", "20"}, {"depth", "20"}});
    const Answer found = answer(*Engine::open(o)->start(), testing::random_text(50, 1), 0, 30);
    size_t deepest = 0;
    for (const auto& tree : found.trees) deepest = std::max(deepest, tree.size() - 1);
    EXPECT_EQ(deepest, size_t(depth)) << head;
  }
}

TEST(DFlash, CachesByOwnQueriesAreRefused) {
  EXPECT_THAT(testing::refusal(testing::with_settings(options(files().dflash, "dflash", 64), {{"cache", "quest"}})),
              HasSubstr("cache quest"));
}

}  // namespace
}  // namespace sx
