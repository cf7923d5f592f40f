// Granite 3: a Llama with multipliers of embeddings, residuals, attention and logits.
#include <cmath>

#include "formats/families/families.h"

namespace sx {
namespace {

void granite_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.embedding_scale = in.number_or("embedding_scale", 1);
  config.residual_scale = in.number_or("residual_scale", 1);
  config.attention_scale = in.number_or("attention.scale", 0);
  config.logit_scale = 1 / in.number_or("logit_scale", 1);
}

void granite_from_hf(const HfSettings& in, ModelConfig& config) {
  config.mlp_bias = in.flag("mlp_bias").value_or(false);
  config.embedding_scale = in.number_or("embedding_multiplier", 1);
  config.residual_scale = in.number_or("residual_multiplier", 1);
  config.attention_scale = in.number_or("attention_multiplier", 1);
  config.logit_scale = 1 / in.number_or("logits_scaling", 1);
}

void granite_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  keys.add_f32(prefix + ".embedding_scale", config.embedding_scale);
  keys.add_f32(prefix + ".residual_scale", config.residual_scale);
  if (config.attention_scale > 0) keys.add_f32(prefix + ".attention.scale", config.attention_scale);
  keys.add_f32(prefix + ".logit_scale", 1 / config.logit_scale);
}

void granite_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["mlp_bias"] = config.mlp_bias;
  out["embedding_multiplier"] = config.embedding_scale;
  out["residual_multiplier"] = config.residual_scale;
  out["attention_multiplier"] =
      config.attention_scale > 0 ? config.attention_scale : 1 / std::sqrt(static_cast<float>(config.head_dim));
  out["logits_scaling"] = 1 / config.logit_scale;
}

}  // namespace

const Family kGranite = {.name = "granite",
                         .gguf = "granite",
                         .hf_class = "GraniteForCausalLM",
                         .model_type = "granite",
                         .gguf_style = RopeStyle::kInterleaved,
                         .from_gguf = granite_from_gguf,
                         .from_hf = granite_from_hf,
                         .to_gguf = granite_to_gguf,
                         .to_hf = granite_to_hf,
                         .joint_bias = true};

}  // namespace sx
