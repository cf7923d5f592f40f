// config.json and tokenizer_config.json of a Hugging Face folder. Defaults are those that transformers applies when a
// key is absent, so that the same folder means the same model.
#include "formats/hf_config.h"

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"

namespace sx {
namespace {

struct KnownClass {
  const char* name;
  const char* model_type;
  Arch arch;
};

constexpr KnownClass kClasses[] = {{"LlamaForCausalLM", "llama", Arch::kLlama},
                                   {"MistralForCausalLM", "mistral", Arch::kLlama},
                                   {"Qwen2ForCausalLM", "qwen2", Arch::kQwen2},
                                   {"Qwen3ForCausalLM", "qwen3", Arch::kQwen3}};

class Reader {
 public:
  Reader(const Json& json, const std::string& file) : json_(json), file_(file) {}

  const Json& json() const { return json_; }
  const std::string& file() const { return file_; }
  const Json* member(const char* key) const { return json_member(json_, key); }
  std::optional<double> number(const char* key) const { return json_double(json_, key, file_); }
  std::optional<bool> flag(const char* key) const { return json_bool(json_, key, file_); }
  std::optional<std::string> text(const char* key) const { return json_string(json_, key, file_); }

  std::optional<int> integer(const char* key) const {
    const auto value = json_int(json_, key, file_);
    if (!value) return std::nullopt;
    if (*value < 0 || *value > std::numeric_limits<int>::max())
      fail("{}: key '{}' is {}, out of range", file_, key, *value);
    return static_cast<int>(*value);
  }

  int required(const char* key) const {
    const auto value = integer(key);
    if (!value) fail("{}: key '{}' is missing", file_, key);
    return *value;
  }

 private:
  const Json& json_;
  const std::string& file_;
};

const KnownClass& known_class(const Reader& in) {
  std::string found;
  if (const Json* list = in.member("architectures")) {
    if (!list->is_array() || list->empty() || !(*list)[0].is_string()) {
      fail("{}: key 'architectures' is not a list of names", in.file());
    }
    found = (*list)[0].get<std::string>();
    for (const auto& known : kClasses) {
      if (found == known.name) return known;
    }
  } else {
    found = in.text("model_type").value_or("");
    for (const auto& known : kClasses) {
      if (found == known.model_type) return known;
    }
  }
  fail(
      "{}: architecture '{}' is not supported; LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM and "
      "Qwen3ForCausalLM are",
      in.file(), printable(found));
}

void read_scaling(const Reader& in, const Reader& scaling, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  const std::string type = scaling.text("rope_type").value_or(scaling.text("type").value_or("default"));
  if (type == "default" || type == "none") return;
  rope.original_context = scaling.integer("original_max_position_embeddings").value_or(0);
  const auto factor = scaling.number("factor");
  if (factor) {
    rope.factor = *factor;
  } else if (type == "yarn" && rope.original_context > 0) {
    rope.factor = static_cast<double>(config.context) / rope.original_context;
  } else {
    fail("{}: RoPE scaling of type '{}' has no 'factor'", in.file(), printable(type));
  }
  if (type == "linear") {
    rope.scaling = RopeScaling::kLinear;
  } else if (type == "dynamic") {
    rope.scaling = RopeScaling::kDynamic;
    rope.original_context = config.context;  // the length from which the base grows
  } else if (type == "llama3") {
    rope.scaling = RopeScaling::kLlama3;
    const auto low = scaling.number("low_freq_factor"), high = scaling.number("high_freq_factor");
    if (!low || !high) fail("{}: RoPE scaling 'llama3' needs 'low_freq_factor' and 'high_freq_factor'", in.file());
    rope.low_frequency_factor = *low;
    rope.high_frequency_factor = *high;
  } else if (type == "yarn") {
    rope.scaling = RopeScaling::kYarn;
    const auto or_default = [&](const char* key, double value) {
      const double found = scaling.number(key).value_or(0);
      return found == 0 ? value : found;
    };
    rope.beta_fast = or_default("beta_fast", 32);
    rope.beta_slow = or_default("beta_slow", 1);
    rope.attention_factor = or_default("attention_factor", 0);
    rope.mscale = or_default("mscale", 0);
    rope.mscale_all_dim = or_default("mscale_all_dim", 0);
    rope.yarn_truncate = scaling.flag("truncate").value_or(true);
  } else {
    fail("{}: RoPE scaling of type '{}' is not supported; default, linear, dynamic, llama3 and yarn are", in.file(),
         printable(type));
  }
}

void read_rope(const Reader& in, ModelConfig& config) {
  config.rope.style = RopeStyle::kHalves;
  config.rope.dims = config.head_dim;
  config.rope.base = in.number("rope_theta").value_or(10000);
  double partial = in.number("partial_rotary_factor").value_or(1);
  // "rope_parameters" is the newer spelling and also holds the base; "rope_scaling" the older one.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* json = in.member(key);
    if (!json) continue;
    if (!json->is_object()) fail("{}: key '{}' is not an object", in.file(), key);
    const Reader scaling(*json, in.file());
    config.rope.base = scaling.number("rope_theta").value_or(config.rope.base);
    partial = scaling.number("partial_rotary_factor").value_or(partial);
    for (const auto& [name, value] : json->items()) {
      if (value.is_object()) fail("{}: '{}' differs between layer types, which is not supported", in.file(), key);
    }
    read_scaling(in, scaling, config);
  }
  if (partial != 1) fail("{}: key 'partial_rotary_factor' is {}; only 1 is supported", in.file(), partial);
}

void read_layer_types(const Reader& in, const Json& list, ModelConfig& config) {
  if (!list.is_array()) fail("{}: key 'layer_types' is not a list", in.file());
  if (list.size() != static_cast<size_t>(config.layers)) {
    fail("{}: key 'layer_types' has {} entries for {} layers", in.file(), list.size(), config.layers);
  }
  for (const auto& entry : list) {
    const std::string type = entry.is_string() ? entry.get<std::string>() : std::string(entry.type_name());
    if (type != "full_attention" && type != "sliding_attention") {
      fail("{}: layer type '{}' is not supported; full_attention and sliding_attention are", in.file(),
           printable(type));
    }
    config.windowed_layers.push_back(type == "sliding_attention");
  }
}

void read_window(const Reader& in, const KnownClass& known, ModelConfig& config) {
  const bool qwen = known.arch != Arch::kLlama;
  const bool mistral = std::string_view(known.model_type) == "mistral";
  if (!qwen && !mistral) return;                           // the class has no window, whatever else the file says
  const bool says = in.json().contains("sliding_window");  // null: none; absent: the class's default
  const int window = says ? in.integer("sliding_window").value_or(0) : 4096;
  config.window = qwen && !in.flag("use_sliding_window").value_or(false) ? 0 : window;
  if (config.window == 0) return;
  if (const Json* types = in.member("layer_types")) {
    read_layer_types(in, *types, config);
  } else if (qwen) {
    const int first = in.integer("max_window_layers").value_or(28);
    for (int layer = 0; layer < config.layers; ++layer) config.windowed_layers.push_back(layer >= first);
  }
  bool all = true, any = config.windowed_layers.empty();
  for (const auto on : config.windowed_layers) {
    all = all && on;
    any = any || on;
  }
  if (all) config.windowed_layers.clear();
  if (!any) config.window = 0, config.windowed_layers.clear();
}

// A number or a list of them; -1 and null: none.
std::vector<int32_t> read_ids(const Json& json, const char* key, const std::string& file, int vocab) {
  std::vector<int32_t> ids;
  const Json* value = json_member(json, key);
  if (value && value->is_array()) {
    for (const auto& entry : *value) {
      if (!entry.is_number_unsigned() || entry.get<uint64_t>() >= static_cast<uint64_t>(vocab)) {
        fail("{}: key '{}' lists {}, outside the vocabulary of {}", file, key, printable(entry.dump()), vocab);
      }
      ids.push_back(static_cast<int32_t>(entry.get<uint64_t>()));
    }
    return ids;
  }
  const auto id = json_int(json, key, file);
  if (!id || *id == -1) return ids;
  if (*id < 0 || *id >= vocab) fail("{}: key '{}' is {}, outside the vocabulary of {}", file, key, *id, vocab);
  ids.push_back(static_cast<int32_t>(*id));
  return ids;
}

}  // namespace

ModelConfig config_from_json(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  if (!json.is_object()) fail("{}: not a JSON object", file);
  const Reader in(json, file);
  const KnownClass& known = known_class(in);
  if (in.member("quantization_config")) {
    fail("{}: the weights are quantised ('quantization_config'); only plain F32, F16 and BF16 folders are read", file);
  }
  ModelConfig config;
  config.arch = known.arch;
  config.arch_name = known.model_type;
  config.name = in.text("_name_or_path").value_or("");
  config.layers = in.required("num_hidden_layers");
  if (config.layers > 1024) fail("{}: key 'num_hidden_layers' is {}; at most 1024 is accepted", file, config.layers);
  config.width = in.required("hidden_size");
  config.ffn = in.required("intermediate_size");
  config.heads = in.required("num_attention_heads");
  if (config.heads < 1) fail("{}: key 'num_attention_heads' is 0", file);
  config.kv_heads = in.integer("num_key_value_heads").value_or(config.heads);
  const int default_head = known.arch == Arch::kQwen3 ? 128 : config.width / config.heads;
  config.head_dim = in.integer("head_dim").value_or(default_head);
  config.vocab = in.required("vocab_size");
  config.context = in.required("max_position_embeddings");
  config.norm_eps = static_cast<float>(in.number("rms_norm_eps").value_or(1e-6));
  config.tied_head = in.flag("tie_word_embeddings").value_or(false);
  const std::string activation = in.text("hidden_act").value_or("silu");
  if (activation != "silu") fail("{}: key 'hidden_act' is '{}'; only silu is supported", file, printable(activation));
  const bool mistral = std::string_view(known.model_type) == "mistral";
  const bool bias = !mistral && in.flag("attention_bias").value_or(false);
  config.qkv_bias = known.arch == Arch::kQwen2 || bias;
  config.out_bias = known.arch != Arch::kQwen2 && bias;
  config.mlp_bias = known.arch == Arch::kLlama && !mistral && in.flag("mlp_bias").value_or(false);
  config.qk_norm = known.arch == Arch::kQwen3;
  read_rope(in, config);
  read_window(in, known, config);
  return config;
}

ModelConfig outline_from_json(std::string_view text, const std::string& file) {
  ModelConfig config;
  const Json json = parse_json(text, file);
  const auto word = [&](const char* key) {
    const Json* value = json_member(json, key);
    return value && value->is_string() ? value->get<std::string>() : std::string();
  };
  const auto number = [&](const char* key) {
    const Json* value = json_member(json, key);
    const bool fits = value && value->is_number_unsigned() && value->get<uint64_t>() <= std::numeric_limits<int>::max();
    return fits ? static_cast<int>(value->get<uint64_t>()) : 0;
  };
  config.arch_name = word("model_type");
  config.name = word("_name_or_path");
  config.layers = number("num_hidden_layers");
  config.width = number("hidden_size");
  config.ffn = number("intermediate_size");
  config.heads = number("num_attention_heads");
  config.kv_heads = number("num_key_value_heads");
  config.head_dim = number("head_dim");
  config.vocab = number("vocab_size");
  config.context = number("max_position_embeddings");
  config.window = number("sliding_window");
  if (config.head_dim == 0 && config.heads > 0) config.head_dim = config.width / config.heads;
  return config;
}

void token_ids_from_json(std::string_view text, const std::string& file, TokenizerData& data) {
  const Json json = parse_json(text, file);
  const auto first = [](const std::vector<int32_t>& ids) { return ids.empty() ? -1 : ids.front(); };
  data.bos = first(read_ids(json, "bos_token_id", file, data.vocab));
  data.ends = read_ids(json, "eos_token_id", file, data.vocab);
  data.eos = first(data.ends);
  data.pad = first(read_ids(json, "pad_token_id", file, data.vocab));
}

std::string chat_template_from_json(std::string_view text, const std::string& file) {
  const Json json = parse_json(text, file);
  const Json* value = json_member(json, "chat_template");
  if (!value) return {};
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) fail("{}: key 'chat_template' is neither a string nor a list", file);
  std::string first;
  for (const auto& entry : *value) {
    const auto name = json_string(entry, "name", file), source = json_string(entry, "template", file);
    if (!name || !source) fail("{}: an entry of 'chat_template' lacks 'name' or 'template'", file);
    if (*name == "default") return *source;
    if (first.empty()) first = *source;
  }
  return first;
}

}  // namespace sx
