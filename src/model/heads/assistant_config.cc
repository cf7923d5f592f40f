#include "model/heads/assistant_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/printable.h"

namespace sx {
namespace {

constexpr int kMostHeadLayers = 16, kMostNumber = 1 << 24;

struct AssistantSource {
  const Json& json;  // the whole file
  const Json& text;  // its text_config
  const std::string& file;
  const std::unordered_set<std::string>& names;
  const ModelConfig& target;

  int number(const Json& object, const char* key, int most = kMostNumber) const {
    const auto value = json_int(object, key, file);
    if (!value) fail("{}: key '{}' is missing", file, key);
    if (*value < 1 || *value > most) fail("{}: key '{}' is {}; 1 to {} is expected", file, key, *value, most);
    return int(*value);
  }
};

[[noreturn]] void needs_gemma4(const AssistantSource& in, const std::string& what) {
  fail("{}: {}: this assistant was made for a Gemma 4 target, which is not supported yet", in.file, what);
}

// "full_attention" and "sliding_attention", one for each layer.
std::vector<uint8_t> sliding_layers(const AssistantSource& in, int layers) {
  const Json* list = json_member(in.text, "layer_types");
  if (!list || !list->is_array() || list->size() != size_t(layers))
    fail("{}: key 'layer_types' is not a list of {} kinds of layers", in.file, layers);
  std::vector<uint8_t> sliding;
  for (const Json& kind : *list) {
    if (kind != "full_attention" && kind != "sliding_attention")
      fail("{}: key 'layer_types' lists {}; full_attention and sliding_attention are known", in.file,
           printable(kind.dump(-1, ' ', false, Json::error_handler_t::replace), 60));
    sliding.push_back(kind == "sliding_attention");
  }
  return sliding;
}

// The target's last layer of a kind, whose cells all layers of the kind look at.
int last_layer(const AssistantSource& in, bool sliding) {
  for (int i = in.target.layers - 1; i >= 0; --i)
    if ((in.target.layer(i).window > 0) == sliding) return i;
  fail("{}: a layer attends to the target's layers {} a sliding window, and the target has none", in.file,
       sliding ? "with" : "without");
}

void check_rope(const AssistantSource& in, bool sliding, const LayerParts& layer) {
  const Json* all = json_member(in.text, "rope_parameters");
  const char* kind = sliding ? "sliding_attention" : "full_attention";
  const Json* rope = all && all->is_object() ? json_member(*all, kind) : nullptr;
  if (!rope || !rope->is_object()) return;  // that of the keys, whatever it is
  const std::string type = json_string(*rope, "rope_type", in.file).value_or("default");
  const double part = json_double(*rope, "partial_rotary_factor", in.file).value_or(1);
  if (type == "proportional" || part != 1)
    needs_gemma4(in, fmt::format("RoPE of {} layers is '{}' of {} of a head", kind, printable(type), part));
  const RopeConfig& keys = layer.rope == kNoRope ? in.target.rope : in.target.rope_at(layer.rope);
  if (const auto base = json_double(*rope, "rope_theta", in.file);
      base && std::abs(*base - keys.base) > 1e-6 * keys.base)
    fail("{}: key 'rope_theta' of {} layers is {}, and {} in the target, whose keys this head meets", in.file, kind,
         *base, keys.base);
}

// The layer of the target behind each layer of the head.
void find_layers(const AssistantSource& in, HeadConfig& config) {
  const ModelConfig& cell = config.cell;
  const std::vector<uint8_t> sliding = sliding_layers(in, cell.layers);
  const auto global = json_int(in.text, "global_head_dim", in.file);
  for (const bool window : {false, true}) {
    if (std::find(sliding.begin(), sliding.end(), uint8_t(window)) == sliding.end()) continue;
    const int layer = last_layer(in, window);
    const LayerParts& keys = in.target.layer(layer);
    const int64_t head_dim = window ? cell.head_dim : global.value_or(cell.head_dim);
    if (head_dim != cell.head_dim)
      needs_gemma4(
          in, fmt::format("heads of layers without a window have {} numbers, the others {}", head_dim, cell.head_dim));
    if (keys.head_dim != cell.head_dim)
      needs_gemma4(in, fmt::format("heads have {} numbers, the target's keys of layer {} have {}", cell.head_dim, layer,
                                   keys.head_dim));
    if (cell.heads % keys.kv_heads != 0)
      fail("{}: {} query heads cannot share the {} key/value heads of the target's layer {}", in.file, cell.heads,
           keys.kv_heads, layer);
    if (window && in.number(in.text, "sliding_window") != keys.window)
      fail("{}: key 'sliding_window' is {}, and {} in the target, whose cells this head reads", in.file,
           in.number(in.text, "sliding_window"), keys.window);
    check_rope(in, window, keys);
  }
  for (const uint8_t window : sliding) config.target_layers.push_back(last_layer(in, window != 0));
}

void check_form(const AssistantSource& in) {
  for (const char* key : {"hidden_size_per_layer_input", "vocab_size_per_layer_input"})
    if (json_int(in.text, key, in.file).value_or(0) != 0)
      fail("{}: key '{}' is not 0: embeddings of each layer are not part of an assistant", in.file, key);
  for (const char* key : {"enable_moe_block", "use_double_wide_mlp", "attention_bias"})
    if (json_bool(in.text, key, in.file).value_or(false))
      fail("{}: key '{}' is true: such layers are not supported in an assistant", in.file, key);
  if (json_bool(in.json, "use_ordered_embeddings", in.file).value_or(false))
    needs_gemma4(in, "key 'use_ordered_embeddings' is true (logits of the likeliest clusters of tokens only)");
  if (const std::string act = json_string(in.text, "hidden_activation", in.file).value_or("gelu_pytorch_tanh");
      act != "gelu_pytorch_tanh")
    fail("{}: key 'hidden_activation' is '{}'; gelu_pytorch_tanh is expected", in.file, printable(act));
}

}  // namespace

bool is_assistant(const Json& json, const std::unordered_set<std::string>& names, const std::string& file) {
  return names.contains("pre_projection.weight") ||
         json_string(json, "model_type", file).value_or("").ends_with("_assistant");
}

void read_assistant(const Json& json, const std::string& file, const std::unordered_set<std::string>& names,
                    const ModelConfig& target, HeadConfig& config) {
  const Json* text = json_member(json, "text_config");
  if (!text || !text->is_object()) fail("{}: key 'text_config' is missing", file);
  const AssistantSource in{json, *text, file, names, target};
  check_form(in);
  ModelConfig& cell = config.cell;
  cell.layers = in.number(*text, "num_hidden_layers", kMostHeadLayers);
  cell.width = in.number(*text, "hidden_size"), cell.ffn = in.number(*text, "intermediate_size");
  cell.heads = in.number(*text, "num_attention_heads", 1 << 12), cell.head_dim = in.number(*text, "head_dim", 1 << 12);
  cell.kv_heads = target.kv_heads;
  cell.vocab = in.number(*text, "vocab_size");
  cell.norm_eps = float(json_double(*text, "rms_norm_eps", file).value_or(1e-6));
  cell.qk_norm = HeadNorm::kEach, cell.attention_post_norm = cell.ffn_post_norm = true;
  cell.activation = Activation::kGeluTanh;
  cell.rope = target.rope, cell.context = target.context;
  config.target_width = in.number(json, "backbone_hidden_size");
  if (config.target_width != target.width)
    fail("{}: key 'backbone_hidden_size' is {}, the target's width is {}", file, config.target_width, target.width);
  config.features = {target.layers};
  config.draft_vocab = cell.vocab;
  config.own_head = names.contains("lm_head.weight");  // else the embedding is the output matrix
  config.own_embedding = !config.own_head || names.contains("embed_tokens.weight");
  find_layers(in, config);
}

}  // namespace sx
