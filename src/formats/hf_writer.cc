#include "formats/hf_writer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/json_text.h"

namespace sx {
namespace {

using OrderedJson = nlohmann::ordered_json;

struct Class {
  const char *name, *model_type;
};

Class class_of(const ModelConfig& config, const std::string& file) {
  const bool biases = config.qkv_bias || config.out_bias;
  switch (config.arch) {
    case Arch::kQwen2:
      if (config.out_bias || config.mlp_bias || config.qk_norm)
        fail("{}: Qwen2 folders have biases in q, k and v only", file);
      return {"Qwen2ForCausalLM", "qwen2"};
    case Arch::kQwen3:
      if (config.mlp_bias) fail("{}: Qwen3 folders have no biases in the feed-forward layers", file);
      return {"Qwen3ForCausalLM", "qwen3"};
    case Arch::kLlama: break;
  }
  if (config.qk_norm) fail("{}: norms of q and k exist in Qwen3 folders only", file);
  if (config.window == 0) return {"LlamaForCausalLM", "llama"};
  if (biases || config.mlp_bias) fail("{}: a window and biases together exist in no Llama or Mistral folder", file);
  return {"MistralForCausalLM", "mistral"};
}

OrderedJson scaling_of(const RopeConfig& rope) {
  OrderedJson out;
  const auto original = [&] {
    if (rope.original_context) out["original_max_position_embeddings"] = rope.original_context;
  };
  switch (rope.scaling) {
    case RopeScaling::kNone: return nullptr;
    case RopeScaling::kLinear: return {{"rope_type", "linear"}, {"factor", rope.factor}};
    case RopeScaling::kDynamic: return {{"rope_type", "dynamic"}, {"factor", rope.factor}};
    case RopeScaling::kLlama3:
      out = {{"rope_type", "llama3"},
             {"factor", rope.factor},
             {"low_freq_factor", rope.low_frequency_factor},
             {"high_freq_factor", rope.high_frequency_factor}};
      original();
      return out;
    case RopeScaling::kYarn:
      out = {{"rope_type", "yarn"}, {"factor", rope.factor}};
      original();
      out["beta_fast"] = rope.beta_fast;
      out["beta_slow"] = rope.beta_slow;
      if (rope.attention_factor) out["attention_factor"] = rope.attention_factor;
      if (rope.mscale) out["mscale"] = rope.mscale;
      if (rope.mscale_all_dim) out["mscale_all_dim"] = rope.mscale_all_dim;
      if (!rope.yarn_truncate) out["truncate"] = false;
      return out;
  }
  return nullptr;
}

void add_window(const ModelConfig& config, OrderedJson& out) {
  const bool qwen = config.arch != Arch::kLlama;
  if (!qwen && config.window == 0) return;
  if (qwen) out["use_sliding_window"] = config.window > 0;
  out["sliding_window"] = config.window ? OrderedJson(config.window) : OrderedJson(nullptr);
  if (config.window == 0) return;
  const auto windowed = [&](int layer) {
    return config.windowed_layers.empty() || config.windowed_layers[static_cast<size_t>(layer)];
  };
  int first = 0;  // layers from here on are windowed, where such a number exists
  while (first < config.layers && !windowed(first)) ++first;
  if (qwen) out["max_window_layers"] = first;
  if (!qwen && config.windowed_layers.empty()) return;
  out["layer_types"] = OrderedJson::array();
  for (int i = 0; i < config.layers; ++i)
    out["layer_types"].push_back(windowed(i) ? "sliding_attention" : "full_attention");
}

// The shortest decimal that reads back as this float, as a double: 1e-05 rather than 9.99999974e-06.
double shortest(float value) { return std::stod(fmt::format("{}", value)); }

void add_ids(const TokenizerData& tokenizer, OrderedJson& out) {
  if (tokenizer.bos >= 0) out["bos_token_id"] = tokenizer.bos;
  if (tokenizer.eos >= 0) out["eos_token_id"] = tokenizer.eos;
  if (tokenizer.pad >= 0) out["pad_token_id"] = tokenizer.pad;
}

const char* torch_name(DType type) {
  return type == DType::kBF16 ? "bfloat16" : type == DType::kF16 ? "float16" : "float32";
}

}  // namespace

ModelConfig with_hf_biases(const ModelConfig& config) {
  ModelConfig out = config;
  if (config.arch != Arch::kQwen2) out.qkv_bias = out.out_bias = config.qkv_bias || config.out_bias;
  return out;
}

std::vector<float> llama3_factors(const RopeConfig& rope) {
  std::vector<float> out;
  const double context = rope.original_context;
  for (int i = 0; i < rope.dims / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(rope.base, 2.0 * i / rope.dims);
    const double smooth =
        (context / wave - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
    double factor = 1 / ((1 - smooth) / rope.factor + smooth);
    if (wave < context / rope.high_frequency_factor) factor = 1;
    if (wave > context / rope.low_frequency_factor) factor = rope.factor;
    out.push_back(static_cast<float>(factor));
  }
  return out;
}

RopeConfig rope_without_factors(const RopeConfig& rope, const std::string& file) {
  if (rope.factors.empty()) return rope;
  RopeConfig out = rope;
  out.factors.clear();
  const auto same = [&](const std::vector<float>& factors) {
    return std::equal(factors.begin(), factors.end(), rope.factors.begin(), rope.factors.end(),
                      [](float a, float b) { return std::fabs(a - b) <= 1e-5f * std::fabs(b); });
  };
  if (same(std::vector<float>(rope.factors.size(), 1.0f))) return out;
  // The divisors alone are in the file. All published models blend between 1/4 and 1 of some power of two.
  out.scaling = RopeScaling::kLlama3;
  out.factor = static_cast<double>(*std::max_element(rope.factors.begin(), rope.factors.end()));
  out.low_frequency_factor = 1, out.high_frequency_factor = 4;
  for (out.original_context = 64; out.original_context <= 1 << 24; out.original_context *= 2) {
    if (rope.scaling == RopeScaling::kNone && same(llama3_factors(out))) return out;
  }
  fail(
      "{}: the RoPE divisors (rope_freqs.weight) are not those of Llama 3's scaling, and a folder can say nothing else",
      file);
}

std::string config_to_json(const ModelConfig& given, const TokenizerData& tokenizer, DType type,
                           const std::string& file) {
  ModelConfig config = with_hf_biases(given);
  config.rope = rope_without_factors(given.rope, file);
  if (config.rope.dims != config.head_dim) {
    fail("{}: only {} of {} dimensions are rotated, which these folders cannot say", file, config.rope.dims,
         config.head_dim);
  }
  const Class kind = class_of(config, file);
  OrderedJson out{{"architectures", OrderedJson::array({kind.name})}, {"model_type", kind.model_type}};
  out["hidden_act"] = "silu";
  out["hidden_size"] = config.width;
  out["intermediate_size"] = config.ffn;
  out["num_hidden_layers"] = config.layers;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["vocab_size"] = config.vocab;
  out["max_position_embeddings"] = config.context;
  out["rms_norm_eps"] = shortest(config.norm_eps);
  out["rope_theta"] = config.rope.base;
  out["rope_scaling"] = scaling_of(config.rope);
  out["tie_word_embeddings"] = config.tied_head;
  if (config.arch != Arch::kQwen2) out["attention_bias"] = config.qkv_bias;
  if (config.arch == Arch::kLlama) out["mlp_bias"] = config.mlp_bias;
  out["attention_dropout"] = 0.0;
  out["initializer_range"] = 0.02;
  add_window(config, out);
  add_ids(tokenizer, out);
  out["torch_dtype"] = torch_name(type);
  out["use_cache"] = true;
  return out.dump(2) + "\n";
}

std::string generation_config_to_json(const TokenizerData& tokenizer) {
  OrderedJson out{{"_from_model_config", true}};
  add_ids(tokenizer, out);
  if (tokenizer.eos >= 0 && tokenizer.eot >= 0 && tokenizer.eot != tokenizer.eos) {
    out["eos_token_id"] = {tokenizer.eos, tokenizer.eot};
  }
  return out.dump(2) + "\n";
}

}  // namespace sx
