// InternLM 3: a Llama with flags of its own for biases. In GGUF it is a llama.
#include "formats/families/families.h"

namespace sx {
namespace {

void internlm_from_hf(const HfSettings& in, ModelConfig& config) {
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  // Folders written by transformers call them as a Llama does.
  config.qkv_bias = in.flag("qkv_bias").value_or(in.flag("attention_bias").value_or(false));
  config.out_bias = config.mlp_bias = in.flag("bias").value_or(in.flag("mlp_bias").value_or(false));
}

void internlm_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["qkv_bias"] = config.qkv_bias, out["bias"] = config.out_bias;
}

}  // namespace

const Family kInternLm3 = {.name = "internlm3",
                           .gguf = "llama",
                           .hf_class = "InternLM3ForCausalLM",
                           .model_type = "internlm3",
                           .gguf_style = RopeStyle::kInterleaved,
                           .from_hf = internlm_from_hf,
                           .to_gguf = no_more_keys,
                           .to_hf = internlm_to_hf,
                           .head_dim = 128};

}  // namespace sx
