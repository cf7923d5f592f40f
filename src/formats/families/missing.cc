// Families that cannot be run, and the words for their files.
#include "base/printable.h"
#include "formats/families/families.h"

namespace sx {
namespace {

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
    {"qwen2moe", "Qwen2MoeForCausalLM", "shared experts"},
    {"qwen3vl", "Qwen3VLForConditionalGeneration", "images"},
    {"qwen2vl", "Qwen2VLForConditionalGeneration", "images"},
    {"", "LlavaForConditionalGeneration", "images"},
    {"", "Gemma3nForCausalLM", "per-layer embeddings and shared KV layers"},
    {"", "Gemma4ForCausalLM", "head sizes that differ between layers and values that are keys"},
    {"deepseek32", "DeepseekV32ForCausalLM", "sparse latent attention (DSA, MLA) and shared experts"},
    {"", "Glm4MoeLiteForCausalLM", "latent attention (MLA) and shared experts"},
    {"", "YoutuForCausalLM", "latent attention (MLA)"},
    {"", "LongcatFlashForCausalLM", "latent attention (MLA) and experts that do nothing"},
    {"", "Kimi_K25ForConditionalGeneration", "latent attention (MLA), shared experts and images"},
    {"minicpm3", "MiniCPM3ForCausalLM", "latent attention (MLA)"},
    {"kimi-linear", "KimiLinearForCausalLM", "delta attention, latent attention (MLA) and shared experts"},
    {"dots1", "Dots1ForCausalLM", "shared experts"},
    {"ernie4_5-moe", "Ernie4_5_MoeForCausalLM", "shared experts"},
    {"hunyuan-moe", "HunYuanMoEV1ForCausalLM", "shared experts"},
    {"exaone-moe", "ExaoneMoeForCausalLM", "shared experts"},
    {"afmoe", "AfmoeForCausalLM", "gated attention and shared experts"},
    {"", "SolarOpenForCausalLM", "shared experts"},
    {"granitemoe", "GraniteMoeForCausalLM", "mixtures of experts with Granite's multipliers"},
    {"granitemoe", "GraniteMoeSharedForCausalLM", "shared experts"},
    {"granite-swa", "GraniteSWAForCausalLM", "windows and sinks with Granite's multipliers"},
    {"cohere2moe", "Cohere2MoeForCausalLM", "mixtures of experts beside attention"},
    {"command-r", "CohereForCausalLM", "LayerNorm of q and k"},
    {"minimax-01", "MiniMaxForCausalLM", "linear attention"},
    {"mimo2", "MiMoV2FlashForCausalLM", "head sizes that differ between keys and values"},
    {"phimoe", "PhimoeForCausalLM", "LayerNorm around experts with sparse mixing"},
    {"dbrx", "DbrxForCausalLM", "clipped queries, keys and values"},
    {"", "OlmoHybridForCausalLM", "gated delta net layers"},
    {"olmo", "OlmoForCausalLM", "norms without weights"},
    {"apertus", "ApertusForCausalLM", "the activation xIELU"},
    {"bitnet", "BitNetForCausalLM", "norms inside attention and feed-forward, and ternary weights"},
    {"", "NanoChatForCausalLM", "norms without weights"},
    {"nemotron", "NemotronForCausalLM", "LayerNorm with weights that lack 1 and without a gate"},
    {"", "DiffLlamaForCausalLM", "differential attention"},
    {"falcon", "FalconForCausalLM", "fused queries, keys and values side by side with the feed-forward"},
    {"gptneox", "GPTNeoXForCausalLM", "fused queries, keys and values by head"},
    {"bloom", "BloomForCausalLM", "biases by distance (ALiBi)"},
    {"mpt", "MptForCausalLM", "biases by distance (ALiBi)"},
    {"", "OPTForCausalLM", "learned position embeddings"},
    {"lfm2moe", "Lfm2MoeForCausalLM", "convolution layers"},
    {"", "BambaForCausalLM", "state-space layers (Mamba 2)"},
    {"", "Zamba2ForCausalLM", "state-space layers (Mamba 2)"},
    {"", "RecurrentGemmaForCausalLM", "recurrent layers"},
    {"rwkv6", "RwkvForCausalLM", "recurrent layers (RWKV)"},
    {"", "xLSTMForCausalLM", "recurrent layers (xLSTM)"},
};

}  // namespace

std::string why_unsupported(std::string_view architecture) {
  for (const Missing& missing : kMissing)
    if (!architecture.empty() && (architecture == missing.gguf || architecture == missing.hf_class))
      return fmt::format("architecture '{}' is not supported: {} are missing here", architecture, missing.parts);
  std::string known;
  for (const Family* family : families()) known += fmt::format("{}{}", known.empty() ? "" : ", ", family->name);
  return fmt::format("architecture '{}' is not supported; these families are: {}", printable(architecture), known);
}

}  // namespace sx
