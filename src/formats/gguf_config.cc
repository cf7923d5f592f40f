// GGUF keys to ModelConfig and TokenizerData.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/printable.h"
#include "formats/family.h"
#include "formats/family_settings.h"
#include "formats/gguf_model.h"

namespace sx {
namespace {

void read_yarn(const GgufSettings& keys, RopeConfig& rope) {
  rope.beta_fast = keys.number("rope.scaling.yarn_beta_fast").value_or(32);
  rope.beta_slow = keys.number("rope.scaling.yarn_beta_slow").value_or(1);
  const double extrapolation = keys.number("rope.scaling.yarn_ext_factor").value_or(1);
  if (extrapolation != 1 && extrapolation != -1) {  // -1: "the default", which is 1
    fail("{}: key '{}' is {}; only 1 is supported", keys.file().path(), keys.name("rope.scaling.yarn_ext_factor"),
         extrapolation);
  }
  // What multiplies cos and sin. "yarn_attn_factor" is the whole of it: converters write the folder's attention_factor
  // there. Otherwise it is derived from the factor, less what "yarn_log_multiplier" (the folder's mscale_all_dim) takes
  // back. "attn_factor" multiplies either.
  const double own = keys.number("rope.scaling.yarn_attn_factor").value_or(0);
  const double multiplier = keys.number("rope.scaling.yarn_log_multiplier").value_or(0);
  const double extra = keys.number("rope.scaling.attn_factor").value_or(1);
  if (own < 0 || multiplier < 0) {
    fail("{}: key '{}' is {}; a number >= 0 is expected", keys.file().path(),
         keys.name(own < 0 ? "rope.scaling.yarn_attn_factor" : "rope.scaling.yarn_log_multiplier"),
         own < 0 ? own : multiplier);
  }
  if (own == 0 && multiplier == 0 && extra == 1) return;  // derived
  const auto scale = [&](double weight) { return rope.factor > 1 ? 0.1 * weight * std::log(rope.factor) + 1 : 1; };
  rope.attention_factor = extra * (own > 0 ? own : multiplier > 0 ? scale(1) / scale(multiplier) : scale(1));
}

void read_rope(const GgufSettings& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.style = config.family->gguf_style;
  rope.dims = keys.integer("rope.dimension_count").value_or(config.head_dim);
  rope.base = keys.number("rope.freq_base").value_or(10000);
  rope.original_context = keys.integer("rope.scaling.original_context_length").value_or(0);
  const auto factor = keys.number("rope.scaling.factor");
  const auto old_linear = keys.number("rope.scale_linear");
  const auto type = keys.text("rope.scaling.type");
  if (!type) {
    const double linear = factor.value_or(old_linear.value_or(1));
    // Files exist that say 0 for "no scaling".
    rope.scaling = linear == 1 || linear == 0 ? RopeScaling::kNone : RopeScaling::kLinear;
    rope.factor = linear == 0 ? 1 : linear;
  } else if (*type == "none") {
    rope.scaling = RopeScaling::kNone;
  } else if (*type == "linear") {
    rope.scaling = RopeScaling::kLinear;
    rope.factor = factor.value_or(old_linear.value_or(1));
  } else if (*type == "longrope") {
    rope.scaling = RopeScaling::kLongRope;  // its divisors are tensors, which the family reads
  } else if (*type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    if (!factor) fail("{}: key '{}' is missing", keys.file().path(), keys.name("rope.scaling.factor"));
    rope.factor = *factor;
    read_yarn(keys, rope);
  } else {
    fail("{}: key '{}' is '{}'; none, linear, yarn and longrope are supported", keys.file().path(),
         keys.name("rope.scaling.type"), printable(*type));
  }
}

// Parts that the tensors show, for files whose keys do not say.
void find_optional_parts(const GgufSettings& keys, ModelConfig& config) {
  const auto has = [&](const char* name) { return keys.tensor(name) != nullptr; };
  config.tied_head = !has("output.weight");
  config.qkv_bias = has("blk.0.attn_q.bias");
  config.out_bias = has("blk.0.attn_output.bias");
  config.mlp_bias = has("blk.0.ffn_gate.bias") || has("blk.0.ffn_up.bias");
  if (has("blk.0.attn_q_norm.weight")) config.qk_norm = HeadNorm::kEach;
}

int32_t token_id(const GgufFile& file, std::string_view key, int vocab) {
  const auto value = file.get_int(key);
  if (!value || *value == -1 || *value == std::numeric_limits<uint32_t>::max()) return -1;
  if (*value < 0 || *value >= vocab) {
    fail("{}: key '{}' is {}, outside the vocabulary of {}", file.path(), key, *value, vocab);
  }
  return static_cast<int32_t>(*value);
}

int flag(const GgufFile& file, std::string_view key) {
  const auto value = file.get_bool(key);
  return value ? *value : -1;
}

std::vector<std::string> string_list(const GgufFile& file, std::string_view key) {
  const GgufArray* array = file.get_array(key);
  if (!array) return {};
  if (array->element != GgufType::kString) fail("{}: key '{}' is not an array of strings", file.path(), key);
  return {array->strings.begin(), array->strings.end()};
}

}  // namespace

ModelConfig config_from_gguf(const GgufFile& file, std::span<const NamedTensor> tensors) {
  ModelConfig config;
  const auto arch = file.get_string("general.architecture");
  if (!arch) fail("{}: key 'general.architecture' is missing", file.path());
  config.family = family_of_gguf(*arch);
  if (!config.family) fail("{}: {}", file.path(), why_unsupported(*arch));
  config.arch_name = *arch;
  config.name = file.get_string("general.name").value_or("");
  const GgufSettings keys(file, tensors, config.arch_name);
  config.layers = keys.required("block_count");
  if (config.layers > kMostLayers) {
    fail("{}: the number of layers (key '{}') is {}; at most {} is accepted", file.path(), keys.name("block_count"),
         config.layers, kMostLayers);
  }
  config.mtp_blocks = keys.integer("nextn_predict_layers").value_or(0);
  if (config.mtp_blocks < 0 || config.mtp_blocks >= config.layers) {
    fail("{}: key '{}' is {} of {} blocks", file.path(), keys.name("nextn_predict_layers"), config.mtp_blocks,
         config.layers);
  }
  config.layers -= config.mtp_blocks;
  config.width = keys.required("embedding_length");
  config.ffn = keys.required("feed_forward_length");
  config.heads = keys.required("attention.head_count");
  config.kv_heads = keys.uniform("attention.head_count_kv").value_or(config.heads);
  config.context = keys.required("context_length");
  if (config.heads < 1) fail("{}: key '{}' is 0", file.path(), keys.name("attention.head_count"));
  config.head_dim = keys.integer("attention.key_length").value_or(config.width / config.heads);
  const int value_length = keys.integer("attention.value_length").value_or(config.head_dim);
  if (value_length != config.head_dim) {
    fail("{}: keys of {} and values of {} dimensions; equal sizes are expected", file.path(), config.head_dim,
         value_length);
  }
  auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
  if (!epsilon) epsilon = keys.number("attention.layer_norm_epsilon");
  if (!epsilon) fail("{}: key '{}' is missing", file.path(), keys.name("attention.layer_norm_rms_epsilon"));
  config.norm_eps = static_cast<float>(*epsilon);
  const NamedTensor* embedding = keys.tensor("token_embd.weight");
  config.vocab = keys.to_int("rows of token_embd.weight", embedding ? embedding->tensor.rows() : 0);
  if (const auto vocab = keys.integer("vocab_size"); config.vocab > 0 && vocab && *vocab != config.vocab) {
    fail("{}: key '{}' is {}, but token_embd.weight has {} rows", file.path(), keys.name("vocab_size"), *vocab,
         config.vocab);
  }
  read_rope(keys, config);
  config.rope.factors = keys.floats("rope_freqs.weight", config.rope.dims / 2);
  find_optional_parts(keys, config);
  config.family->from_gguf(keys, config);
  if (const int experts = keys.integer("expert_count").value_or(0); experts > 0 && config.experts == 0)
    fail("{}: {} experts: mixtures of architecture '{}' are not supported", file.path(), experts, config.arch_name);
  return config;
}

ModelConfig outline_from_gguf(const GgufFile& file) {
  ModelConfig config;
  const auto text = [&](const char* key) {
    const GgufValue* value = file.find(key);
    return std::string(value ? value->as_string().value_or("") : "");
  };
  config.arch_name = text("general.architecture");
  config.name = text("general.name");
  const auto number = [&](const char* key) {
    const GgufValue* value = file.find(config.arch_name + "." + key);
    const auto found = value ? value->as_int() : std::nullopt;
    return found && *found > 0 && *found <= std::numeric_limits<int>::max() ? static_cast<int>(*found) : 0;
  };
  config.layers = number("block_count");
  config.width = number("embedding_length");
  config.ffn = number("feed_forward_length");
  config.heads = number("attention.head_count");
  config.kv_heads = number("attention.head_count_kv");
  config.head_dim = number("attention.key_length");
  config.context = number("context_length");
  config.window = number("attention.sliding_window");
  if (config.head_dim == 0 && config.heads > 0) config.head_dim = config.width / config.heads;
  const GgufArray* tokens = file.get_array("tokenizer.ggml.tokens");
  const GgufTensor* embedding = file.tensor("token_embd.weight");
  const size_t rows = embedding ? static_cast<size_t>(embedding->tensor.rows()) : 0,
               listed = tokens ? tokens->count : 0;
  config.vocab = static_cast<int>(std::min<size_t>(std::max(rows, listed), std::numeric_limits<int>::max()));
  return config;
}

TokenizerData tokenizer_from_gguf(const GgufFile& file, int vocab) {
  TokenizerData data;
  data.file = file.path();
  data.vocab = vocab;
  data.name = file.get_string("general.name").value_or("");
  data.model = file.get_string("tokenizer.ggml.model").value_or("");
  data.pre = file.get_string("tokenizer.ggml.pre").value_or("");
  data.tokens = string_list(file, "tokenizer.ggml.tokens");
  data.merges = string_list(file, "tokenizer.ggml.merges");
  if (const GgufArray* scores = file.get_array("tokenizer.ggml.scores")) {
    if (!gguf_is_float(scores->element)) fail("{}: key 'tokenizer.ggml.scores' is not an array of floats", file.path());
    for (size_t i = 0; i < scores->count; ++i) data.scores.push_back(static_cast<float>(gguf_number(*scores, i)));
  }
  if (const GgufArray* types = file.get_array("tokenizer.ggml.token_type")) {
    if (!gguf_is_integer(types->element)) {
      fail("{}: key 'tokenizer.ggml.token_type' is not an array of integers", file.path());
    }
    for (size_t i = 0; i < types->count; ++i) {
      const int64_t type = gguf_integer(*types, i);
      if (type < 1 || type > 6)
        fail("{}: key 'tokenizer.ggml.token_type' gives token {} type {}", file.path(), i, type);
      data.types.push_back(static_cast<TokenType>(type));
    }
  }
  data.bos = token_id(file, "tokenizer.ggml.bos_token_id", vocab);
  data.eos = token_id(file, "tokenizer.ggml.eos_token_id", vocab);
  data.eot = token_id(file, "tokenizer.ggml.eot_token_id", vocab);
  data.unk = token_id(file, "tokenizer.ggml.unknown_token_id", vocab);
  data.pad = token_id(file, "tokenizer.ggml.padding_token_id", vocab);
  data.add_bos = flag(file, "tokenizer.ggml.add_bos_token");
  data.add_eos = flag(file, "tokenizer.ggml.add_eos_token");
  data.add_space_prefix = flag(file, "tokenizer.ggml.add_space_prefix");
  data.chat_template = file.get_string("tokenizer.chat_template").value_or("");
  return data;
}

}  // namespace sx
