// Sessions as users meet them: generation, stops, cache reuse, sampling, limits, errors.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include "specextend/specextend.h"
#include "support/model_writer.h"

namespace sx {
namespace {

using testing::TempFolder;
using testing::TinySpec;

class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    TinySpec spec;
    spec.gain = 3;
    testing::write_tiny_gguf(folder_.file("tiny.gguf"), spec);
    engine_ = open(2);
  }
  std::unique_ptr<Engine> open(int threads) {
    EngineOptions o;
    o.model = folder_.file("tiny.gguf"), o.threads = threads, o.context = 300, o.chunk = 32, o.max_sessions = 2;
    return Engine::open(o);
  }
  GenerateOptions plain(int n) {
    GenerateOptions o;
    o.max_tokens = n, o.ignore_end = true;
    return o;
  }
  TempFolder folder_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(SessionTest, StreamsWhatItReturns) {
  std::string streamed;
  int calls = 0, last_done = -1, total = 0;
  auto o = plain(40);
  o.on_text = [&](std::string_view t) { streamed += t; };
  o.on_prefill = [&](int done, int all) {
    ++calls;
    EXPECT_GT(done, last_done);
    last_done = done;
    total = all;
  };
  const auto prompt =
      engine_->tokenizer().tokenize("The quick brown fox jumps over the lazy dog and runs away from it");
  const auto r = engine_->start()->generate(prompt, o);
  EXPECT_EQ(streamed, r.text);
  EXPECT_EQ(r.text, engine_->tokenizer().detokenize(r.tokens));
  EXPECT_EQ(r.tokens.size(), 40u);
  EXPECT_EQ(r.reason, FinishReason::kLength);
  EXPECT_EQ(last_done, total);
  EXPECT_EQ(total, int(prompt.size()) - 1);
  EXPECT_EQ(r.timings.prompt_tokens, total);
  EXPECT_GE(calls, 2);
}

TEST_F(SessionTest, SameTextOnAnyNumberOfThreads) {
  const auto prompt = engine_->tokenizer().tokenize("Hello");
  for (float temperature : {0.f, 0.9f, 1.7f}) {
    auto o = plain(60);
    o.sampling.temperature = temperature, o.sampling.seed = 5, o.sampling.repeat_penalty = 1.1f,
    o.sampling.frequency_penalty = 0.2f;
    const auto one = open(1)->start()->generate(prompt, o), three = open(3)->start()->generate(prompt, o);
    EXPECT_EQ(one.tokens, three.tokens) << temperature;
  }
}

TEST_F(SessionTest, SeedsMatterOnlyWhenSampling) {
  const auto prompt = engine_->tokenizer().tokenize("Hello");
  auto o = plain(30);
  const auto greedy = engine_->start()->generate(prompt, o);
  o.sampling.seed = 99;
  EXPECT_EQ(engine_->start()->generate(prompt, o).tokens, greedy.tokens);
  o.sampling.temperature = 1.5f, o.sampling.top_k = 0, o.sampling.top_p = 1, o.sampling.min_p = 0;
  const auto a = engine_->start()->generate(prompt, o);
  o.sampling.seed = 100;
  EXPECT_NE(engine_->start()->generate(prompt, o).tokens, a.tokens);
}

TEST_F(SessionTest, ReusesTheCommonPrefix) {
  auto session = engine_->start();
  const auto first = engine_->tokenizer().tokenize("A long enough prompt to be worth keeping in the cache.");
  const auto r = session->generate(first, plain(10));
  auto second = first;
  second.insert(second.end(), r.tokens.begin(), r.tokens.end());
  const auto more = engine_->tokenizer().tokenize(" And then?");
  second.insert(second.end(), more.begin(), more.end());
  const auto again = session->generate(second, plain(20));
  EXPECT_EQ(again.timings.cached_tokens, int(first.size() + r.tokens.size()) - 1);
  EXPECT_EQ(again.tokens, engine_->start()->generate(second, plain(20)).tokens);
  const auto shorter = engine_->tokenizer().tokenize("A long");
  EXPECT_EQ(session->generate(shorter, plain(20)).tokens, engine_->start()->generate(shorter, plain(20)).tokens);
}

TEST_F(SessionTest, StopsBeforeAStopString) {
  const auto prompt = engine_->tokenizer().tokenize("Hello");
  const auto whole = engine_->start()->generate(prompt, plain(60));
  ASSERT_GT(whole.text.size(), 12u);
  auto o = plain(60);
  o.stop = {whole.text.substr(8, 3)};
  const auto r = engine_->start()->generate(prompt, o);
  EXPECT_EQ(r.reason, FinishReason::kStop);
  EXPECT_EQ(r.text, whole.text.substr(0, whole.text.find(o.stop[0])));
}

TEST_F(SessionTest, EndsAtTheContextAndAtEndTokens) {
  const auto prompt = engine_->tokenizer().tokenize("Hello");
  const auto r = engine_->start()->generate(prompt, plain(-1));
  EXPECT_EQ(r.tokens.size() + prompt.size(), 301u);  // the last token is chosen but never enters the cache
  auto o = plain(50);
  o.ignore_end = false;
  Token end = 0;
  while (!engine_->tokenizer().is_end(end)) ++end;
  o.sampling.logit_bias = {{end, 1e6f}};
  const auto ended = engine_->start()->generate(prompt, o);
  EXPECT_EQ(ended.reason, FinishReason::kEnd);
  EXPECT_TRUE(ended.tokens.empty());
}

TEST_F(SessionTest, TakesTextsAndMessages) {
  const Tokenizer& tokenizer = engine_->tokenizer();
  const auto o = plain(20);
  const auto expected = engine_->start()->generate(tokenizer.tokenize("Hello", true), o);
  EXPECT_EQ(engine_->start()->generate("Hello", o).tokens, expected.tokens);
  EXPECT_EQ(engine_->generate("Hello", o).tokens, expected.tokens);

  const std::string odd = "say \"x\"\n\\ and \xF0\x9F\x99\x82";
  const std::vector<Message> messages{{"system", "be brief"}, {"user", odd}};
  const std::string prompt = tokenizer.apply_template(messages);
  EXPECT_NE(prompt.find(odd), std::string::npos) << prompt;
  EXPECT_EQ(
      prompt,
      tokenizer.apply_template_json(
          R"([{"role": "system", "content": "be brief"}, {"role": "user", "content": "say \"x\"\n\\ and \ud83d\ude42"}])"));
  EXPECT_NE(prompt, tokenizer.apply_template(messages, false));
  const auto answer = engine_->start()->generate(tokenizer.tokenize(prompt), o);
  auto session = engine_->start();
  EXPECT_EQ(session->chat(messages, o).tokens, answer.tokens);
  EXPECT_EQ(session->chat({{"system", "be brief"}, {"user", odd}}, o).timings.prompt_tokens,
            0);  // all of it is in the cache
  EXPECT_EQ(session->chat({{"system", "be brief"}, {"user", odd}}, o).tokens, answer.tokens);
  session.reset();
  EXPECT_EQ(engine_->chat({{"system", "be brief"}, {"user", odd}}, o).tokens, answer.tokens);
}

TEST_F(SessionTest, CancelsInEveryPhase) {
  const auto prompt = engine_->tokenizer().tokenize(fmt::format("{:x>150} and so on", ""));
  auto o = plain(50);
  auto session = engine_->start();
  bool cancel = false;
  o.cancelled = [&] { return cancel; };
  int read = 0;
  o.on_prefill = [&](int done, int) { read = done, cancel = done >= 32; };
  const auto cut = session->generate(prompt, o);
  EXPECT_EQ(cut.reason, FinishReason::kCancelled);
  EXPECT_EQ(session->length(), read);
  EXPECT_TRUE(cut.tokens.empty());
  cancel = false;
  o.on_prefill = nullptr;
  int pieces = 0;
  o.on_text = [&](std::string_view) { cancel = ++pieces == 3; };
  EXPECT_EQ(session->generate(prompt, o).reason, FinishReason::kCancelled);
  EXPECT_EQ(pieces, 3);
  cancel = false;
  o.on_text = nullptr;  // afterwards the session is as good as new
  EXPECT_EQ(session->generate(prompt, o).tokens, engine_->start()->generate(prompt, o).tokens);
}

TEST_F(SessionTest, RefusesWhatCannotWork) {
  auto session = engine_->start();
  const auto expect_error = [&](auto&& act, const std::string& word) {
    try {
      act();
      FAIL() << "no error about " << word;
    } catch (const Error& e) { EXPECT_NE(std::string(e.what()).find(word), std::string::npos) << e.what(); }
  };
  const std::vector<Token> good{5, 6};
  expect_error([&] { session->generate(std::span<const Token>{}, plain(1)); }, "empty");
  expect_error([&] { session->generate(std::vector<Token>{5, 100000}, plain(1)); }, "100000");
  expect_error([&] { session->generate(std::vector<Token>{-1}, plain(1)); }, "-1");
  expect_error([&] { session->generate(std::vector<Token>(301, 5), plain(1)); }, "301");
  expect_error([&] { session->evaluate(std::vector<Token>(301, 5), 1); }, "301");
  expect_error([&] { session->evaluate(good, 3); }, "3");
  expect_error([&] { session->truncate(1); }, "truncate");
  auto o = plain(1);
  o.sampling.temperature = -1;
  expect_error([&] { session->generate(good, o); }, "temperature");
  o = plain(1), o.sampling.top_p = 0;
  expect_error([&] { session->generate(good, o); }, "top_p");
  o = plain(-2);
  expect_error([&] { session->generate(good, o); }, "max_tokens");
  EngineOptions e;
  e.model = folder_.file("absent.gguf");
  expect_error([&] { Engine::open(e); }, "absent.gguf");
  e.model = folder_.file("tiny.gguf"), e.kv_type = "q3";
  expect_error([&] { Engine::open(e); }, "q3");
  EXPECT_EQ(session->generate(good, plain(3)).tokens.size(), 3u);
}

}  // namespace
}  // namespace sx
