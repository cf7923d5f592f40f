// GGUF keys to ModelConfig and TokenizerData.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "formats/gguf_model.h"
#include "base/printable.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

// Reads keys below the architecture's prefix ("llama.block_count").
class Keys {
 public:
  Keys(const GgufFile& file, std::string arch) : file_(file), arch_(std::move(arch)) {}

  std::string name(std::string_view key) const { return fmt::format("{}.{}", arch_, key); }

  int to_int(const std::string& key, int64_t value) const {
    if (value < 0 || value > std::numeric_limits<int>::max()) {
      fail("{}: key '{}' is {}, which is out of range", file_.path(), key, value);
    }
    return static_cast<int>(value);
  }

  // A number, or an array with one equal number per layer.
  std::optional<int> uniform(std::string_view key) const {
    const std::string full = name(key);
    const GgufValue* value = file_.find(full);
    if (!value) return std::nullopt;
    const GgufArray* array = value->as_array();
    if (!array) return to_int(full, *file_.get_int(full));
    if (!gguf_is_integer(array->element) || array->count == 0) {
      fail("{}: key '{}' is {}; an integer or an array of integers is expected", file_.path(), full, value->print(60));
    }
    const int64_t first = gguf_integer(*array, 0);
    for (size_t i = 1; i < array->count; ++i) {
      if (gguf_integer(*array, i) != first) {
        fail("{}: key '{}' differs between layers ({} and {}); only uniform models are supported", file_.path(), full,
             first, gguf_integer(*array, i));
      }
    }
    return to_int(full, first);
  }

  std::optional<int> integer(std::string_view key) const {
    const std::string full = name(key);
    if (const auto value = file_.get_int(full)) return to_int(full, *value);
    return std::nullopt;
  }

  int required(std::string_view key) const {
    const auto value = uniform(key);
    if (!value) fail("{}: key '{}' is missing", file_.path(), name(key));
    return *value;
  }

  std::optional<double> number(std::string_view key) const { return file_.get_double(name(key)); }
  std::optional<std::string_view> text(std::string_view key) const { return file_.get_string(name(key)); }
  const GgufValue* find(std::string_view key) const { return file_.find(name(key)); }
  const GgufFile& file() const { return file_; }

 private:
  const GgufFile& file_;
  std::string arch_;
};

Arch arch_from_gguf(std::string_view name, const std::string& path) {
  if (name == "llama") return Arch::kLlama;
  if (name == "qwen2") return Arch::kQwen2;
  if (name == "qwen3") return Arch::kQwen3;
  fail("{}: architecture '{}' is not supported; llama, qwen2 and qwen3 are", path, printable(name));
}

void read_yarn(const Keys& keys, RopeConfig& rope) {
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

void read_rope(const Keys& keys, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.style = config.arch == Arch::kLlama ? RopeStyle::kInterleaved : RopeStyle::kHalves;
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
  } else if (*type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    if (!factor) fail("{}: key '{}' is missing", keys.file().path(), keys.name("rope.scaling.factor"));
    rope.factor = *factor;
    read_yarn(keys, rope);
  } else {
    fail("{}: key '{}' is '{}'; none, linear and yarn are supported", keys.file().path(),
         keys.name("rope.scaling.type"), printable(*type));
  }
}

void read_rope_factors(const GgufFile& file, RopeConfig& rope) {
  const GgufTensor* found = file.tensor("rope_freqs.weight");
  if (!found) return;
  const Tensor& tensor = found->tensor;
  if (tensor.type != DType::kF32 || tensor.rank != 1 || tensor.shape[0] != rope.dims / 2) {
    fail("{}: tensor 'rope_freqs.weight' is {} of rank {} with {} elements; F32 [{}] is expected", file.path(),
         dtype_name(tensor.type), tensor.rank, tensor.elements(), rope.dims / 2);
  }
  rope.factors.resize(static_cast<size_t>(tensor.shape[0]));
  dequantise(tensor.type, tensor.data, tensor.elements(), rope.factors.data());
}

void read_window(const Keys& keys, ModelConfig& config) {
  config.window = keys.integer("attention.sliding_window").value_or(0);
  const GgufValue* pattern = keys.find("attention.sliding_window_pattern");
  if (!pattern || config.window == 0) return;
  const GgufArray* array = pattern->as_array();
  if (!array || array->element != GgufType::kBool || array->count != static_cast<size_t>(config.layers)) {
    fail("{}: key '{}' is {}; one boolean per layer is expected", keys.file().path(),
         keys.name("attention.sliding_window_pattern"), pattern->print(60));
  }
  for (size_t i = 0; i < array->count; ++i) {
    config.windowed_layers.push_back(static_cast<uint8_t>(gguf_integer(*array, i)));
  }
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

ModelConfig config_from_gguf(const GgufFile& file, int64_t embedding_rows) {
  ModelConfig config;
  const auto arch = file.get_string("general.architecture");
  if (!arch) fail("{}: key 'general.architecture' is missing", file.path());
  config.arch = arch_from_gguf(*arch, file.path());
  config.arch_name = *arch;
  config.name = file.get_string("general.name").value_or("");
  const Keys keys(file, config.arch_name);
  if (const int experts = keys.integer("expert_count").value_or(0); experts > 0) {
    fail("{}: a mixture-of-experts model ({} experts); only dense models are supported", file.path(), experts);
  }
  config.layers = keys.required("block_count");
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
  const auto epsilon = keys.number("attention.layer_norm_rms_epsilon");
  if (!epsilon) fail("{}: key '{}' is missing", file.path(), keys.name("attention.layer_norm_rms_epsilon"));
  config.norm_eps = static_cast<float>(*epsilon);
  config.vocab = keys.to_int("rows of token_embd.weight", embedding_rows);
  if (const auto vocab = keys.integer("vocab_size"); embedding_rows > 0 && vocab && *vocab != config.vocab) {
    fail("{}: key '{}' is {}, but token_embd.weight has {} rows", file.path(), keys.name("vocab_size"), *vocab,
         config.vocab);
  }
  read_rope(keys, config);
  read_rope_factors(file, config.rope);
  read_window(keys, config);
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
