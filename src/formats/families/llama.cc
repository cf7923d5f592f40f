// Llama, and what calls itself so in GGUF (Mistral 7B, Mixtral, Falcon 3, InternLM 3).
#include "formats/families/families.h"

namespace sx {
namespace {

void llama_from_gguf(const GgufSettings& in, ModelConfig& config) {
  read_gguf_window(in, config);
  read_gguf_experts(in, config);  // Mixtral
}

void llama_from_hf(const HfSettings& in, ModelConfig& config) { config.mlp_bias = in.flag("mlp_bias").value_or(false); }

}  // namespace

void llama_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json& out) {
  if (config.qk_norm != HeadNorm::kNone) fail("{}: norms of q and k exist in Qwen3 folders only", file);
  out["mlp_bias"] = config.mlp_bias;
  if (config.window == 0) return;
  if (config.qkv_bias || config.mlp_bias)
    fail("{}: a window and biases together exist in no Llama or Mistral folder", file);
  out["architectures"] = {kMistral.hf_class}, out["model_type"] = kMistral.model_type;
  write_hf_window(config, out);
}

const Family kLlama = {.name = "llama",
                       .gguf = "llama",
                       .hf_class = "LlamaForCausalLM",
                       .model_type = "llama",
                       .gguf_style = RopeStyle::kInterleaved,
                       .from_gguf = llama_from_gguf,
                       .from_hf = llama_from_hf,
                       .to_gguf = no_more_keys,
                       .to_hf = llama_to_hf,
                       .joint_bias = true};

}  // namespace sx
