// OLMo 2 and 3: norms behind attention and feed-forward only, and over all of q and k. OLMo 3 has windows, and scales
// the RoPE of the other layers only.
#include "formats/families/families.h"

namespace sx {
namespace {

void olmo_from_gguf(const GgufSettings& in, ModelConfig& config) {
  set_post_norms_only(config, HeadNorm::kWhole);
  read_gguf_window(in, config, 4);
  RopeConfig local;
  local.style = config.rope.style, local.dims = config.rope.dims;
  local.base = in.number("rope.freq_base_swa").value_or(config.rope.base);
  set_window_rope(config, local);
}

void olmo2_from_hf(const HfSettings& in, ModelConfig& config) {
  set_post_norms_only(config, HeadNorm::kWhole);
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
}

void olmo3_from_hf(const HfSettings& in, ModelConfig& config) {
  olmo2_from_hf(in, config);
  const bool says = in.json().contains("sliding_window");
  const int window = says ? in.integer("sliding_window").value_or(0) : 4096;
  read_hf_window(in, config, window, every_nth_full(config.layers, 4));
  read_hf_window_rope(in, config, in.number("rope_theta").value_or(kOlmo3.rope_base));
}

void olmo_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  if (!config.more_ropes.empty())
    keys.add_f32(prefix + ".rope.freq_base_swa", static_cast<float>(config.more_ropes[0].base));
}

void olmo_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  if (config.window == 0) return;
  out["architectures"] = {kOlmo3.hf_class}, out["model_type"] = kOlmo3.model_type;
  write_hf_window(config, out);
}

}  // namespace

const Family kOlmo2 = {.name = "olmo2",
                       .gguf = "olmo2",
                       .hf_class = "Olmo2ForCausalLM",
                       .model_type = "olmo2",
                       .gguf_style = RopeStyle::kHalves,
                       .from_gguf = olmo_from_gguf,
                       .from_hf = olmo2_from_hf,
                       .to_gguf = olmo_to_gguf,
                       .to_hf = olmo_to_hf,
                       .names = kPostNormNames,
                       .joint_bias = true};

const Family kOlmo3 = {.name = "olmo3",
                       .gguf = "olmo2",
                       .hf_class = "Olmo3ForCausalLM",
                       .model_type = "olmo3",
                       .gguf_style = RopeStyle::kHalves,
                       .from_hf = olmo3_from_hf,
                       .to_gguf = olmo_to_gguf,
                       .to_hf = olmo_to_hf,
                       .names = kPostNormNames,
                       .rope_base = 500000,
                       .joint_bias = true,
                       .layer_ropes = true};

}  // namespace sx
