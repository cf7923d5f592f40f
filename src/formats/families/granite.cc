// Granite 3: a Llama with multipliers of embeddings, residuals, attention and logits. Granite 4 without Mamba layers:
// the same with gate and up in one matrix, perhaps without RoPE; in GGUF the two are one.
#include <cmath>

#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kGranite4Names[] = {{"shared_mlp.input_linear", "ffn_gate_up"},
                                         {"shared_mlp.output_linear", "ffn_down"}};

void granite_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.embedding_scale = in.number_or("embedding_scale", 1);
  config.residual_scale = in.number_or("residual_scale", 1);
  config.attention_scale = in.number_or("attention.scale", 0);
  config.logit_scale = 1 / in.number_or("logit_scale", 1);
  if (!in.file().get_bool(in.name("rope.scaling.finetuned")).value_or(true)) config.LayerParts::rope = kNoRope;
}

void granite_from_hf(const HfSettings& in, ModelConfig& config) {
  config.mlp_bias = in.flag("mlp_bias").value_or(false);
  config.embedding_scale = in.number_or("embedding_multiplier", 1);
  config.residual_scale = in.number_or("residual_multiplier", 1);
  config.attention_scale = in.number_or("attention_multiplier", 1);
  config.logit_scale = 1 / in.number_or("logits_scaling", 1);
}

// Layers of attention only, whose feed-forward is called that of a shared expert of none.
void granite4_from_hf(const HfSettings& in, ModelConfig& config) {
  granite_from_hf(in, config);
  config.mlp_bias = false;
  config.ffn = in.required("shared_intermediate_size");
  const Json* types = in.member("layer_types");
  bool attention = types && types->is_array() && types->size() == static_cast<size_t>(config.layers);
  for (size_t i = 0; attention && i < types->size(); ++i)
    attention = (*types)[i] == "attention" || (*types)[i] == "full_attention";
  if (!attention) fail("{}: {}", in.file(), why_unsupported("GraniteMoeHybridForCausalLM"));
  if (in.integer("num_local_experts").value_or(8) > 0)
    fail("{}: key 'num_local_experts': experts beside a shared one are not supported", in.file());
  const bool rotated = in.text("position_embedding_type").value_or("") == "rope";
  if (!rotated) config.LayerParts::rope = kNoRope;
}

void granite_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  keys.add_f32(prefix + ".embedding_scale", config.embedding_scale);
  keys.add_f32(prefix + ".residual_scale", config.residual_scale);
  if (config.attention_scale > 0) keys.add_f32(prefix + ".attention.scale", config.attention_scale);
  keys.add_f32(prefix + ".logit_scale", 1 / config.logit_scale);
  if (config.layer(0).rope == kNoRope) keys.add_bool(prefix + ".rope.scaling.finetuned", false);
}

void granite_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json& out) {
  if (config.layer(0).rope == kNoRope) fail("{}: Granite folders that are written here have RoPE", file);
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

const Family kGranite4 = {.name = "granite4",
                          .gguf = "granite",
                          .hf_class = "GraniteMoeHybridForCausalLM",
                          .model_type = "granitemoehybrid",
                          .gguf_style = RopeStyle::kInterleaved,
                          .from_hf = granite4_from_hf,
                          .to_gguf = granite_to_gguf,
                          .names = kGranite4Names,
                          .fused = true,
                          .joint_bias = true};

}  // namespace sx
