// EXAONE 4: norms behind attention and feed-forward only, norms of the heads of q and k; where some layers have
// windows, the others have no RoPE.
#include "formats/families/families.h"

namespace sx {
namespace {

void exaone_from_gguf(const GgufSettings& in, ModelConfig& config) {
  set_post_norms_only(config, HeadNorm::kEach);
  read_gguf_window(in, config, 4);
  if (config.window > 0) drop_ropes_of_full_layers(config);
}

void exaone_from_hf(const HfSettings& in, ModelConfig& config) {
  set_post_norms_only(config, HeadNorm::kEach);
  config.qkv_bias = config.out_bias = false;
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  int period = in.member("sliding_window_pattern") && in.member("sliding_window_pattern")->is_number()
                   ? in.integer("sliding_window_pattern").value_or(4)
                   : 4;
  read_hf_window(in, config, in.integer("sliding_window").value_or(0), every_nth_full(config.layers, period));
  if (config.window > 0) drop_ropes_of_full_layers(config);
}

void exaone_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  write_hf_window(config, out);
}

}  // namespace

const Family kExaone4 = {.name = "exaone4",
                         .gguf = "exaone4",
                         .hf_class = "Exaone4ForCausalLM",
                         .model_type = "exaone4",
                         .gguf_style = RopeStyle::kHalves,
                         .from_gguf = exaone_from_gguf,
                         .from_hf = exaone_from_hf,
                         .to_gguf = no_more_keys,
                         .to_hf = exaone_to_hf,
                         .names = kPostNormNames};

}  // namespace sx
