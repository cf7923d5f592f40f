#include "formats/hf_writer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"
#include "base/json_text.h"
#include "formats/family.h"
#include "formats/family_settings.h"

namespace sx {
namespace {

using OrderedJson = nlohmann::ordered_json;

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
    case RopeScaling::kLongRope:
      out["rope_type"] = "longrope", out["short_factor"] = rope.factors, out["long_factor"] = rope.long_factors;
      if (rope.attention_factor) out["attention_factor"] = rope.attention_factor;
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
  if (config.family->joint_bias) out.qkv_bias = out.out_bias = config.qkv_bias || config.out_bias;
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
  if (rope.factors.empty() || rope.scaling == RopeScaling::kLongRope) return rope;
  RopeConfig out = rope;
  out.factors.clear();
  const auto near = [](float a, float b) { return std::fabs(a - b) <= 1e-5f * std::fabs(b); };
  const auto same = [&](const std::vector<float>& factors) {
    return std::equal(factors.begin(), factors.end(), rope.factors.begin(), rope.factors.end(), near);
  };
  if (std::all_of(rope.factors.begin(), rope.factors.end(), [&](float f) { return near(1, f); })) return out;
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
  const Family& family = *config.family;
  if (!family.to_hf) fail("{}: folders of {} models are not written", file, family.name);
  if (config.rope.dims != config.head_dim && !family.partial_rotary) {
    fail("{}: only {} of {} dimensions are rotated, which these folders cannot say", file, config.rope.dims,
         config.head_dim);
  }
  OrderedJson out{{"architectures", OrderedJson::array({family.hf_class})}, {"model_type", family.model_type}};
  out["hidden_act"] = activation_name(config.activation);
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
  if (family.joint_bias) out["attention_bias"] = config.qkv_bias;
  out["attention_dropout"] = 0.0;
  out["initializer_range"] = 0.02;
  family.to_hf(config, file, out);
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
