// StarCoder2: LayerNorm and biases everywhere, a feed-forward without gate.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kStarcoder2Names[] = {{"mlp.c_fc", "ffn_up"}, {"mlp.c_proj", "ffn_down"}};

void starcoder2_common(ModelConfig& config) {
  config.centred_norms = config.norm_bias = true;
  config.gated = false;
  config.activation = Activation::kGeluTanh;
}

void starcoder2_from_gguf(const GgufSettings& in, ModelConfig& config) {
  starcoder2_common(config);
  read_gguf_window(in, config);
}

void starcoder2_from_hf(const HfSettings& in, ModelConfig& config) {
  starcoder2_common(config);
  config.norm_eps = in.number_or("norm_epsilon", 1e-5);
  config.qkv_bias = config.out_bias = config.mlp_bias = in.flag("use_bias").value_or(true);
  read_hf_window(in, config, in.integer("sliding_window").value_or(0));
}

void starcoder2_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["norm_epsilon"] = out["rms_norm_eps"];
  out["use_bias"] = config.qkv_bias;
  write_hf_window(config, out);
}

}  // namespace

const Family kStarcoder2 = {.name = "starcoder2",
                            .gguf = "starcoder2",
                            .hf_class = "Starcoder2ForCausalLM",
                            .model_type = "starcoder2",
                            .gguf_style = RopeStyle::kHalves,
                            .from_gguf = starcoder2_from_gguf,
                            .from_hf = starcoder2_from_hf,
                            .to_gguf = no_more_keys,
                            .to_hf = starcoder2_to_hf,
                            .names = kStarcoder2Names,
                            .activation = Activation::kGeluTanh,
                            .tied = true};

}  // namespace sx
