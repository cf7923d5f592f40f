// Gemma 2 and 3: norms before and after attention and feed-forward, whose weights lack 1 in folders; scaled embeddings;
// windows in some layers. Gemma 2 caps scores and logits; Gemma 3 has norms of q and k and a RoPE for windowed layers.
#include <cmath>

#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kGemmaNames[] = {{"post_attention_layernorm", "post_attention_norm"},
                                      {"pre_feedforward_layernorm", "ffn_norm"},
                                      {"post_feedforward_layernorm", "post_ffw_norm"}};

void gemma_common(ModelConfig& config) {
  config.attention_post_norm = config.ffn_post_norm = true;
  config.activation = Activation::kGeluTanh;
  config.embedding_scale = std::sqrt(static_cast<float>(config.width));
}

// GGUF files do not say by what queries are divided. It is the head size, but for the 27B models; where it is something
// else, we write a key of Granite's.
float scale_of_size(const ModelConfig& config, int layers_of_27b) {
  const int divisor = config.layers == layers_of_27b ? config.width / config.heads : config.head_dim;
  return 1 / std::sqrt(static_cast<float>(divisor));
}

void scale_by_key(const HfSettings& in, ModelConfig& config) {
  config.attention_scale = 1 / std::sqrt(in.number_or("query_pre_attn_scalar", 256));
}

void gemma2_from_gguf(const GgufSettings& in, ModelConfig& config) {
  gemma_common(config);
  config.attention_scale = in.number_or("attention.scale", scale_of_size(config, 46));
  config.attention_soft_cap = in.number_or("attn_logit_softcapping", 50);
  config.final_soft_cap = in.number_or("final_logit_softcapping", 30);
  read_gguf_window(in, config, 2);
}

void gemma2_from_hf(const HfSettings& in, ModelConfig& config) {
  gemma_common(config);
  scale_by_key(in, config);
  const auto cap = [&](const char* key, double value) {
    return in.json().contains(key) ? in.number_or(key, 0) : float(value);
  };
  config.attention_soft_cap = cap("attn_logit_softcapping", 50);
  config.final_soft_cap = cap("final_logit_softcapping", 30);
  read_hf_window(in, config, in.integer("sliding_window").value_or(4096), every_nth_full(config.layers, 2));
}

void gemma3_from_gguf(const GgufSettings& in, ModelConfig& config) {
  gemma_common(config);
  config.qk_norm = HeadNorm::kEach;
  config.attention_scale = in.number_or("attention.scale", scale_of_size(config, 62));
  config.final_soft_cap = in.number_or("final_logit_softcapping", 0);
  config.rope.base = in.number("rope.freq_base").value_or(1000000);
  read_gguf_window(in, config, 6);
  RopeConfig local;
  local.style = config.rope.style, local.dims = config.rope.dims;
  local.base = in.number("rope.freq_base_swa").value_or(10000);
  set_window_rope(config, local);
}

void gemma3_from_hf(const HfSettings& in, ModelConfig& config) {
  gemma_common(config);
  config.qk_norm = HeadNorm::kEach;
  scale_by_key(in, config);
  if (in.number("attn_logit_softcapping")) fail("{}: Gemma 3 has no 'attn_logit_softcapping'", in.file());
  config.final_soft_cap = in.number_or("final_logit_softcapping", 0);
  if (in.flag("use_bidirectional_attention").value_or(false))
    fail("{}: key 'use_bidirectional_attention' is true; only causal attention is supported", in.file());
  const int period = in.integer("sliding_window_pattern").value_or(6);
  read_hf_window(in, config, in.integer("sliding_window").value_or(4096), every_nth_full(config.layers, period));
  read_hf_window_rope(in, config, in.number("rope_local_base_freq").value_or(10000));
}

void add_common_keys(const ModelConfig& config, const std::string& prefix, int layers_of_27b, GgufKeys& keys) {
  if (config.attention_scale != scale_of_size(config, layers_of_27b))
    keys.add_f32(prefix + ".attention.scale", config.attention_scale);
  if (config.attention_soft_cap > 0) keys.add_f32(prefix + ".attn_logit_softcapping", config.attention_soft_cap);
  if (config.final_soft_cap > 0) keys.add_f32(prefix + ".final_logit_softcapping", config.final_soft_cap);
}

void gemma2_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  add_common_keys(config, prefix, 46, keys);
}

void gemma3_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  add_common_keys(config, prefix, 62, keys);
  if (!config.more_ropes.empty())
    keys.add_f32(prefix + ".rope.freq_base_swa", static_cast<float>(config.more_ropes[0].base));
}

void gemma_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  const auto or_null = [](float cap) {
    return cap > 0 ? nlohmann::ordered_json(cap) : nlohmann::ordered_json(nullptr);
  };
  out["hidden_activation"] = out["hidden_act"];
  out["query_pre_attn_scalar"] = 1 / (static_cast<double>(config.attention_scale) * config.attention_scale);
  out["attn_logit_softcapping"] = or_null(config.attention_soft_cap);
  out["final_logit_softcapping"] = or_null(config.final_soft_cap);
  if (!config.more_ropes.empty()) out["rope_local_base_freq"] = config.more_ropes[0].base;
  write_hf_window(config, out);
}

}  // namespace

const Family kGemma2 = {.name = "gemma2",
                        .gguf = "gemma2",
                        .hf_class = "Gemma2ForCausalLM",
                        .model_type = "gemma2",
                        .gguf_style = RopeStyle::kHalves,
                        .from_gguf = gemma2_from_gguf,
                        .from_hf = gemma2_from_hf,
                        .to_gguf = gemma2_to_gguf,
                        .to_hf = gemma_to_hf,
                        .names = kGemmaNames,
                        .activation = Activation::kGeluTanh,
                        .head_dim = 256,
                        .tied = true,
                        .norm_offset = 1};

const Family kGemma3 = {.name = "gemma3",
                        .gguf = "gemma3",
                        .hf_class = "Gemma3ForCausalLM",
                        .model_type = "gemma3_text",
                        .gguf_style = RopeStyle::kHalves,
                        .from_gguf = gemma3_from_gguf,
                        .from_hf = gemma3_from_hf,
                        .to_gguf = gemma3_to_gguf,
                        .to_hf = gemma_to_hf,
                        .names = kGemmaNames,
                        .activation = Activation::kGeluTanh,
                        .head_dim = 256,
                        .rope_base = 1000000,
                        .tied = true,
                        .norm_offset = 1,
                        .layer_ropes = true};

}  // namespace sx
