// SentencePiece vocabularies from GGUF arrays: scores, visible spaces, byte fallback, what merging must never form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "text/tokenizer.h"

namespace sx {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct Entry {
  std::string text;
  float score;
  TokenType type = TokenType::kNormal;
};

// <unk> 0, <s> 1, </s> 2, bytes 3..258, then the entries from 259 on.
TokenizerData vocabulary(const std::vector<Entry>& entries, bool bytes = true) {
  TokenizerData data;
  data.file = "spm.gguf";
  data.model = "llama";
  auto add = [&](const std::string& text, float score, TokenType type) {
    data.tokens.push_back(text);
    data.scores.push_back(score);
    data.types.push_back(type);
  };
  add("<unk>", 0, TokenType::kUnknown);
  add("<s>", 0, TokenType::kControl);
  add("</s>", 0, TokenType::kControl);
  for (int byte = 0; bytes && byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), 0, TokenType::kByte);
  for (const Entry& entry : entries) add(entry.text, entry.score, entry.type);
  data.unk = 0;
  data.bos = 1;
  data.eos = 2;
  return data;
}

const std::vector<Entry> kSmall = {{"▁", -1},     {"a", -2},  {"b", -3},   {"c", -4},  {"ab", -5},
                                   {"bc", -4.5f}, {"▁a", -6}, {"▁ab", -7}, {"▁▁", -8}, {"<", -9},
                                   {"s", -9},     {">", -9},  {"<s", -9},  {"s>", -9}};

std::vector<std::string> texts(const TokenizerData& data, const TokenCodec& tokenizer, std::string_view text) {
  std::vector<std::string> out;
  for (Token token : tokenizer.encode(text, false, false)) out.push_back(data.tokens[token]);
  return out;
}

TEST(Spm, BestScoreMergesFirst) {
  const TokenizerData data = vocabulary(kSmall);
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(texts(data, *tokenizer, "abc"), ElementsAre("▁a", "bc"));  // bc (-4.5) beats ab (-5)
  EXPECT_THAT(texts(data, *tokenizer, "ab ab"), ElementsAre("▁ab", "▁ab"));
  EXPECT_THAT(texts(data, *tokenizer, "  "), ElementsAre("▁▁", "▁"));
  EXPECT_TRUE(tokenizer->encode("", false, false).empty());
  EXPECT_THAT(tokenizer->encode("", true, false), ElementsAre(1));
  EXPECT_THAT(tokenizer->encode("a", true, false), ElementsAre(1, 265));
}

TEST(Spm, NoSpacePrefixWhenTheFileSaysSo) {
  TokenizerData data = vocabulary(kSmall);
  data.add_space_prefix = 0;
  data.add_bos = 0;
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(texts(data, *tokenizer, "ab"), ElementsAre("ab"));
  EXPECT_FALSE(tokenizer->adds_bos());
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(" ab", true, false), true), " ab");
}

TEST(Spm, BytesStandInForMissingCharacters) {
  const TokenizerData data = vocabulary(kSmall);
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(texts(data, *tokenizer, "aé"), ElementsAre("▁a", "<0xC3>", "<0xA9>"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("aé 漢\n", false, false)), "aé 漢\n");
  const TokenizerData without = vocabulary(kSmall, false);
  EXPECT_THAT(texts(without, *TokenCodec::create(without), "aé"), ElementsAre("▁a", "<unk>"));
}

TEST(Spm, MergingNeverFormsControlTokens) {
  const TokenizerData data = vocabulary(kSmall);
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(texts(data, *tokenizer, "<s>"), ElementsAre("▁", "<s", ">"));
  EXPECT_THAT(texts(data, *tokenizer, "<unk>"), testing::Not(testing::Contains("<unk>")));
  EXPECT_THAT(tokenizer->encode("<s>a", false, true), ElementsAre(1, 265));  // asked for: the control token
}

TEST(Spm, TextBehindASpecialTokenGetsItsOwnSpace) {
  const TokenizerData data = vocabulary(kSmall);
  const auto tokenizer = TokenCodec::create(data);
  const std::vector<Token> tokens = tokenizer->encode("ab</s>ab", false, true);
  EXPECT_THAT(tokens, ElementsAre(266, 2, 266));
  EXPECT_EQ(tokenizer->decode(tokens), "ab</s> ab");
  EXPECT_EQ(tokenizer->decode(tokens, true), "ab ab");
}

// Phi-3's special tokens swallow the white space behind them; a GGUF file says so only by its name.
TEST(Spm, SpecialTokensOfPhi3SwallowSpaces) {
  TokenizerData data = vocabulary(kSmall);
  data.tokens.push_back("<|user|>"), data.scores.push_back(0), data.types.push_back(TokenType::kControl);
  const Token user = static_cast<Token>(data.tokens.size()) - 1;
  const auto plain = TokenCodec::create(data);
  data.name = "Phillip 3";
  EXPECT_EQ(TokenCodec::create(data)->encode("<|user|>\nab", false, true), plain->encode("<|user|>\nab", false, true));
  for (const char* name : {"Phi-3-mini-4k-instruct", "Phi 3.5 Mini", "my phi3 model"}) {
    data.name = name;
    const auto tokenizer = TokenCodec::create(data);
    EXPECT_THAT(tokenizer->encode("<|user|> \n ab</s> ab", false, true), ElementsAre(user, 266, 2, 266));
    EXPECT_EQ(tokenizer->encode("<s> ab", false, true), plain->encode("<s> ab", false, true));
  }
}

TEST(Spm, UserDefinedTokensAreFoundInTheRawText) {
  std::vector<Entry> entries = kSmall;
  entries.push_back({"a  b", 0, TokenType::kUserDefined});
  const TokenizerData data = vocabulary(entries);
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(texts(data, *tokenizer, "ca  bc"), ElementsAre("▁", "c", "a  b", "▁", "c"));
}

// Gemma's texts end with <eos>; its "</s>" is a tag of HTML, which must neither end an answer nor be hidden in one.
TEST(Spm, EndOfStruckOutTextIsNoEnd) {
  TokenizerData data = vocabulary(kSmall);
  data.tokens[1] = "<bos>", data.tokens[2] = "<eos>";
  data.tokens.push_back("</s>"), data.scores.push_back(0), data.types.push_back(TokenType::kUserDefined);
  const auto tag = static_cast<Token>(data.tokens.size() - 1);
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_FALSE(tokenizer->is_end(tag));
  EXPECT_TRUE(tokenizer->is_end(2));
  EXPECT_THAT(texts(data, *tokenizer, "a</s>"), ElementsAre("▁a", "</s>"));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("a</s>", false, false), true), "a</s>");
}

// Google's SentencePiece gives these ids: a written U+2581 is a space to it, also beside one.
TEST(Spm, RunsOfSpacesAreFoundWhereSpacesAreVisible) {
  std::vector<Entry> entries = {
      {"▁", -1}, {"a", -2}, {"▁a", -6}, {"  ", 0, TokenType::kUserDefined}, {"   ", 0, TokenType::kUserDefined}};
  TokenizerData data = vocabulary(entries);
  data.add_space_prefix = 0;
  const auto tokenizer = TokenCodec::create(data);
  for (const char* text : {"a   a", "a▁▁▁a", "a▁ ▁a"})
    EXPECT_THAT(texts(data, *tokenizer, text), ElementsAre("a", "   ", "a")) << text;
  EXPECT_THAT(texts(data, *tokenizer, "a▁a  "), ElementsAre("a", "▁a", "  "));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("  a   a", false, false)), "  a   a");
}

TEST(Spm, CuttingAtSpacesChangesNothing) {
  // Once with a vocabulary that may be cut at spaces, once with one more (never used) token that forbids it.
  std::vector<Entry> entries = kSmall;
  const TokenizerData cut = vocabulary(entries);
  entries.push_back({"z▁z", -1});
  const TokenizerData whole = vocabulary(entries);
  const auto one = TokenCodec::create(cut), two = TokenCodec::create(whole);
  std::mt19937 random(2);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = random() % 40; i > 0; --i) text += "ab c<s>é"[random() % 8];
    EXPECT_EQ(one->encode(text, false, false), two->encode(text, false, false)) << text;
  }
}

TEST(Spm, Errors) {
  auto error_of = [](const TokenizerData& data) -> std::string {
    try {
      TokenCodec::create(data);
    } catch (const Error& error) { return error.what(); }
    return "";
  };
  TokenizerData data = vocabulary(kSmall);
  data.scores.clear();
  EXPECT_THAT(error_of(data), HasSubstr("spm.gguf: tokenizer.ggml.scores"));
  data = vocabulary(kSmall);
  data.scores.pop_back();
  EXPECT_THAT(error_of(data), HasSubstr("tokenizer.ggml.scores"));
  data = vocabulary(kSmall);
  data.scores[5] = std::nanf("");
  EXPECT_THAT(error_of(data), HasSubstr("scores[5]"));
  for (const char* bad : {"<0xG0>", "<0x0a>", "<0xA>", "0x0A", "<0x0A> "}) {
    data = vocabulary(kSmall);
    data.tokens[3] = bad;
    EXPECT_THAT(error_of(data), HasSubstr("tokenizer.ggml.tokens[3]")) << bad;
  }
}

}  // namespace
}  // namespace sx
