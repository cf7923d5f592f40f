// Logits of a prompt's tokens: those that generating the same text gives, bit for bit, in pieces of any size, in any
// batch, with any drafter listening in.
#include <gtest/gtest.h>

#include "batch_models.h"
#include "specextend/specextend.h"

namespace sx {
namespace {

struct Score {
  std::vector<Token> tokens;
  std::vector<float> logits;  // [tokens, vocab]
  bool operator==(const Score&) const = default;
};

class PromptLogits : public ::testing::TestWithParam<const char*> {
 protected:
  PromptLogits() { testing::write_batch_models(folder_); }

  std::unique_ptr<Engine> open(const std::string& how, int chunk = 32, int max_outputs = 64, int sessions = 3) {
    EngineOptions o;
    o.model = folder_.file("target.gguf"), o.context = 400, o.threads = 1;
    o.chunk = chunk, o.max_outputs = max_outputs, o.max_sessions = sessions;
    if (how != "off")
      o.spec.preset = how == "suffix" ? how
                      : how == "self" ? "self-skip"
                                      : "sd",
      o.spec.settings = {{"cost-model", "off"}};
    if (how == "model") o.spec.draft_model = folder_.file("draft.gguf");
    if (how == "head") o.spec.draft_model = folder_.file("head");
    return Engine::open(o);
  }

  static std::vector<Token> text(int length, int salt) {
    std::vector<Token> tokens;
    for (int i = 0; i < length; ++i) tokens.push_back(Token(3 + (i * i + 7 * salt + i * salt) % 40));
    return tokens;
  }
  static GenerateOptions scoring(Score& score, int max_tokens = 0) {
    GenerateOptions o;
    o.max_tokens = max_tokens, o.ignore_end = true;
    o.on_prompt_token = [&score](const TokenInfo& info) {
      EXPECT_EQ(info.depth, 0);
      score.tokens.push_back(info.token);
      score.logits.insert(score.logits.end(), info.logits.begin(), info.logits.end());
    };
    return o;
  }
  static Score score_of(Session& session, const std::vector<Token>& prompt) {
    Score score;
    session.generate(prompt, scoring(score));
    return score;
  }

  testing::TempFolder folder_;
};

TEST_P(PromptLogits, AreThoseOfGeneration) {
  auto engine = open(GetParam());
  const size_t vocab = size_t(engine->vocab());
  std::vector<Token> all = text(90, 1);
  std::vector<float> expected;
  GenerateOptions how;
  how.max_tokens = 70, how.ignore_end = true;
  how.on_logits = [&](std::span<const float> row) { expected.insert(expected.end(), row.begin(), row.end()); };
  const auto answer = engine->start()->generate(all, how).tokens;
  all.insert(all.end(), answer.begin(), answer.end());
  const Score score = score_of(*engine->start(), all);
  EXPECT_EQ(score.tokens, std::vector<Token>(all.begin() + 1, all.end()));
  ASSERT_EQ(score.logits.size(), (all.size() - 1) * vocab);
  ASSERT_EQ(expected.size(), answer.size() * vocab);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), score.logits.end() - ptrdiff_t(expected.size())));
}

TEST_P(PromptLogits, PiecesAndCompanyChangeNothing) {
  const std::vector<std::vector<Token>> prompts = {text(150, 1), text(61, 2), text(97, 3)};
  std::vector<Score> expected;
  std::vector<Token> answer;
  GenerateOptions how;
  how.max_tokens = 250, how.ignore_end = true;
  {
    auto plain = open("off");
    for (const auto& prompt : prompts) expected.push_back(score_of(*plain->start(), prompt));
    answer = plain->start()->generate(text(9, 4), how).tokens;
  }
  for (const auto& [chunk, most] : {std::pair{7, 3}, {32, 64}, {300, 5}, {64, 1}}) {
    auto engine = open(GetParam(), chunk, most, 4);
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Score> found(prompts.size());
    std::vector<GenerateOptions> options;
    for (Score& score : found) options.push_back(scoring(score, 60));
    auto batch = engine->batch();
    const auto other = text(9, 4);
    sessions.push_back(engine->start());
    batch->add({sessions.back().get(), other, &how});
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (int steps = 0; steps < 10; ++steps) batch->step();
      sessions.push_back(engine->start());
      batch->add({sessions.back().get(), prompts[i], &options[i]});
    }
    int steps = 0;
    while (batch->step()) ASSERT_LT(++steps, 2000);
    for (const Finished& f : batch->take_finished()) {
      EXPECT_EQ(f.error, "");
      if (f.session == sessions[0].get()) {
        EXPECT_EQ(f.result.tokens, answer);
      } else {
        EXPECT_EQ(f.result.tokens.size(), 60u);
      }
    }
    for (size_t i = 0; i < prompts.size(); ++i)
      EXPECT_TRUE(found[i] == expected[i])
          << "prompt " << i << ", chunks of " << chunk << ", " << most << " rows of logits";
  }
}

TEST_P(PromptLogits, AllOfThePromptIsRun) {
  auto engine = open(GetParam());
  auto session = engine->start();
  const auto prompt = text(80, 5);
  GenerateOptions few;
  few.max_tokens = 10, few.ignore_end = true;
  const auto expected = session->generate(prompt, few).tokens;
  Score score;
  const auto scored = session->generate(prompt, scoring(score, 10));
  EXPECT_EQ(scored.tokens, expected);
  EXPECT_EQ(scored.timings.cached_tokens, 0);
  EXPECT_EQ(scored.timings.prompt_tokens, int(prompt.size()) - 1);
  EXPECT_EQ(score.tokens.size(), prompt.size() - 1);
  Score alone;
  const auto nothing = session->generate(prompt, scoring(alone));
  EXPECT_TRUE(alone == score);
  EXPECT_TRUE(nothing.tokens.empty() && nothing.text.empty() && nothing.reason == FinishReason::kLength);
  // What it has read serves others.
  const auto again = session->generate(prompt, few);
  EXPECT_EQ(again.tokens, expected);
  EXPECT_GE(again.timings.cached_tokens, int(prompt.size()) - 2);
}

TEST_P(PromptLogits, EndsWhereItIsCancelled) {
  auto engine = open(GetParam());
  auto session = engine->start();
  const auto prompt = text(120, 6);
  Score score, none;
  GenerateOptions o = scoring(score, 5);
  o.cancelled = [&] { return score.tokens.size() >= 64; };
  EXPECT_EQ(session->generate(prompt, o).reason, FinishReason::kCancelled);
  EXPECT_EQ(score.tokens.size(), 64u);
  session->generate(std::vector<Token>{5}, scoring(none, 3));
  EXPECT_TRUE(none.tokens.empty());  // a text of one token has nothing before it
}

INSTANTIATE_TEST_SUITE_P(Drafters, PromptLogits, ::testing::Values("off", "suffix", "model", "self", "head"),
                         [](const auto& which) { return std::string(which.param); });

}  // namespace
}  // namespace sx
