// Ernie 4.5, the dense ones: a Llama with one flag for all biases.
#include "formats/families/families.h"

namespace sx {
namespace {

void ernie_from_gguf(const GgufSettings&, ModelConfig&) {}

void ernie_from_hf(const HfSettings& in, ModelConfig& config) {
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  config.qkv_bias = config.out_bias = config.mlp_bias = in.flag("use_bias").value_or(false);
}

void ernie_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["use_bias"] = config.qkv_bias;
}

}  // namespace

const Family kErnie45 = {.name = "ernie4_5",
                         .gguf = "ernie4_5",
                         .hf_class = "Ernie4_5ForCausalLM",
                         .model_type = "ernie4_5",
                         .gguf_style = RopeStyle::kInterleaved,
                         .hf_style = RopeStyle::kInterleaved,
                         .from_gguf = ernie_from_gguf,
                         .from_hf = ernie_from_hf,
                         .to_gguf = no_more_keys,
                         .to_hf = ernie_to_hf,
                         .rope_base = 500000,
                         .tied = true};

}  // namespace sx
