// EXAONE 4: norms behind attention and feed-forward only, norms of the heads of q and k; where some layers have
// windows, the others have no RoPE.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kNames[] = {{"post_attention_layernorm", "post_attention_norm"},
                                 {"post_feedforward_layernorm", "post_ffw_norm"}};

void common(ModelConfig& config) {
  config.attention_norm = config.ffn_norm = false;
  config.attention_post_norm = config.ffn_post_norm = true;
  config.qk_norm = HeadNorm::kEach;
}

void from_gguf(const GgufSettings& in, ModelConfig& config) {
  common(config);
  read_gguf_window(in, config, 4);
  if (config.window == 0) return;
  config.for_each_layer([](int, LayerParts& parts) { parts.rope = parts.window > 0 ? 0 : kNoRope; });
}

void from_hf(const HfSettings& in, ModelConfig& config) {
  common(config);
  config.qkv_bias = config.out_bias = false;
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  int period = in.member("sliding_window_pattern") && in.member("sliding_window_pattern")->is_number()
                   ? in.integer("sliding_window_pattern").value_or(4)
                   : 4;
  read_hf_window(in, config, in.integer("sliding_window").value_or(0), every_nth_full(config.layers, period));
  if (config.window == 0) return;
  config.for_each_layer([](int, LayerParts& parts) { parts.rope = parts.window > 0 ? 0 : kNoRope; });
}

void to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) { write_hf_window(config, out); }

}  // namespace

const Family kExaone4 = {.name = "exaone4",
                         .gguf = "exaone4",
                         .hf_class = "Exaone4ForCausalLM",
                         .model_type = "exaone4",
                         .gguf_style = RopeStyle::kHalves,
                         .from_gguf = from_gguf,
                         .from_hf = from_hf,
                         .to_gguf = no_more_keys,
                         .to_hf = to_hf,
                         .names = kNames};

}  // namespace sx
