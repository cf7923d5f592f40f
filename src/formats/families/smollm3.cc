// SmolLM3: a Llama whose every fourth layer has no RoPE.
#include "formats/families/families.h"

namespace sx {
namespace {

void drop_ropes(ModelConfig& config, int period) {
  config.for_each_layer(
      [&](int i, LayerParts& parts) { parts.rope = period > 0 && (i + 1) % period == 0 ? kNoRope : 0; });
}

void smollm3_from_gguf(const GgufSettings&, ModelConfig& config) { drop_ropes(config, 4); }

void smollm3_from_hf(const HfSettings& in, ModelConfig& config) {
  config.mlp_bias = in.flag("mlp_bias").value_or(false);
  if (in.flag("use_sliding_window").value_or(false))
    read_hf_window(in, config, in.integer("sliding_window").value_or(0));
  drop_ropes(config, in.integer("no_rope_layer_interval").value_or(4));
  const std::vector<float> rotated = in.floats("no_rope_layers");  // 1: the layer has RoPE
  if (rotated.empty()) return;
  if (rotated.size() != static_cast<size_t>(config.layers))
    fail("{}: key 'no_rope_layers' has {} entries for {} layers", in.file(), rotated.size(), config.layers);
  config.for_each_layer([&](int i, LayerParts& parts) { parts.rope = rotated[size_t(i)] != 0 ? 0 : kNoRope; });
}

void smollm3_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys&) {
  ModelConfig usual = config;
  drop_ropes(usual, 4);
  if (usual.each != config.each)
    fail("{}: GGUF files say that every fourth layer has no RoPE, and nothing else", prefix);
}

void smollm3_to_hf(const ModelConfig& config, const std::string&, nlohmann::ordered_json& out) {
  out["mlp_bias"] = config.mlp_bias;
  out["no_rope_layers"] = nlohmann::ordered_json::array();
  for (int i = 0; i < config.layers; ++i) out["no_rope_layers"].push_back(config.layer(i).rope == kNoRope ? 0 : 1);
}

}  // namespace

const Family kSmolLm3 = {.name = "smollm3",
                         .gguf = "smollm3",
                         .hf_class = "SmolLM3ForCausalLM",
                         .model_type = "smollm3",
                         .gguf_style = RopeStyle::kInterleaved,
                         .from_gguf = smollm3_from_gguf,
                         .from_hf = smollm3_from_hf,
                         .to_gguf = smollm3_to_gguf,
                         .to_hf = smollm3_to_hf,
                         .rope_base = 2000000,
                         .tied = true,
                         .joint_bias = true};

}  // namespace sx
