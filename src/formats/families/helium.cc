// Helium: a Llama that rotates neighbouring pairs; it exists in folders only.
#include "formats/families/families.h"

namespace sx {
namespace {

void helium_from_hf(const HfSettings& in, ModelConfig& config) {
  config.norm_eps = in.number_or("rms_norm_eps", 1e-8);
  config.out_bias = false;
  config.mlp_bias = in.flag("mlp_bias").value_or(false);
}

}  // namespace

const Family kHelium = {.name = "helium",
                        .gguf = "helium",
                        .hf_class = "HeliumForCausalLM",
                        .model_type = "helium",
                        .gguf_style = RopeStyle::kInterleaved,
                        .hf_style = RopeStyle::kInterleaved,
                        .from_hf = helium_from_hf,
                        .head_dim = 128};

}  // namespace sx
