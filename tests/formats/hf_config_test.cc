// config.json in all its spellings, and the translation of tensor names.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "expect_error.h"
#include "formats/hf_config.h"
#include "formats/validate.h"
#include "support/model_writer.h"

namespace sx::testing {
namespace {

using nlohmann::json;
constexpr const char* kName = "folder/config.json";

json sample(const std::string& arch = "llama") {
  TinySpec spec;
  spec.arch = arch;
  return json::parse(tiny_config_json(spec));
}

ModelConfig read(const json& value) {
  const ModelConfig config = config_from_json(value.dump(), kName);
  validate_config(config, kName);
  return config;
}

json with(json base, const char* key, json value) {
  base[key] = std::move(value);
  return base;
}

json without(json base, const char* key) {
  base.erase(key);
  return base;
}

void refuse(const json& value, std::initializer_list<std::string> parts) {
  expect_error([&] { read(value); }, {kName}, value.dump());
  expect_error([&] { read(value); }, parts, value.dump());
}

TEST(HfConfig, Sizes) {
  const ModelConfig config = read(sample());
  EXPECT_EQ(config.arch_name, "llama");
  EXPECT_EQ(config.layers, 2);
  EXPECT_EQ(config.width, 64);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_EQ(config.rope.style, RopeStyle::kHalves);
  EXPECT_EQ(read(without(sample(), "head_dim")).head_dim, 16);
  EXPECT_EQ(read(with(sample(), "head_dim", 32)).head_dim, 32);
  EXPECT_EQ(read(with(sample(), "head_dim", nullptr)).head_dim, 16);
  EXPECT_EQ(read(without(sample("qwen3"), "head_dim")).head_dim, 128);
  EXPECT_EQ(read(without(sample(), "num_key_value_heads")).kv_heads, 4);
  EXPECT_FLOAT_EQ(read(without(sample(), "rms_norm_eps")).norm_eps, 1e-6f);
  EXPECT_FALSE(read(without(sample(), "tie_word_embeddings")).tied_head);
  EXPECT_EQ(read(without(sample("mistral"), "architectures")).arch_name, "mistral");
}

TEST(HfConfig, Biases) {
  EXPECT_FALSE(read(sample()).qkv_bias);
  const ModelConfig llama = read(with(with(sample(), "attention_bias", true), "mlp_bias", true));
  EXPECT_TRUE(llama.qkv_bias && llama.out_bias && llama.mlp_bias);
  const ModelConfig qwen2 = read(sample("qwen2"));
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.out_bias || qwen2.qk_norm != HeadNorm::kNone);
  const ModelConfig qwen3 = read(with(sample("qwen3"), "attention_bias", true));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.out_bias && qwen3.qk_norm == HeadNorm::kEach);
}

TEST(HfConfig, RopeOldAndNewSpelling) {
  for (const char* type_key : {"type", "rope_type"}) {
    const RopeConfig rope = read(with(sample(), "rope_scaling", {{type_key, "linear"}, {"factor", 8}})).rope;
    EXPECT_EQ(rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(rope.factor, 8);
    EXPECT_EQ(rope.base, 10000);
  }
  const json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192},
                       {"rope_theta", 500000.0}};
  const RopeConfig newer = read(with(without(sample(), "rope_theta"), "rope_parameters", llama3)).rope;
  EXPECT_EQ(newer.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(newer.base, 500000);
  EXPECT_EQ(newer.original_context, 8192);
  EXPECT_EQ(newer.high_frequency_factor, 4);
  const RopeConfig plain =
      read(with(sample(), "rope_parameters", {{"rope_type", "default"}, {"rope_theta", 1e6}})).rope;
  EXPECT_EQ(plain.scaling, RopeScaling::kNone);
  EXPECT_EQ(plain.base, 1e6);
  const RopeConfig dynamic = read(with(sample(), "rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}})).rope;
  EXPECT_EQ(dynamic.scaling, RopeScaling::kDynamic);
  EXPECT_EQ(dynamic.original_context, 2048);
  const json yarn = {{"rope_type", "yarn"},     {"factor", 4.0},   {"original_max_position_embeddings", 512},
                     {"attention_factor", 1.2}, {"beta_fast", 16}, {"mscale", 0.7},
                     {"truncate", false}};
  const RopeConfig stretched = read(with(sample(), "rope_scaling", yarn)).rope;
  EXPECT_EQ(stretched.scaling, RopeScaling::kYarn);
  EXPECT_EQ(stretched.attention_factor, 1.2);
  EXPECT_EQ(stretched.beta_fast, 16);
  EXPECT_EQ(stretched.beta_slow, 1);
  EXPECT_EQ(stretched.mscale, 0.7);
  EXPECT_FALSE(stretched.yarn_truncate);
  json derived = yarn;
  derived["factor"] = nullptr;
  EXPECT_EQ(read(with(sample(), "rope_scaling", derived)).rope.factor, 4);
  EXPECT_EQ(read(with(sample(), "rope_scaling", nullptr)).rope.scaling, RopeScaling::kNone);
}

TEST(HfConfig, RefusesBadRope) {
  const auto scaling = [](json value) { return with(sample(), "rope_scaling", std::move(value)); };
  refuse(scaling({{"type", "longrope"}, {"factor", 2}}), {"longrope"});
  refuse(scaling({{"type", "linear"}}), {"linear", "factor"});
  refuse(scaling({{"type", "linear"}, {"factor", 0}}), {"factor"});
  refuse(scaling({{"type", "linear"}, {"factor", -2}}), {"factor"});
  refuse(scaling({{"type", "linear"}, {"factor", "2"}}), {"factor"});
  refuse(scaling({{"type", 3}, {"factor", 2}}), {"type"});
  refuse(scaling({{"rope_type", "llama3"}, {"factor", 2}}), {"low_freq_factor"});
  refuse(scaling({{"rope_type", "llama3"}, {"factor", 2}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
         {"frequency"});
  refuse(scaling(7), {"rope_scaling"});
  refuse(with(sample(), "rope_theta", 0), {"base"});
  refuse(with(sample(), "partial_rotary_factor", 0.5), {"partial_rotary_factor"});
  refuse(with(sample(), "rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}), {"layer types"});
}

TEST(HfConfig, Windows) {
  EXPECT_EQ(read(sample("mistral")).window, 0);
  EXPECT_EQ(read(with(sample("mistral"), "sliding_window", 128)).window, 128);
  EXPECT_TRUE(read(with(sample("mistral"), "sliding_window", 128)).each.empty());
  EXPECT_EQ(read(without(sample("mistral"), "sliding_window")).window, 4096);
  EXPECT_EQ(read(with(sample(), "sliding_window", 128)).window, 0);         // llama has none
  EXPECT_EQ(read(with(sample("qwen2"), "sliding_window", 128)).window, 0);  // switched off
  json qwen = with(with(sample("qwen2"), "sliding_window", 128), "use_sliding_window", true);
  EXPECT_EQ(windowed_layers(read(with(qwen, "max_window_layers", 1))), (std::vector<uint8_t>{0, 1}));
  EXPECT_EQ(read(with(qwen, "max_window_layers", 2)).window, 0);
  const ModelConfig all = read(with(qwen, "max_window_layers", 0));
  EXPECT_EQ(all.window, 128);
  EXPECT_TRUE(all.each.empty());
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(windowed_layers(read(qwen)), (std::vector<uint8_t>{1, 0}));
  qwen["layer_types"] = {"sliding_attention"};
  refuse(qwen, {"layer_types", "2 layers"});
  qwen["layer_types"] = {"sliding_attention", "linear_attention"};
  refuse(qwen, {"linear_attention"});
  qwen["layer_types"] = {1, 2};
  refuse(qwen, {"number"});
}

TEST(HfConfig, RefusesForeignModels) {
  refuse(with(sample(), "architectures", {"AbacusForCausalLM"}), {"AbacusForCausalLM", "llama", "gemma3"});
  refuse(with(sample(), "architectures", {"GPT2LMHeadModel"}), {"GPT2LMHeadModel", "learned position embeddings"});
  refuse(with(sample(), "architectures", {"Qwen3NextForCausalLM"}), {"Qwen3NextForCausalLM", "gated delta net"});
  refuse(with(sample(), "architectures", json::array()), {"architectures"});
  refuse(with(sample(), "architectures", {1}), {"architectures"});
  refuse(with(without(sample(), "architectures"), "model_type", "bert"), {"bert"});
  refuse(with(sample(), "hidden_act", "gelu"), {"hidden_act", "gelu"});
  refuse(with(sample(), "quantization_config", {{"quant_method", "gptq"}}), {"quantization_config"});
}

// What published families would need that cannot be run, in one line.
TEST(HfConfig, NamesWhatAFamilyLacks) {
  const std::pair<const char*, const char*> lacks[] = {
      {"Qwen3NextForCausalLM", "gated delta net layers"}, {"DeepseekV3ForCausalLM", "latent attention (MLA)"},
      {"Gemma4ForCausalLM", "head sizes that differ"},    {"FalconH1ForCausalLM", "state-space layers (Mamba 2)"},
      {"Lfm2ForCausalLM", "convolution layers"},          {"Qwen2MoeForCausalLM", "shared experts"},
      {"KimiLinearForCausalLM", "delta attention"},       {"RwkvForCausalLM", "recurrent layers (RWKV)"}};
  for (const auto& [arch, parts] : lacks) {
    refuse(with(sample(), "architectures", json::array({arch})), {arch, parts, "missing here"});
    try {
      read(with(sample(), "architectures", json::array({arch})));
    } catch (const Error& error) { EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what(); }
  }
}

// Granite 4 is run where all of its layers are attention.
TEST(HfConfig, GraniteWithoutMamba) {
  json config = sample();
  config["architectures"] = {"GraniteMoeHybridForCausalLM"}, config["model_type"] = "granitemoehybrid";
  config["shared_intermediate_size"] = 96, config["num_local_experts"] = 0;
  config["layer_types"] = {"attention", "attention"}, config["position_embedding_type"] = "rope";
  EXPECT_EQ(read(config).ffn, 96);
  EXPECT_EQ(read(config).layer(1).rope, 0);
  EXPECT_EQ(read(with(config, "position_embedding_type", "nope")).layer(1).rope, kNoRope);
  refuse(with(config, "layer_types", {"mamba", "attention"}), {"state-space layers (Mamba 2)"});
  refuse(with(config, "layer_types", {"attention"}), {"state-space layers"});
  refuse(without(config, "layer_types"), {"state-space layers"});
  refuse(with(config, "num_local_experts", 8), {"num_local_experts", "experts"});
}

// Queries grow with multiples of the original context; HunYuan's alpha stretches the base, whatever the length.
TEST(HfConfig, GrowingQueriesAndAlpha) {
  json config = sample();
  config["architectures"] = {"Ministral3ForCausalLM"}, config["model_type"] = "ministral3";
  config["rope_parameters"] = {{"rope_type", "yarn"},
                               {"rope_theta", 1e6},
                               {"factor", 16.0},
                               {"original_max_position_embeddings", 16384},
                               {"llama_4_scaling_beta", 0.1}};
  EXPECT_FLOAT_EQ(read(config).query_growth, 0.1f);
  EXPECT_EQ(read(config).query_period, 16384);
  config["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_EQ(read(config).query_growth, 0);
  config["rope_parameters"]["llama_4_scaling_beta"] = -1;
  refuse(config, {"the growth of queries"});

  config = sample();
  config["architectures"] = {"HunYuanDenseV1ForCausalLM"}, config["model_type"] = "hunyuan_v1_dense";
  config["head_dim"] = 128;
  config["rope_scaling"] = {{"type", "dynamic"}, {"factor", 1.0}, {"alpha", 1000.0}};
  EXPECT_EQ(read(config).qk_norm, HeadNorm::kBehind);
  EXPECT_EQ(read(config).rope.scaling, RopeScaling::kNone);
  EXPECT_NEAR(read(config).rope.base, 11158839.9, 1);
  config["rope_scaling"]["alpha"] = -3;
  refuse(config, {"alpha"});
}

TEST(HfConfig, RefusesEveryBadNumber) {
  for (const char* key : {"num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "vocab_size",
                          "max_position_embeddings"}) {
    refuse(without(sample(), key), {key, "missing"});
    for (const json& value : {json(0), json(-1), json(2147483648ll), json(18446744073709551615ull), json("8"),
                              json(1.5), json::array({1}), json(true), json(2147483647)}) {
      refuse(with(sample(), key, value), {});
    }
  }
  refuse(with(sample(), "num_key_value_heads", 3), {"KV heads"});
  refuse(with(sample(), "head_dim", 15), {"odd"});
  refuse(with(sample(), "rms_norm_eps", 0), {"epsilon"});
  refuse(with(sample(), "tie_word_embeddings", "yes"), {"tie_word_embeddings"});
}

TEST(HfConfig, RefusesBrokenJson) {
  const auto broken = [](const std::string& text, std::initializer_list<std::string> parts) {
    expect_error([&] { config_from_json(text, kName); }, {kName});
    expect_error([&] { config_from_json(text, kName); }, parts);
  };
  broken("", {"JSON"});
  broken("[]", {"object"});
  broken("{\"rms_norm_eps\": NaN}", {"JSON"});
  broken("{\"rms_norm_eps\": 1e999}", {"JSON"});
  broken("{\"a\": \"\xc3\x28\"}", {"JSON"});
  broken("{\"hidden_size\": 1, \"hidden_size\": 2}", {"hidden_size", "twice"});
  broken(std::string(1'000'000, '['), {"deep"});
  std::string objects;
  for (int i = 0; i < 1000; ++i) objects += "{\"a\":";
  broken(objects, {"deep"});
  const std::string whole = sample().dump();
  for (size_t size = 0; size < whole.size(); ++size) {
    expect_error([&] { config_from_json(whole.substr(0, size), kName); }, {kName}, std::to_string(size));
  }
}

TEST(HfConfig, TokenIds) {
  TokenizerData data;
  data.vocab = 100;
  token_ids_from_json(R"({"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": null})", kName, data);
  EXPECT_EQ(data.bos, 1);
  EXPECT_EQ(data.eos, 2);
  EXPECT_EQ(data.pad, -1);
  token_ids_from_json(R"({"pad_token_id": -1, "eos_token_id": []})", kName, data);
  EXPECT_EQ(data.eos, -1);
  for (const char* value : {"100", "-2", "[1, 100]", "[-1]", "\"1\"", "1.5", "18446744073709551615", "[[1]]", "{}"}) {
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
      expect_error([&] { token_ids_from_json(fmt::format("{{\"{}\": {}}}", key, value), kName, data); }, {kName, key});
    }
  }
}

TEST(HfConfig, ChatTemplates) {
  EXPECT_EQ(chat_template_from_json("{}", kName), "");
  EXPECT_EQ(chat_template_from_json(R"({"chat_template": "x"})", kName), "x");
  EXPECT_EQ(chat_template_from_json(R"({"chat_template": [{"name": "tool", "template": "t"},
                                       {"name": "default", "template": "d"}]})",
                                    kName),
            "d");
  expect_error([&] { chat_template_from_json(R"({"chat_template": 1})", kName); }, {kName, "chat_template"});
  expect_error([&] { chat_template_from_json(R"({"chat_template": [{"name": "a"}]})", kName); }, {kName, "template"});
  expect_error([&] { chat_template_from_json(R"({"chat_template": [1]})", kName); }, {kName, "template"});
}

TEST(HfConfig, Names) {
  TinySpec spec;
  spec.arch = "qwen3";
  spec.qkv_bias = spec.out_bias = spec.mlp_bias = true;
  for (const auto& tensor : tiny_tensors(spec)) EXPECT_EQ(canonical_name(tensor.hf_name), tensor.name);
  EXPECT_EQ(canonical_name("model.layers.31.self_attn.k_proj.bias"), "blk.31.attn_k.bias");
  for (const char* name :
       {"", "model.layers.", "model.layers.x.mlp.up_proj.weight", "model.layers.1.mlp.up_proj",
        "model.layers.01.mlp.up_proj.weight", "model.layers..mlp.up_proj.weight", "blk.0.attn_q.weight",
        "model.layers.99999.mlp.up_proj.weight", "model.layers.-1.mlp.up_proj.weight"}) {
    EXPECT_FALSE(canonical_name(name)) << name;
  }
  EXPECT_TRUE(is_ignored_name("model.layers.0.self_attn.rotary_emb.inv_freq"));
}

}  // namespace
}  // namespace sx::testing
