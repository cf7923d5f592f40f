// Qwen 2 and 2.5: biases of q, k and v. MiMo: a Qwen 2 with MTP blocks, whose GGUF files are Qwen 2's. Qwen 3: norms of
// the heads of q and k.
#include "formats/families/families.h"

namespace sx {
namespace {

void read_window(const HfSettings& in, ModelConfig& config) {
  if (!in.flag("use_sliding_window").value_or(false)) return;
  const bool says = in.json().contains("sliding_window");
  const int first = in.integer("max_window_layers").value_or(28);
  std::vector<uint8_t> windowed;
  for (int layer = 0; layer < config.layers; ++layer) windowed.push_back(layer >= first);
  read_hf_window(in, config, says ? in.integer("sliding_window").value_or(0) : 4096, windowed);
}

void qwen2_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.qkv_bias = true;  // part of the architecture: missing ones are an error
  read_gguf_window(in, config);
}

void qwen2_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qkv_bias = true, config.out_bias = false;
  read_window(in, config);
}

void mimo_from_hf(const HfSettings& in, ModelConfig& config) {
  qwen2_from_hf(in, config);
  config.qkv_bias = in.flag("attention_bias").value_or(true);
  config.mtp_state_first = true;
}

void qwen3_from_gguf(const GgufSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kEach;
  read_gguf_window(in, config);
}

void qwen3_from_hf(const HfSettings& in, ModelConfig& config) {
  config.qk_norm = HeadNorm::kEach;
  read_window(in, config);
}

void write_window(const ModelConfig& config, nlohmann::ordered_json& out) {
  int first = 0;  // layers from here on are windowed, where such a number exists
  while (first < config.layers && config.layer(first).window == 0) ++first;
  out["use_sliding_window"] = config.window > 0;
  write_hf_window(config, out);
  if (config.window > 0) out["max_window_layers"] = first;
}

void qwen2_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json& out) {
  if (config.out_bias || config.mlp_bias || config.qk_norm != HeadNorm::kNone)
    fail("{}: Qwen2 folders have biases in q, k and v only", file);
  write_window(config, out);
}

void qwen3_to_hf(const ModelConfig& config, const std::string& file, nlohmann::ordered_json& out) {
  if (config.mlp_bias) fail("{}: Qwen3 folders have no biases in the feed-forward layers", file);
  write_window(config, out);
}

}  // namespace

const Family kQwen2 = {.name = "qwen2",
                       .gguf = "qwen2",
                       .hf_class = "Qwen2ForCausalLM",
                       .model_type = "qwen2",
                       .gguf_style = RopeStyle::kHalves,
                       .from_gguf = qwen2_from_gguf,
                       .from_hf = qwen2_from_hf,
                       .to_gguf = no_more_keys,
                       .to_hf = qwen2_to_hf};

const Family kMiMo = {.name = "mimo",
                      .gguf = "qwen2",
                      .hf_class = "MiMoForCausalLM",
                      .model_type = "mimo",
                      .gguf_style = RopeStyle::kHalves,
                      .from_hf = mimo_from_hf,
                      .to_gguf = no_more_keys};

const Family kQwen3 = {.name = "qwen3",
                       .gguf = "qwen3",
                       .hf_class = "Qwen3ForCausalLM",
                       .model_type = "qwen3",
                       .gguf_style = RopeStyle::kHalves,
                       .from_gguf = qwen3_from_gguf,
                       .from_hf = qwen3_from_hf,
                       .to_gguf = no_more_keys,
                       .to_hf = qwen3_to_hf,
                       .head_dim = 128,
                       .joint_bias = true};

}  // namespace sx
