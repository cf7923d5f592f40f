// vLLM's speculative configuration, a JSON object, as presets and settings. What is left out means what it means there.
// Keys that only steer vLLM's own machinery are checked for their type and ignored; what could not be honoured is
// refused by name.
#include <algorithm>

#include "base/error.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "speculative/config/config.h"

namespace sx {
namespace {

const std::string kWhere = "speculative config";
constexpr size_t kMostConfigBytes = 64 << 10;

enum class Kind { kInteger, kNumber, kBool, kString };
const char* kind_name(Kind kind) {
  constexpr const char* kNames[] = {"an integer", "a number", "true or false", "a string"};
  return kNames[static_cast<int>(kind)];
}

bool is_kind(const Json& value, Kind kind) {
  switch (kind) {
    case Kind::kInteger: return value.is_number_integer();
    case Kind::kNumber: return value.is_number();
    case Kind::kBool: return value.is_boolean();
    case Kind::kString: return value.is_string();
  }
  return false;
}

// How a key is taken. `settings`: named with spaces, each gets the value; null: nothing to set. `only`: the one value
// that is accepted, as JSON. `method`: the one method that reads the key; null: all.
struct Key {
  const char* name;
  Kind kind;
  const char* method = nullptr;
  const char* settings = nullptr;
  const char* only = nullptr;
};

constexpr Key kKeys[] = {
    {"method", Kind::kString},
    {"model", Kind::kString},
    {"num_speculative_tokens", Kind::kInteger, nullptr, "nodes"},
    {"prompt_lookup_min", Kind::kInteger, "ngram", "ngram-min"},
    {"prompt_lookup_max", Kind::kInteger, "ngram", "ngram-max"},
    {"suffix_decoding_max_tree_depth", Kind::kInteger, "suffix", "match-max depth"},
    {"suffix_decoding_max_spec_factor", Kind::kNumber, "suffix", "factor"},
    {"suffix_decoding_min_token_prob", Kind::kNumber, "suffix", "min-prob"},
    {"suffix_decoding_max_cached_requests", Kind::kInteger, "suffix"},
    {"rejection_sample_method", Kind::kString},
    {"draft_sample_method", Kind::kString},
    {"kv_cache_dtype", Kind::kString},
    // Ignored: they decide where and how fast vLLM runs, not what.
    {"max_model_len", Kind::kInteger},
    {"attention_backend", Kind::kString},
    {"moe_backend", Kind::kString},
    {"enforce_eager", Kind::kBool},
    {"disable_padded_drafter_batch", Kind::kBool},
    {"disable_eagle_block_drop", Kind::kBool},
    {"use_local_argmax_reduction", Kind::kBool},
    {"parallel_drafting", Kind::kBool},  // of EAGLE-3 heads, whose folder says it
    // Only what is so here anyway.
    {"draft_tensor_parallel_size", Kind::kInteger, nullptr, nullptr, "1"},
    {"quantization", Kind::kString, nullptr, nullptr, "null"},
    {"revision", Kind::kString, nullptr, nullptr, "null"},
    {"code_revision", Kind::kString, nullptr, nullptr, "null"},
    {"use_heterogeneous_vocab", Kind::kBool, nullptr, nullptr, "false"},
    {"enable_adaptive_verification", Kind::kBool, nullptr, nullptr, "false"},
};

[[noreturn]] void refuse_key(std::string_view name) {
  std::string names;
  for (const Key& key : kKeys) names += fmt::format("{}{}", names.empty() ? "" : ", ", key.name);
  fail("{}: key '{}' is not known; known are {}", kWhere, printable(name, 60), names);
}

// Every key is known and has a value of its kind; null is as if it were not there, as in vLLM.
void check_keys(const Json& json) {
  for (const auto& [name, value] : json.items()) {
    const std::string_view given = name;
    const Key* key = std::find_if(std::begin(kKeys), std::end(kKeys), [&](const Key& k) { return k.name == given; });
    if (key == std::end(kKeys)) refuse_key(name);
    if (value.is_null()) continue;
    const std::string text = printable(value.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
    if (key->only && text != key->only) fail("{}: key '{}' is {}; only {} is supported", kWhere, name, text, key->only);
    if (!is_kind(value, key->kind))
      fail("{}: key '{}' is {}; {} is expected", kWhere, name, text, kind_name(key->kind));
  }
}

bool any_of_method(const Json& json, std::string_view method) {
  return std::any_of(std::begin(kKeys), std::end(kKeys),
                     [&](const Key& key) { return key.method && key.method == method && json_member(json, key.name); });
}

// draft_model, mtp, ngram or suffix.
std::string method_of(const Json& json) {
  const auto model = json_string(json, "model", kWhere);
  std::string method = json_string(json, "method", kWhere).value_or("");
  if (method.empty() && model) method = *model == "ngram" || *model == "[ngram]" ? "ngram" : "draft_model";
  if (method.empty() && any_of_method(json, "ngram")) method = "ngram";
  if (method.empty() && any_of_method(json, "suffix")) method = "suffix";
  if (method == "[ngram]") method = "ngram";
  // A chain; that the model is a head, and which, shows in its folder.
  constexpr const char* kRead[] = {"eagle", "eagle3", "medusa", "dflash", "dspark"};
  if (std::find(std::begin(kRead), std::end(kRead), method) != std::end(kRead)) method = "draft_model";
  constexpr const char* kUse = "draft_model with a model, or mtp, suffix or ngram without one";
  if (method.empty()) fail("{}: neither key 'method' nor key 'model' is given; use {}", kWhere, kUse);
  if (method.ends_with("_mtp")) method = "mtp";
  if (method == "draft_model" || method == "mtp" || method == "ngram" || method == "suffix") return method;
  if (method == "mlp_speculator")
    fail("{}: method '{}' drafts with a head on the target, which is not supported yet; use {}", kWhere,
         printable(method, 60), kUse);
  fail("{}: method '{}' is not known; use {}", kWhere, printable(method, 60), kUse);
}

// The value in our words, from pairs of theirs and ours.
using Words = std::initializer_list<std::pair<const char*, const char*>>;
std::string translate(const char* key, const std::string& value, Words words) {
  std::string known;
  for (const auto& [theirs, ours] : words) {
    if (value == theirs) return ours;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", theirs);
  }
  fail("{}: key '{}' is '{}'; supported are {}", kWhere, key, printable(value, 60), known);
}

// A setting whose error names the key it came from.
void set(SpecConfig& config, const char* key, std::string_view setting, const std::string& value) {
  try {
    apply_setting(config, setting, value);
  } catch (const Error& error) { fail("{}: key '{}': {}", kWhere, key, error.what()); }
}

void set_from_table(SpecConfig& config, const Json& json, std::string_view method) {
  for (const Key& key : kKeys) {
    const Json* value = json_member(json, key.name);
    if (!value) continue;
    if (key.method && key.method != method)
      fail("{}: key '{}' belongs to method {}, and the method is {}", kWhere, key.name, key.method, method);
    for (std::string_view rest = key.settings ? key.settings : ""; !rest.empty();) {
      const size_t space = std::min(rest.find(' '), rest.size());
      set(config, key.name, rest.substr(0, space), value->dump());
      rest = rest.substr(std::min(space + 1, rest.size()));
    }
  }
}

// What vLLM takes where nothing is said.
void set_defaults(SpecConfig& config, std::string_view method) {
  if (method == "mtp")
    config.tree.kind = TreeKind::kChain, config.tree.nodes = 1, config.tree.depth = kMaxTreeNodes - 1;
  if (method == "ngram") config.index.ngram_min = config.index.ngram_max = 5;
  if (method == "suffix") config.tree.nodes = config.tree.depth = config.index.match_max = 24;
}

void set_model(SpecConfig& config, const Json& json, const std::string& method) {
  const auto model = json_string(json, "model", kWhere);
  if (!model) return;  // may still come from elsewhere
  if (method == "draft_model") config.draft_model = *model;
  else if (*model != method && *model != "[" + method + "]")
    fail("{}: key 'model' is '{}', but method {} uses none", kWhere, printable(*model), method);
}

}  // namespace

SpecConfig config_from_json(std::string_view text) {
  if (text.size() > kMostConfigBytes)
    fail("{}: {} bytes; at most {} are accepted", kWhere, text.size(), kMostConfigBytes);
  const Json json = parse_json(text, kWhere);
  if (!json.is_object())
    fail("{}: is {}; an object like {{\"method\": \"suffix\"}} is expected", kWhere, json.type_name());
  check_keys(json);
  const std::string method = method_of(json);
  if (json_bool(json, "parallel_drafting", kWhere).value_or(false) &&
      json_string(json, "method", kWhere).value_or("") != "eagle3")
    fail("{}: key 'parallel_drafting' is true; it is supported with method eagle3 and a head trained for it", kWhere);
  SpecConfig config = preset_config(method == "draft_model" ? "sd" : method);
  set_defaults(config, method);
  set_from_table(config, json, method);
  set_model(config, json, method);

  // One of the two n-gram lengths stands for both.
  const bool has_min = json_member(json, "prompt_lookup_min"), has_max = json_member(json, "prompt_lookup_max");
  if (has_min && !has_max) config.index.ngram_max = config.index.ngram_min;
  if (has_max && !has_min) config.index.ngram_min = config.index.ngram_max;
  if (has_min && has_max && config.index.ngram_min > config.index.ngram_max)
    fail("{}: key 'prompt_lookup_min' is {}, more than 'prompt_lookup_max', {}", kWhere, config.index.ngram_min,
         config.index.ngram_max);
  // A suffix draft may be as large as its tree is deep, unless it is said.
  if (method == "suffix" && !json_member(json, "num_speculative_tokens")) config.tree.nodes = config.tree.depth;

  if (const auto rule = json_string(json, "rejection_sample_method", kWhere))
    set(config, "rejection_sample_method", "accept",
        translate("rejection_sample_method", *rule, {{"standard", "match"}, {"block", "block"}}));
  if (const auto draws = json_string(json, "draft_sample_method", kWhere)) {
    set(config, "draft_sample_method", "couple",
        translate("draft_sample_method", *draws, {{"greedy", "off"}, {"probabilistic", "on"}}));
    if (!config.couple && config.accept.kind == AcceptKind::kBlockwise)
      fail(
          "{}: key 'rejection_sample_method' is 'block', which needs draws: 'draft_sample_method' must be "
          "'probabilistic'",
          kWhere);
  }
  if (const auto type = json_string(json, "kv_cache_dtype", kWhere))
    set(config, "kv_cache_dtype", "draft-kv-type",
        translate("kv_cache_dtype", *type, {{"auto", ""}, {"float16", "f16"}, {"bfloat16", "bf16"}}));
  return config;
}

}  // namespace sx
