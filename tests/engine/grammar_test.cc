// Grammars in whole engines: every text is one of the grammar, drafted or not it has the same bytes, what the grammar
// forces costs no pass of a drafter, and one request's grammar is nobody else's trouble.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
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
    spec.control = {"[CALL]", "[ARGS]"};  // the tokens 318 and 319
    testing::write_tiny_gguf(folder_.file("target.gguf"), spec);
    spec.weights = DType::kQ4_0;
    testing::write_tiny_gguf(folder_.file("draft.gguf"), spec);
  }
  std::unique_ptr<Engine> open(const std::string& preset, const std::string& rule = "", int sessions = 2) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 500, o.threads = 2, o.spec.preset = preset;
    o.max_sessions = sessions;
    if (preset == "off") return Engine::open(o);
    if (preset != "suffix" && preset != "self-skip") o.spec.draft_model = folder_.file("draft.gguf");
    o.spec.settings = {{"cost-model", "off"}};
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

// Where r0 begins, a text can be read in 2^20 ways.
std::string and_then_too_hard(std::string grammar) {
  grammar += "\nr20 ::= \"z\"\n";
  for (int i = 0; i < 20; ++i) {
    const std::string next = "r" + std::to_string(i + 1);
    grammar += "r" + std::to_string(i) + " ::= " + next + " \"x\" | " + next + " \"y\"\n";
  }
  return grammar;
}

// What a request comes to: its text and why it ended, or the text it had shown and the error.
std::string outcome(Engine& engine, const std::vector<Token>& prompt, GenerateOptions how) {
  std::string shown;
  how.on_text = [&](std::string_view text) { shown += text; };
  try {
    const auto result = engine.start()->generate(prompt, how);
    EXPECT_EQ(result.text, shown);
    return shown + " | " + finish_reason_name(result.reason);
  } catch (const Error& e) { return shown + " ! " + e.what(); }
}

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
  const auto prompt = plain->tokenizer().tokenize("Answer in JSON.");
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
  const auto found = engine->start()->generate(engine->tokenizer().tokenize("x"), how);
  ASSERT_EQ(found.text.substr(0, 41), "a quick brown fox jumps over the lazy dog");
  EXPECT_GT(found.spec.accepted, 0);
  EXPECT_LT(found.spec.rounds, int64_t(found.tokens.size()) / 2);
  EXPECT_EQ(found.tokens, open("off")->start()->generate(engine->tokenizer().tokenize("x"), how).tokens);
}

// The marks of a call that the vocabulary has as control tokens are written with these, drafted or not.
TEST_F(GrammarEngineTest, ControlTokensAreForcedAsTokens) {
  auto plain = open("off");
  // The index drafts the marks from the prompt, too.
  const auto prompt = plain->tokenizer().tokenize("[CALL]f[ARGS]12[CALL]g[ARGS]7 Now call: ", false, true);
  ASSERT_EQ(std::count(prompt.begin(), prompt.end(), 318), 2);
  const std::string grammar = "root ::= (@\"[CALL]\" (\"a long name\" | \"g\") @\"[ARGS]\" [0-9]{1,3} @\"[END]\"){2}";
  for (const char* preset : {"off", "sd", "opt-tree", "suffix", "fuse", "self-skip"}) {
    auto engine = open(preset);
    for (uint64_t seed = 0; seed < 4; ++seed) {
      auto how = with(grammar, 1.5f, seed);
      how.show_special = true;
      const auto expected = plain->start()->generate(prompt, how), found = engine->start()->generate(prompt, how);
      EXPECT_EQ(found.tokens, expected.tokens) << preset << " " << seed;
      EXPECT_EQ(found.text, expected.text) << preset << " " << seed;
      EXPECT_EQ(std::count(found.tokens.begin(), found.tokens.end(), 318), 2) << found.text;
      EXPECT_EQ(std::count(found.tokens.begin(), found.tokens.end(), 319), 2) << found.text;
      EXPECT_TRUE(found.text.starts_with("[CALL]") && found.text.ends_with("[END]")) << found.text;
      how.show_special = false;
      EXPECT_EQ(engine->start()->generate(prompt, how).text.find("CALL"), std::string::npos);
    }
  }
  // What is refused in the middle is refused with marks before it as well.
  const auto hard = with(and_then_too_hard("root ::= @\"[CALL]\" \"abcdefgh\" r0"), 0, 0);
  const std::string refused = outcome(*plain, prompt, hard);
  EXPECT_TRUE(refused.starts_with("abcdefg ! grammar: too ambiguous")) << refused;
  for (const char* preset : {"sd", "suffix", "fuse"})
    EXPECT_EQ(outcome(*open(preset), prompt, hard), refused) << preset;
}

TEST_F(GrammarEngineTest, EndsWhereNothingMayFollow) {
  auto engine = open("off");
  auto how = with("root ::= \"yes\" | \"no\"", 0, 0);
  how.ignore_end = true;  // of no use where the grammar ends the text
  const auto found = engine->start()->generate(engine->tokenizer().tokenize("?"), how);
  EXPECT_TRUE(found.text == "yes" || found.text == "no") << found.text;
  EXPECT_EQ(found.reason, FinishReason::kEnd);
  how.stop = {"e", "o"};
  EXPECT_EQ(engine->start()->generate(engine->tokenizer().tokenize("?"), how).reason, FinishReason::kStop);
}

TEST_F(GrammarEngineTest, ErrorsAreTheRequestsOwn) {
  auto engine = open("sd");
  EXPECT_THROW(engine->start()->generate(engine->tokenizer().tokenize("?"), with("root ::= nothing", 0, 0)), Error);
  EXPECT_THROW(engine->start()->generate(engine->tokenizer().tokenize("?"), with("root ::= root \"a\"", 0, 0)), Error);
  // In a batch: the others goes on, and so does the engine.
  auto a = engine->start(), b = engine->start();
  GenerateOptions other;
  other.max_tokens = 40, other.ignore_end = true;
  const auto prompt = engine->tokenizer().tokenize("Once upon a time");
  const auto alone = open("off")->start()->generate(prompt, other).tokens;
  const auto hard = with(and_then_too_hard("root ::= \"abc\" r0"), 0, 0);
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

// Without drafts, too: the text ends where the grammar cannot be followed, and nobody is told that it is whole.
TEST_F(GrammarEngineTest, AGrammarTooHardToFollowIsAnErrorForEveryPreset) {
  const auto how = with(and_then_too_hard("root ::= \"abcdefgh\" r0"), 0, 0);
  for (const char* preset : {"off", "sd", "suffix", "fuse", "opt-tree", "self-skip"}) {
    auto engine = open(preset);
    const std::string found = outcome(*engine, engine->tokenizer().tokenize("Once"), how);
    EXPECT_TRUE(found.starts_with("abcdefg ! grammar: too ambiguous")) << preset << ": " << found;
    EXPECT_NE(found.find("in the rule"), std::string::npos) << found;
  }
}

// Drafts go where the text does not, also where the grammar cannot be followed. Some of these texts end there, most do
// not.
TEST_F(GrammarEngineTest, ADraftNeverFailsARequest) {
  const std::string grammar =
      and_then_too_hard("root ::= word{6}\nword ::= [a-r] [a-z]{2} | [s-z] [a-z]{5} [a-d] r0 | [s-z] [a-z]{5} [e-z]");
  auto plain = open("off");
  const auto prompt = plain->tokenizer().tokenize("Answer in words.");
  constexpr int kSeeds = 12;
  std::vector<std::string> expected;
  int failed = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    expected.push_back(outcome(*plain, prompt, with(grammar, 1.5f, seed)));
    failed += expected.back().find(" ! ") != std::string::npos;
  }
  EXPECT_GT(failed, 1);
  EXPECT_LT(failed, kSeeds - 1);
  for (const char* preset : {"sd", "opt-tree", "suffix", "fuse", "staged", "off"}) {
    auto engine = open(preset);
    for (uint64_t seed = kSeeds; seed-- > 0;)  // another order, with what the others left behind
      EXPECT_EQ(outcome(*engine, prompt, with(grammar, 1.5f, seed)), expected[seed]) << preset << " " << seed;
  }
}

// The prompt makes an index draft what the grammar allows and cannot be followed; plain decoding never goes there.
TEST_F(GrammarEngineTest, ADraftOfTheIndexIsCutWhereTheGrammarIsTooHard) {
  auto how = with(and_then_too_hard("root ::= \" zebr\" r0 | [A-Y] [a-z]{40}"), 0, 0);
  auto plain = open("off");
  const auto prompt = plain->tokenizer().tokenize("Q: what?\nA: zebrzzzzzz\nQ: what?\nA:");
  how.sampling.logit_bias = {{plain->tokenizer().tokenize(" ")[0], -100.f},
                             {plain->tokenizer().tokenize(" z")[0], -100.f}};
  const std::string expected = outcome(*plain, prompt, how);
  ASSERT_TRUE(expected.ends_with(" | end")) << expected;
  for (const char* preset : {"suffix", "fuse", "sd"})
    EXPECT_EQ(outcome(*open(preset), prompt, how), expected) << preset;
}

// Each mask of it takes long.
std::string slow_grammar() {
  std::string grammar = "root ::= any{1,2000}\nany ::= r0";
  constexpr int kRules = 1500;
  for (int i = 1; i < kRules; ++i) grammar += " | r" + std::to_string(i);
  for (int i = 0; i < kRules; ++i) grammar += "\nr" + std::to_string(i) + " ::= [a-z] [a-z ]";
  return grammar;
}

// Masks that take long: the other request of the batch goes on meanwhile, and both have the texts they have alone. So
// do two requests of one grammar, of which one is cancelled on the way.
TEST_F(GrammarEngineTest, NobodyWaitsForASlowMask) {
  auto slow = with(slow_grammar(), 1.f, 3);
  slow.max_tokens = 6;
  GenerateOptions plain;
  plain.ignore_end = true, plain.max_tokens = 300;
  for (const char* preset : {"off", "sd"}) {
    auto engine = open(preset);
    const auto prompt = engine->tokenizer().tokenize("Once upon a time");
    const std::string expected = open("off")->start()->generate(prompt, slow).text;
    const auto expected_plain = open("off")->start()->generate(prompt, plain).tokens;
    auto a = engine->start(), b = engine->start();
    int tokens = 0, most = 0, since = 0;  // of the plain request while the other one has none
    auto first = slow, second = plain;
    first.on_token = [&](const TokenInfo&) { most = std::max(most, std::exchange(since, 0)); };
    second.on_token = [&](const TokenInfo&) { ++tokens, ++since; };
    auto batch = engine->batch();
    batch->add({a.get(), prompt, &first});
    batch->add({b.get(), prompt, &second});
    int finished = 0;
    while (batch->step())
      for (const Finished& f : batch->take_finished()) {
        EXPECT_EQ(f.error, "");
        if (f.session == a.get()) { EXPECT_EQ(f.result.text, expected) << preset; }
        if (f.session == b.get()) { EXPECT_EQ(f.result.tokens, expected_plain) << preset; }
        ++finished;
      }
    EXPECT_EQ(finished, 2);
    EXPECT_GT(most, 1) << preset;  // rounds that only one of them was part of
    // Both of one grammar; the second leaves early.
    int asked = 0;
    second = slow, second.cancelled = [&] { return ++asked > 5; };
    batch->add({a.get(), prompt, &slow});
    batch->add({b.get(), prompt, &second});
    while (batch->step())
      for (const Finished& f : batch->take_finished()) {
        EXPECT_EQ(f.error, "");
        if (f.session == a.get()) { EXPECT_EQ(f.result.text, expected) << preset; }
        if (f.session == b.get()) { EXPECT_EQ(f.result.reason, FinishReason::kCancelled); }
        ++finished;
      }
    EXPECT_EQ(finished, 4);
  }
}

// Several choices of one such grammar, each at another place of it, as they come and go: each has the text it has
// alone, beside a request without a grammar.
TEST_F(GrammarEngineTest, ChoicesOfASlowGrammarAreWhatTheyAreAlone) {
  constexpr uint64_t kChoices = 6;
  const std::string grammar = slow_grammar();
  GenerateOptions plain;
  plain.ignore_end = true, plain.max_tokens = 40;
  auto alone = open("off");
  const auto prompt = alone->tokenizer().tokenize("Once upon a time");
  const auto expected_plain = alone->start()->generate(prompt, plain).tokens;
  std::vector<GenerateOptions> how;
  std::vector<std::vector<Token>> expected;
  for (uint64_t seed = 0; seed < kChoices; ++seed) {
    how.push_back(with(grammar, 1.5f, seed));
    how.back().max_tokens = 6 + int(seed);
    expected.push_back(alone->start()->generate(prompt, how.back()).tokens);
  }
  EXPECT_NE(expected[0], expected[1]);
  for (const char* preset : {"off", "sd", "suffix"}) {
    auto engine = open(preset, "", 4);
    std::vector<std::unique_ptr<Session>> sessions;
    for (int i = 0; i < 4; ++i) sessions.push_back(engine->start());
    auto batch = engine->batch();
    std::vector<int> runs(sessions.size(), -1);  // the choice each session is at
    size_t next = 0, finished = 0;
    const auto add = [&](size_t i) {
      runs[i] = next < kChoices ? int(next++) : -1;
      if (runs[i] >= 0) batch->add({sessions[i].get(), prompt, &how[size_t(runs[i])]});
    };
    for (size_t i = 0; i < 3; ++i) add(i);
    batch->add({sessions[3].get(), prompt, &plain});
    while (batch->step())
      for (const Finished& f : batch->take_finished()) {
        EXPECT_EQ(f.error, "") << preset;
        const size_t i =
            size_t(std::ranges::find(sessions, f.session, &std::unique_ptr<Session>::get) - sessions.begin());
        EXPECT_EQ(f.result.tokens, i == 3 ? expected_plain : expected[size_t(runs[i])]) << preset << " " << i;
        ++finished;
        if (i < 3) add(i);
      }
    EXPECT_EQ(finished, kChoices + 1);
  }
}

// A request that is cancelled while a mask is made ends as cancelled, whatever its owner says later.
TEST_F(GrammarEngineTest, CancelledInsideAMask) {
  auto engine = open("off");
  const auto prompt = engine->tokenizer().tokenize("Once");
  auto how = with("root ::= [a-z]{50}", 0, 0);
  int asked = 0;
  how.cancelled = [&] { return ++asked, false; };
  engine->start()->generate(prompt, how);
  const int in_all = asked;
  EXPECT_GT(in_all, 100);
  for (const int at : {in_all - 1, in_all - 2, in_all - 3, in_all - 4}) {
    asked = 0;
    how.cancelled = [&] { return ++asked == at; };
    auto fresh = open("off");
    const auto found = fresh->start()->generate(prompt, how);
    EXPECT_EQ(found.reason, FinishReason::kCancelled) << at;
    EXPECT_EQ(asked, at);
    EXPECT_LT(found.tokens.size(), 50u);
  }
}

}  // namespace
}  // namespace sx
