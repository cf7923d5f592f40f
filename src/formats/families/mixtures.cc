// Mixtures whose attention is that of a dense sibling: Qwen 3 MoE, Mixtral (its GGUF files say "llama"), OLMoE.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kMixtureNames[] = {{"mlp.gate", "ffn_gate_inp"},
                                        {"mlp.experts.#.gate_proj", "ffn_gate.#"},
                                        {"mlp.experts.#.up_proj", "ffn_up.#"},
                                        {"mlp.experts.#.down_proj", "ffn_down.#"}};
constexpr TensorName kMixtralNames[] = {{"block_sparse_moe.gate", "ffn_gate_inp"},
                                        {"block_sparse_moe.experts.#.w1", "ffn_gate.#"},
                                        {"block_sparse_moe.experts.#.w3", "ffn_up.#"},
                                        {"block_sparse_moe.experts.#.w2", "ffn_down.#"}};

void read_hf_experts(const HfSettings& in, ModelConfig& config) {
  const auto local = in.integer("num_local_experts");
  config.experts = local ? *local : in.required("num_experts");
  config.experts_used = in.required("num_experts_per_tok");
}

void qwen3_moe_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kEach;
  read_gguf_experts(in, config);
}

void qwen3_moe_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kEach;
  read_hf_experts(in, config);
  config.ffn = in.required("moe_intermediate_size");
  config.renormalise = in.flag("norm_topk_prob").value_or(false);
  const Json* dense = in.member("mlp_only_layers");
  if (in.integer("decoder_sparse_step").value_or(1) != 1 || (dense && !dense->empty()))
    fail("{}: dense layers between those with experts are not supported", in.file());
  if (in.flag("use_sliding_window").value_or(false)) read_hf_window(in, config, in.required("sliding_window"));
}

void mixtral_from_hf(const HfSettings& in, ModelConfig& config) {
  read_hf_experts(in, config);
  read_hf_window(in, config, in.integer("sliding_window").value_or(0));
}

void olmoe_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kWhole;
  read_gguf_experts(in, config);
  config.renormalise = false;
}

void olmoe_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kWhole;
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  read_hf_experts(in, config);
  config.renormalise = in.flag("norm_topk_prob").value_or(false);
  if (in.number("clip_qkv")) fail("{}: clipped queries, keys and values ('clip_qkv') are not supported", in.file());
}

// GGUF files do not say whether the weights of the chosen experts add up to 1: the architecture does.
void expect_renormalised(const ModelConfig& config, const std::string& prefix, bool expected) {
  if (config.renormalise != expected)
    fail("{}: 'norm_topk_prob' is {}, and GGUF files of this architecture mean {}", prefix, config.renormalise,
         expected);
}

void qwen3_moe_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  expect_renormalised(config, prefix, true);
  write_gguf_experts(config, prefix, keys);
}

void olmoe_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  expect_renormalised(config, prefix, false);
  write_gguf_experts(config, prefix, keys);
}

}  // namespace

const Family kQwen3Moe = {.name = "qwen3moe",
                          .gguf = "qwen3moe",
                          .hf_class = "Qwen3MoeForCausalLM",
                          .model_type = "qwen3_moe",
                          .gguf_style = RopeStyle::kHalves,
                          .from_gguf = qwen3_moe_from_gguf,
                          .from_hf = qwen3_moe_from_hf,
                          .to_gguf = qwen3_moe_to_gguf,
                          .names = kMixtureNames,
                          .joint_bias = true};

const Family kMixtral = {.name = "mixtral",
                         .gguf = "llama",
                         .hf_class = "MixtralForCausalLM",
                         .model_type = "mixtral",
                         .gguf_style = RopeStyle::kInterleaved,
                         .from_hf = mixtral_from_hf,
                         .to_gguf = write_gguf_experts,
                         .names = kMixtralNames,
                         .rope_base = 1e6};

const Family kOlmoe = {.name = "olmoe",
                       .gguf = "olmoe",
                       .hf_class = "OlmoeForCausalLM",
                       .model_type = "olmoe",
                       .gguf_style = RopeStyle::kHalves,
                       .from_gguf = olmoe_from_gguf,
                       .from_hf = olmoe_from_hf,
                       .to_gguf = olmoe_to_gguf,
                       .names = kMixtureNames,
                       .joint_bias = true};

}  // namespace sx
