// vLLM's speculative configuration: what its keys mean here, what is refused and how; no text breaks the reader.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"
#include "speculative/config/config.h"

namespace sx {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(std::string_view json) {
  try {
    (void)config_from_json(json);
  } catch (const Error& error) { return error.what(); }
  return "";
}

struct Case {
  const char* json;
  std::map<std::string, std::string> expected;
};

const Case kCases[] = {
    {R"({"method": "draft_model", "model": "small.gguf", "num_speculative_tokens": 3})",
     {{"drafter", "model"},
      {"tree", "chain"},
      {"nodes", "3"},
      {"depth", "3"},
      {"accept", "match"},
      {"draft-model", "small.gguf"}}},
    {R"({"model": "small.gguf", "num_speculative_tokens": 511})", {{"drafter", "model"}, {"nodes", "511"}}},
    {R"({"method": "draft_model"})", {{"drafter", "model"}, {"draft-model", ""}, {"nodes", "5"}}},
    {R"({"method": "mtp", "num_speculative_tokens": 3})",
     {{"drafter", "mtp"}, {"tree", "chain"}, {"nodes", "3"}, {"draft-model", ""}}},
    {R"({"method": "dspark", "model": "folder", "num_speculative_tokens": 7})",
     {{"drafter", "model"}, {"tree", "chain"}, {"nodes", "7"}, {"draft-model", "folder"}}},
    {R"({"method": "eagle3", "model": "head", "parallel_drafting": true})", {{"drafter", "model"}, {"tree", "chain"}}},
    {R"({"method": "deepseek_mtp"})", {{"drafter", "mtp"}, {"nodes", "1"}}},
    {R"({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4})",
     {{"drafter", "ngram"}, {"nodes", "5"}, {"depth", "5"}, {"ngram-min", "4"}, {"ngram-max", "4"}}},
    {R"({"method": "ngram", "prompt_lookup_min": 2})", {{"ngram-min", "2"}, {"ngram-max", "2"}}},
    {R"({"method": "[ngram]", "model": "ngram"})", {{"drafter", "ngram"}, {"ngram-min", "5"}, {"ngram-max", "5"}}},
    {R"({"model": "[ngram]", "prompt_lookup_min": 2, "prompt_lookup_max": 7})",
     {{"drafter", "ngram"}, {"ngram-min", "2"}, {"ngram-max", "7"}}},
    {R"({"prompt_lookup_max": 3, "prompt_lookup_min": 1})",
     {{"drafter", "ngram"}, {"ngram-min", "1"}, {"ngram-max", "3"}}},
    {R"({"method": "suffix"})",
     {{"drafter", "suffix"},
      {"nodes", "24"},
      {"depth", "24"},
      {"match-max", "24"},
      {"factor", "1"},
      {"min-prob", "0.1"}}},
    {R"({"method": "suffix", "num_speculative_tokens": 12, "suffix_decoding_max_tree_depth": 32,
         "suffix_decoding_max_spec_factor": 2, "suffix_decoding_min_token_prob": 0.05,
         "suffix_decoding_max_cached_requests": 1000})",
     {{"nodes", "12"}, {"depth", "32"}, {"match-max", "32"}, {"factor", "2"}, {"min-prob", "0.05"}}},
    {R"({"suffix_decoding_max_tree_depth": 64})",
     {{"drafter", "suffix"}, {"nodes", "64"}, {"depth", "64"}, {"match-max", "64"}}},
    {R"({"model": "m", "rejection_sample_method": "standard", "draft_sample_method": "greedy"})",
     {{"accept", "match"}, {"couple", "off"}}},
    {R"({"model": "m", "rejection_sample_method": "block", "draft_sample_method": "probabilistic"})",
     {{"accept", "block"}, {"couple", "on"}}},
    {R"({"model": "m", "rejection_sample_method": "block"})", {{"accept", "block"}}},
    {R"({"model": "m", "kv_cache_dtype": "bfloat16"})", {{"draft-kv-type", "bf16"}}},
    {R"({"model": "m", "kv_cache_dtype": "auto"})", {{"draft-kv-type", ""}}},
    {R"({"model": "m", "draft_tensor_parallel_size": 1, "max_model_len": 2048, "quantization": null,
         "parallel_drafting": false,
         "enforce_eager": true, "disable_padded_drafter_batch": true, "attention_backend": "FLASH_ATTN", "method": null,
         "num_speculative_tokens": null})",
     {{"drafter", "model"}, {"nodes", "5"}}},
};

TEST(SpeculativeConfig, MeansWhatItMeansThere) {
  for (const Case& test : kCases) {
    SCOPED_TRACE(test.json);
    SpecConfig config = config_from_json(test.json);
    for (const auto& [name, value] : test.expected) EXPECT_EQ(setting_value(config, name), value) << name;
    if (config.needs_model() && config.draft_model.empty()) config.draft_model = "m";
    EXPECT_NO_THROW(check_config(config));
  }
}

TEST(SpeculativeConfig, RefusalsNameTheKeyAndWhatIsRight) {
  const struct {
    const char* json;
    std::vector<std::string> words;
  } cases[] = {
      {"", {"not valid JSON"}},
      {"{", {"not valid JSON", "line 1"}},
      {R"({"method": "suffix",})", {"not valid JSON", "column"}},
      {"[]", {"array", "object"}},
      {"null", {"null", "object"}},
      {"7", {"number", "object"}},
      {"{}", {"'method'", "'model'"}},
      {R"({"num_speculative_tokens": 5})", {"'method'"}},
      {R"({"method": "mlp_speculator"})", {"mlp_speculator", "not supported yet"}},
      {R"({"method": "magic"})", {"magic", "not known", "suffix"}},
      {R"({"method": "ngram", "colour": 1})", {"'colour'", "not known", "prompt_lookup_max"}},
      {R"({"method": "ngram", "Method": "ngram"})", {"'Method'", "not known"}},
      {R"({"method": "ngram", "method": "ngram"})", {"'method'", "twice"}},
      {R"({"method": 5})", {"'method'", "string"}},
      {R"({"method": "ngram", "num_speculative_tokens": "5"})", {"'num_speculative_tokens'", "integer"}},
      {R"({"method": "ngram", "num_speculative_tokens": 5.5})", {"'num_speculative_tokens'", "5.5", "integer"}},
      {R"({"method": "ngram", "num_speculative_tokens": true})", {"'num_speculative_tokens'", "true", "integer"}},
      {R"({"method": "ngram", "num_speculative_tokens": [5]})", {"'num_speculative_tokens'", "integer"}},
      {R"({"method": "ngram", "num_speculative_tokens": 0})", {"'num_speculative_tokens'", "nodes", "1 to 511"}},
      {R"({"method": "ngram", "num_speculative_tokens": -1})", {"'num_speculative_tokens'", "1 to 511"}},
      {R"({"method": "ngram", "num_speculative_tokens": 18446744073709551615})",
       {"'num_speculative_tokens'", "1 to 511"}},
      {R"({"method": "ngram", "num_speculative_tokens": 99999999999999999999999})",
       {"'num_speculative_tokens'", "integer"}},
      {R"({"method": "ngram", "num_speculative_tokens": 1e999})", {"not valid JSON"}},
      {R"({"method": "ngram", "prompt_lookup_min": 4, "prompt_lookup_max": 3})", {"'prompt_lookup_min'", "4", "3"}},
      {R"({"method": "suffix", "prompt_lookup_max": 3})", {"'prompt_lookup_max'", "ngram", "suffix"}},
      {R"({"method": "ngram", "suffix_decoding_min_token_prob": 0.1})", {"'suffix_decoding_min_token_prob'", "suffix"}},
      {R"({"method": "suffix", "suffix_decoding_min_token_prob": 1.5})",
       {"'suffix_decoding_min_token_prob'", "0 to 1"}},
      {R"({"method": "suffix", "suffix_decoding_max_spec_factor": -1})",
       {"'suffix_decoding_max_spec_factor'", "0 to 100"}},
      {R"({"method": "suffix", "model": "small.gguf"})", {"'model'", "small.gguf", "suffix"}},
      {R"({"model": "m", "rejection_sample_method": "synthetic"})",
       {"'rejection_sample_method'", "synthetic", "standard"}},
      {R"({"model": "m", "rejection_sample_method": "block", "draft_sample_method": "greedy"})",
       {"block", "probabilistic"}},
      {R"({"model": "m", "draft_sample_method": "beam"})", {"'draft_sample_method'", "beam", "greedy"}},
      {R"({"model": "m", "kv_cache_dtype": "fp8"})", {"'kv_cache_dtype'", "fp8", "bfloat16"}},
      {R"({"model": "m", "draft_tensor_parallel_size": 2})", {"'draft_tensor_parallel_size'", "2", "only 1"}},
      {R"({"model": "m", "quantization": "awq"})", {"'quantization'", "awq", "only null"}},
      {R"({"model": "m", "parallel_drafting": true})", {"'parallel_drafting'", "eagle3"}},
      {R"({"model": "m", "use_heterogeneous_vocab": true})", {"'use_heterogeneous_vocab'", "only false"}},
      {R"({"model": "m", "enforce_eager": 1})", {"'enforce_eager'", "true or false"}},
      {R"({"model": "m", "synthetic_acceptance_length": 2})", {"'synthetic_acceptance_length'", "not known"}},
      {"{\"method\": \"\xff\"}", {"not valid JSON"}},
  };
  for (const auto& test : cases) {
    const std::string error = error_of(test.json);
    EXPECT_THAT(error, HasSubstr("speculative config")) << test.json;
    for (const std::string& word : test.words) EXPECT_THAT(error, HasSubstr(word)) << test.json;
  }
}

TEST(SpeculativeConfig, DeepAndLargeTexts) {
  EXPECT_THAT(error_of(std::string(20000, '[')), HasSubstr("nested"));
  std::string deep = R"({"method": )";
  for (int i = 0; i < 1000; ++i) deep += R"({"a":)";
  EXPECT_THAT(error_of(deep), HasSubstr("nested"));
  EXPECT_THAT(error_of(R"({"method": "ngram")" + std::string(1 << 20, ' ') + "}"), HasSubstr("bytes"));
  const std::string error = error_of(R"({"model": "m", ")" + std::string(5000, 'x') + R"(": 1})");
  EXPECT_THAT(error, HasSubstr("not known"));
  EXPECT_LT(error.size(), 2000u) << "long texts are cut in messages";
}

// Every beginning of a configuration is refused, and changed ones are taken or refused, nothing else.
TEST(SpeculativeConfig, CutAndChangedTexts) {
  std::mt19937 random(3);
  int taken = 0;
  for (const Case& test : kCases) {
    const std::string whole = test.json;
    for (size_t n = 0; n < whole.size(); ++n) EXPECT_NE(error_of(whole.substr(0, n)), "") << whole.substr(0, n);
    for (int round = 0; round < 500; ++round) {
      std::string text = whole;
      for (int change = 0; change < 1 + round % 3; ++change)
        text[random() % text.size()] = char(random() % (round % 2 ? 128 : 256));
      try {
        const SpecConfig config = config_from_json(text);
        ++taken;
        SpecConfig copy = config;
        for (const SettingInfo& info : setting_infos()) {
          apply_setting(copy, info.name, setting_value(config, info.name));
          ASSERT_EQ(setting_value(copy, info.name), setting_value(config, info.name)) << text;
        }
      } catch (const Error&) {}
    }
  }
  EXPECT_GT(taken, 30);
}

}  // namespace
}  // namespace sx
