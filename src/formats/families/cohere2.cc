// Command R7B (Cohere 2): attention and feed-forward side by side behind one LayerNorm without bias; three of four
// layers have windows, the fourth has no RoPE.
#include "formats/families/families.h"

namespace sx {
namespace {

void cohere2_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.logit_scale = in.number_or("logit_scale", 1);
  config.parallel = config.centred_norms = true;
  read_gguf_window(in, config, 4);
  drop_ropes_of_full_layers(config);
}

void cohere2_from_hf(const HfSettings& in, ModelConfig& config) {
  config.norm_eps = in.number_or("layer_norm_eps", 1e-5);
  config.logit_scale = in.number_or("logit_scale", 0.0625);
  config.parallel = config.centred_norms = true;
  const int period = in.integer("sliding_window_pattern").value_or(4);
  read_hf_window(in, config, in.integer("sliding_window").value_or(4096), every_nth_full(config.layers, period));
  drop_ropes_of_full_layers(config);
}

void cohere2_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  keys.add_f32(prefix + ".logit_scale", config.logit_scale);
}

void cohere2_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["layer_norm_eps"] = out["rms_norm_eps"];
  out["logit_scale"] = config.logit_scale;
  write_hf_window(config, out);
}

}  // namespace

const Family kCohere2 = {.name = "cohere2",
                         .gguf = "cohere2",
                         .hf_class = "Cohere2ForCausalLM",
                         .model_type = "cohere2",
                         .gguf_style = RopeStyle::kInterleaved,
                         .hf_style = RopeStyle::kInterleaved,
                         .from_gguf = cohere2_from_gguf,
                         .from_hf = cohere2_from_hf,
                         .to_gguf = cohere2_to_gguf,
                         .to_hf = cohere2_to_hf,
                         .tied = true,
                         .joint_bias = true};

}  // namespace sx
