// Arcee: a Llama whose feed-forward has no gate and squares what is positive.
#include "formats/families/families.h"

namespace sx {
namespace {

void arcee_from_gguf(const GgufSettings&, ModelConfig& config) {
  config.gated = false;
  config.activation = Activation::kRelu2;
}

void arcee_from_hf(const HfSettings& in, ModelConfig& config) {
  config.gated = false;
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  config.mlp_bias = in.flag("mlp_bias").value_or(false);
}

void arcee_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["mlp_bias"] = config.mlp_bias;
}

}  // namespace

const Family kArcee = {.name = "arcee",
                       .gguf = "arcee",
                       .hf_class = "ArceeForCausalLM",
                       .model_type = "arcee",
                       .gguf_style = RopeStyle::kInterleaved,
                       .from_gguf = arcee_from_gguf,
                       .from_hf = arcee_from_hf,
                       .to_gguf = no_more_keys,
                       .to_hf = arcee_to_hf,
                       .activation = Activation::kRelu2,
                       .joint_bias = true};

}  // namespace sx
