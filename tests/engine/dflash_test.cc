// Drafting with drafters that give all levels in one pass (DFlash, DSpark, P-EAGLE): the text never changes, and drafts
// are a function of the text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "engine/head_answers.h"
#include "model/heads/head_parts.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;
using testing::answer;
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
  EngineOptions o;
  o.model = files().target, o.context = 400, o.threads = 1, o.chunk = chunk, o.max_sessions = sessions;
  if (!head.empty()) o.spec.preset = preset, o.spec.draft_model = head, o.spec.settings = {{"cost-model", "off"}};
  return o;
}

TEST(DFlash, NeverChangesTheText) {
  auto plain = Engine::open(options("", "", 64));
  for (const std::string& head : {files().dflash, files().dspark, files().parallel})
    for (const char* preset : {"dflash", "sd", "opt-tree", "eagle2-tree", "specinfer", "fuse", "specextend"}) {
      EngineOptions o = options(head, preset, 33);
      if (std::string_view(preset) == "specextend")
        for (const auto& [key, value] :
             {std::pair{"budget", "48"}, {"chunk", "8"}, {"recent", "10"}, {"interval", "2"}})
          o.spec.settings.push_back({key, value});
      auto engine = Engine::open(o);
      for (float temperature : {0.0f, 0.8f})
        for (int length : {1, 2, 34, 200}) {
          const auto prompt = testing::random_text(length, unsigned(length));
          const Answer expected = answer(*plain->start(), prompt, temperature, 40);
          const Answer found = answer(*engine->start(), prompt, temperature, 40);
          testing::expect_same(found, expected, fmt::format("{} {} {}", head, preset, length));
          EXPECT_GT(found.drafted(), 40u) << preset << " " << length;
        }
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
    EngineOptions o = options(head, "sd", 64);
    o.spec.settings.push_back({"nodes", "20"}), o.spec.settings.push_back({"depth", "20"});
    const Answer found = answer(*Engine::open(o)->start(), testing::random_text(50, 1), 0, 30);
    size_t deepest = 0;
    for (const auto& tree : found.trees) deepest = std::max(deepest, tree.size() - 1);
    EXPECT_EQ(deepest, size_t(depth)) << head;
  }
}

TEST(DFlash, CachesByOwnQueriesAreRefused) {
  EngineOptions o = options(files().dflash, "dflash", 64);
  o.spec.settings.push_back({"cache", "quest"});
  try {
    Engine::open(o);
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("cache quest"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace sx
