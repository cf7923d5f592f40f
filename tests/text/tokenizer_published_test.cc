// Ids that the publishers' own tokenizers give for short texts (tools/make_published_ids.py wrote them), with those
// tokens of their vocabularies that the texts can reach; nothing is downloaded. Gemma's terms forbid to ship its
// vocabulary: its ids are compared where its model has been fetched (tools/fetch_model.py --gemma).
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "formats/gguf_model.h"
#include "text/tokenizer.h"
#include "tokenizer_load.h"

namespace sx {
namespace {

std::string data_file(const std::string& name) { return std::string(SX_TEXT_DATA) + "/published/" + name + ".json"; }

class PublishedIds : public testing::TestWithParam<const char*> {};

TEST_P(PublishedIds, OfShortTexts) {
  const std::string path = data_file(GetParam());
  const nlohmann::json file = nlohmann::json::parse(read_text(path));
  const auto published = file.at("published").get<std::vector<Token>>();
  const auto tokenizer = TokenCodec::create(load_tokenizer_data(path));
  for (const auto& row : file.at("cases")) {
    const std::string text = row.at(0);
    std::vector<Token> ids = tokenizer->encode(text, false, false);
    for (Token& id : ids) id = published.at(static_cast<size_t>(id));
    EXPECT_EQ(ids, row.at(1).get<std::vector<Token>>()) << text;
  }
  EXPECT_GE(file.at("cases").size(), 40u);
}

INSTANTIATE_TEST_SUITE_P(Vocabularies, PublishedIds,
                         testing::Values("tekken", "gpt-4o", "qwen2", "deepseek-v3", "mistral-v3"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           for (char& c : name) c = isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

std::string gemma_path() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  const std::string base = cache && cache[0] == '/' ? cache : std::string(home ? home : "") + "/.cache";
  return base + "/specextend/models/gemma-3-270m-q4_k_m.gguf";
}

TEST(PublishedGemma, SameIds) {
  const std::string path = gemma_path();
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there: tools/fetch_model.py --gemma";
  const GgufFile model(path);
  const GgufArray* tokens = model.get_array("tokenizer.ggml.tokens");
  ASSERT_NE(tokens, nullptr);
  const auto tokenizer = TokenCodec::create(tokenizer_from_gguf(model, static_cast<int>(tokens->count)));
  for (const auto& row : nlohmann::json::parse(read_text(data_file("gemma3"))).at("cases")) {
    const std::string text = row.at(0);
    EXPECT_EQ(tokenizer->encode(text, false, false), row.at(1).get<std::vector<Token>>()) << text;
  }
  // Others have published these, with the opening <bos>.
  using Ids = std::vector<Token>;
  EXPECT_EQ(tokenizer->encode("Hello world", true, false), (Ids{2, 9259, 1902}));
  EXPECT_EQ(tokenizer->encode("line1\nline2", true, false), (Ids{2, 1257, 236770, 107, 1257, 236778}));
  EXPECT_EQ(tokenizer->encode("tab\there", true, false), (Ids{2, 4823, 255968, 8472}));
  EXPECT_EQ(tokenizer->encode("Hello, World!", true, false), (Ids{2, 9259, 236764, 4109, 236888}));
  EXPECT_EQ(tokenizer->encode("<start_of_turn>user\nHello<end_of_turn>\n<start_of_turn>model\n", true, true),
            (Ids{2, 105, 2364, 107, 9259, 106, 107, 105, 4368, 107}));
}

}  // namespace
}  // namespace sx
