#include "model/heads/head_config.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <limits>
#include <optional>

#include "base/error.h"
#include "formats/hf_config.h"
#include "base/json_text.h"
#include "base/printable.h"
#include "formats/validate.h"
#include "model/heads/assistant_config.h"

namespace sx {
namespace {

using Kind = HeadConfig::Kind;
using Names = std::unordered_set<std::string>;

constexpr size_t kMaxFeatures = 16;
constexpr int kMaxMedusaHeads = 64, kMaxMedusaLayers = 16, kMaxHeadLayers = 16;
constexpr int kMostBlock = 64;  // rows whose sight of each other is one word of bits
constexpr int kLongSpecWindow = 512, kMaxWindow = 65536;
constexpr size_t kMaxMedusaNodes = 511;  // what one pass of the target verifies

// config.json and what surrounds it.
struct Source {
  const Json& json;  // the whole file
  const Json& cell;  // where the Llama fields are: the file, or what speculators nests
  const std::string& file;
  const Names& names;
  const ModelConfig& target;

  bool has(const std::string& name) const { return names.contains(name); }
  std::optional<int> integer(const Json& object, const char* key) const {
    const auto value = json_int(object, key, file);
    if (!value) return std::nullopt;
    if (*value < 0 || *value > std::numeric_limits<int>::max())
      fail("{}: key '{}' is {}, out of range", file, key, *value);
    return static_cast<int>(*value);
  }
};

// "12.rest" -> 12, and `text` becomes "rest". At most 4 digits, one spelling per number.
std::optional<int> take_number(std::string_view& text) {
  const size_t dot = text.find('.');
  if (dot == std::string_view::npos || dot == 0 || dot > 4 || (dot > 1 && text[0] == '0')) return std::nullopt;
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + dot, number);
  if (error != std::errc() || end != text.data() + dot || text[0] == '-') return std::nullopt;
  text.remove_prefix(dot + 1);
  return number;
}

bool any_starts_with(const Names& names, std::string_view prefix) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return name.starts_with(prefix); });
}

std::string first_architecture(const Source& in) {
  const Json* list = json_member(in.json, "architectures");
  if (!list) return {};
  if (!list->is_array() || list->empty() || !(*list)[0].is_string())
    fail("{}: key 'architectures' is not a list of names", in.file);
  return (*list)[0].get<std::string>();
}

// Speculators' files differ in one default.
bool is_speculators(const Source& in) {
  return json_member(in.json, "speculators_model_type") || json_member(in.json, "speculators_config") ||
         &in.cell != &in.json || first_architecture(in).find("Speculator") != std::string::npos;
}

Kind find_kind(const Source& in) {
  const auto text = [&](const char* key) { return json_string(in.json, key, in.file).value_or(""); };
  const std::string architecture = first_architecture(in);
  if (is_assistant(in.json, in.names, in.file)) return Kind::kAssistant;
  if (any_starts_with(in.names, "layers.0.cross_attn.")) return Kind::kLongSpec;
  if (in.has("hidden_norm.weight") || json_member(in.json, "dflash_config") ||
      architecture.find("DFlash") != std::string::npos || architecture.find("DSpark") != std::string::npos ||
      text("speculators_model_type") == "dflash" || text("speculators_model_type") == "dspark")
    return Kind::kDFlash;
  if (any_starts_with(in.names, "blocks.") || any_starts_with(in.names, "lm_heads.") ||
      json_member(in.json, "medusa_num_heads") || text("model_type") == "medusa")
    return Kind::kMedusa;
  if (in.has("layers.0.hidden_norm.weight") || json_member(in.json, "draft_vocab_size") ||
      architecture.find("agle3") != std::string::npos || text("speculators_model_type") == "eagle3")
    return Kind::kEagle3;
  if (in.has("fc.weight")) return Kind::kEagle1;
  fail(
      "{}: this is no draft head: there are neither 'fc.weight' (EAGLE) nor Medusa's '0.0.linear.weight' or "
      "'blocks.0.layers.0.weight' nor LongSpec's 'cross_attn.q_proj.weight' among its tensors",
      in.file);
}

// The decoder's fields by the reader of Llama configs: only those that a head's class reads, as if it were a Llama.
// LongSpec's file is its target's, with the target's number of layers.
ModelConfig read_cell(const Source& in, bool longspec) {
  Json plain = {{"architectures", {"LlamaForCausalLM"}}, {"num_hidden_layers", 1}, {"max_position_embeddings", 2048}};
  for (const char* key : {"hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
                          "vocab_size", "num_hidden_layers", "max_position_embeddings", "rms_norm_eps", "hidden_act",
                          "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor"})
    if (const Json* value = json_member(in.cell, key)) plain[key] = *value;
  if (longspec) plain["num_hidden_layers"] = 1;
  if (json_member(in.json, "quantization_config")) plain["quantization_config"] = true;
  ModelConfig cell = config_from_json(plain.dump(-1, ' ', false, Json::error_handler_t::replace), in.file);
  validate_config(cell, in.file);
  if (cell.layers > kMaxHeadLayers)
    fail("{}: key 'num_hidden_layers' is {}; a head has at most {}", in.file, cell.layers, kMaxHeadLayers);
  cell.tied_head = false;
  cell.qkv_bias = in.has("layers.0.self_attn.q_proj.bias");
  cell.out_bias = in.has("layers.0.self_attn.o_proj.bias");
  cell.mlp_bias = in.has("layers.0.mlp.gate_proj.bias");
  if (longspec) return cell;  // what the target's file says of biases holds for the target
  if (json_bool(in.cell, "attention_bias", in.file).value_or(false) && !cell.qkv_bias)
    fail("{}: key 'attention_bias' is true, but tensor 'layers.0.self_attn.q_proj.bias' is missing", in.file);
  if (json_bool(in.cell, "mlp_bias", in.file).value_or(false) && !cell.mlp_bias)
    fail("{}: key 'mlp_bias' is true, but tensor 'layers.0.mlp.gate_proj.bias' is missing", in.file);
  return cell;
}

void check_vocab(const Source& in, int vocab) {
  if (vocab != in.target.vocab)
    fail("{}: the head's vocabulary (key 'vocab_size') is {}, the target's is {}", in.file, vocab, in.target.vocab);
}

// A flag that config.json states, else what the presence of a tensor shows.
bool flag_or_tensor(const Source& in, const Json* holder, const char* key, const std::string& tensor) {
  std::optional<bool> said;
  if (holder) said = json_bool(*holder, key, in.file);
  if (!said) said = json_bool(in.json, key, in.file);
  return said.value_or(in.has(tensor));
}

std::vector<int> read_features(const Source& in, const Json* eagle) {
  constexpr const char* kIds = "eagle_aux_hidden_state_layer_ids";
  const char* key = kIds;
  const Json* list = eagle ? json_member(*eagle, key) : nullptr;
  if (!list) list = json_member(in.json, key);
  if (!list) list = json_member(in.json, key = "eagle_aux_hidden_state_layer_inputs");
  const int layers = in.target.layers;
  std::vector<int> features = {2, layers / 2, layers - 3};
  if (!list) {
    if (layers < 3)
      fail("{}: key '{}' is missing, and its default (2, n/2, n-3) does not exist in a target of {} layers", in.file,
           kIds, layers);
    return features;
  }
  if (!list->is_array() || list->empty() || list->size() > kMaxFeatures)
    fail("{}: key '{}' is not a list of 1 to {} layers", in.file, key, kMaxFeatures);
  features.clear();
  for (const auto& entry : *list) {
    if (!entry.is_number_unsigned() || entry.get<uint64_t>() > static_cast<uint64_t>(layers))
      fail("{}: key '{}' lists {}; layers 0 to {} of the target have inputs, and {} means after the last", in.file, key,
           printable(entry.dump(-1, ' ', false, Json::error_handler_t::replace)), layers - 1, layers);
    features.push_back(static_cast<int>(entry.get<uint64_t>()));
  }
  return features;
}

void read_eagle1(const Source& in, HeadConfig& config) {
  config.target_width = config.cell.width;  // its states go through the target's head
  if (config.cell.width != in.target.width)
    fail("{}: key 'hidden_size' is {}, the target's width is {}", in.file, config.cell.width, in.target.width);
  config.draft_vocab = config.cell.vocab;
  config.features = {in.target.layers};
  config.own_head = in.has("lm_head.weight");
  config.bias = flag_or_tensor(in, nullptr, "bias", "fc.bias");
}

// Heads with an output matrix of their own may draft a part of the vocabulary.
void read_draft_vocab(const Source& in, HeadConfig& config) {
  config.draft_vocab = in.integer(in.json, "draft_vocab_size").value_or(config.cell.vocab);
  if (config.draft_vocab < 1 || config.draft_vocab > config.cell.vocab)
    fail("{}: key 'draft_vocab_size' is {}; 1 to {} (the vocabulary) is expected", in.file, config.draft_vocab,
         config.cell.vocab);
  config.own_head = in.has("lm_head.weight");
  if (!config.own_head && config.draft_vocab != config.cell.vocab)
    fail("{}: tensor 'lm_head.weight' is missing; a draft vocabulary of {} (of {}) needs its own head", in.file,
         config.draft_vocab, config.cell.vocab);
  if (config.draft_vocab != config.cell.vocab && !in.has("d2t"))
    fail("{}: tensor 'd2t' is missing; it says what the {} ids of the draft vocabulary mean", in.file,
         config.draft_vocab);
}

void read_eagle3(const Source& in, HeadConfig& config) {
  const Json* eagle = json_member(in.json, "eagle_config");
  if (eagle && !eagle->is_object()) fail("{}: key 'eagle_config' is not an object", in.file);
  if (eagle && !json_bool(*eagle, "use_aux_hidden_state", in.file).value_or(true))
    fail("{}: key 'use_aux_hidden_state' is false: an EAGLE-3 head without features of inner layers is not supported",
         in.file);
  const auto said = in.integer(in.json, "target_hidden_size");
  config.target_width = said.value_or(config.cell.width);
  if (config.target_width != in.target.width)
    fail("{}: key '{}' is {}, the target's width is {}", in.file, said ? "target_hidden_size" : "hidden_size",
         config.target_width, in.target.width);
  config.features = read_features(in, eagle);
  if (const auto count = in.integer(in.json, "num_aux_hidden_states");
      count && size_t(*count) != config.features.size())
    fail("{}: key 'num_aux_hidden_states' is {}, but {} layers are read", in.file, *count, config.features.size());
  read_draft_vocab(in, config);
  config.bias = in.has("fc.bias");
  config.norm_before_residual = json_bool(in.json, "norm_before_residual", in.file).value_or(is_speculators(in));
  config.norm_before_fc = flag_or_tensor(in, eagle, "norm_before_fc", "input_norm.weight");
  config.fc_norm = flag_or_tensor(in, eagle, "fc_norm", "fc_norm.0.weight");
  if (config.fc_norm && config.norm_before_fc)
    fail("{}: 'fc_norm' and 'norm_before_fc' are both on; one norm before fc is expected", in.file);
  config.norm_output = json_bool(in.json, "norm_output", in.file)
                           .value_or(eagle && json_bool(*eagle, "norm_output", in.file).value_or(false));
  const char* mask_key = json_member(in.json, "ptd_token_id") ? "ptd_token_id" : "mask_token_id";  // P-EAGLE
  const auto mask = in.integer(in.json, mask_key);
  if (in.has("mask_hidden") && !mask) fail("{}: key 'mask_token_id' is missing; 'mask_hidden' belongs to it", in.file);
  if (in.has("mask_hidden") && *mask >= config.cell.vocab)
    fail("{}: key '{}' is {}, outside the vocabulary of {}", in.file, mask_key, *mask, config.cell.vocab);
  if (in.has("mask_hidden")) config.mask_token = *mask;
}

// Heads and blocks are counted by the tensors: published configs are known to give too small a number of heads.
void count_medusa(const Source& in, HeadConfig& config) {
  int lm_heads = 0;
  for (std::string_view name : in.names) {
    const bool block = name.starts_with("blocks.");
    if (!block && !name.starts_with("lm_heads.")) continue;
    name.remove_prefix(name.find('.') + 1);
    const auto head = take_number(name);
    if (!head) continue;  // refused later, as a tensor that does not belong here
    (block ? config.medusa_heads : lm_heads) = std::max(block ? config.medusa_heads : lm_heads, *head + 1);
    if (!block || !name.starts_with("layers.")) continue;
    name.remove_prefix(std::string_view("layers.").size());
    if (const auto layer = take_number(name)) config.medusa_layers = std::max(config.medusa_layers, *layer + 1);
  }
  config.shared_head = lm_heads == 1 && config.medusa_heads > 1;
  if (config.medusa_heads < 1 || config.medusa_layers < 1)
    fail("{}: no residual block of a Medusa head ('0.0.linear.weight' or 'blocks.0.layers.0.weight') is there",
         in.file);
  if (config.medusa_heads > kMaxMedusaHeads || config.medusa_layers > kMaxMedusaLayers)
    fail("{}: {} Medusa heads of {} blocks; at most {} of {} are accepted", in.file, config.medusa_heads,
         config.medusa_layers, kMaxMedusaHeads, kMaxMedusaLayers);
}

constexpr const char* kChoices = "medusa_choices";

std::vector<int> read_choice(const Source& in, const Json& entry, size_t place, int heads) {
  std::vector<int> path;
  const std::string text = printable(entry.dump(-1, ' ', false, Json::error_handler_t::replace), 60);
  if (!entry.is_array() || entry.empty() || entry.size() > static_cast<size_t>(heads))
    fail("{}: key '{}', entry {} is {}; a list of 1 to {} ranks (one for each head) is expected", in.file, kChoices,
         place, text, heads);
  for (const auto& rank : entry) {
    if (!rank.is_number_unsigned() || rank.get<uint64_t>() >= kMaxMedusaNodes)
      fail("{}: key '{}', entry {} is {}; ranks are whole numbers from 0 to {}", in.file, kChoices, place, text,
           kMaxMedusaNodes - 1);
    path.push_back(static_cast<int>(rank.get<uint64_t>()));
  }
  return path;
}

// Every node of the tree once, and with each the node above it, in any order.
std::vector<std::vector<int>> read_choices(const Source& in, int heads) {
  const Json* list = json_member(in.json, kChoices);
  if (!list) return {};
  if (!list->is_array() || list->empty() || list->size() > kMaxMedusaNodes)
    fail("{}: key '{}' is not a list of 1 to {} lists of ranks", in.file, kChoices, kMaxMedusaNodes);
  std::vector<std::vector<int>> paths;
  std::map<std::vector<int>, size_t> places;
  for (const auto& entry : *list) {
    paths.push_back(read_choice(in, entry, paths.size(), heads));
    if (const auto [at, fresh] = places.emplace(paths.back(), paths.size() - 1); !fresh)
      fail("{}: key '{}', entry {} is [{}], which entry {} is already", in.file, kChoices, paths.size() - 1,
           fmt::join(paths.back(), ", "), at->second);
  }
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::vector<int> parent(paths[i].begin(), paths[i].end() - 1);
    if (!parent.empty() && !places.contains(parent))
      fail("{}: key '{}', entry {} is [{}], but [{}], which it begins with, is missing", in.file, kChoices, i,
           fmt::join(paths[i], ", "), fmt::join(parent, ", "));
  }
  return paths;
}

void read_medusa(const Source& in, HeadConfig& config) {
  config.target_width = config.cell.width = in.integer(in.json, "hidden_size").value_or(in.target.width);
  if (config.cell.width != in.target.width)
    fail("{}: key 'hidden_size' is {}, the target's width is {}", in.file, config.cell.width, in.target.width);
  config.cell.vocab = in.integer(in.json, "vocab_size").value_or(in.target.vocab);
  config.cell.context = in.target.context;
  config.cell.norm_eps = in.target.norm_eps;
  config.draft_vocab = config.cell.vocab;  // with a token map: its length
  config.features = {in.target.layers};
  config.own_head = true;
  count_medusa(in, config);
  config.bias = in.has("blocks.0.layers.0.bias");
  const auto heads = in.integer(in.json, "medusa_num_heads"), layers = in.integer(in.json, "medusa_num_layers");
  if (heads && *heads > config.medusa_heads)
    fail("{}: key 'medusa_num_heads' is {}, but there are tensors of {} heads", in.file, *heads, config.medusa_heads);
  if (layers && *layers != config.medusa_layers)
    fail("{}: key 'medusa_num_layers' is {}, but there are tensors of {}", in.file, *layers, config.medusa_layers);
  config.medusa_choices = read_choices(in, config.medusa_heads);
}

void read_longspec(const Source& in, HeadConfig& config) {
  ModelConfig& cell = config.cell;
  const auto same = [&](const char* key, int own, int target) {
    if (own != target)
      fail("{}: key '{}' is {}, and {} in the target, whose keys and values this head reads: it was made for another",
           in.file, key, own, target);
  };
  same("hidden_size", cell.width, in.target.width);
  same("num_key_value_heads", cell.kv_heads, in.target.kv_heads);
  same("head_dim", cell.head_dim, in.target.head_dim);
  config.target_width = cell.width;
  read_draft_vocab(in, config);
  cell.rope = in.target.rope;
  cell.context = in.target.context;
  config.cross_bias = in.has("layers.0.cross_attn.q_proj.bias");
  config.cross_out_bias = in.has("layers.0.cross_attn.o_proj.bias");
  config.window = in.integer(in.json, "longspec_window").value_or(kLongSpecWindow);
  if (config.window < 1 || config.window > kMaxWindow)
    fail("{}: key 'longspec_window' is {}; 1 to {} is expected", in.file, config.window, kMaxWindow);
}

// A member of "dflash_config", or else of the file itself.
const Json* dflash_member(const Source& in, const char* key) {
  const Json* own = json_member(in.json, "dflash_config");
  const Json* found = own ? json_member(*own, key) : nullptr;
  return found ? found : json_member(in.json, key);
}

int dflash_integer(const Source& in, const char* key, int low, int high) {
  const Json* value = dflash_member(in, key);
  if (!value) fail("{}: key '{}' is missing", in.file, key);
  if (!value->is_number_unsigned() || value->get<uint64_t>() < uint64_t(low) || value->get<uint64_t>() > uint64_t(high))
    fail("{}: key '{}' is {}; {} to {} is expected", in.file, key,
         printable(value->dump(-1, ' ', false, Json::error_handler_t::replace), 60), low, high);
  return value->get<int>();
}

std::optional<bool> dflash_flag(const Source& in, const char* key) {
  const Json* value = dflash_member(in, key);
  if (!value || value->is_null()) return std::nullopt;
  if (!value->is_boolean()) fail("{}: key '{}' is neither true nor false", in.file, key);
  return value->get<bool>();
}

// z-lab's "target_layer_ids" mean the outputs of layers, speculators' "aux_hidden_state_layer_ids" their inputs.
std::vector<int> dflash_features(const Source& in) {
  const char* key = "target_layer_ids";
  const Json* list = dflash_member(in, key);
  const int offset = list ? 1 : 0;
  if (!list) list = json_member(in.json, key = "aux_hidden_state_layer_ids");
  if (!list || !list->is_array() || list->empty() || list->size() > kMaxFeatures)
    fail("{}: key '{}' is not a list of 1 to {} layers", in.file, key, kMaxFeatures);
  std::vector<int> features;
  for (const auto& entry : *list) {
    if (!entry.is_number_unsigned() || entry.get<uint64_t>() + uint64_t(offset) > uint64_t(in.target.layers))
      fail("{}: key '{}' lists {}; the target has {} layers", in.file, key,
           printable(entry.dump(-1, ' ', false, Json::error_handler_t::replace), 60), in.target.layers);
    features.push_back(entry.get<int>() + offset);
  }
  return features;
}

void read_dflash(const Source& in, HeadConfig& config) {
  const std::string architecture = first_architecture(in);
  const bool dspark = architecture.find("DSpark") != std::string::npos || in.has("markov_head.markov_w1.weight") ||
                      json_string(in.json, "speculators_model_type", in.file).value_or("") == "dspark";
  if (any_starts_with(in.names, "candidate_selector."))
    fail("{}: DFlash 2 (convolutions and a candidate selector) is not supported; a DFlash or DSpark drafter is",
         in.file);
  for (const char* key : {"output_multiplier", "final_logit_softcapping", "input_embedding_scale"})
    if (const Json* value = dflash_member(in, key); value && !value->is_null() && *value != 1 && *value != 0)
      fail("{}: key '{}' is {}: drafters that scale or cap embeddings or logits are not supported", in.file, key,
           printable(value->dump(-1, ' ', false, Json::error_handler_t::replace), 60));
  ModelConfig& cell = config.cell;
  if (cell.width != in.target.width)
    fail("{}: key 'hidden_size' is {}, the target's width is {}", in.file, cell.width, in.target.width);
  config.target_width = in.target.width;
  config.features = dflash_features(in);
  config.block = dflash_integer(in, "block_size", 2, kMostBlock);
  config.mask_token = dflash_integer(in, "mask_token_id", 0, cell.vocab - 1);
  config.from_anchor = dflash_flag(in, "sample_from_anchor").value_or(dspark);
  if (in.has("layers.0.self_attn.q_norm.weight")) cell.qk_norm = HeadNorm::kEach;
  const auto causal = dflash_flag(in, "is_causal"), causal_too = dflash_flag(in, "causal");
  const Json *types = json_member(in.cell, "layer_types"), *window = json_member(in.cell, "sliding_window");
  for (int i = 0; i < cell.layers; ++i) {
    const bool sliding = types && types->is_array() && types->size() > size_t(i) &&
                         (*types)[size_t(i)] == "sliding_attention" && window && window->is_number_unsigned();
    const bool both_ways = dflash_flag(in, "sliding_window_non_causal").value_or(false);
    config.block_windows.push_back(sliding ? int(std::min<uint64_t>(window->get<uint64_t>(), 1 << 30)) : 0);
    config.block_causal.push_back(causal.value_or(causal_too.value_or(sliding && !both_ways)));
  }
  read_draft_vocab(in, config);
  config.own_embedding = in.has("embed_tokens.weight");
  if (in.has("markov_head.markov_w1.weight")) config.markov_rank = dflash_integer(in, "markov_rank", 1, 4096);
}

}  // namespace

const char* head_kind_name(HeadConfig::Kind kind) {
  switch (kind) {
    case Kind::kEagle1: return "EAGLE-1";
    case Kind::kEagle3: return "EAGLE-3";
    case Kind::kMedusa: return "Medusa";
    case Kind::kLongSpec: return "LongSpec";
    case Kind::kMtp: return "MTP";
    case Kind::kDFlash: return "DFlash";
    case Kind::kAssistant: return "assistant";
  }
  return "?";
}

std::string canonical_head_name(std::string_view name) {
  for (const std::string_view prefix : {"medusa_head.", "glide.", "model."})
    if (name.starts_with(prefix)) name.remove_prefix(prefix.size());
  for (const std::string_view part : {"input_layernorm.", "self_attn.", "post_self_attention_layernorm.", "cross_attn.",
                                      "post_cross_attention_layernorm.", "mlp."})
    if (name.starts_with(part)) return "layers.0." + std::string(name);  // LongSpec's one layer
  constexpr std::string_view kMidlayer = "midlayer.";
  if (name.starts_with(kMidlayer)) return "layers.0." + std::string(name.substr(kMidlayer.size()));
  // Medusa's own naming: head, place, part.
  std::string_view rest = name;
  const auto head = take_number(rest);
  const auto place = head ? take_number(rest) : std::nullopt;
  if (!place) return std::string(name);
  if (rest == "linear.weight") return fmt::format("blocks.{}.layers.{}.weight", *head, *place);
  if (rest == "linear.bias") return fmt::format("blocks.{}.layers.{}.bias", *head, *place);
  if (rest == "weight") return fmt::format("lm_heads.{}.weight", *head);
  return std::string(name);
}

HeadConfig head_config_from_json(std::string_view text, const std::string& file,
                                 const std::unordered_set<std::string>& names, const ModelConfig& target) {
  const Json json = parse_json(text, file);
  if (!json.is_object()) fail("{}: not a JSON object", file);
  const Json* nested = json_member(json, "transformer_layer_config");
  if (nested && !nested->is_object()) fail("{}: key 'transformer_layer_config' is not an object", file);
  const Source in{json, nested ? *nested : json, file, names, target};
  HeadConfig config;
  config.kind = find_kind(in);
  if (config.kind == Kind::kMedusa) {
    read_medusa(in, config);
  } else if (config.kind == Kind::kLongSpec) {
    config.cell = read_cell(in, true);
    read_longspec(in, config);
  } else if (config.kind == Kind::kAssistant) {
    read_assistant(json, file, names, target, config);
  } else if (config.kind == Kind::kDFlash) {
    config.cell = read_cell(in, false);
    read_dflash(in, config);
  } else {
    config.cell = read_cell(in, false);
    config.kind == Kind::kEagle1 ? read_eagle1(in, config) : read_eagle3(in, config);
    config.own_embedding = in.has("embed_tokens.weight");
    if (!config.own_embedding && config.cell.width != target.width)
      fail("{}: tensor 'embed_tokens.weight' is missing; the target's embedding is {} wide, the head {}", file,
           target.width, config.cell.width);
    if (!config.own_head && config.cell.width != target.width)
      fail("{}: tensor 'lm_head.weight' is missing; the target's head takes {} inputs, the draft's state is {} wide",
           file, target.width, config.cell.width);
  }
  check_vocab(in, config.cell.vocab);
  return config;
}

}  // namespace sx
