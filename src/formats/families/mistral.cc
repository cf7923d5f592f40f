// Mistral's folders: a Llama with a window and without biases, which in GGUF is a llama. Ministral 3: queries that grow
// with their position, counted in lengths of the context before YaRN. GGUF files of Mistral Small 3.1 are of the same
// architecture, and say nothing of that.
#include "formats/families/families.h"

namespace sx {
namespace {

void mistral_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qkv_bias = config.out_bias = false;
  const bool says = in.json().contains("sliding_window");  // null: none; absent: the class's default
  read_hf_window(in, config, says ? in.integer("sliding_window").value_or(0) : 4096);
}

void ministral_from_gguf(const GgufSettings& in, ModelConfig& config) {
  read_gguf_window(in, config);
  config.query_growth = in.number_or("attention.temperature_scale", 0);
  if (config.query_growth > 0) config.query_period = in.required("rope.scaling.original_context_length");
}

void ministral_from_hf(const HfSettings& in, ModelConfig& config) {
  config.norm_eps = in.number_or("rms_norm_eps", 1e-5);
  config.qkv_bias = config.out_bias = false;
  read_hf_window(in, config, in.integer("sliding_window").value_or(0));
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* json = in.member(key);
    if (!json) continue;
    const HfSettings rope(*json, in.file());
    config.query_growth = rope.number_or("llama_4_scaling_beta", config.query_growth);
    if (config.query_growth > 0) config.query_period = rope.required("original_max_position_embeddings");
  }
}

void ministral_to_gguf(const ModelConfig& config, const std::string& prefix, GgufKeys& keys) {
  if (config.query_growth == 0) return;
  if (config.query_period != config.rope.original_context)
    fail("{}: GGUF files say that queries grow with each original context, and nothing else", prefix);
  keys.add_f32(prefix + ".attention.temperature_scale", config.query_growth);
}

void ministral_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json& out) {
  if (config.qkv_bias || config.out_bias || config.mlp_bias) fail("{}: Ministral 3 folders have no biases", file);
  if (config.query_period != config.rope.original_context || config.rope.scaling != RopeScaling::kYarn)
    fail("{}: Ministral 3 folders have YaRN, and queries that grow with each original context", file);
  write_hf_window(config, out);
  out["rope_scaling"]["llama_4_scaling_beta"] = config.query_growth;
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

const Family kMinistral3 = {.name = "mistral3",
                            .gguf = "mistral3",
                            .hf_class = "Ministral3ForCausalLM",
                            .model_type = "ministral3",
                            .gguf_style = RopeStyle::kInterleaved,
                            .from_gguf = ministral_from_gguf,
                            .from_hf = ministral_from_hf,
                            .to_gguf = ministral_to_gguf,
                            .to_hf = ministral_to_hf,
                            .head_dim = 128,
                            .joint_bias = true};

}  // namespace sx
