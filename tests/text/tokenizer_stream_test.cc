// Streaming decoding equals decoding at once, and both equal the definition: join the bytes, replace what is
// ill-formed.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace sx {
namespace {

TokenizerData byte_level() {
  TokenizerData data;
  data.file = "stream.gguf";
  data.model = "gpt2";
  data.pre = "gpt-2";
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    data.tokens.push_back(byte_alphabet_encode({&c, 1}));
  }
  for (std::string_view bytes : {"\xE6\xBC", "\xBC\xA2", "\x9F\x98", " \xF0", "ab", "\xA2 "})
    data.tokens.push_back(byte_alphabet_encode(bytes));
  data.types.assign(data.tokens.size(), TokenType::kNormal);
  data.tokens.push_back("<|x|>");
  data.types.push_back(TokenType::kControl);
  data.merges = {"a b"};
  return data;
}

TokenizerData sentence_piece() {
  TokenizerData data;
  data.file = "stream.gguf";
  data.model = "llama";
  data.tokens = {"<unk>", "<s>", "</s>"};
  data.types = {TokenType::kUnknown, TokenType::kControl, TokenType::kControl};
  for (int byte = 0; byte < 256; ++byte) data.tokens.push_back(fmt::format("<0x{:02X}>", byte));
  data.types.resize(data.tokens.size(), TokenType::kByte);
  for (const char* text : {"▁", "▁▁", "▁a", "b", "漢", "é"}) data.tokens.push_back(text);
  data.types.resize(data.tokens.size(), TokenType::kNormal);
  data.scores.assign(data.tokens.size(), 0.0f);
  data.bos = 1;
  data.eos = 2;
  return data;
}

TokenizerData without_decoder() {
  TokenizerData data;
  data.file = "stream.json";
  data.tokenizer_json = R"({"model": {"vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";
  return data;
}

// The definition, written independently of Detokenizer.
std::string whole(const TokenCodec& tokenizer, const std::vector<Token>& tokens, bool special, bool strips) {
  std::string bytes;
  for (Token token : tokens)
    bytes += tokenizer.is_control(token) ? (special ? tokenizer.printable(token) : "")
                                         : std::string(tokenizer.bytes_of(token));
  if (strips && !bytes.empty() && bytes[0] == ' ') bytes.erase(0, 1);
  return utf8_lossy(bytes);
}

void check(const TokenizerData& data, bool strips) {
  const auto tokenizer = TokenCodec::create(data);
  std::mt19937 random(9);
  const std::string pool = "\xF0\x9F\x98\x80\xE6\xBC\xA2\xC3\xA9 a\xFF\x80";
  for (int round = 0; round < 4000; ++round) {
    std::vector<Token> tokens;
    for (int length = random() % 10; length > 0; --length) {
      if (random() % 2) {
        tokens.push_back(static_cast<Token>(random() % tokenizer->size()));
      } else {  // bytes that tend to form characters
        const unsigned char byte = static_cast<unsigned char>(pool[random() % pool.size()]);
        const std::string text = data.model == "llama" ? fmt::format("<0x{:02X}>", byte)
                                                       : byte_alphabet_encode(std::string(1, static_cast<char>(byte)));
        tokens.push_back(*tokenizer->find(text));
      }
    }
    for (bool special : {false, true}) {
      Detokenizer stream(*tokenizer, special);
      for (int again = 0; again < 2; ++again) {  // finish() leaves it as new
        std::string joined;
        for (Token token : tokens) {
          const std::string piece = stream.push(token);
          EXPECT_TRUE(utf8_is_valid(piece));
          joined += piece;
        }
        joined += stream.finish();
        EXPECT_EQ(joined, tokenizer->decode(tokens, !special));
        EXPECT_EQ(joined, whole(*tokenizer, tokens, special, strips));
      }
    }
  }
}

TEST(Streaming, ByteLevel) { check(byte_level(), false); }
TEST(Streaming, SentencePiece) { check(sentence_piece(), true); }

// An answer behind its prompt: the bytes that each token adds, no matter which one comes first.
TEST(Streaming, BehindOtherTokensNothingIsDropped) {
  for (const TokenizerData& data : {byte_level(), sentence_piece(), without_decoder()}) {
    const auto tokenizer = TokenCodec::create(data);
    for (Token first = 0; first < tokenizer->size(); ++first) {
      if (tokenizer->is_control(first)) continue;
      for (Token second : {first, Token(tokenizer->size() - 1), Token(0)}) {
        Detokenizer stream(*tokenizer, false, TextPlace::kBehind);
        std::string joined = stream.push(first);
        joined += stream.push(second);
        joined += stream.finish();
        EXPECT_EQ(joined,
                  utf8_lossy(std::string(tokenizer->bytes_of(first)) + std::string(tokenizer->bytes_of(second))));
        EXPECT_EQ(joined, tokenizer->decode(std::vector{first, second}, true, TextPlace::kBehind));
        // Behind a token that is whole and shown, it is what the longer text has more.
        const Token before = data.tokenizer_json.empty() ? *tokenizer->find("b") : 1;
        const std::string whole = tokenizer->decode(std::vector{before, first, second}, true);
        EXPECT_EQ(whole, tokenizer->decode(std::vector{before}, true) + joined);
      }
    }
  }
}

TEST(Streaming, HoldsBackOnlyOpenCharacters) {
  const auto tokenizer = TokenCodec::create(byte_level());
  Detokenizer stream(*tokenizer);
  EXPECT_EQ(stream.push('a'), "a");
  EXPECT_EQ(stream.push(0xE6), "");
  EXPECT_EQ(stream.push(0xBC), "");
  EXPECT_EQ(stream.push(0xA2), "漢");
  EXPECT_EQ(stream.push(0xE6), "");
  EXPECT_EQ(stream.push('b'), "\uFFFDb");
  EXPECT_EQ(stream.push(0xF0), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

TEST(Streaming, LeadingSpaceOfSentencePiece) {
  const auto tokenizer = TokenCodec::create(sentence_piece());
  Detokenizer stream(*tokenizer);
  EXPECT_EQ(stream.push(1), "");  // <s> is not shown and is not the start
  EXPECT_EQ(stream.push(*tokenizer->find("▁a")), "a");
  EXPECT_EQ(stream.push(*tokenizer->find("▁a")), " a");
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push(*tokenizer->find("▁▁")), " ");
}

}  // namespace
}  // namespace sx
