// The walk-through of docs/extending.md: a head that no file of src knows, registered by name, drafts for an engine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "base/error.h"
#include "engine/head_answers.h"
#include "engine/sample_head.h"
#include "specextend/specextend.h"
#include "speculative/config/config.h"
#include "speculative/draft/registry.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {
namespace {

using testing::Answer;

struct Files {
  testing::TempFolder folder;
  std::string target = folder.file("target.gguf");
  Files() {
    testing::TinySpec spec;
    spec.layers = 2, spec.gain = 2;
    testing::write_tiny_gguf(target, spec);
    testing::register_bigram_head();
  }
};
const Files& files() {
  static const Files all;
  return all;
}

std::unique_ptr<Engine> open(const std::string& drafter, const std::string& tree = "chain", int chunk = 64,
                             int sessions = 1) {
  EngineOptions o;
  o.model = files().target, o.context = 400, o.threads = 1, o.chunk = chunk, o.max_sessions = sessions;
  if (drafter.empty()) return Engine::open(o);
  o.spec.settings = {{"drafter", drafter}, {"tree", tree}, {"nodes", "8"}, {"depth", "4"}, {"cost-model", "off"}};
  if (tree == "static") o.spec.settings.emplace_back("widths", "2,2,1");
  return Engine::open(o);
}

size_t accepted(const Answer& answer) {
  return answer.tokens.size() - std::min(answer.tokens.size(), answer.trees.size());
}

TEST(SampleHead, NeverChangesTheText) {
  auto plain = open("");
  for (const char* tree : {"chain", "static", "sequoia", "eagle2", "opt-tree", "best-first"}) {
    auto engine = open("bigram", tree);
    size_t drafted = 0, right = 0;
    for (float temperature : {0.0f, 0.9f, 1.1f})
      for (int length : {1, 2, 40, 120}) {
        const auto prompt = testing::random_text(length, unsigned(length));
        const Answer found = testing::answer(*engine->start(), prompt, temperature, 40);
        testing::expect_same(found, testing::answer(*plain->start(), prompt, temperature, 40),
                             fmt::format("{} {} {}", tree, temperature, length));
        drafted += found.drafted(), right += accepted(found);
      }
    EXPECT_GT(drafted, 200u) << tree;
    EXPECT_GT(right, 0u) << tree;  // greedy texts of a tiny model repeat themselves
  }
}

TEST(SampleHead, DraftsAreAFunctionOfTheText) {
  testing::expect_drafts_of_text_alone([](int chunk) { return open("bigram", "eagle2", chunk); }, {16, 64}, 60,
                                       "bigram");
}

TEST(SampleHead, BatchesLikeSingle) {
  auto engine = open("bigram", "eagle2", 64, 3);
  for (float temperature : {0.0f, 0.9f}) testing::expect_batches_like_single(*engine, temperature, "bigram");
}

TEST(SampleHead, HasANameOfItsOwn) {
  files();
  EXPECT_THROW(testing::register_bigram_head(), Error);
  EXPECT_THROW(register_drafter({.name = "eagle", .claims = nullptr, .make = nullptr}), Error);
  SpecConfig config;
  apply_setting(config, "drafter", "bigram");
  EXPECT_EQ(setting_value(config, "drafter"), "bigram");
  apply_setting(config, "drafter", "suffix");
  EXPECT_EQ(setting_value(config, "drafter"), "suffix");
  EXPECT_THROW(apply_setting(config, "drafter", "trigram"), Error);
}

std::string file_text(const std::string& name) {
  std::ifstream in(std::string(SX_SOURCE_DIR) + "/" + name);
  EXPECT_TRUE(in) << name;
  return {std::istreambuf_iterator<char>(in), {}};
}

// Every block of code below a comment "file: NAME" stands in that file as it is.
TEST(Extending, ShowsCodeThatIsBuilt) {
  const std::string page = file_text("docs/extending.md"), mark = "<!-- file: ", fence = "```cpp\n";
  int blocks = 0;
  for (size_t at = 0; (at = page.find(mark, at)) != std::string::npos; ++blocks) {
    const size_t name = at + mark.size(), begin = page.find(fence, name) + fence.size(), end = page.find("```", begin);
    const std::string file = page.substr(name, page.find(" -->", name) - name), block = page.substr(begin, end - begin);
    EXPECT_NE(file_text(file).find(block), std::string::npos) << file << " does not have\n" << block;
    at = end;
  }
  EXPECT_GE(blocks, 6);
}

}  // namespace
}  // namespace sx
