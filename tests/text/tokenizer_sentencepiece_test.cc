// SentencePiece's own model files: the ids and texts that its library gives (tools/make_sentencepiece_golden.py), the
// special tokens of the files beside it, and malformed files.
#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "text/sentencepiece_model.h"
#include "text/tokenizer.h"
#include "tokenizer_load.h"

namespace sx {
namespace {

const std::string kFolder = SX_TEXT_DATA "/sentencepiece/";

TokenizerData load(const std::string& name) {
  TokenizerData data;
  data.file = kFolder + name + ".model";
  data.sentencepiece = read_text(data.file);
  return data;
}

class SentencePieceGolden : public ::testing::TestWithParam<const char*> {};

TEST_P(SentencePieceGolden, SameIdsAndTexts) {
  const auto tokenizer = TokenCodec::create(load(GetParam()));
  const auto golden = nlohmann::json::parse(read_text(kFolder + "golden.json")).at(GetParam());
  EXPECT_EQ(tokenizer->size(), golden.at("size").get<int>());
  int decoded = 0;
  for (const auto& entry : golden.at("cases")) {
    const std::string text = entry.at("text");
    const auto ids = entry.at("ids").get<std::vector<Token>>();
    EXPECT_EQ(tokenizer->encode(text, false, false), ids) << text;
    if (std::count(ids.begin(), ids.end(), tokenizer->unk())) continue;  // shown in a way of its own
    ++decoded;
    EXPECT_EQ(tokenizer->decode(ids), entry.at("decoded").get<std::string>()) << text;
  }
  EXPECT_GT(decoded, 30);
}

INSTANTIATE_TEST_SUITE_P(Models, SentencePieceGolden, ::testing::Values("llama", "bpe", "unigram", "unigram_bytes"),
                         [](const auto& model) { return std::string(model.param); });

TEST(SentencePieceFile, BeginsTextsUnlessDeclined) {
  TokenizerData data = load("llama");
  auto tokenizer = TokenCodec::create(data);
  EXPECT_EQ(tokenizer->bos(), 1);
  EXPECT_EQ(tokenizer->eos(), 2);
  EXPECT_EQ(tokenizer->unk(), 0);
  EXPECT_TRUE(tokenizer->is_end(2));
  EXPECT_EQ(tokenizer->encode("a", true, true).front(), 1);
  EXPECT_EQ(tokenizer->encode("a</s>", true, true).back(), 2);
  data.tokenizer_config_json = R"({"add_bos_token": false, "add_eos_token": true})";
  tokenizer = TokenCodec::create(data);
  EXPECT_NE(tokenizer->encode("a", true, true).front(), 1);
  EXPECT_EQ(tokenizer->encode("a", true, true).back(), 2);
}

TEST(SentencePieceFile, AddedTokensOfTheFilesBesideIt) {
  TokenizerData data = load("llama");
  const int size = TokenCodec::create(data)->size();
  data.vocab = size + 3;
  data.added_tokens_json = fmt::format(R"({{"<pad>": {}, "<tool>": {}, "<beyond>": 4000}})", size, size + 1);
  data.special_tokens_map_json = R"({"pad_token": "<pad>", "bos_token": {"content": "</s>"}})";
  data.tokenizer_config_json = fmt::format(
      R"({{"eos_token": "<|end|>", "chat_template": "x", "added_tokens_decoder":
      {{"{}": {{"content": "<|end|>", "special": true, "rstrip": true}}}}}})",
      size + 2);
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_EQ(tokenizer->size(), size + 3);
  EXPECT_TRUE(tokenizer->is_control(size));
  EXPECT_FALSE(tokenizer->is_control(size + 1));
  EXPECT_EQ(tokenizer->bos(), 2);
  EXPECT_EQ(tokenizer->eos(), size + 2);
  EXPECT_EQ(tokenizer->chat_template(), "x");
  EXPECT_EQ(tokenizer->encode("<tool>", false, false), std::vector<Token>{size + 1});
  EXPECT_EQ(tokenizer->encode("<pad>", false, true), std::vector<Token>{size});
  const auto a = tokenizer->encode("a", false, false);
  ASSERT_EQ(a.size(), 1u);
  EXPECT_EQ(tokenizer->encode("<|end|>  \n a", false, true),
            (std::vector<Token>{size + 2, a[0]}));  // white space is swallowed
}

// Text behind a special token gets a space of its own, but not with "legacy": false.
TEST(SentencePieceFile, OldAndNewSpaces) {
  TokenizerData data = load("llama");
  const auto old = TokenCodec::create(data);
  data.tokenizer_config_json = R"({"legacy": false})";
  const auto now = TokenCodec::create(data);
  const Token with = old->encode("a", false, false).at(0), without = *old->find("a");
  ASSERT_NE(with, without);
  EXPECT_EQ(old->encode("a<s>a", false, true), (std::vector<Token>{with, 1, with}));
  EXPECT_EQ(now->encode("a<s>a", false, true), (std::vector<Token>{with, 1, without}));
}

void expect_refused(const TokenizerData& data, const std::string& word) {
  try {
    TokenCodec::create(data);
    FAIL() << "accepted; expected a complaint with " << word;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(".model"), std::string::npos) << error.what();
  }
}

TEST(SentencePieceFile, RefusalsNameTheCulprit) {
  TokenizerData data = load("llama");
  data.vocab = 100;
  expect_refused(data, "only 100 rows");
  data = load("llama");
  data.added_tokens_json = R"({"<new>": 5})";
  expect_refused(data, "belongs to both");
  const auto with = [](std::string bytes) {
    TokenizerData made;
    made.file = "made.model";
    made.sentencepiece = std::move(bytes);
    return made;
  };
  const std::string unknown("\x0a\x09\x0a\x05<unk>\x18\x02", 11);
  EXPECT_NO_THROW(TokenCodec::create(with(unknown + std::string("\x0a\x03\x0a\x01x", 5))));
  expect_refused(with("{\"not\": \"a protobuf\"}"), "not a SentencePiece model");
  expect_refused(with(std::string("\x0a\x03\x0a\x01x", 5)), "unknown kind");
  expect_refused(with(unknown + unknown), "unknown kind");
  expect_refused(with(unknown + std::string("\x0a\x03\x0a\x01x\x0a\x03\x0a\x01x", 10)), "twice");
  expect_refused(with(unknown + std::string("\x0a\x05\x0a\x01x\x18\x09", 7)), "type 9");
  expect_refused(with(unknown + std::string("\x12\x02\x18\x03", 4)), "model type 3");
  expect_refused(with(unknown + std::string("\x0a\x08\x0a\x01x\x15\x00\x00\xc0\x7f", 10)), "score");
  expect_refused(with(unknown + std::string("\x1a\x03\x12\x01z", 5)), "character map");
  expect_refused(with(unknown + std::string("\x0a\x7f", 2)), "longer than");
}

// Wherever the file is cut or a bit of it is wrong: an error or a tokenizer that works, never anything else.
TEST(SentencePieceFile, AnythingElseIsAnError) {
  const TokenizerData whole = load("bpe");
  int refused = 0;
  const auto attempt = [&](const TokenizerData& data) {
    try {
      const auto tokenizer = TokenCodec::create(data);
      for (const Token t : tokenizer->encode("a <sep>b \u00e9 o\ufb01x", true, true))
        ASSERT_TRUE(t >= 0 && t < tokenizer->size());
    } catch (const Error&) { ++refused; }
  };
  for (size_t size = 1; size < whole.sentencepiece.size(); size += 7) {
    TokenizerData cut = whole;
    cut.sentencepiece.resize(size);
    attempt(cut);
    TokenizerData bent = whole;
    bent.sentencepiece[size] = static_cast<char>(bent.sentencepiece[size] ^ (1 << size % 8));
    attempt(bent);
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sx
