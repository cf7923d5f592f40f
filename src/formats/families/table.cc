// The table of families: a new one is listed here.
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr const Family* kFamilies[] = {&kLlama,    &kMiMo,    &kMistral,    &kMinistral3, &kQwen2,   &kQwen3, &kArcee,
                                       &kCohere2,  &kErnie45, &kExaone4,    &kGemma2,     &kGemma3,  &kGlm4,  &kGranite,
                                       &kGranite4, &kHelium,  &kHunYuan,    &kInternLm3,  &kOlmo2,   &kOlmo3, &kPhi3,
                                       &kSeedOss,  &kSmolLm3, &kStarcoder2, &kQwen3Moe,   &kMixtral, &kOlmoe, &kGptOss};

}  // namespace

void no_more_keys(const ModelConfig&, const std::string&, GgufKeys&) {}

void set_post_norms_only(ModelConfig& config, HeadNorm qk_norm) {
  config.attention_norm = config.ffn_norm = false;
  config.attention_post_norm = config.ffn_post_norm = true;
  config.qk_norm = qk_norm;
}

void drop_ropes_of_full_layers(ModelConfig& config) {
  config.for_each_layer([](int, LayerParts& parts) { parts.rope = parts.window > 0 ? 0 : kNoRope; });
}

void write_hf_window(const ModelConfig& config, nlohmann::ordered_json& out) {
  if (config.window == 0) {
    out["sliding_window"] = nullptr;
    return;
  }
  out["sliding_window"] = config.window;
  if (config.each.empty()) return;
  out["layer_types"] = nlohmann::ordered_json::array();
  for (int i = 0; i < config.layers; ++i)
    out["layer_types"].push_back(config.layer(i).window > 0 ? "sliding_attention" : "full_attention");
}

void read_gguf_experts(const GgufSettings& in, ModelConfig& config) {
  config.experts = in.integer("expert_count").value_or(0);
  if (config.experts == 0) return;
  config.experts_used = in.required("expert_used_count");
  config.ffn = in.uniform("expert_feed_forward_length").value_or(config.ffn);
  config.mlp_bias = false;
  if (in.integer("expert_shared_count").value_or(0) > 0)
    fail("{}: key '{}': experts that all tokens use are not supported", in.file().path(),
         in.name("expert_shared_count"));
}

void write_gguf_experts(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  if (config.experts == 0) return;
  keys.add_u32(prefix + ".expert_count", static_cast<uint32_t>(config.experts));
  keys.add_u32(prefix + ".expert_used_count", static_cast<uint32_t>(config.experts_used));
  keys.add_u32(prefix + ".expert_feed_forward_length", static_cast<uint32_t>(config.ffn));
}

std::span<const Family* const> families() { return kFamilies; }

const Family* family_of_gguf(std::string_view architecture) {
  for (const Family* family : kFamilies)
    if (family->from_gguf && architecture == family->gguf) return family;
  return nullptr;
}

const Family* family_of_folder(std::string_view hf_class, std::string_view model_type) {
  for (const Family* family : kFamilies)
    if (family->from_hf && (hf_class.empty() ? model_type == family->model_type : hf_class == family->hf_class))
      return family;
  return nullptr;
}

}  // namespace sx
