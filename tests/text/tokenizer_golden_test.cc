// Small vocabularies of every kind with the ids and texts the `tokenizers` library gives (tools/check_tokenizers.py
// --golden writes them). Where the development data is at hand, also the published Llama vocabularies.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <sstream>

#include "formats/gguf_model.h"
#include "text/tokenizer.h"
#include "tokenizer_load.h"

namespace sx {
namespace {

std::vector<std::string> golden_files() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(SX_TEXT_DATA)) {
    if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, SameIdsAndTexts) {
  const std::string path = std::string(SX_TEXT_DATA) + "/" + GetParam() + ".json";
  const nlohmann::json golden = nlohmann::json::parse(read_text(path));
  TokenizerData data;
  data.file = path;
  data.tokenizer_json = golden.at("tokenizer").dump();
  const auto tokenizer = TokenCodec::create(data);
  for (const auto& row : golden.at("encode")) {
    const std::string text = row.at("text");
    EXPECT_EQ(tokenizer->encode(text, false, true), row.at("ids").get<std::vector<Token>>()) << text;
    EXPECT_EQ(tokenizer->encode(text, true, true), row.at("special").get<std::vector<Token>>()) << text;
  }
  for (const auto& row : golden.at("decode")) {
    EXPECT_EQ(tokenizer->decode(row.at("ids").get<std::vector<Token>>()), row.at("text").get<std::string>())
        << row.dump();
  }
  EXPECT_GE(golden.at("encode").size(), 20u);
}

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_files()), [](const auto& param_info) {
  std::string name = param_info.param;
  for (char& c : name) c = isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

TEST(GoldenFiles, CoverEveryKind) { EXPECT_GE(golden_files().size(), 10u); }

class Published : public testing::TestWithParam<const char*> {};

TEST_P(Published, SameIds) {
  const char* shared = std::getenv("SPECEXTEND_SHARED");
  const std::string path = std::string(shared ? shared : SX_SHARED) + "/data/vocab/ggml-vocab-" + GetParam() + ".gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  const GgufFile file(path);
  const GgufArray* tokens = file.get_array("tokenizer.ggml.tokens");
  ASSERT_NE(tokens, nullptr);
  const auto tokenizer = TokenCodec::create(tokenizer_from_gguf(file, static_cast<int>(tokens->count)));
  const std::string inputs = read_text(path + ".inp"), outputs = read_text(path + ".out");
  const std::string separator = "\n__ggml_vocab_test__\n";
  size_t line = 0, count = 0;
  for (size_t at = 0; at <= inputs.size(); ++count) {
    const size_t end = std::min(inputs.find(separator, at), inputs.size());
    std::istringstream ids(outputs.substr(line, outputs.find('\n', line) - line));
    line = outputs.find('\n', line) + 1;
    const std::vector<Token> expected{std::istream_iterator<Token>(ids), {}};
    EXPECT_EQ(tokenizer->encode(inputs.substr(at, end - at), false, false), expected) << inputs.substr(at, end - at);
    at = end + separator.size();
  }
  EXPECT_GT(count, 40u);
}

INSTANTIATE_TEST_SUITE_P(Llama, Published, testing::Values("llama-spm", "llama-bpe"), [](const auto& param_info) {
  return std::string(param_info.param) == "llama-spm" ? "Spm" : "Bpe";
});

}  // namespace
}  // namespace sx
