// gpt-oss: experts with biases and a clipped SwiGLU, sinks, biases in attention, a window in every second layer, YaRN.
// Its folders hold the experts in MXFP4, or as floats with gates and ups alternating.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kGptOssNames[] = {{"self_attn.sinks", "attn_sinks.weight"},
                                       {"mlp.router", "ffn_gate_inp"},
                                       {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
                                       {"mlp.experts.gate_up_proj_blocks", "ffn_gate_up_exps.blocks"},
                                       {"mlp.experts.gate_up_proj_scales", "ffn_gate_up_exps.scales"},
                                       {"mlp.experts.gate_up_proj_bias", "ffn_gate_up_exps.bias"},
                                       {"mlp.experts.down_proj", "ffn_down_exps.weight"},
                                       {"mlp.experts.down_proj_blocks", "ffn_down_exps.blocks"},
                                       {"mlp.experts.down_proj_scales", "ffn_down_exps.scales"},
                                       {"mlp.experts.down_proj_bias", "ffn_down_exps.bias"}};
constexpr TensorName kGptOssGgufNames[] = {{"post_attention_norm", "ffn_norm"}};

void gpt_oss_common(ModelConfig& config) {
  config.sinks = config.qkv_bias = config.out_bias = true;
  config.router_bias = config.expert_bias = true;
  config.swiglu_limit = 7;
  config.rope.yarn_truncate = false;
}

void gpt_oss_from_gguf(const GgufSettings& in, ModelConfig& config) {
  gpt_oss_common(config);
  read_gguf_experts(in, config);
  read_gguf_window(in, config, 2);
}

void gpt_oss_from_hf(const HfSettings& in, ModelConfig& config) {
  gpt_oss_common(config);
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  config.experts = in.required("num_local_experts");
  config.experts_used = in.required("num_experts_per_tok");
  config.swiglu_limit = in.number_or("swiglu_limit", 7);
  config.swiglu_alpha = in.number_or("swiglu_alpha", 1.702);
  read_hf_window(in, config, in.integer("sliding_window").value_or(128), every_nth_full(config.layers, 2));
}

void gpt_oss_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  if (config.swiglu_limit != 7 || config.swiglu_alpha != 1.702f)
    fail("{}: GGUF files mean a SwiGLU with limit 7 and alpha 1.702, not {} and {}", prefix, config.swiglu_limit,
         config.swiglu_alpha);
  write_gguf_experts(config, prefix, keys);
}

bool reads_quantised(const Json& scheme) {
  const Json* method = json_member(scheme, "quant_method");
  return method && method->is_string() && method->get<std::string>() == "mxfp4";
}

}  // namespace

const Family kGptOss = {.name = "gpt-oss",
                        .gguf = "gpt-oss",
                        .hf_class = "GptOssForCausalLM",
                        .model_type = "gpt_oss",
                        .gguf_style = RopeStyle::kHalves,
                        .from_gguf = gpt_oss_from_gguf,
                        .from_hf = gpt_oss_from_hf,
                        .to_gguf = gpt_oss_to_gguf,
                        .names = kGptOssNames,
                        .gguf_names = kGptOssGgufNames,
                        .head_dim = 64,
                        .rope_base = 150000,
                        .joint_bias = true,
                        .reads_quantised = reads_quantised,
                        .gguf_untruncated = true};

}  // namespace sx
