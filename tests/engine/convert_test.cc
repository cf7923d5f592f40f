// Vocabularies in the other form: byte-level and SentencePiece vocabularies there and back, compared token by token on
// random texts; names of pre-tokenisers found by their patterns. And the public functions of convert.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "base/error.h"
#include "bench/widen/widen_tool.h"
#include "engine/convert_vocabulary.h"
#include "formats/model_file.h"
#include "specextend/convert.h"
#include "specextend/specextend.h"
#include "support/model_writer.h"
#include "text/pre_names.h"
#include "text/tokenizer.h"

namespace sx {
namespace {

using ::testing::HasSubstr;
using testing::TempFolder;
using testing::TinySpec;
namespace fs = std::filesystem;

std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) { return error.what(); }
  return "no error";
}

std::string random_text(std::mt19937& random) {
  static const char* kPieces[] = {"a", "b",  "ab", "the",        " ",  "  ", "\n", "1",   "23", "!",
                                  "é", "中", "😀",  "<|im_end|>", "'s", "Z",  "\t", "<s>", "▁",  "_x"};
  std::string out;
  for (size_t n = random() % 30; n > 0; --n) out += kPieces[random() % std::size(kPieces)];
  return out;
}

void expect_same_tokens(const TokenizerData& a, const TokenizerData& b, bool parse_special = true) {
  const auto left = TokenCodec::create(a), right = TokenCodec::create(b);
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_text(random);
    const bool special = i % 2 == 0;
    const auto tokens = left->encode(text, special, parse_special);
    ASSERT_EQ(tokens, right->encode(text, special, parse_special)) << text;
    ASSERT_EQ(left->decode(tokens), right->decode(tokens)) << text;
  }
  EXPECT_EQ(left->bos(), right->bos());
  EXPECT_EQ(left->eos(), right->eos());
  for (Token t = 0; t < std::min(left->size(), right->size()); ++t) EXPECT_EQ(left->is_end(t), right->is_end(t)) << t;
  EXPECT_EQ(left->chat_template(), right->chat_template());
}

TEST(ConvertVocabulary, TinyFolderBecomesTheTestWritersArrays) {
  const TempFolder temp;
  testing::write_tiny_hf(temp.file("folder"), {});
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  const auto folder = ModelFile::open(temp.file("folder"))->tokenizer(),
             expected = ModelFile::open(temp.file("a.gguf"))->tokenizer();
  std::vector<std::string> notes;
  const TokenizerData made = vocabulary_to_gguf(folder, "", notes);
  EXPECT_TRUE(notes.empty()) << notes[0];
  EXPECT_EQ(made.model, "gpt2");
  EXPECT_EQ(made.pre, "gpt-2");
  EXPECT_EQ(made.tokens, expected.tokens);
  EXPECT_EQ(made.merges, expected.merges);
  EXPECT_EQ(made.types, expected.types);
  EXPECT_EQ(made.eos, expected.eos);
  EXPECT_EQ(made.eot, expected.eot);
  EXPECT_EQ(made.chat_template, expected.chat_template);
  expect_same_tokens(folder, made);
  TokenizerData back = vocabulary_to_folder(made, notes);
  EXPECT_TRUE(notes.empty()) << notes[0];
  expect_same_tokens(folder, back);
}

TEST(ConvertVocabulary, EveryPreTokeniserIsFoundAgainByItsPatterns) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  TokenizerData gguf = ModelFile::open(temp.file("a.gguf"))->tokenizer();
  std::vector<std::string> notes;
  for (const char* name :
       {"gpt-2",    "smollm",     "llama-bpe", "dbrx",   "qwen2",    "stablelm2", "qwen35", "deepseek-v3",
        "tekken",   "gpt-4o",     "refact",    "llama3", "glm4",     "command-r", "olmo",   "hunyuan",
        "tiny_aya", "exaone-moe", "jais-2",    "laguna", "spark2_5", "youtu"}) {
    gguf.pre = name;
    for (const int add_bos : {0, 1}) {
      gguf.add_bos = add_bos;
      const TokenizerData folder = vocabulary_to_folder(gguf, notes);
      const TokenizerData back = vocabulary_to_gguf(folder, "", notes);
      EXPECT_EQ(back.add_bos, add_bos);
      const auto *before = find_pre_tokenizer(name), *after = find_pre_tokenizer(back.pre);
      ASSERT_TRUE(after);
      EXPECT_EQ(before->patterns, after->patterns) << name << " became " << back.pre;
      EXPECT_EQ(before->nfc, after->nfc) << name;
      EXPECT_EQ(before->ignore_merges, after->ignore_merges) << name;
      expect_same_tokens(gguf, folder);
    }
  }
  EXPECT_TRUE(notes.empty()) << notes[0];
}

TEST(ConvertVocabulary, UnknownPatternsAreNamedAndCanBeOverruled) {
  const TempFolder temp;
  testing::write_tiny_hf(temp.file("folder"), {});
  TokenizerData folder = ModelFile::open(temp.file("folder"))->tokenizer();
  const std::string from = R"(| ?\\p{N}+|)";
  const size_t at = folder.tokenizer_json.find(from);
  ASSERT_NE(at, std::string::npos);
  folder.tokenizer_json.replace(at, from.size(), R"(| ?\\p{N}{1,7}|)");
  std::vector<std::string> notes;
  EXPECT_THAT(message_of([&] { vocabulary_to_gguf(folder, "", notes); }),
              ::testing::AllOf(HasSubstr("{1,7}"), HasSubstr("--pre NAME")));
  EXPECT_EQ(vocabulary_to_gguf(folder, "gpt-2", notes).pre, "gpt-2");
}

// DeepSeek-V3's tokenizer.json has line ends as themselves where others have escapes, DeepSeek LLM's its letters.
TEST(ConvertVocabulary, PatternsAreRecognisedInAnySpelling) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  TokenizerData gguf = ModelFile::open(temp.file("a.gguf"))->tokenizer();
  const auto spelt = [&](const char* pre, const std::vector<std::pair<std::string, std::string>>& changes) {
    gguf.pre = pre;
    std::vector<std::string> notes;
    TokenizerData folder = vocabulary_to_folder(gguf, notes);
    for (const auto& [from, to] : changes) {
      size_t at = folder.tokenizer_json.find(from), found = 0;
      for (; at != std::string::npos; at = folder.tokenizer_json.find(from, at + to.size()), ++found)
        folder.tokenizer_json.replace(at, from.size(), to);
      EXPECT_GT(found, 0u) << from;
    }
    return vocabulary_to_gguf(folder, "", notes).pre;
  };
  EXPECT_EQ(spelt("deepseek-v3", {{R"([^\\r\\n\\p{L}\\p{P})", R"([^\r\n\\p{L}\\p{P})"},
                                  {R"([\\r\\n]*)", R"([\r\n]*)"},
                                  {R"(\\s*[\\r\\n]+)", R"(\\s*[\r\n]+)"}}),
            "deepseek-v3");
  EXPECT_EQ(spelt("deepseek-coder", {{R"([\\r\\n])", R"([\r\n])"}, {R"(\\x{d7ff})", "\xED\x9F\xBF"}}),
            "deepseek-coder");
  EXPECT_EQ(spelt("deepseek-llm", {{R"(\\x{c0}-\\x{d6})", "À-Ö"}, {R"(\\x{1e900})", "\U0001e900"}}), "deepseek-llm");
}

// A SentencePiece vocabulary: bytes, letters, and pieces with descending scores.
TokenizerData sentence_piece(bool prefix) {
  TokenizerData data;
  data.file = "test";
  data.model = "llama";
  const auto add = [&](std::string text, TokenType type, float score) {
    data.tokens.push_back(std::move(text)), data.types.push_back(type), data.scores.push_back(score);
  };
  add("<unk>", TokenType::kUnknown, 0), add("<s>", TokenType::kControl, 0), add("</s>", TokenType::kControl, 0);
  for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte), TokenType::kByte, 0);
  float score = 0;
  for (const char* piece : {"▁t", "he", "▁the", "ab", "▁a", "abab", "▁▁", "in", "▁ab", "th", "the"})
    add(piece, TokenType::kNormal, score -= 1);
  for (const char* letter : {"▁", "a", "b", "t", "h", "e", "i", "n", "1", "2", "3", "é", "Z"})
    add(letter, TokenType::kNormal, score -= 1);
  data.unk = 0, data.bos = 1, data.eos = 2;
  data.add_bos = 1, data.add_space_prefix = prefix;
  data.vocab = int32_t(data.tokens.size());
  return data;
}

TEST(ConvertVocabulary, SentencePieceThereAndBack) {
  for (const bool prefix : {true, false}) {
    const TokenizerData gguf = sentence_piece(prefix);
    std::vector<std::string> notes;
    const TokenizerData folder = vocabulary_to_folder(gguf, notes);
    EXPECT_TRUE(notes.empty()) << notes[0];
    expect_same_tokens(gguf, folder);
    const TokenizerData back = vocabulary_to_gguf(folder, "", notes);
    EXPECT_TRUE(notes.empty()) << notes[0];
    EXPECT_EQ(back.model, "llama");
    EXPECT_EQ(back.tokens, gguf.tokens);
    EXPECT_EQ(back.types, gguf.types);
    EXPECT_EQ(back.add_space_prefix, int(prefix));
    expect_same_tokens(gguf, back);
  }
}

TEST(ConvertVocabulary, WithoutTokensTheIdsRemain) {
  TokenizerData bare;
  bare.bos = 1, bare.eos = 2, bare.vocab = 10;
  std::vector<std::string> notes;
  for (const TokenizerData& made : {vocabulary_to_gguf(bare, "", notes), vocabulary_to_folder(bare, notes)}) {
    EXPECT_EQ(made.bos, 1);
    EXPECT_EQ(made.eos, 2);
    EXPECT_TRUE(made.tokens.empty() && made.tokenizer_json.empty());
  }
}

std::string text_of(const std::string& model) {
  auto engine = Engine::open({.model = model, .context = 256, .threads = 1, .kv_type = "f32"});
  return engine->start()
      ->generate(engine->tokenizer().tokenize("the cat", true), {.max_tokens = 30, .ignore_end = true})
      .text;
}

TEST(ConvertApi, ModelsInAllFormsSayTheSame) {
  const TempFolder temp;
  TinySpec spec;
  spec.gain = 3;
  testing::write_tiny_hf(temp.file("folder"), spec);
  double last = 0;
  const auto result = convert(
      {.model = temp.file("folder"), .out = temp.file("a.gguf"), .on_progress = [&](double done) { last = done; }});
  EXPECT_EQ(last, 1);
  EXPECT_EQ(result.bytes, fs::file_size(temp.file("a.gguf")));
  EXPECT_EQ(result.types, "F32 21");
  convert({.model = temp.file("a.gguf"), .out = temp.file("back")});
  widen({.model = temp.file("a.gguf"),
         .out = temp.file("wide.gguf"),
         .width = 128,
         .layers = 3,
         .head_dim = 32,
         .type = "f32"});
  const std::string text = text_of(temp.file("folder"));
  EXPECT_EQ(text_of(temp.file("a.gguf")), text);
  EXPECT_EQ(text_of(temp.file("back")), text);
  EXPECT_EQ(text_of(temp.file("wide.gguf")), text);
  const auto small =
      quantize({.model = temp.file("folder"), .out = temp.file("q.gguf"), .type = "q4_0", .output = "F16"});
  EXPECT_EQ(small.types, "F16 1, F32 5, Q4_0 14, Q8_0 1");
  EXPECT_FALSE(text_of(temp.file("q.gguf")).empty());
}

TEST(ConvertApi, FoldersWithoutTokenizerConvertToo) {
  const TempFolder temp;
  testing::write_tiny_hf(temp.file("folder"), {});
  convert({.model = temp.file("folder"), .out = temp.file("bare.gguf"), .tokenizer = false});
  EXPECT_TRUE(ModelFile::open(temp.file("bare.gguf"))->tokenizer().tokens.empty());
  fs::remove(temp.file("folder/tokenizer.json"));
  fs::remove(temp.file("folder/tokenizer_config.json"));
  convert({.model = temp.file("folder"), .out = temp.file("a.gguf")});
  EXPECT_EQ(ModelFile::open(temp.file("a.gguf"))->tokenizer().eos, 0);
  convert({.model = temp.file("a.gguf"), .out = temp.file("back")});
  EXPECT_FALSE(fs::exists(temp.file("back/tokenizer.json")));
  EXPECT_NO_THROW(ModelFile::open(temp.file("back")));
}

TEST(ConvertApi, Refusals) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("a.gguf"), {});
  const std::string in = temp.file("a.gguf");
  EXPECT_THAT(message_of([&] { quantize({.model = in, .out = temp.file("b"), .type = "Q8_0"}); }),
              HasSubstr("must end in .gguf"));
  EXPECT_THAT(message_of([&] { quantize({.model = in, .out = temp.file("b.gguf"), .type = "Q9"}); }),
              HasSubstr("type 'Q9' is not known"));
  EXPECT_THAT(message_of([&] { convert({.model = in, .out = temp.file("b.gguf")}); }), HasSubstr("GGUF file already"));
  EXPECT_THAT(message_of([&] { convert({.model = temp.file("no"), .out = temp.file("b")}); }),
              HasSubstr("no such file"));
  EXPECT_THAT(message_of([&] { widen({.model = in, .out = temp.file("b.gguf"), .shape = "huge"}); }),
              HasSubstr("llama-8b"));
  EXPECT_THAT(message_of([&] { widen({.model = in, .out = temp.file("b.gguf"), .width = -5}); }),
              HasSubstr("the width is -5"));
}

TEST(ConvertApi, AVocabularyFromAnotherModel) {
  const TempFolder temp;
  testing::write_tiny_gguf(temp.file("target.gguf"), {});
  TinySpec spec;
  spec.layers = 1;
  testing::write_tiny_hf(temp.file("draft"), spec);
  fs::remove(temp.file("draft/tokenizer.json"));
  const auto made = [&](const std::string& from, bool tokenizer = true, const std::string& model = "draft") {
    return message_of([&] {
      quantize({.model = temp.file(model),
                .out = temp.file("out.gguf"),
                .type = "Q4_0",
                .vocabulary = from,
                .tokenizer = tokenizer,
                .force = true});
    });
  };
  const TokenizerData target = ModelFile::open(temp.file("target.gguf"))->tokenizer();
  EXPECT_EQ(made(""), "no error");
  EXPECT_TRUE(ModelFile::open(temp.file("out.gguf"))->tokenizer().tokens.empty());
  testing::write_tiny_hf(temp.file("folder"), {});
  for (const char* from : {"target.gguf", "folder"}) {
    EXPECT_EQ(made(temp.file(from)), "no error");
    const TokenizerData out = ModelFile::open(temp.file("out.gguf"))->tokenizer();
    EXPECT_EQ(out.tokens, target.tokens) << from;
    EXPECT_EQ(out.merges, target.merges) << from;
    EXPECT_EQ(out.pre, target.pre) << from;
    expect_same_tokens(out, target);
  }
  convert({.model = temp.file("draft"), .out = temp.file("plain.gguf"), .vocabulary = temp.file("target.gguf")});
  EXPECT_EQ(ModelFile::open(temp.file("plain.gguf"))->tokenizer().tokens, target.tokens);

  EXPECT_THAT(made(temp.file("absent.gguf")), HasSubstr("absent.gguf"));
  EXPECT_THAT(made(temp.file("draft")), HasSubstr("no vocabulary"));
  EXPECT_THAT(made(temp.file("target.gguf"), false), HasSubstr("none is wanted"));
  EXPECT_THAT(made(temp.file("target.gguf"), true, "target.gguf"), HasSubstr("keeps its own vocabulary"));
  spec.vocab = 330;
  testing::write_tiny_gguf(temp.file("large.gguf"), spec);
  EXPECT_THAT(made(temp.file("large.gguf")), HasSubstr("330 tokens"));
}

}  // namespace
}  // namespace sx
