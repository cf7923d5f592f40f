// The table of families: a new one is listed here.
#include <algorithm>

#include "base/printable.h"
#include "formats/families/families.h"

namespace sx {
namespace {

constexpr const Family* kFamilies[] = {&kLlama,    &kMiMo,    &kMistral,    &kMinistral3, &kQwen2,   &kQwen3, &kArcee,
                                       &kCohere2,  &kErnie45, &kExaone4,    &kGemma2,     &kGemma3,  &kGlm4,  &kGranite,
                                       &kGranite4, &kHelium,  &kHunYuan,    &kInternLm3,  &kOlmo2,   &kOlmo3, &kPhi3,
                                       &kSeedOss,  &kSmolLm3, &kStarcoder2, &kQwen3Moe,   &kMixtral, &kOlmoe, &kGptOss};

// Published families that cannot be run, and what their layers would need.
struct Missing {
  std::string_view gguf, hf_class;
  const char* parts;
};
constexpr Missing kMissing[] = {
    {"qwen3next", "Qwen3NextForCausalLM", "gated delta net layers and mixtures of experts"},
    {"qwen35", "Qwen3_5ForCausalLM", "gated delta net layers (for which its MTP block drafts)"},
    {"qwen35", "Qwen3_5ForConditionalGeneration", "gated delta net layers (for which its MTP block drafts)"},
    {"qwen35moe", "Qwen3_5MoeForCausalLM",
     "gated delta net layers and shared experts (for which its MTP block drafts)"},
    {"gemma3n", "Gemma3nForConditionalGeneration", "per-layer embeddings and shared KV layers"},
    {"gemma4", "Gemma4ForConditionalGeneration", "head sizes that differ between layers and values that are keys"},
    {"deepseek2", "DeepseekV2ForCausalLM", "latent attention (MLA) and shared experts"},
    {"deepseek2", "DeepseekV3ForCausalLM", "latent attention (MLA) and shared experts"},
    {"mistral4", "Mistral4ForCausalLM", "latent attention (MLA) and shared experts"},
    {"", "Gemma3ForConditionalGeneration", "images"},
    {"", "Mistral3ForConditionalGeneration", "images"},
    {"glm4moe", "Glm4MoeForCausalLM", "shared experts"},
    {"mamba", "MambaForCausalLM", "state-space layers (Mamba)"},
    {"mamba2", "Mamba2ForCausalLM", "state-space layers (Mamba 2)"},
    {"falcon-h1", "FalconH1ForCausalLM", "state-space layers (Mamba 2)"},
    {"granitehybrid", "GraniteMoeHybridForCausalLM", "state-space layers (Mamba 2) or shared experts"},
    {"nemotron_h", "NemotronHForCausalLM", "state-space layers (Mamba 2)"},
    {"jamba", "JambaForCausalLM", "state-space layers (Mamba)"},
    {"rwkv7", "RWKV7ForCausalLM", "recurrent layers (RWKV)"},
    {"lfm2", "Lfm2ForCausalLM", "convolution layers"},
    {"llama4", "Llama4ForCausalLM", "attention in chunks and shared experts"},
    {"phi2", "PhiForCausalLM", "biases of the output head"},
    {"gpt2", "GPT2LMHeadModel", "learned position embeddings"},
};

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

std::string why_unsupported(std::string_view architecture) {
  for (const Missing& missing : kMissing)
    if (!architecture.empty() && (architecture == missing.gguf || architecture == missing.hf_class))
      return fmt::format("architecture '{}' is not supported: {} are missing here", architecture, missing.parts);
  std::string known;
  for (const Family* family : kFamilies) known += fmt::format("{}{}", known.empty() ? "" : ", ", family->name);
  return fmt::format("architecture '{}' is not supported; these families are: {}", printable(architecture), known);
}

}  // namespace sx
