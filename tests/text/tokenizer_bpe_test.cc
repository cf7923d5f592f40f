// Byte-level BPE from GGUF arrays: the merge loops against a naive one, names of pre-tokenisers, special tokens,
// errors.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

#include "base/error.h"
#include "text/pretokenizer.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace sx {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// 256 bytes, then the results of the merges, then <|a|> (control), <|b|> (control, ends), <user> (user-defined).
TokenizerData byte_vocabulary(std::vector<std::string> merges, const std::string& pre = "gpt-2") {
  TokenizerData data;
  data.file = "test.gguf";
  data.model = "gpt2";
  data.pre = pre;
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    data.tokens.push_back(byte_alphabet_encode({&c, 1}));
  }
  for (const std::string& merge : merges) {
    const size_t space = merge.find(' ', 1);
    data.tokens.push_back(merge.substr(0, space) + merge.substr(space + 1));
  }
  data.types.assign(data.tokens.size(), TokenType::kNormal);
  for (const char* name : {"<|a|>", "<|im_end|>", "<user>"}) data.tokens.push_back(name);
  data.types.insert(data.types.end(), {TokenType::kControl, TokenType::kControl, TokenType::kUserDefined});
  data.merges = std::move(merges);
  return data;
}

std::vector<std::string> pieces(const TokenCodec& tokenizer, std::string_view text) {
  std::vector<std::string> out;
  for (Token token : tokenizer.encode(text, false, false)) out.emplace_back(tokenizer.bytes_of(token));
  return out;
}

std::string error_of(const TokenizerData& data) {
  try {
    TokenCodec::create(data);
  } catch (const Error& error) { return error.what(); }
  return "";
}

// "<|end|>" ends an answer of Phi-3, and a thought of gpt-oss, whose answers end by "<|return|>".
TEST(Bpe, EndOfAPartIsNoEnd) {
  TokenizerData data = byte_vocabulary({"a b"});
  const auto add = [&](const char* name) {
    data.tokens.push_back(name), data.types.push_back(TokenType::kControl);
    return static_cast<Token>(data.tokens.size() - 1);
  };
  const Token end = add("<|end|>");
  EXPECT_TRUE(TokenCodec::create(data)->is_end(end));
  const Token answer = add("<|return|>");
  EXPECT_FALSE(TokenCodec::create(data)->is_end(end));
  EXPECT_TRUE(TokenCodec::create(data)->is_end(answer));
  data.eos = end;  // the file's own word counts
  EXPECT_TRUE(TokenCodec::create(data)->is_end(end));
}

TEST(Bpe, MergesByRankThenFromTheLeft) {
  const auto tokenizer = TokenCodec::create(byte_vocabulary({"b c", "a b", "a a", "aa a", "Ġ x"}));
  EXPECT_THAT(pieces(*tokenizer, "abc"), ElementsAre("a", "bc"));
  EXPECT_THAT(pieces(*tokenizer, "ab"), ElementsAre("ab"));
  EXPECT_THAT(pieces(*tokenizer, "aaaaa"), ElementsAre("aa", "aaa"));
  EXPECT_THAT(pieces(*tokenizer, " x x"), ElementsAre(" x", " x"));
  EXPECT_TRUE(tokenizer->encode("", true, true).empty());
}

using Ranks = std::map<std::pair<std::string, std::string>, int>;

// The definition: the lowest rank, the leftmost among equals.
std::vector<std::string> merged(const std::string& word, const Ranks& table) {
  std::vector<std::string> symbols;
  for (char c : word) symbols.emplace_back(1, c);
  std::vector<int> ranks(symbols.size() - 1);  // of the pair (i, i + 1)
  const auto look_up = [&](size_t i) {
    const auto found = table.find({symbols[i], symbols[i + 1]});
    ranks[i] = found == table.end() ? INT32_MAX : found->second;
  };
  for (size_t i = 0; i < ranks.size(); ++i) look_up(i);
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == INT32_MAX) break;
    const auto i = best - ranks.begin();
    symbols[i] += symbols[i + 1];
    symbols.erase(symbols.begin() + i + 1);
    ranks.erase(best);
    if (i < std::ssize(ranks)) look_up(i);
    if (i > 0) look_up(i - 1);
  }
  return symbols;
}

TEST(Bpe, AllLoopsAgreeWithTheDefinition) {
  std::mt19937 random(5);
  for (const bool shuffled : {false, true}) {  // merges that come before those of their parts
    std::vector<std::string> merges, known = {"a", "b", "c"};
    while (merges.size() < 60) {
      const std::string left = known[random() % known.size()], right = known[random() % known.size()];
      if (left.size() + right.size() > 9 || std::find(known.begin(), known.end(), left + right) != known.end())
        continue;
      merges.push_back(left + " " + right);
      known.push_back(left + right);
    }
    if (shuffled) std::shuffle(merges.begin(), merges.end(), random);
    Ranks table;
    for (const std::string& merge : merges) {
      const size_t space = merge.find(' ');
      table[{merge.substr(0, space), merge.substr(space + 1)}] = static_cast<int>(table.size());
    }
    const auto tokenizer = TokenCodec::create(byte_vocabulary(merges));
    for (int round = 0; round < 310; ++round) {
      std::string word;
      const int letters = round % 5 ? 3 : 1;
      for (int length = round < 300 ? 1 + random() % (round % 2 ? 20 : 200) : 4094 + 2 * (round - 300); length > 0;
           --length)
        word += static_cast<char>('a' + random() % letters);
      EXPECT_EQ(pieces(*tokenizer, word), merged(word, table)) << word;
    }
  }
}

TEST(Bpe, RepeatedWordsTakeTheSameWay) {  // the per-call cache of words must not show
  const auto tokenizer = TokenCodec::create(byte_vocabulary({"t h", "th e", "Ġ the", "Ġ c", "a t"}));
  std::string text;
  std::vector<Token> expected;
  for (int i = 0; i < 300; ++i) {
    const std::string word = i % 3 ? " the" : " cat" + std::string(i % 7, 's');
    text += word;
    for (Token token : tokenizer->encode(word, false, false)) expected.push_back(token);
  }
  EXPECT_EQ(tokenizer->encode(text, false, false), expected);
}

TEST(Bpe, IgnoreMergesTakesWholeWords) {
  TokenizerData data = byte_vocabulary({"a b"}, "llama-bpe");
  data.tokens.push_back("zzz");
  data.types.push_back(TokenType::kNormal);
  EXPECT_THAT(pieces(*TokenCodec::create(data), "zzz"), ElementsAre("zzz"));
  data.pre = "gpt-2";
  EXPECT_THAT(pieces(*TokenCodec::create(data), "zzz"), ElementsAre("z", "z", "z"));
}

TEST(Bpe, PreTokenisersCutDigitsDifferently) {
  const std::vector<std::string> merges = {"1 2", "12 3", "123 4", "Ġ 1"};
  auto cut = [&](const char* pre) { return pieces(*TokenCodec::create(byte_vocabulary(merges, pre)), "1234"); };
  EXPECT_THAT(cut("gpt-2"), ElementsAre("1234"));
  EXPECT_THAT(cut("smollm"), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(cut("starcoder"), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(cut("qwen2"), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(cut("llama-bpe"), ElementsAre("123", "4"));
  EXPECT_THAT(cut("deepseek-v3"), ElementsAre("123", "4"));
  EXPECT_THAT(cut("deepseek-llm"), ElementsAre("1234"));
  EXPECT_THAT(cut("deepseek-coder"), ElementsAre("1", "2", "3", "4"));
}

// Llama 3's list has 588 words that no order of merges makes; GLM-4's and HunYuan's are tiktoken's too.
TEST(Bpe, NamesThatTakeWholeWords) {
  for (const char* pre : {"llama-bpe", "smaug-bpe", "glm4", "glm5", "chatglm-bpe", "hunyuan", "kimi-k2", "tekken"}) {
    TokenizerData data = byte_vocabulary({"a b"}, pre);
    data.tokens.push_back("zzz");
    data.types.push_back(TokenType::kNormal);
    EXPECT_THAT(pieces(*TokenCodec::create(data), "zzz"), ElementsAre("zzz")) << pre;
  }
}

// U+2460 is a number but no character of a word, so the digits in front of it end at a boundary. U+00B2 is one to
// Oniguruma.
TEST(Bpe, WordsEndBeforeCircledDigits) {
  const std::vector<std::string> merges = {"1 2", "12 3", "123 4", "â ĳ", "âĳ ł", "12 âĳł", "Â ²", "12 Â²"};
  const auto tokenizer = TokenCodec::create(byte_vocabulary(merges, "tiny_aya"));
  EXPECT_THAT(pieces(*tokenizer, "12\u2460"), ElementsAre("12", "\u2460"));
  EXPECT_THAT(pieces(*tokenizer, "12\u00B2"), ElementsAre("12\u00B2"));
  EXPECT_THAT(pieces(*tokenizer, "1234"), ElementsAre("1", "2", "3", "4"));
  EXPECT_THAT(pieces(*tokenizer, "123 12"), ElementsAre("123", " ", "12"));
}

TEST(Bpe, CutByTheNamesPattern) {
  const std::vector<std::string> merges = {"a b", "Ġ ab", "ab Ġab", "- Ċ", "Ċ Ċ", "Ġ Ġ", "ĠĠ ĠĠ"};
  const auto cut = [&](const char* pre, const char* text) {
    return pieces(*TokenCodec::create(byte_vocabulary(merges, pre)), text);
  };
  EXPECT_THAT(cut("exaone-moe", "ab ab"), ElementsAre("ab ab"));  // words and the spaces between them
  EXPECT_THAT(cut("exaone4", "ab ab"), ElementsAre("ab", " ab"));
  EXPECT_THAT(cut("jais-2", "     ab"), ElementsAre("    ", " ab"));
  EXPECT_THAT(cut("laguna", "-\n\n"), ElementsAre("-", "\n\n"));  // signs and lines
  EXPECT_THAT(cut("qwen2", "-\n\n"), ElementsAre("-\n", "\n"));
  EXPECT_THAT(cut("spark2_5", "-\n\n"), ElementsAre("-", "\n", "\n"));
}

TEST(Bpe, SomeNamesNormaliseFirst) {
  for (const char* pre : {"qwen2", "f2llmv2", "qwen35", "hunyuan", "command-r", "olmo"}) {
    const auto tokenizer = TokenCodec::create(byte_vocabulary({"a b"}, pre));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("e\u0301", false, false)), "\u00E9") << pre;
  }
  for (const char* pre : {"gpt-2", "stablelm2", "smollm"}) {
    const auto tokenizer = TokenCodec::create(byte_vocabulary({"a b"}, pre));
    EXPECT_EQ(tokenizer->decode(tokenizer->encode("e\u0301", false, false)), "e\u0301") << pre;
  }
}

TEST(Bpe, SpecialTokens) {
  TokenizerData data = byte_vocabulary({"a b"});
  data.bos = 257;
  data.eos = 258;
  data.add_bos = 1;
  data.add_eos = 1;
  const auto tokenizer = TokenCodec::create(data);
  EXPECT_THAT(tokenizer->encode("<|a|>ab", false, true), ElementsAre(257, 256));
  EXPECT_EQ(tokenizer->encode("<|a|>", false, false).size(), 5u);            // text, not a control token
  EXPECT_THAT(tokenizer->encode("<user>", false, false), ElementsAre(259));  // user-defined: always
  EXPECT_THAT(tokenizer->encode("ab", true, false), ElementsAre(257, 256, 258));
  EXPECT_TRUE(tokenizer->adds_bos());
  EXPECT_TRUE(tokenizer->is_control(257));
  EXPECT_FALSE(tokenizer->is_control(259));
  EXPECT_TRUE(tokenizer->is_end(258));
  EXPECT_FALSE(tokenizer->is_end(257));
  EXPECT_EQ(tokenizer->bytes_of(257), "");
  EXPECT_EQ(tokenizer->bytes_of(259), "<user>");
  EXPECT_EQ(tokenizer->printable(257), "<|a|>");
  EXPECT_EQ(tokenizer->printable('\n'), "\\n");
  EXPECT_EQ(tokenizer->printable(0xE6), "\\xE6");
  EXPECT_EQ(tokenizer->find("<|a|>"), std::optional<Token>(257));
  EXPECT_EQ(tokenizer->find("nothing"), std::nullopt);
  const std::vector<Token> all = {257, 256, 258};
  EXPECT_EQ(tokenizer->decode(all), "<|a|>ab<|im_end|>");
  EXPECT_EQ(tokenizer->decode(all, true), "ab");
}

TEST(Bpe, IdsOutsideTheVocabularyPrintNothing) {
  const auto tokenizer = TokenCodec::create(byte_vocabulary({"a b"}));
  const std::vector<Token> odd = {-1, 'a', 1 << 30, tokenizer->size()};
  EXPECT_EQ(tokenizer->decode(odd), "a");
  EXPECT_EQ(tokenizer->bytes_of(-5), "");
  EXPECT_FALSE(tokenizer->is_control(1 << 30));
  EXPECT_FALSE(tokenizer->is_end(-1));
}

TEST(Bpe, MalformedUtf8IsReadAsReplacementCharacters) {
  const auto tokenizer = TokenCodec::create(byte_vocabulary({"a b"}));
  EXPECT_EQ(tokenizer->encode("a\xFF\xE6\xBC!", false, false), tokenizer->encode("a\uFFFD\uFFFD!", false, false));
}

TEST(Bpe, EveryValidTextSurvives) {
  std::mt19937 random(11);
  for (const char* pre :
       {"gpt-2", "smollm", "llama-bpe", "deepseek-v3", "deepseek-llm", "deepseek-coder", "tekken", "falcon", "default",
        "bloom", "viking", "superbpe", "seed-coder", "bailingmoe", "gpt-4o", "stablelm2"}) {
    const auto tokenizer = TokenCodec::create(byte_vocabulary({"Ġ t", "h e", "Ġt he"}, pre));
    for (int round = 0; round < 60; ++round) {
      std::string text;
      for (int i = random() % 30; i > 0; --i) {
        char32_t code = random() % 4 == 0   ? random() % 0x110000
                        : random() % 3 == 0 ? random() % 0x3000
                                            : random() % 128;
        if (code >= 0xD800 && code < 0xE000) code = ' ';
        utf8_append(text, code);
      }
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(text, false, false)), text) << pre;
    }
  }
}

TEST(Bpe, LongRunsStayQuick) {
  const auto tokenizer =
      TokenCodec::create(byte_vocabulary({"a a", "aa aa", "a b", "ab ab", "Ġ Ġ", "ĠĠ ĠĠ"}, "smollm"));
  for (const std::string& unit :
       {std::string("a"), std::string("ab"), std::string(" "), std::string("7"), std::string("-")}) {
    std::string text;
    while (text.size() < (1 << 18)) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const auto tokens = tokenizer->encode(text, false, false);
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(tokenizer->decode(tokens), text);
    EXPECT_LT(spent.count(), 10.0) << unit;  // quadratic would be many minutes
  }
}

TEST(Bpe, ThreadsShareOneTokenizer) {
  const auto tokenizer = TokenCodec::create(byte_vocabulary({"t h", "th e", "Ġ the"}));
  std::string text(3000, 't');
  while (text.size() < 12000) text += "th";  // and a word for the loop of huge ones
  const auto expected = tokenizer->encode(text + " the", false, false);
  std::vector<std::thread> threads;
  std::array<bool, 4> same{};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { same[i] = tokenizer->encode(text + " the", false, false) == expected; });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(same, testing::Each(true));
}

TEST(Bpe, ErrorsNameFileAndField) {
  TokenizerData data = byte_vocabulary({"a b"}, "martian");
  EXPECT_THAT(error_of(data),
              testing::AllOf(HasSubstr("test.gguf"), HasSubstr("tokenizer.ggml.pre"), HasSubstr("martian")));
  data = byte_vocabulary({"a b"});
  data.model = "bert";
  EXPECT_THAT(error_of(data), HasSubstr("bert"));
  data = byte_vocabulary({"a b"});
  data.bos = 100000;
  EXPECT_THAT(error_of(data), HasSubstr("bos_token_id"));
  data = byte_vocabulary({"a b"});
  data.eos = -7;
  EXPECT_THAT(error_of(data), HasSubstr("eos_token_id"));
  data = byte_vocabulary({"a b"});
  data.merges.push_back("nospace");
  EXPECT_THAT(error_of(data), HasSubstr("merges[1]"));
  data = byte_vocabulary({"a b"});
  data.types.pop_back();
  EXPECT_THAT(error_of(data), HasSubstr("token_type"));
  data = byte_vocabulary({"a b"});
  data.vocab = 100;
  EXPECT_THAT(error_of(data), HasSubstr("embedding"));
  data = byte_vocabulary({"a b"});
  data.tokens.clear();
  EXPECT_THAT(error_of(data), HasSubstr("tokenizer.ggml.tokens"));
  EXPECT_THAT(error_of(TokenizerData{}), HasSubstr("no vocabulary"));
}

TEST(Bpe, MergesOfUnknownTokensAreIgnored) {
  TokenizerData data = byte_vocabulary({"a b"});
  data.merges.insert(data.merges.begin(), {"a missing", "x y"});
  EXPECT_THAT(pieces(*TokenCodec::create(data), "abxy"), ElementsAre("ab", "x", "y"));
}

}  // namespace
}  // namespace sx
