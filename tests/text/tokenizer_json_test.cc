// tokenizer.json: every complaint names file and key, and the files around it say which tokens begin and end a text.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/tokenizer.h"

namespace sx {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

json small() {
  return json::parse(R"({
    "added_tokens": [
      {"id": 0, "content": "<unk>", "special": true, "normalized": false},
      {"id": 6, "content": "<s>", "special": true, "normalized": false},
      {"id": 7, "content": "<|im_end|>", "special": true, "normalized": false},
      {"id": 8, "content": "word", "special": false, "normalized": false, "single_word": true},
      {"id": 9, "content": "<l>", "special": false, "normalized": false, "lstrip": true, "rstrip": true}],
    "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5},
              "merges": ["a b", "ab c"]}})");
}

TokenizerData data_of(const json& tokenizer) {
  TokenizerData data;
  data.file = "folder";
  data.tokenizer_json = tokenizer.dump();
  return data;
}

std::string error_of(const TokenizerData& data) {
  try {
    TokenCodec::create(data);
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

// small() with the value at a JSON pointer replaced.
std::string error_with(const char* pointer, const json& value) {
  json tokenizer = small();
  tokenizer[json::json_pointer(pointer)] = value;
  return error_of(data_of(tokenizer));
}

TEST(TokenizerJson, EncodesAndDecodes) {
  const auto tokenizer = TokenCodec::create(data_of(small()));
  EXPECT_THAT(tokenizer->encode("abcab", false, true), ElementsAre(5, 4));
  EXPECT_THAT(tokenizer->encode("a?b", false, true), ElementsAre(1, 0, 2));
  EXPECT_THAT(tokenizer->encode("<s>ab", false, true), ElementsAre(6, 4));
  EXPECT_THAT(tokenizer->encode("word", false, true), ElementsAre(8));
  EXPECT_THAT(tokenizer->encode("worda", false, true), ElementsAre(0, 0, 0, 0, 1));  // not a word of its own
  EXPECT_THAT(tokenizer->encode("a \n<l>\t b", false, true), ElementsAre(1, 9, 2));
  EXPECT_EQ(tokenizer->decode(std::vector<Token>{6, 5, 7}), "<s>abc<|im_end|>");
  EXPECT_EQ(tokenizer->decode(std::vector<Token>{6, 5, 7}, true), "abc");
  EXPECT_TRUE(tokenizer->is_end(7));
  EXPECT_EQ(tokenizer->size(), 10);
  EXPECT_EQ(tokenizer->unk(), 0);
}

TEST(TokenizerJson, NormalFormsByName) {
  json tokenizer = small();
  tokenizer["model"]["vocab"]["é"] = 10;
  tokenizer["model"]["vocab"]["fi"] = 11;
  tokenizer["model"]["vocab"]["f"] = 12;
  tokenizer["model"]["vocab"]["i"] = 13;
  tokenizer["model"]["merges"].push_back("f i");
  auto encode = [&](const char* form, const char* text) {
    tokenizer["normalizer"] = {{"type", form}};
    return TokenCodec::create(data_of(tokenizer))->encode(text, false, true);
  };
  EXPECT_THAT(encode("NFC", "e\u0301\uFB01"), ElementsAre(10, 0));
  EXPECT_THAT(encode("NFD", "\u00E9"), ElementsAre(0, 0));
  EXPECT_THAT(encode("NFKC", "e\u0301\uFB01"), ElementsAre(10, 11));
  EXPECT_THAT(encode("NFKD", "\u00E9\uFB01"), ElementsAre(0, 0, 11));
}

TEST(TokenizerJson, MergesAsPairs) {
  json tokenizer = small();
  tokenizer["model"]["merges"] = json::array({json::array({"a", "b"}), json::array({"ab", "c"})});
  EXPECT_THAT(TokenCodec::create(data_of(tokenizer))->encode("abc", false, true), ElementsAre(5));
}

TEST(TokenizerJson, SettingsBesideIt) {
  TokenizerData data = data_of(small());
  data.tokenizer_config_json =
      R"({"tokenizer_class": "LlamaTokenizerFast", "bos_token": {"content": "<s>"}, "eos_token": "<|im_end|>",
      "add_bos_token": true, "add_eos_token": false,
      "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]})";
  data.generation_config_json = R"({"eos_token_id": [7, 3], "bos_token_id": 1})";
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_EQ(tokenizer->bos(), 6);
  EXPECT_EQ(tokenizer->eos(), 7);
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->is_end(3));
  EXPECT_FALSE(tokenizer->is_end(2));
  EXPECT_EQ(tokenizer->chat_template(), "D");
  EXPECT_THAT(tokenizer->encode("ab", true, false), ElementsAre(6, 4));
  data.chat_template = "given";
  EXPECT_EQ(TokenCodec::create(data)->chat_template(), "given");
  data.tokenizer_config_json =
      R"({"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "add_bos_token": true})";
  EXPECT_FALSE(TokenCodec::create(data)->adds_bos());  // this class leaves it to the post-processor
}

TEST(TokenizerJson, SpecialTokensMapAndGenerationConfigFillGaps) {
  TokenizerData data = data_of(small());
  data.special_tokens_map_json = R"({"bos_token": "<s>"})";
  data.generation_config_json = R"({"eos_token_id": 7})";
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_EQ(tokenizer->bos(), 6);
  EXPECT_EQ(tokenizer->eos(), 7);
}

TEST(TokenizerJson, TokensOnlyTheConfigKnows) {
  TokenizerData data = data_of(small());
  data.tokenizer_config_json =
      R"({"added_tokens_decoder": {"10": {"content": "<new>", "special": true, "normalized": false}}})";
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(tokenizer->encode("<new>", false, true), ElementsAre(10));
  EXPECT_TRUE(tokenizer->is_control(10));
}

TEST(TokenizerJson, AddedTokensWithoutARowAreLeftOut) {
  TokenizerData data = data_of(small());
  data.vocab = 9;
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_EQ(tokenizer->size(), 9);
  EXPECT_EQ(tokenizer->find("<l>"), std::nullopt);
  data.vocab = 5;  // but the model's own vocabulary must fit
  EXPECT_THAT(error_of(data), AllOf(HasSubstr("tokenizer.json"), HasSubstr("model.vocab"), HasSubstr("abc")));
}

TEST(TokenizerJson, ErrorsNameFileAndKey) {
  EXPECT_THAT(error_of([] {
                TokenizerData data;
                data.file = "folder";
                data.tokenizer_json = "{\"model\": ";
                return data;
              }()),
              HasSubstr("folder: tokenizer.json"));
  EXPECT_THAT(error_with("/model/type", "WordPiece"),
              AllOf(HasSubstr("folder: tokenizer.json: model"), HasSubstr("WordPiece")));
  EXPECT_THAT(error_with("/model/vocab/a", -1), HasSubstr("model.vocab[\"a\"]"));
  EXPECT_THAT(error_with("/model/vocab/a", 1e30), HasSubstr("model.vocab[\"a\"]"));
  EXPECT_THAT(error_with("/model/vocab/a", 18446744073709551615ull), HasSubstr("model.vocab[\"a\"]"));
  EXPECT_THAT(error_with("/model/vocab/a", 2000000000), HasSubstr("model.vocab[\"a\"]"));
  EXPECT_THAT(error_with("/model/vocab/a", "x"), HasSubstr("expected an integer"));
  EXPECT_THAT(error_with("/model/vocab/a", 2), AllOf(HasSubstr("id 2"), HasSubstr("\"a\""), HasSubstr("\"b\"")));
  EXPECT_THAT(error_with("/model/vocab", json::object()), HasSubstr("model.vocab: is empty"));
  EXPECT_THAT(error_with("/model/merges/0", "a zz"), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error_with("/model/merges/0", "ab"), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error_with("/model/merges/0", 5), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error_with("/model/merges/0", json::array({"a"})), HasSubstr("model.merges[0]"));
  EXPECT_THAT(error_with("/model/unk_token", "nope"), HasSubstr("model.unk_token"));
  EXPECT_THAT(error_with("/model/dropout", 0.5), HasSubstr("model.dropout"));
  EXPECT_THAT(error_with("/model/byte_fallback", 1), HasSubstr("model.byte_fallback"));
  EXPECT_THAT(error_with("/added_tokens/0/id", "x"), HasSubstr("added_tokens[0].id"));
  EXPECT_THAT(error_with("/added_tokens/1/id", 7), HasSubstr("id 7"));
  EXPECT_THAT(error_with("/added_tokens/1/content", 1), HasSubstr("added_tokens[1].content"));
  EXPECT_THAT(error_with("/added_tokens", 1), HasSubstr("added_tokens: is number"));
  const json short_list = {{"type", "RobertaProcessing"}, {"cls", {"<s>", 6}}, {"sep", {6}}};
  EXPECT_THAT(error_with("/post_processor", short_list),
              AllOf(HasSubstr("post_processor.sep"), HasSubstr("1 elements")));
}

TEST(TokenizerJson, UnknownComponentsAreNamed) {
  auto component = [](const char* type) { return json{{"type", type}}; };
  EXPECT_THAT(error_with("/normalizer", component("Bert")), AllOf(HasSubstr("normalizer"), HasSubstr("Bert")));
  EXPECT_THAT(error_with("/normalizer", component("StripAccents")), HasSubstr("StripAccents"));
  EXPECT_THAT(error_with("/normalizer", component("Precompiled")), HasSubstr("precompiled"));
  EXPECT_THAT(error_with("/pre_tokenizer", component("Uni")), AllOf(HasSubstr("pre_tokenizer"), HasSubstr("Uni")));
  EXPECT_THAT(error_with("/decoder", component("CTC")), AllOf(HasSubstr("decoder"), HasSubstr("CTC")));
  EXPECT_THAT(error_with("/post_processor", component("X")), AllOf(HasSubstr("post_processor"), HasSubstr("\"X\"")));
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "a(b"}}}, {"behavior", "Isolated"}};
  EXPECT_THAT(error_with("/pre_tokenizer", split),
              AllOf(HasSubstr("pre_tokenizer.pattern.Regex"), HasSubstr("does not compile")));
  json nested = split;
  nested["pattern"]["Regex"] = "[a&&[b]]";
  EXPECT_THAT(error_with("/pre_tokenizer", nested), HasSubstr("not supported"));
  nested["pattern"]["Regex"] = "a";
  nested["behavior"] = "Sideways";
  EXPECT_THAT(error_with("/pre_tokenizer", nested), HasSubstr("pre_tokenizer.behavior"));
  json deep = component("NFC");
  for (int i = 0; i < 40; ++i) deep = {{"type", "Sequence"}, {"normalizers", json::array({deep})}};
  EXPECT_THAT(error_with("/normalizer", deep), HasSubstr("deeper"));
}

TEST(TokenizerJson, UnigramErrors) {
  auto unigram = [](json vocab, json unk) {
    json tokenizer = small();
    tokenizer["added_tokens"] = json::array();
    tokenizer["model"] = {{"type", "Unigram"}, {"vocab", std::move(vocab)}, {"unk_id", std::move(unk)}};
    return error_of(data_of(tokenizer));
  };
  EXPECT_EQ(unigram(json::parse(R"([["a", -1.0], ["b", -2.0]])"), 0), "no error");
  EXPECT_THAT(unigram(json::parse(R"([["a", -1.0], ["b", -2.0]])"), 2), HasSubstr("model.unk_id"));
  EXPECT_THAT(unigram(json::parse(R"([["a", -1.0], ["b"]])"), 0), HasSubstr("model.vocab[1]"));
  EXPECT_THAT(unigram(json::parse(R"([["a", "x"]])"), 0), HasSubstr("model.vocab[0][1]"));
  EXPECT_THAT(unigram(json::array(), 0), HasSubstr("model.vocab: is empty"));
}

}  // namespace
}  // namespace sx
