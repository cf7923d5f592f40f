#include "head_parts.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>
#include <stdexcept>

#include "model/heads/head_file.h"
#include "formats/safetensors.h"
#include "tensor/blocks.h"

namespace sx::testing {

HeadPart& HeadParts::get(const std::string& name) {
  for (auto& tensor : tensors)
    if (tensor.name == name) return tensor;
  throw std::logic_error("no tensor " + name);
}

void HeadParts::remove(const std::string& name) {
  get(name);
  std::erase_if(tensors, [&](const HeadPart& part) { return part.name == name; });
}

void HeadParts::reshape(const std::string& name, std::vector<int64_t> shape) {
  HeadPart& part = get(name);
  size_t old = 1, now = 1;
  for (const int64_t size : part.shape) old *= static_cast<size_t>(size);
  for (const int64_t size : shape) now *= static_cast<size_t>(size);
  part.data.assign(part.data.size() / old * now, std::byte{0});
  part.shape = std::move(shape);
}

Bytes HeadParts::safetensors() const {
  nlohmann::ordered_json header;
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  Bytes data;
  for (const auto& part : tensors) {
    header[part.name] = {
        {"dtype", part.dtype}, {"shape", part.shape}, {"data_offsets", {data.size(), data.size() + part.data.size()}}};
    data.insert(data.end(), part.data.begin(), part.data.end());
  }
  std::string text = header.dump();
  while (text.size() % 8) text += ' ';
  return safetensors_bytes(text, data);
}

void HeadParts::write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  write_file(folder + "/config.json", std::string_view(config.dump()));
  write_file(folder + "/model.safetensors", safetensors());
}

std::string golden_folder(const std::string& name) { return std::string(SX_HEADS_DIR) + "/" + name; }

HeadParts read_parts(const std::string& folder) {
  HeadParts out;
  const Bytes text = read_file(folder + "/config.json");
  out.config = nlohmann::ordered_json::parse(reinterpret_cast<const char*>(text.data()),
                                             reinterpret_cast<const char*>(text.data()) + text.size());
  const SafetensorsFile file(folder + "/model.safetensors");
  for (const auto& entry : file.tensors()) {
    const Tensor& t = entry.tensor;
    out.tensors.push_back({entry.name,
                           t.type == DType::kBool ? "BOOL" : dtype_name(t.type),
                           {t.shape.begin(), t.shape.begin() + t.rank},
                           Bytes(t.data, t.data + t.bytes())});
  }
  return out;
}

HeadParts random_head(nlohmann::ordered_json config, const std::vector<std::string>& extra, const ModelConfig& target,
                      DType type, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  const HeadConfig head = head_config_from_json(config.dump(), "config.json", {extra.begin(), extra.end()}, target);
  HeadParts out;
  out.config = std::move(config);
  for (const auto& tensor : expected_head_tensors(head)) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    const bool matrix = tensor.shape.size() == 2, norm = tensor.name.find("norm") != std::string::npos;
    const float scale = matrix ? std::sqrt(1.5f / static_cast<float>(tensor.shape[1])) : 0.2f;
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = (norm ? 1.0f : 0.0f) + scale * normal(random);
    const DType stored = matrix ? type : DType::kF32;
    Bytes data(dtype_bytes(stored, count));
    quantise(stored, values.data(), count, data.data());
    if (!dtype_is_quantised(stored)) {
      out.tensors.push_back({tensor.name, dtype_name(stored), tensor.shape, std::move(data)});
      continue;
    }
    const int64_t bytes = static_cast<int64_t>(data.size());
    out.tensors.push_back({tensor.name, "U8", {bytes}, std::move(data)});
    out.metadata[tensor.name] = dtype_name(stored);
    out.metadata[tensor.name + ".shape"] = fmt::format("{},{}", tensor.shape[0], tensor.shape[1]);
  }
  if (std::find(extra.begin(), extra.end(), "d2t") == extra.end()) return out;
  Bytes offsets(static_cast<size_t>(head.draft_vocab) * sizeof(int64_t));  // every other token
  for (int64_t i = 0; i < head.draft_vocab; ++i)
    std::memcpy(&offsets[static_cast<size_t>(i) * sizeof(i)], &i, sizeof(i));
  out.tensors.push_back({"d2t", "I64", {head.draft_vocab}, std::move(offsets)});
  return out;
}

nlohmann::ordered_json dflash_config(const ModelConfig& target, int block, bool dspark) {
  auto config = eagle1_config(target);
  config.erase("bias");
  config["architectures"] = {dspark ? "DSparkDraftModel" : "DFlashDraftModel"};
  config["num_hidden_layers"] = 3;
  config["layer_types"] = {"full_attention", "sliding_attention", "full_attention"};
  config["sliding_window"] = 30;
  config["block_size"] = block;
  config["dflash_config"] = {{"mask_token_id", 5}, {"target_layer_ids", {0, target.layers - 1}}};
  if (dspark) config["markov_rank"] = 32;
  return config;
}

std::vector<std::string> dflash_extra(bool dspark) {
  std::vector<std::string> extra = {"layers.0.self_attn.q_norm.weight"};
  if (dspark) extra.push_back("markov_head.markov_w1.weight");
  return extra;
}

nlohmann::ordered_json longspec_config(const ModelConfig& target, int window) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", target.width},
          {"intermediate_size", 96},
          {"num_attention_heads", target.heads},
          {"num_key_value_heads", target.kv_heads},
          {"head_dim", target.head_dim},
          {"vocab_size", target.vocab},
          {"num_hidden_layers", target.layers},
          {"max_position_embeddings", target.context},
          {"rms_norm_eps", 1e-5},
          {"longspec_window", window}};
}

nlohmann::ordered_json assistant_config(const ModelConfig& target) {
  int window = 0;
  for (int i = 0; i < target.layers; ++i) window = std::max(window, target.layer(i).window);
  const nlohmann::ordered_json text = {
      {"hidden_size", 48},
      {"intermediate_size", 96},
      {"num_attention_heads", target.heads},
      {"head_dim", target.head_dim},
      {"vocab_size", target.vocab},
      {"num_hidden_layers", 2},
      {"rms_norm_eps", 1e-6},
      {"sliding_window", std::max(1, window)},
      {"layer_types", {window > 0 ? "sliding_attention" : "full_attention", "full_attention"}}};
  return {{"architectures", {"Gemma4AssistantForCausalLM"}},
          {"model_type", "gemma4_assistant"},
          {"backbone_hidden_size", target.width},
          {"text_config", text}};
}

nlohmann::ordered_json eagle1_config(const ModelConfig& target) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", target.width},
          {"intermediate_size", 96},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"vocab_size", target.vocab},
          {"num_hidden_layers", 1},
          {"max_position_embeddings", 1024},
          {"rms_norm_eps", 1e-5},
          {"bias", true}};
}

nlohmann::ordered_json eagle3_config(const ModelConfig& target, int layers, int draft_vocab) {
  auto config = eagle1_config(target);
  config.erase("bias");
  config["architectures"] = {"LlamaForCausalLMEagle3"};
  config["num_hidden_layers"] = layers;
  config["draft_vocab_size"] = draft_vocab;
  return config;
}

}  // namespace sx::testing
