// Grammars in whole engines: every text is one of the grammar, drafted or not it has the same bytes, what the grammar forces costs no
// pass of a drafter, and one request's grammar is nobody else's trouble.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

const char* const kSchema = R"({"type": "object", "properties": {
  "answer": {"enum": ["yes", "no", "perhaps"]}, "count": {"type": "integer", "minimum": 0, "maximum": 99},
  "tags": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3}},
  "required": ["answer", "count", "tags"], "additionalProperties": false})";

class GrammarEngineTest : public ::testing::Test {
 protected:
  GrammarEngineTest() {
    testing::TinySpec spec;
    spec.weights = DType::kQ8_0, spec.gain = 2;
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    spec.weights = DType::kQ4_0;
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
  }
  std::unique_ptr<Engine> open(const std::string& preset, const std::string& rule = "") {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 500, o.threads = 2, o.max_sessions = 2, o.spec.preset = preset;
    if (preset == "off") return Engine::open(o);
    if (preset != "suffix" && preset != "self-skip") o.spec.draft_model = folder_.file("draft.gguf");
    o.spec.settings = {{"price", "off"}};
    if (!rule.empty()) o.spec.settings.emplace_back("accept", rule);
    return Engine::open(o);
  }
  static GenerateOptions with(const std::string& grammar, float temperature, uint64_t seed) {
    GenerateOptions o;
    o.max_tokens = 300, o.grammar = grammar, o.sampling.temperature = temperature, o.sampling.seed = seed;
    return o;
  }
  testing::TempFolder folder_;
};

void expect_fits(const std::string& text) {
  const auto json = nlohmann::json::parse(text, nullptr, false);
  ASSERT_FALSE(json.is_discarded()) << text;
  ASSERT_EQ(json.size(), 3u) << text;
  EXPECT_TRUE(json["answer"] == "yes" || json["answer"] == "no" || json["answer"] == "perhaps") << text;
  EXPECT_TRUE(json["count"].is_number_unsigned() && json["count"] <= 99) << text;
  EXPECT_TRUE(json["tags"].is_array() && json["tags"].size() >= 1 && json["tags"].size() <= 3) << text;
}

TEST_F(GrammarEngineTest, DraftedOrNotTheSameTextOfTheGrammar) {
  const std::string grammar = json_schema_to_gbnf(kSchema);
  auto plain = open("off");
  const auto prompt = plain->tokenize("Answer in JSON.");
  for (const char* preset : {"sd", "opt-tree", "suffix", "staged", "triforce", "fuse", "self-skip"}) {
    auto engine = open(preset);
    for (uint64_t seed = 0; seed < 4; ++seed)
      for (float temperature : {0.f, 1.5f}) {
        const auto how = with(grammar, temperature, seed);
        const auto expected = plain->start()->generate(prompt, how), found = engine->start()->generate(prompt, how);
        EXPECT_EQ(found.tokens, expected.tokens) << preset << " " << seed;
        EXPECT_EQ(found.reason, FinishReason::kEnd);
        expect_fits(found.text);
      }
  }
  for (const char* rule : {"chain", "specinfer"})  // other draws, the same grammar
    for (uint64_t seed = 0; seed < 4; ++seed)
      expect_fits(open("sd", rule)->start()->generate(prompt, with(grammar, 1.5f, seed)).text);
}

TEST_F(GrammarEngineTest, WhatIsForcedIsDraftedForFree) {
  auto engine = open("suffix");  // whose index knows nothing of these letters
  auto how = with("root ::= \"a quick brown fox jumps over the lazy dog\" [0-9]", 0, 0);
  const auto found = engine->start()->generate(engine->tokenize("x"), how);
  ASSERT_EQ(found.text.substr(0, 41), "a quick brown fox jumps over the lazy dog");
  EXPECT_GT(found.spec.accepted, 0);
  EXPECT_LT(found.spec.rounds, int64_t(found.tokens.size()) / 2);
  EXPECT_EQ(found.tokens, open("off")->start()->generate(engine->tokenize("x"), how).tokens);
}

TEST_F(GrammarEngineTest, EndsWhereNothingMayFollow) {
  auto engine = open("off");
  auto how = with("root ::= \"yes\" | \"no\"", 0, 0);
  how.ignore_end = true;  // of no use where the grammar ends the text
  const auto found = engine->start()->generate(engine->tokenize("?"), how);
  EXPECT_TRUE(found.text == "yes" || found.text == "no") << found.text;
  EXPECT_EQ(found.reason, FinishReason::kEnd);
  how.stop = {"e", "o"};
  EXPECT_EQ(engine->start()->generate(engine->tokenize("?"), how).reason, FinishReason::kStop);
}

TEST_F(GrammarEngineTest, ErrorsAreTheRequestsOwn) {
  auto engine = open("sd");
  EXPECT_THROW(engine->start()->generate(engine->tokenize("?"), with("root ::= nothing", 0, 0)), Error);
  EXPECT_THROW(engine->start()->generate(engine->tokenize("?"), with("root ::= root \"a\"", 0, 0)), Error);
  // In company: the batch goes on, and so does the engine.
  auto a = engine->start(), b = engine->start();
  GenerateOptions other;
  other.max_tokens = 40, other.ignore_end = true;
  const auto prompt = engine->tokenize("Once upon a time");
  const auto alone = open("off")->start()->generate(prompt, other).tokens;
  std::string grammar = "root ::= \"abc\" r0\nr20 ::= \"z\"\n";  // 2^20 stacks at once, after three letters
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    grammar += "r" + std::to_string(i) + " ::= " + next + " \"x\" | " + next + " \"y\"\n";
  }
  const auto hard = with(grammar, 0, 0);
  auto batch = engine->batch();
  batch->add({a.get(), prompt, &hard});
  batch->add({b.get(), prompt, &other});
  bool failed = false, finished = false;
  while (batch->step())
    for (const Finished& f : batch->take_finished()) {
      if (f.session == a.get()) failed = f.error.find("ambiguous") != std::string::npos;
      if (f.session == b.get()) finished = f.error.empty() && f.result.tokens == alone;
    }
  EXPECT_TRUE(finished);
  EXPECT_TRUE(failed);
  EXPECT_EQ(a->generate(prompt, other).tokens, alone);
}

}  // namespace
}  // namespace sx
