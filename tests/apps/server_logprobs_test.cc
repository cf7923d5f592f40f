// Log-probabilities, and which piece of a text each token made.
#include "server/logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "server_tokenizer.h"

namespace sx::server {
namespace {

TEST(ServerLogprobs, AreTheSoftmax) {
  const std::vector<float> logits{std::log(1.f), std::log(2.f), std::log(5.f), std::log(2.f)};
  const Logprob p = logprob_of(logits, 0, 3);
  EXPECT_NEAR(p.logprob, std::log(0.1), 1e-6);
  ASSERT_EQ(p.top.size(), 3u);
  EXPECT_EQ(p.top[0].token, 2);
  EXPECT_EQ(p.top[1].token, 1);  // before 3, which is as likely
  EXPECT_EQ(p.top[2].token, 3);
  EXPECT_NEAR(p.top[0].logprob, std::log(0.5), 1e-6);
  EXPECT_EQ(p.top[1].logprob, p.top[2].logprob);
  EXPECT_TRUE(logprob_of(logits, 2, 0).top.empty());
  EXPECT_EQ(logprob_of(logits, 1, 20).top.size(), 4u);
}

TEST(ServerLogprobs, MatchASortOfEverything) {
  std::mt19937 random(7);
  std::vector<float> logits(5000);
  for (float& l : logits) l = float(int(random() % 200)) / 8;  // many equal ones
  const Logprob p = logprob_of(logits, 17, 20);
  std::vector<Token> order(logits.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = Token(i);
  std::stable_sort(order.begin(), order.end(), [&](Token a, Token b) { return logits[size_t(a)] > logits[size_t(b)]; });
  double sum = 0;
  for (const float l : logits) sum += std::exp(double(l));
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(p.top[i].token, order[i]) << i;
    EXPECT_NEAR(p.top[i].logprob, double(logits[size_t(order[i])]) - std::log(sum), 1e-9);
  }
  EXPECT_NEAR(p.logprob, double(logits[17]) - std::log(sum), 1e-9);
}

TEST(ServerLogprobs, AreAlwaysNumbers) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  EXPECT_EQ(logprob_of(std::vector<float>{1, -inf, nan}, 1, 3).logprob, kLeastLogprob);
  EXPECT_EQ(logprob_of(std::vector<float>{1, -inf, nan}, 0, 3).logprob, 0);
  EXPECT_EQ(logprob_of(std::vector<float>{1, -inf, nan}, 0, 3).top[2].logprob, kLeastLogprob);
  EXPECT_EQ(logprob_of(std::vector<float>{-inf, -inf}, 0, 1).logprob, kLeastLogprob);
  EXPECT_EQ(logprob_of(std::vector<float>{1, 2}, 7, 1).logprob, kLeastLogprob);
  EXPECT_EQ(logprob_of({}, 0, 1).logprob, kLeastLogprob);
  EXPECT_EQ(logprob_of(std::vector<float>{3e38f, -3e38f}, 1, 2).logprob, kLeastLogprob);
}

std::vector<Token> ids(const TextPiece& piece) {
  std::vector<Token> out;
  for (const AnswerToken& t : piece.tokens) out.push_back(t.token);
  return out;
}
std::string shares(const TextPiece& piece) {
  std::string out, whole;
  for (const TextShare& s : piece.shares) out += s.text + "/" + std::to_string(s.depth) + " ", whole += s.text;
  EXPECT_EQ(whole, piece.text);
  return out;
}
using Ids = std::vector<Token>;

TEST(ServerTokens, FollowTheText) {
  const FakeTokenizer words({"He", "llo", " wor", "ld", "\xE4", "\xBD\xA0", ""});
  TokenCollector c(words, -1);
  c.on_token({0, 0, {}});
  TextPiece p = c.on_text("He");
  EXPECT_EQ(ids(p), (Ids{0}));
  EXPECT_EQ(shares(p), "He/0 ");
  c.on_token({1, 2, {}});  // "o" is held back: a stop string may begin there
  p = c.on_text("ll");
  EXPECT_EQ(ids(p), (Ids{}));
  EXPECT_EQ(shares(p), "ll/2 ");
  c.on_token({2, 3, {}});
  c.on_token({6, 1, {}});  // nothing to see
  c.on_token({3, 0, {}});
  p = c.on_text("o world");
  EXPECT_EQ(ids(p), (Ids{1, 2, 6, 3}));
  EXPECT_EQ(shares(p), "o/2  wor/3 ld/0 ");
  c.on_token({4, 1, {}});  // half a character
  c.on_token({5, 2, {}});
  p = c.on_text("\xE4\xBD\xA0");
  EXPECT_EQ(ids(p), (Ids{4, 5}));
  EXPECT_EQ(shares(p), "\xE4\xBD\xA0/2 ");
  c.on_token({0, 0, {}});
  EXPECT_EQ(c.held(), "He");
  EXPECT_EQ(ids(c.finish()), (Ids{0}));
  EXPECT_EQ(c.held(), "");
  EXPECT_TRUE(c.finish().tokens.empty());
}

TEST(ServerTokens, KnowWhereTheyEnd) {
  const FakeTokenizer words({" He", "llo", "\xFF", "", "ab"});
  TokenCollector c(words, -1);
  std::vector<size_t> ends;
  std::vector<bool> in_text;
  const auto add = [&](const TextPiece& piece) {
    for (const AnswerToken& token : piece.tokens) ends.push_back(token.end), in_text.push_back(token.in_text);
  };
  c.on_token({0, 0, {}});
  add(c.on_text("He"));
  c.on_token({1, 0, {}});
  add(c.on_text("ll"));
  c.on_token({3, 0, {}});
  c.on_token({2, 0, {}});
  add(c.on_text("o\xEF\xBF\xBD"));
  c.on_token({4, 0, {}});
  add(c.finish());
  EXPECT_EQ(ends, (std::vector<size_t>{2, 5, 5, 8, 8}));
  EXPECT_EQ(in_text, (std::vector<bool>{true, true, false, true, false}));
}

TEST(ServerTokens, StopStringsAreNamed) {
  const FakeTokenizer words({"abST", "OP and more"});
  TokenCollector c(words, -1);
  c.on_token({0, 0, {}});
  EXPECT_EQ(c.on_text("ab").text, "ab");
  c.on_token({1, 0, {}});
  EXPECT_EQ(stopping_word({"no", "STOP"}, c.held()), "STOP");
  EXPECT_EQ(stopping_word({"TOP", ""}, c.held()), "");
  const TextPiece last = c.finish();
  EXPECT_EQ(ids(last), (Ids{0, 1}));
  for (const AnswerToken& token : last.tokens) EXPECT_FALSE(token.in_text);
}

TEST(ServerTokens, TextThatTokensDoNotSpell) {
  const FakeTokenizer words({" Hi", "\xFF", "ok", "<|x|>"});
  TokenCollector c(words, -1);
  c.on_token({0, 0, {}});
  EXPECT_EQ(ids(c.on_text("Hi")), (Ids{0}));  // the first space of a text is dropped
  c.on_token({1, 4, {}});
  TextPiece p = c.on_text("\xEF\xBF\xBD");
  EXPECT_EQ(ids(p), (Ids{1}));
  EXPECT_EQ(shares(p), "\xEF\xBF\xBD/4 ");
  c.on_token({3, 1, {}});
  c.on_token({2, 2, {}});
  p = c.on_text("ok");
  EXPECT_EQ(ids(p), (Ids{3, 2}));
  EXPECT_EQ(shares(p), "ok/2 ");
  EXPECT_EQ(ids(c.on_text("late")), (Ids{}));
  c.on_token({0, 0, {}});
  EXPECT_EQ(ids(c.on_text(" H")), (Ids{}));  // later spaces are not
  EXPECT_EQ(ids(c.on_text("i")), (Ids{0}));
}

TEST(ServerTokens, LogprobsAreReadOnlyIfWanted) {
  const FakeTokenizer words({"a", "b", "c"});
  const std::vector<float> logits{0, 1, 2};
  TokenCollector with(words, 2), without(words, -1);
  for (TokenCollector* c : {&with, &without}) c->on_token({1, 0, logits});
  const AnswerToken token = with.on_text("b").tokens.at(0);
  EXPECT_EQ(token.logprob.top.at(0).bytes, "c");
  EXPECT_EQ(token.logprob.top.at(1).bytes, "b");
  EXPECT_EQ(token.logprob.logprob, token.logprob.top.at(1).logprob);
  EXPECT_LT(token.logprob.logprob, 0);
  EXPECT_TRUE(without.on_text("b").tokens.at(0).logprob.top.empty());
}

TEST(ServerTokens, OfAPromptAreSpeltOut) {
  class Words final : public FakeTokenizer {
   public:
    Words() : FakeTokenizer({"a", "", "c"}) {}
    std::string token_text(Token token) const override { return token == 1 ? "<s>" : token_bytes(token); }
  } words;
  const std::vector<float> logits{0, 2, 1};
  const TokenCollector c(words, 2);
  const AnswerToken first = c.on_prompt({1, 0, {}}), next = c.on_prompt({2, 0, logits});
  EXPECT_EQ(first.bytes, "<s>");
  EXPECT_FALSE(first.logprob.known);
  EXPECT_TRUE(next.logprob.known);
  EXPECT_EQ(next.logprob.logprob, logprob_of(logits, 2, 0).logprob);
  EXPECT_EQ(next.logprob.top.at(0).bytes, "<s>");
  EXPECT_EQ(next.logprob.top.at(1).bytes, "c");
}

TEST(ServerTokens, PiecesAppend) {
  TextPiece a{"x", {{1, 0, "x", {}}}, {{"x", 0}}};
  a.append({"y", {{2, 1, "y", {}}}, {{"y", 1}}});
  EXPECT_EQ(ids(a), (Ids{1, 2}));
  EXPECT_EQ(shares(a), "x/0 y/1 ");
}

}  // namespace
}  // namespace sx::server
