// The families, for the table that lists them; and what their files need.
#pragma once
#include "base/error.h"
#include "formats/family.h"
#include "formats/family_settings.h"
#include "formats/gguf_writer.h"

namespace sx {

// For families whose GGUF files say no more than a Llama's (Family::to_gguf).
void no_more_keys(const ModelConfig& config, const std::string& prefix, GgufKeys& keys);
// "sliding_window" and, where layers differ, "layer_types".
void write_hf_window(const ModelConfig& config, nlohmann::ordered_json& out);

// Norms behind attention and feed-forward only (EXAONE 4, OLMo 2 and 3), and what folders call them.
void set_post_norms_only(ModelConfig& config, HeadNorm qk_norm);
inline constexpr TensorName kPostNormNames[] = {{"post_attention_layernorm", "post_attention_norm"},
                                                {"post_feedforward_layernorm", "post_ffw_norm"}};
// Layers that see everything have no RoPE; those with windows keep theirs.
void drop_ropes_of_full_layers(ModelConfig& config);

// "expert_count" and its like, of experts whose inner width is "expert_feed_forward_length" or else
// "feed_forward_length"; nothing where there are no experts.
void read_gguf_experts(const GgufSettings& in, ModelConfig& config);
// The same keys; nothing where there are no experts.
void write_gguf_experts(const ModelConfig& config, const std::string& prefix, GgufKeys& keys);

// Llama's and Mistral's folders: which of them it is depends on the window.
void llama_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json& out);

extern const Family kArcee, kCohere2, kErnie45, kExaone4, kGemma2, kGemma3, kGlm4, kGptOss, kGranite, kGranite4,
    kHelium, kHunYuan, kInternLm3, kLlama, kMiMo, kMinistral3, kMistral, kMixtral, kOlmoe, kQwen3Moe, kOlmo2, kOlmo3,
    kPhi3, kQwen2, kQwen3, kSeedOss, kSmolLm3, kStarcoder2;

}  // namespace sx
