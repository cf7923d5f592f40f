// Seed-OSS: a Llama with biases of q, k and v. GGUF calls its second norm by another name.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kSeedOssGgufNames[] = {{"post_attention_norm", "ffn_norm"}};

void seed_oss_from_gguf(const GgufSettings&, ModelConfig&) {}

void seed_oss_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qkv_bias = in.flag("attention_bias").value_or(true);
  config.out_bias = in.flag("attention_out_bias").value_or(false);
  config.mlp_bias = in.flag("mlp_bias").value_or(false);
}

void seed_oss_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["attention_bias"] = config.qkv_bias, out["attention_out_bias"] = config.out_bias;
  out["mlp_bias"] = config.mlp_bias;
}

}  // namespace

const Family kSeedOss = {.name = "seed_oss",
                         .gguf = "seed_oss",
                         .hf_class = "SeedOssForCausalLM",
                         .model_type = "seed_oss",
                         .gguf_style = RopeStyle::kHalves,
                         .from_gguf = seed_oss_from_gguf,
                         .from_hf = seed_oss_from_hf,
                         .to_gguf = no_more_keys,
                         .to_hf = seed_oss_to_hf,
                         .gguf_names = kSeedOssGgufNames,
                         .head_dim = 128};

}  // namespace sx
