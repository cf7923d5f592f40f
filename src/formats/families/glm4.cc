// GLM-4 (0414): norms before and after attention and feed-forward, half of each head rotated in neighbouring pairs.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kGlm4Names[] = {{"post_self_attn_layernorm", "post_attention_norm"},
                                     {"post_mlp_layernorm", "post_ffw_norm"},
                                     {"mlp.gate_up_proj", "ffn_gate_up"}};

void glm4_from_gguf(const GgufSettings&, ModelConfig& config) {
  config.attention_post_norm = config.ffn_post_norm = true;
}

void glm4_from_hf(const HfSettings& in, ModelConfig& config) {
  config.attention_post_norm = config.ffn_post_norm = true;
  config.out_bias = false;
  if (!in.member("partial_rotary_factor") && !in.member("rope_parameters")) config.rope.dims = config.head_dim / 2;
}

}  // namespace

const Family kGlm4 = {.name = "glm4",
                      .gguf = "glm4",
                      .hf_class = "Glm4ForCausalLM",
                      .model_type = "glm4",
                      .gguf_style = RopeStyle::kInterleaved,
                      .hf_style = RopeStyle::kInterleaved,
                      .from_gguf = glm4_from_gguf,
                      .from_hf = glm4_from_hf,
                      .to_gguf = no_more_keys,
                      .names = kGlm4Names,
                      .head_dim = 128,
                      .fused = true,
                      .partial_rotary = true};

}  // namespace sx
