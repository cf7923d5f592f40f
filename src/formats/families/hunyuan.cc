// HunYuan dense: norms of the heads of q and k behind RoPE, whose base a folder may stretch by "alpha".
#include <cmath>

#include "formats/families/families.h"

namespace sx {
namespace {

constexpr TensorName kHunYuanNames[] = {{"self_attn.query_layernorm", "attn_q_norm"},
                                        {"self_attn.key_layernorm", "attn_k_norm"}};

void hunyuan_from_gguf(const GgufSettings&, ModelConfig& config) { config.qk_norm = HeadNorm::kBehind; }

// Folders call the scaling "dynamic", but with "alpha" it is a base that stays as it is at all lengths.
void hunyuan_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kBehind;
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  RopeConfig& rope = config.rope;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* json = in.member(key);
    const auto alpha = json ? HfSettings(*json, in.file()).number("alpha") : std::nullopt;
    if (!alpha || *alpha == 0 || rope.scaling != RopeScaling::kDynamic) continue;
    if (*alpha < 0 || rope.dims < 4) fail("{}: key 'alpha' of '{}' is {}", in.file(), key, *alpha);
    rope.base *= std::pow(*alpha, static_cast<double>(rope.dims) / (rope.dims - 2));
    rope.scaling = RopeScaling::kNone, rope.factor = 1, rope.original_context = 0;
  }
}

void hunyuan_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json&) {
  if (config.mlp_bias) fail("{}: HunYuan folders have no biases in the feed-forward layers", file);
}

}  // namespace

const Family kHunYuan = {.name = "hunyuan-dense",
                         .gguf = "hunyuan-dense",
                         .hf_class = "HunYuanDenseV1ForCausalLM",
                         .model_type = "hunyuan_v1_dense",
                         .gguf_style = RopeStyle::kHalves,
                         .from_gguf = hunyuan_from_gguf,
                         .from_hf = hunyuan_from_hf,
                         .to_gguf = no_more_keys,
                         .to_hf = hunyuan_to_hf,
                         .names = kHunYuanNames,
                         .joint_bias = true};

}  // namespace sx
