// Phi-3 and Phi-4-mini: fused matrices, longrope, part of each head rotated.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kPhi3Names[] = {{"self_attn.qkv_proj", "attn_qkv"}, {"mlp.gate_up_proj", "ffn_gate_up"}};

void phi3_from_gguf(const GgufSettings& in, ModelConfig& config) {
  read_gguf_window(in, config);
  RopeConfig& rope = config.rope;
  rope.factors = in.floats("rope_factors_short.weight", rope.dims / 2);
  rope.long_factors = in.floats("rope_factors_long.weight", rope.dims / 2);
  if (rope.long_factors.empty()) return;
  if (rope.original_context > 0) rope.factor = double(config.context) / rope.original_context;
  rope.scaling = RopeScaling::kLongRope;
  rope.attention_factor = in.number("rope.scaling.attn_factor").value_or(0);
}

void phi3_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qkv_bias = config.out_bias = false;
  read_hf_window(in, config, in.integer("sliding_window").value_or(0));
  RopeConfig& rope = config.rope;
  if (rope.scaling != RopeScaling::kLongRope) return;
  rope.original_context = in.integer("original_max_position_embeddings").value_or(rope.original_context);
  if (rope.original_context > 0) rope.factor = double(config.context) / rope.original_context;
}

void phi3_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  if (config.rope.attention_factor > 0)
    keys.add_f32(prefix + ".rope.scaling.attn_factor", static_cast<float>(config.rope.attention_factor));
}

}  // namespace

const Family kPhi3 = {.name = "phi3",
                      .gguf = "phi3",
                      .hf_class = "Phi3ForCausalLM",
                      .model_type = "phi3",
                      .gguf_style = RopeStyle::kHalves,
                      .from_gguf = phi3_from_gguf,
                      .from_hf = phi3_from_hf,
                      .to_gguf = phi3_to_gguf,
                      .names = kPhi3Names,
                      .fused = true,
                      .partial_rotary = true};

}  // namespace sx
