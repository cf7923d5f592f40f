// config.json and tokenizer_config.json of a Hugging Face folder. Defaults are those that transformers applies when a
// key is absent, so that the same folder means the same model.
#include "formats/hf_config.h"

#include <algorithm>
#include <limits>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "formats/family.h"
#include "formats/family_settings.h"

namespace sx {
namespace {

const Family& find_family(const HfSettings& in) {
  std::string found, type = in.text("model_type").value_or("");
  if (const Json* list = in.member("architectures")) {
    if (!list->is_array() || list->empty() || !(*list)[0].is_string()) {
      fail("{}: key 'architectures' is not a list of names", in.file());
    }
    found = (*list)[0].get<std::string>(), type.clear();
  }
  if (const Family* family = family_of_folder(found, type)) return *family;
  fail("{}: {}", in.file(), why_unsupported(found.empty() ? type : found));
}

Activation read_activation(const HfSettings& in, const Family& family) {
  const char* key = in.member("hidden_activation") ? "hidden_activation" : "hidden_act";
  const auto name = in.text(key);
  if (name && activation_named(*name) != family.activation)
    fail("{}: key '{}' is '{}'; only {} is supported", in.file(), key, printable(*name),
         activation_name(family.activation));
  return family.activation;
}

void read_rope(const HfSettings& in, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  rope.style = config.family->hf_style;
  rope.dims = config.head_dim;
  rope.base = in.number("rope_theta").value_or(config.family->rope_base);
  double partial = in.number("partial_rotary_factor").value_or(1);
  // "rope_parameters" is the newer spelling and also holds the base; "rope_scaling" the older one.
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const Json* json = in.member(key);
    if (!json) continue;
    if (!json->is_object()) fail("{}: key '{}' is not an object", in.file(), key);
    for (const auto& [name, value] : json->items()) {
      if (value.is_object() && config.family->layer_ropes && name == "full_attention") json = &value;
      else if (value.is_object() && !config.family->layer_ropes)
        fail("{}: '{}' differs between layer types, which is not supported", in.file(), key);
    }
    partial = HfSettings(*json, in.file()).number("partial_rotary_factor").value_or(partial);
    read_hf_rope(in, config, *json, rope);
  }
  if (partial != 1 && !config.family->partial_rotary)
    fail("{}: key 'partial_rotary_factor' is {}; only 1 is supported", in.file(), partial);
  rope.dims = static_cast<int>(config.head_dim * std::clamp(partial, 0.0, 1.0));
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
  const HfSettings in(json, file);
  const Family& family = find_family(in);
  if (const Json* scheme = in.member("quantization_config"); scheme && !family.reads_quantised(*scheme)) {
    fail("{}: the weights are quantised ('quantization_config'); only plain F32, F16 and BF16 folders are read", file);
  }
  ModelConfig config;
  config.family = &family;
  config.arch_name = family.model_type;
  config.name = in.text("_name_or_path").value_or("");
  config.layers = in.required("num_hidden_layers");
  if (config.layers > kMostLayers)
    fail("{}: key 'num_hidden_layers' is {}; at most {} is accepted", file, config.layers, kMostLayers);
  config.width = in.required("hidden_size");
  config.ffn = in.required("intermediate_size");
  config.heads = in.required("num_attention_heads");
  if (config.heads < 1) fail("{}: key 'num_attention_heads' is 0", file);
  config.kv_heads = in.integer("num_key_value_heads").value_or(config.heads);
  config.head_dim = in.integer("head_dim").value_or(family.head_dim ? family.head_dim : config.width / config.heads);
  config.vocab = in.required("vocab_size");
  config.context = in.required("max_position_embeddings");
  config.norm_eps = in.number_or("rms_norm_eps", 1e-6);
  config.tied_head = in.flag("tie_word_embeddings").value_or(family.tied);
  config.activation = read_activation(in, family);
  config.qkv_bias = config.out_bias = in.flag("attention_bias").value_or(false);
  config.norm_offset = family.norm_offset;
  config.mtp_blocks = in.integer("num_nextn_predict_layers").value_or(0);
  read_rope(in, config);
  family.from_hf(in, config);
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
