// The example of docs/extending.md, from the registry to a whole engine: the text is that of plain decoding,
// whatever the policy chooses; and a policy that breaks the rules is reported with its name.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "specextend/specextend.h"
#include "speculative/cache/config.h"
#include "speculative/config/config.h"
#include "support/model_writer.h"
#include "support/random_text.h"

namespace sx {

extern const CachePolicy kEveryKthCache;

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Policies {
  Policies() {
    add_cache_policy(kEveryKthCache);
    add_cache_policy(backwards);
    add_cache_policy(greedy);
  }
  const CachePolicy backwards{
      .name = "backwards",
      .choose = [](const CacheConfig&, const CacheText&, ChoiceScratch&, std::vector<int32_t>& cells) {
        cells = {5, 4};
      }};
  const CachePolicy greedy{
      .name = "greedy",
      .choose = [](const CacheConfig&, const CacheText& text, ChoiceScratch&, std::vector<int32_t>& cells) {
        for (int i = 0; i < text.cells; ++i) cells.push_back(i);
      }};
};
const Policies& policies() {
  static const Policies all;
  return all;
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) { return error.what(); }
  return "";
}

std::string contents(const std::string& path) {
  std::ifstream file(std::string(SX_SOURCE_DIR) + "/" + path);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct Answer {
  std::vector<Token> tokens;
  std::vector<float> logits;
  std::vector<std::vector<int32_t>> cells;  // of each round
  int drafted = 0;
};
Answer answer(Engine& engine, const std::vector<Token>& prompt, float temperature) {
  Answer out;
  GenerateOptions o;
  o.max_tokens = 60, o.ignore_end = true, o.sampling.temperature = temperature, o.sampling.seed = 5;
  o.on_logits = [&](std::span<const float> row) { out.logits.insert(out.logits.end(), row.begin(), row.end()); };
  o.on_round = [&](const RoundInfo& r) {
    out.cells.emplace_back(r.cells.begin(), r.cells.end());
    out.drafted += r.verified;
  };
  out.tokens = engine.start()->generate(prompt, o).tokens;
  return out;
}

struct Files {
  testing::TempFolder folder;
  std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf");
  Files() {
    testing::TinySpec spec;
    spec.layers = 3, spec.gain = 2, spec.weights = DType::kQ8_0;
    testing::write_tiny_gguf(target, spec);
    spec.weights = DType::kQ4_0, spec.context = 128;
    testing::write_tiny_gguf(draft, spec);
  }
};

EngineOptions options(const Files& files, const char* cache) {
  EngineOptions o;
  o.model = files.target, o.context = 640, o.threads = 1;
  if (!*cache) return o;
  o.spec.preset = "sd", o.spec.draft_model = files.draft;
  o.spec.settings = {{"cost-model", "off"}, {"defer-prefill", "off"}, {"cache", cache}, {"budget", "64"},
                     {"chunk", "8"},        {"recent", "16"},         {"interval", "2"}};
  return o;
}

TEST(SamplePolicy, NeverChangesTheText) {
  policies();
  const Files files;
  auto plain = Engine::open(options(files, "")), sample = Engine::open(options(files, "every-kth"));
  for (const int length : {1, 40, 300})
    for (const float temperature : {0.0f, 0.9f}) {
      const auto prompt = testing::random_text(length, unsigned(length));
      const Answer expected = answer(*plain, prompt, temperature), found = answer(*sample, prompt, temperature);
      EXPECT_EQ(found.tokens, expected.tokens) << length << " " << temperature;
      ASSERT_EQ(found.logits.size(), expected.logits.size());
      EXPECT_EQ(std::memcmp(found.logits.data(), expected.logits.data(), found.logits.size() * sizeof(float)), 0);
      EXPECT_GT(found.drafted, 20);
      if (length < 300) continue;
      // Chosen from 299 cells (the last token is run after the refresh): 16 recent ones, and 6 of the other 35 chunks.
      std::vector<int32_t> right;
      for (const int chunk : {0, 5, 11, 17, 23, 29})
        for (int i = 0; i < 8; ++i) right.push_back(8 * chunk + i);
      for (int cell = 283; cell < 300; ++cell) right.push_back(cell);
      ASSERT_GE(found.cells[0].size(), right.size());
      EXPECT_TRUE(std::equal(right.begin(), right.end(), found.cells[0].begin()))
          << ::testing::PrintToString(found.cells[0]);
    }
}

TEST(SamplePolicy, IsTheOneOfTheDocument) {
  const std::string document = contents("docs/extending.md"), code = contents("tests/engine/sample_policy.cc");
  ASSERT_FALSE(document.empty());
  ASSERT_FALSE(code.empty());
  EXPECT_NE(document.find("```cpp\n" + code + "```"), std::string::npos)
      << "docs/extending.md must show tests/engine/sample_policy.cc as it is";
}

TEST(CachePolicies, AreKnownByName) {
  policies();
  SpecConfig config = preset_config("specextend");
  EXPECT_EQ(config.cache.policy, &cache_policy("retrieval"));
  apply_setting(config, "cache", "every-kth");
  EXPECT_EQ(config.cache.policy, &kEveryKthCache);
  EXPECT_EQ(setting_value(config, "cache"), "every-kth");
  EXPECT_EQ(find_cache_policy("every-jth"), nullptr);
  EXPECT_THAT(error_of([&] { apply_setting(config, "cache", "every-jth"); }),
              AllOf(HasSubstr("'every-jth'"), HasSubstr("every-kth")));
  EXPECT_THAT(error_of([] { cache_policy("every-jth"); }), AllOf(HasSubstr("'every-jth'"), HasSubstr("full, window")));
  for (const CachePolicy* policy : cache_policies()) EXPECT_EQ(&cache_policy(policy->name), policy);
}

TEST(CachePolicies, AreReportedWhenTheyAreWrong) {
  policies();
  const CachePolicy again{.name = "retrieval", .choose = kEveryKthCache.choose};
  const CachePolicy nothing{.name = "nothing"}, nameless{.name = ""};
  EXPECT_THAT(error_of([&] { add_cache_policy(again); }), AllOf(HasSubstr("'retrieval'"), HasSubstr("exists")));
  EXPECT_THAT(error_of([&] { add_cache_policy(nothing); }), AllOf(HasSubstr("'nothing'"), HasSubstr("chooses")));
  EXPECT_THAT(error_of([&] { add_cache_policy(nameless); }), HasSubstr("name"));
  const Files files;
  for (const char* wrong : {"backwards", "greedy"}) {
    auto engine = Engine::open(options(files, wrong));
    EXPECT_THAT(error_of([&] { answer(*engine, testing::random_text(200, 3), 0); }),
                AllOf(HasSubstr(wrong), HasSubstr("ascending")));
  }
}

}  // namespace
}  // namespace sx
