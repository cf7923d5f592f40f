// Mistral's folders: a Llama with a window and without biases. In GGUF it is a llama.
#include "formats/families/families.h"

namespace sx {
namespace {

void mistral_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qkv_bias = config.out_bias = false;
  const bool says = in.json().contains("sliding_window");  // null: none; absent: the class's default
  read_hf_window(in, config, says ? in.integer("sliding_window").value_or(0) : 4096);
}

}  // namespace

const Family kMistral = {.name = "mistral",
                         .gguf = "llama",
                         .hf_class = "MistralForCausalLM",
                         .model_type = "mistral",
                         .gguf_style = RopeStyle::kInterleaved,
                         .from_hf = mistral_from_hf,
                         .to_gguf = no_more_keys,
                         .to_hf = llama_to_hf,
                         .joint_bias = true};

}  // namespace sx
