#include "model/convert/gguf_keys.h"

#include <cmath>

#include "base/error.h"
#include "formats/family.h"
#include "formats/hf_writer.h"

namespace sx {
namespace {

// The number by which GGUF tools name a file's main type.
uint32_t file_type(DType type) {
  switch (type) {
    case DType::kF16: return 1;
    case DType::kQ4_0: return 2;
    case DType::kQ4_1: return 3;
    case DType::kQ8_0: return 7;
    case DType::kQ4_K: return 14;
    case DType::kIQ4_NL: return 25;
    case DType::kMXFP4: return 38;
    case DType::kBF16: return 32;
    default: return 0;
  }
}

void add_type_keys(GgufKeys& keys, DType type) {
  keys.add_u32("general.file_type", file_type(type));
  if (dtype_is_quantised(type)) keys.add_u32("general.quantization_version", 2);
}

double yarn_mscale(double factor, double mscale) { return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0; }

void add_yarn(GgufKeys& keys, const std::string& scaling, const RopeConfig& rope) {
  if (rope.beta_fast != 32) keys.add_f32(scaling + "yarn_beta_fast", static_cast<float>(rope.beta_fast));
  if (rope.beta_slow != 1) keys.add_f32(scaling + "yarn_beta_slow", static_cast<float>(rope.beta_slow));
  double attention = rope.attention_factor;
  if (attention == 0 && rope.mscale > 0 && rope.mscale_all_dim > 0) {
    attention = yarn_mscale(rope.factor, rope.mscale) / yarn_mscale(rope.factor, rope.mscale_all_dim);
  }
  // GGUF's factor multiplies the derived one; ours replaces it.
  if (attention != 0)
    keys.add_f32(scaling + "attn_factor", static_cast<float>(attention / yarn_mscale(rope.factor, 1)));
}

void add_rope(GgufKeys& keys, const std::string& arch, const RopeConfig& rope, const std::string& file) {
  keys.add_u32(arch + ".rope.dimension_count", static_cast<uint32_t>(rope.dims));
  keys.add_f32(arch + ".rope.freq_base", static_cast<float>(rope.base));
  const std::string scaling = arch + ".rope.scaling.";
  switch (rope.scaling) {
    case RopeScaling::kNone:
    case RopeScaling::kLlama3: return;  // divisors are a tensor
    case RopeScaling::kLongRope: keys.add_string(scaling + "type", "longrope"); break;
    case RopeScaling::kDynamic: fail("{}: dynamic RoPE scaling cannot be said in GGUF", file);
    case RopeScaling::kLinear: keys.add_string(scaling + "type", "linear"); break;
    case RopeScaling::kYarn: keys.add_string(scaling + "type", "yarn"); break;
  }
  keys.add_f32(scaling + "factor", static_cast<float>(rope.factor));
  if (rope.original_context)
    keys.add_u32(scaling + "original_context_length", static_cast<uint32_t>(rope.original_context));
  if (rope.scaling == RopeScaling::kYarn) add_yarn(keys, scaling, rope);
}

}  // namespace

void add_config_keys(GgufKeys& keys, const ModelConfig& config, DType type, const std::string& file) {
  if (!config.family->to_gguf) fail("{}: GGUF files of {} models are not written", file, config.family->name);
  const std::string arch = config.family->gguf;
  keys.add_string("general.architecture", arch);
  keys.add_string("general.type", "model");
  if (!config.name.empty()) keys.add_string("general.name", config.name);
  add_type_keys(keys, type);
  const auto number = [&](const char* key, int value) { keys.add_u32(arch + key, static_cast<uint32_t>(value)); };
  number(".block_count", config.layers);
  number(".context_length", config.context);
  number(".embedding_length", config.width);
  number(".feed_forward_length", config.ffn);
  number(".attention.head_count", config.heads);
  number(".attention.head_count_kv", config.kv_heads);
  number(".attention.key_length", config.head_dim);
  number(".attention.value_length", config.head_dim);
  number(".vocab_size", config.vocab);
  keys.add_f32(arch + (config.centred_norms ? ".attention.layer_norm_epsilon" : ".attention.layer_norm_rms_epsilon"),
               config.norm_eps);
  if (config.window) number(".attention.sliding_window", config.window);
  if (const auto windowed = windowed_layers(config); !windowed.empty()) {
    keys.add_bools(arch + ".attention.sliding_window_pattern", windowed);
  }
  if (config.rope.scaling == RopeScaling::kYarn && config.rope.yarn_truncate == config.family->gguf_untruncated)
    fail("{}: yarn with 'truncate' {} cannot be said in GGUF", file, config.rope.yarn_truncate);
  add_rope(keys, arch, config.rope, file);
  config.family->to_gguf(config, arch, keys);
}

void add_tokenizer_keys(GgufKeys& keys, const TokenizerData& t) {
  if (!t.tokens.empty()) {
    keys.add_string("tokenizer.ggml.model", t.model);
    if (!t.pre.empty()) keys.add_string("tokenizer.ggml.pre", t.pre);
    keys.add_strings("tokenizer.ggml.tokens", t.tokens);
    if (!t.scores.empty()) keys.add_f32s("tokenizer.ggml.scores", t.scores);
    if (!t.types.empty()) {
      std::vector<int32_t> types;
      for (const TokenType type : t.types) types.push_back(static_cast<int32_t>(type));
      keys.add_i32s("tokenizer.ggml.token_type", types);
    }
    if (!t.merges.empty()) keys.add_strings("tokenizer.ggml.merges", t.merges);
  }
  const std::pair<const char*, int32_t> ids[] = {
      {"bos", t.bos}, {"eos", t.eos}, {"eot", t.eot}, {"unknown", t.unk}, {"padding", t.pad}};
  for (const auto& [name, id] : ids) {
    if (id >= 0) keys.add_u32(fmt::format("tokenizer.ggml.{}_token_id", name), static_cast<uint32_t>(id));
  }
  const std::pair<const char*, int> flags[] = {
      {"bos_token", t.add_bos}, {"eos_token", t.add_eos}, {"space_prefix", t.add_space_prefix}};
  for (const auto& [name, flag] : flags) {
    if (flag >= 0) keys.add_bool(fmt::format("tokenizer.ggml.add_{}", name), flag != 0);
  }
  if (!t.chat_template.empty()) keys.add_string("tokenizer.chat_template", t.chat_template);
}

void copy_keys(GgufKeys& keys, const GgufFile& from, DType type) {
  for (const GgufEntry& entry : from.entries()) {
    const bool own = entry.key == "general.file_type" || entry.key == "general.quantization_version" ||
                     entry.key == "general.alignment" || entry.key.starts_with("split.");
    if (!own) keys.add(entry);
  }
  add_type_keys(keys, type);
}

std::vector<float> rope_divisors(const ModelConfig& config) {
  if (config.rope.scaling != RopeScaling::kLlama3) return config.rope.factors;
  RopeConfig rope = config.rope;
  if (rope.original_context == 0) rope.original_context = config.context;
  return llama3_factors(rope);
}

}  // namespace sx
