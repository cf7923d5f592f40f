// Tiny models with random weights, as GGUF files and as Hugging Face folders.
#include "support/model_writer.h"

#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <stdexcept>

#include "formats/family.h"
#include "formats/validate.h"
#include "support/tiny_vocabulary.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::testing {
namespace {

using nlohmann::ordered_json;

// SplitMix64: small, seedable by anything, the same everywhere.
struct Noise {
  uint64_t state;
  uint64_t bits() {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Four uniforms: close enough to normal, and no library function whose last bit could differ.
  float normal() {
    return static_cast<float>((uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508075688772);
  }
};

uint64_t seed_of(std::string_view name, uint64_t seed) {
  uint64_t hash = 14695981039346656037u ^ (seed * 0x9e3779b97f4a7c15u);
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

std::string hf_name(const std::string& name) {
  if (name == "token_embd.weight") return "model.embed_tokens.weight";
  if (name == "output_norm.weight") return "model.norm.weight";
  if (name == "output.weight") return "lm_head.weight";
  const size_t dot = name.find('.', 4);
  const size_t last = name.rfind('.');
  const std::string part = name.substr(dot + 1, last - dot - 1);
  static const std::pair<const char*, const char*> kParts[] = {
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_q_norm", "self_attn.q_norm"}, {"attn_k_norm", "self_attn.k_norm"},
      {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  for (const auto& [ours, theirs] : kParts) {
    if (part == ours) return "model.layers." + name.substr(4, dot - 4) + "." + theirs + name.substr(last);
  }
  throw std::logic_error("no Hugging Face name for " + name);
}

// Rows (head, half, i) -> (head, i, half): from rotating (i, i + d/2) to rotating (2i, 2i + 1).
std::vector<float> interleave(const std::vector<float>& values, int64_t rows, int head_dim) {
  const auto columns = values.size() / static_cast<size_t>(rows);
  std::vector<float> out(values.size());
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t head = row / head_dim, within = row % head_dim, half = within / (head_dim / 2);
    const int64_t to = head * head_dim + 2 * (within % (head_dim / 2)) + half;
    std::memcpy(out.data() + static_cast<size_t>(to) * columns, values.data() + static_cast<size_t>(row) * columns,
                columns * sizeof(float));
  }
  return out;
}

// The divisors by which Llama 3 stretches its lower frequencies.
std::vector<float> llama3_factors(const RopeConfig& rope) {
  std::vector<float> out;
  const double context = rope.original_context;
  for (int i = 0; i < rope.dims / 2; ++i) {
    const double wave = 2 * std::numbers::pi * std::pow(rope.base, 2.0 * i / rope.dims);
    const double smooth =
        (context / wave - rope.low_frequency_factor) / (rope.high_frequency_factor - rope.low_frequency_factor);
    double factor = 1 / ((1 - smooth) / rope.factor + smooth);
    if (wave < context / rope.high_frequency_factor) factor = 1;
    if (wave > context / rope.low_frequency_factor) factor = rope.factor;
    out.push_back(static_cast<float>(factor));
  }
  return out;
}

DType type_of(const TinySpec& spec, const TinyTensor& tensor) {
  if (tensor.shape.size() == 1 || tensor.name.ends_with("ffn_gate_inp.weight")) return DType::kF32;
  const bool embedding = tensor.name == "token_embd.weight" && spec.embedding != DType::kCount;
  return embedding ? spec.embedding : spec.weights;
}

void add_rope_keys(GgufWriter& out, const std::string& arch, const ModelConfig& config) {
  out.add_f32(arch + ".rope.freq_base", static_cast<float>(config.rope.base));
  out.add_u32(arch + ".rope.dimension_count", static_cast<uint32_t>(config.rope.dims));
  switch (config.rope.scaling) {
    case RopeScaling::kNone: break;
    case RopeScaling::kLinear: out.add_string(arch + ".rope.scaling.type", "linear"); break;
    case RopeScaling::kYarn: out.add_string(arch + ".rope.scaling.type", "yarn"); break;
    case RopeScaling::kLlama3: return;  // as a tensor
    case RopeScaling::kDynamic:
    case RopeScaling::kLongRope: throw std::logic_error("no such RoPE scaling in tiny files");
  }
  if (config.rope.scaling == RopeScaling::kNone) return;
  out.add_f32(arch + ".rope.scaling.factor", static_cast<float>(config.rope.factor));
  if (config.rope.original_context) {
    out.add_u32(arch + ".rope.scaling.original_context_length", static_cast<uint32_t>(config.rope.original_context));
  }
}

}  // namespace

ModelConfig tiny_config(const TinySpec& spec) {
  ModelConfig config;
  config.arch_name = spec.arch;
  config.family = family_of_folder("", spec.arch);
  config.layers = spec.layers;
  config.width = spec.width;
  config.heads = spec.heads;
  config.kv_heads = spec.kv_heads;
  config.head_dim = spec.head_dim ? spec.head_dim : spec.width / spec.heads;
  config.ffn = spec.ffn;
  config.vocab = spec.vocab;
  config.context = spec.context;
  config.norm_eps = 1e-5f;
  config.window = spec.window;
  config.tied_head = spec.tied;
  config.qkv_bias = spec.qkv_bias || spec.arch == "qwen2";
  config.out_bias = spec.out_bias;
  config.mlp_bias = spec.mlp_bias;
  config.experts = spec.experts;
  config.experts_used = spec.experts_used;
  if (spec.arch.starts_with("qwen3")) config.qk_norm = HeadNorm::kEach;
  config.rope.style = RopeStyle::kHalves;
  config.rope.dims = config.head_dim;
  config.rope.base = spec.rope_base;
  config.rope.scaling = spec.scaling;
  config.rope.factor = spec.factor;
  config.rope.original_context = spec.original_context;
  set_windowed_layers(config, spec.windowed_layers);
  return config;
}

std::vector<TinyTensor> tiny_tensors(const TinySpec& spec) {
  std::vector<TinyTensor> out;
  for (const auto& expected : expected_tensors(tiny_config(spec))) {
    const bool of_experts =
        expected.name.find("_exps.") != std::string::npos || expected.name.ends_with("gate_inp.weight");
    TinyTensor tensor{expected.name, of_experts ? "" : hf_name(expected.name), expected.shape, {}};
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    Noise noise{seed_of(tensor.name, spec.seed)};
    const bool norm = tensor.name.find("norm.weight") != std::string::npos;
    const double inner = static_cast<double>(tensor.shape.back());
    const float scale = tensor.shape.size() > 1 ? spec.gain / static_cast<float>(std::sqrt(inner)) : 0.1f;
    tensor.values.resize(static_cast<size_t>(count));
    for (float& value : tensor.values) value = (norm ? 1.0f : 0.0f) + scale * noise.normal();
    out.push_back(std::move(tensor));
  }
  return out;
}

Bytes encode(DType type, std::span<const float> values, uint64_t seed) {
  const auto count = static_cast<int64_t>(values.size());
  Bytes out(dtype_bytes(type, count));
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kMXFP4:
    case DType::kIQ4_NL: quantise(type, values.data(), count, out.data()); return out;
    default: break;
  }
  Noise noise{seed};
  for (auto& byte : out) byte = static_cast<std::byte>(noise.bits());
  // Where the 16-bit scales of a block lie, and how large its codes times inner scales may get.
  struct Scales {
    size_t first, second;
    float largest;
  };
  const auto scales = [&]() -> Scales {
    switch (type) {
      case DType::kQ5_0: return {0, 0, 16};
      case DType::kQ5_1: return {0, 2, 31};
      case DType::kQ2_K: return {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin), 3 * 15};
      case DType::kQ3_K: return {offsetof(BlockQ3_K, d), offsetof(BlockQ3_K, d), 4 * 32};
      case DType::kQ4_K: return {offsetof(BlockQ4_K, d), offsetof(BlockQ4_K, dmin), 15 * 63};
      case DType::kQ5_K: return {offsetof(BlockQ5_K, d), offsetof(BlockQ5_K, dmin), 31 * 63};
      case DType::kQ6_K: return {offsetof(BlockQ6_K, d), offsetof(BlockQ6_K, d), 32 * 127};
      case DType::kIQ4_XS: return {offsetof(BlockIQ4_XS, d), offsetof(BlockIQ4_XS, d), 127 * 32};
      case DType::kIQ2_XXS: return {offsetof(BlockIQ2_XXS, d), offsetof(BlockIQ2_XXS, d), 43 * 16};
      case DType::kIQ2_XS: return {offsetof(BlockIQ2_XS, d), offsetof(BlockIQ2_XS, d), 43 * 16};
      case DType::kIQ2_S: return {offsetof(BlockIQ2_S, d), offsetof(BlockIQ2_S, d), 43 * 16};
      case DType::kIQ3_XXS: return {offsetof(BlockIQ3_XXS, d), offsetof(BlockIQ3_XXS, d), 62 * 16};
      case DType::kIQ3_S: return {offsetof(BlockIQ3_S, d), offsetof(BlockIQ3_S, d), 15 * 32};
      default: throw std::logic_error("no random blocks of this type");
    }
  }();
  float largest = 1e-3f;
  for (const float value : values) largest = std::max(largest, std::fabs(value));
  const auto block_bytes = static_cast<size_t>(dtype_info(type).bytes);
  for (size_t at = 0; at < out.size(); at += block_bytes) {
    const auto d = static_cast<float>((0.5 + noise.uniform()) * largest) / scales.largest;
    const uint16_t first = float_to_f16(d), second = float_to_f16(d * (type == DType::kQ5_1 ? -15.0f : 1.0f));
    if (scales.second != scales.first) std::memcpy(out.data() + at + scales.second, &second, 2);
    std::memcpy(out.data() + at + scales.first, &first, 2);
  }
  return out;
}

GgufWriter tiny_gguf(const TinySpec& spec) {
  const ModelConfig config = tiny_config(spec);
  const std::string arch = config.family->gguf;
  GgufWriter out;
  out.add_string("general.architecture", arch);
  out.add_string("general.name", "tiny " + spec.arch);
  const auto number = [&](const char* key, int value) { out.add_u32(arch + key, static_cast<uint32_t>(value)); };
  number(".block_count", config.layers);
  number(".context_length", config.context);
  number(".embedding_length", config.width);
  number(".feed_forward_length", config.ffn);
  if (config.experts) {
    number(".expert_count", config.experts);
    number(".expert_used_count", config.experts_used);
    number(".expert_feed_forward_length", config.ffn);
  }
  number(".attention.head_count", config.heads);
  number(".attention.head_count_kv", config.kv_heads);
  number(".attention.key_length", config.head_dim);
  number(".attention.value_length", config.head_dim);
  number(".vocab_size", config.vocab);
  out.add_f32(arch + ".attention.layer_norm_rms_epsilon", config.norm_eps);
  if (config.window) number(".attention.sliding_window", config.window);
  if (const auto windowed = windowed_layers(config); !windowed.empty()) {
    Bytes raw(12 + windowed.size());
    const uint32_t type = 7;
    const uint64_t count = windowed.size();
    std::memcpy(raw.data(), &type, 4);
    std::memcpy(raw.data() + 4, &count, 8);
    std::memcpy(raw.data() + 12, windowed.data(), windowed.size());
    out.add_raw(arch + ".attention.sliding_window_pattern", 9, raw);
  }
  add_rope_keys(out, arch, config);
  add_tiny_vocabulary(out, spec.words, config.vocab, spec.control);
  if (config.rope.scaling == RopeScaling::kLlama3) {
    const auto factors = llama3_factors(config.rope);
    out.add_tensor("rope_freqs.weight", DType::kF32, {config.rope.dims / 2}, encode(DType::kF32, factors, 0));
  }
  for (const auto& tensor : tiny_tensors(spec)) {
    const bool rotated = tensor.name.ends_with("attn_q.weight") || tensor.name.ends_with("attn_k.weight") ||
                         tensor.name.ends_with("attn_q.bias") || tensor.name.ends_with("attn_k.bias");
    const auto& values = rotated && config.family->gguf_style == RopeStyle::kInterleaved
                             ? interleave(tensor.values, tensor.shape[0], config.head_dim)
                             : tensor.values;
    const DType type = type_of(spec, tensor);
    out.add_tensor(tensor.name, type, tensor.shape, encode(type, values, seed_of(tensor.name, ~spec.seed)));
  }
  return out;
}

void write_tiny_gguf(const std::string& path, const TinySpec& spec) { write_file(path, tiny_gguf(spec).bytes()); }

// One huge weight for each token, with both signs for every column: where a normed value is above 1.14 or below that,
// one overflows.
GgufWriter tiny_gguf_with_infinite_logits(TinySpec spec) {
  spec.weights = DType::kF32;
  GgufWriter out = tiny_gguf(spec);
  const size_t width = size_t(spec.width);
  std::vector<float> head(size_t(spec.vocab) * width, 0.0f);
  for (size_t row = 0; row < size_t(spec.vocab); ++row)
    head[row * width + row % width] = row / width % 2 ? -3e38f : 3e38f;
  out.data_of("output.weight") = encode(DType::kF32, head, 0);
  return out;
}

std::string tiny_config_json(const TinySpec& spec) {
  const ModelConfig config = tiny_config(spec);
  static const std::pair<const char*, const char*> kClasses[] = {{"llama", "LlamaForCausalLM"},
                                                                 {"mistral", "MistralForCausalLM"},
                                                                 {"qwen2", "Qwen2ForCausalLM"},
                                                                 {"qwen3", "Qwen3ForCausalLM"}};
  ordered_json out;
  for (const auto& [name, type] : kClasses) {
    if (spec.arch == name) out["architectures"] = {type};
  }
  out["model_type"] = spec.arch;
  out["hidden_act"] = "silu";
  out["num_hidden_layers"] = config.layers;
  out["hidden_size"] = config.width;
  out["num_attention_heads"] = config.heads;
  out["num_key_value_heads"] = config.kv_heads;
  out["head_dim"] = config.head_dim;
  out["intermediate_size"] = config.ffn;
  out["vocab_size"] = config.vocab;
  out["max_position_embeddings"] = config.context;
  out["rms_norm_eps"] = 1e-5;
  out["tie_word_embeddings"] = config.tied_head;
  out["rope_theta"] = config.rope.base;
  out["bos_token_id"] = 0;
  out["eos_token_id"] = 0;
  out["pad_token_id"] = 0;
  if (spec.arch != "qwen2") out["attention_bias"] = config.qkv_bias;
  if (!spec.arch.starts_with("qwen")) out["mlp_bias"] = config.mlp_bias;
  if (config.window) {
    out["use_sliding_window"] = true;
    out["sliding_window"] = config.window;
    out["max_window_layers"] = 0;
  } else {
    out["sliding_window"] = nullptr;
  }
  if (!spec.windowed_layers.empty()) {
    out["layer_types"] = ordered_json::array();
    for (const auto on : spec.windowed_layers) {
      out["layer_types"].push_back(on ? "sliding_attention" : "full_attention");
    }
  }
  static const std::pair<RopeScaling, const char*> kScalings[] = {{RopeScaling::kLinear, "linear"},
                                                                  {RopeScaling::kDynamic, "dynamic"},
                                                                  {RopeScaling::kLlama3, "llama3"},
                                                                  {RopeScaling::kYarn, "yarn"}};
  for (const auto& [scaling, name] : kScalings) {
    if (scaling != config.rope.scaling) continue;
    out["rope_scaling"] = {{"rope_type", name}, {"factor", config.rope.factor}};
    if (config.rope.original_context) {
      out["rope_scaling"]["original_max_position_embeddings"] = config.rope.original_context;
    }
    if (scaling != RopeScaling::kLlama3) continue;
    out["rope_scaling"]["low_freq_factor"] = config.rope.low_frequency_factor;
    out["rope_scaling"]["high_freq_factor"] = config.rope.high_frequency_factor;
  }
  return out.dump(2);
}

void write_tiny_hf(const std::string& folder, const TinySpec& spec, int shards) {
  const auto at = [&](const std::string& name) { return (std::filesystem::path(folder) / name).string(); };
  std::filesystem::create_directories(folder);
  write_file(at("config.json"), tiny_config_json(spec));
  write_file(at("tokenizer.json"), tiny_tokenizer_json(spec.words, spec.vocab));
  write_file(at("tokenizer_config.json"), tiny_tokenizer_config_json());
  const ordered_json generation = {{"bos_token_id", 0}, {"eos_token_id", {0, 2}}, {"pad_token_id", 0}};
  write_file(at("generation_config.json"), generation.dump(2));

  const auto tensors = tiny_tensors(spec);
  std::vector<SafetensorsWriter> files(static_cast<size_t>(shards));
  ordered_json index = {{"metadata", {{"total_size", 0}}}, {"weight_map", ordered_json::object()}};
  const auto file_name = [&](size_t i) {
    if (shards == 1) return std::string("model.safetensors");
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05d-of-%05d.safetensors", static_cast<int>(i) + 1, shards);
    return std::string(name);
  };
  for (size_t i = 0; i < tensors.size(); ++i) {
    const size_t shard = i * files.size() / tensors.size();
    files[shard].add(tensors[i].hf_name, type_of(spec, tensors[i]), tensors[i].shape, tensors[i].values);
    index["weight_map"][tensors[i].hf_name] = file_name(shard);
  }
  for (size_t i = 0; i < files.size(); ++i) write_file(at(file_name(i)), files[i].bytes());
  if (shards > 1) write_file(at("model.safetensors.index.json"), index.dump(2));
}

}  // namespace sx::testing
