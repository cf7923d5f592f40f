// Tensors as they lie in files, in the form in which everything else wants them.
#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "formats/family.h"
#include "formats/model_file.h"

namespace sx {
namespace {

struct Share {
  std::string name;
  int64_t rows;
};

// "blk.3.attn_qkv.weight": layer 3, part "attn_qkv", suffix ".weight". Layer -1: no tensor of a layer.
struct Place {
  int layer = -1;
  std::string_view part, suffix;
};

Place place_of(std::string_view name) {
  const size_t first = name.find('.'), second = name.find('.', first + 1), last = name.rfind('.');
  if (!name.starts_with("blk.") || second == std::string_view::npos || last <= second) return {};
  int layer = 0;
  for (const char c : name.substr(first + 1, second - first - 1)) {
    if (c < '0' || c > '9' || layer > kMostLayers) return {};
    layer = layer * 10 + (c - '0');
  }
  return {layer, name.substr(second + 1, last - second - 1), name.substr(last)};
}

// The tensor's rows in shares, one tensor each; as it is where it does not have that many rows.
void split(const NamedTensor& whole, std::initializer_list<Share> shares, std::vector<NamedTensor>& out) {
  int64_t total = 0, at = 0;
  for (const Share& share : shares) total += share.rows;
  if (whole.tensor.rank < 1 || whole.tensor.shape[0] != total) return out.push_back(whole);
  const size_t row_bytes = whole.tensor.bytes() / static_cast<size_t>(total);
  for (const Share& share : shares) {
    NamedTensor part = whole;
    part.name = share.name;
    part.tensor.shape[0] = share.rows;
    part.tensor.data += static_cast<size_t>(at) * row_bytes;
    out.push_back(std::move(part));
    at += share.rows;
  }
}

}  // namespace

void split_fused_tensors(const ModelConfig& config, std::vector<NamedTensor>& tensors) {
  const auto has = [&](const std::string& name) {
    return std::any_of(tensors.begin(), tensors.end(), [&](const NamedTensor& t) { return t.name == name; });
  };
  const bool fused_up = config.gated && !has("blk.0.ffn_gate.weight") && has("blk.0.ffn_up.weight");
  std::vector<NamedTensor> out;
  for (const NamedTensor& entry : tensors) {
    const Place place = place_of(entry.name);
    const bool qkv = place.part == "attn_qkv", up = place.part == "ffn_gate_up" || (fused_up && place.part == "ffn_up");
    if (place.layer < 0 || place.layer >= config.layers || (!qkv && !up)) {
      out.push_back(entry);
      continue;
    }
    const LayerParts& p = config.layer(place.layer);
    const auto named = [&](const char* part) { return fmt::format("blk.{}.{}{}", place.layer, part, place.suffix); };
    const int64_t q = int64_t{p.heads} * p.head_dim, kv = int64_t{p.kv_heads} * p.head_dim;
    if (qkv) split(entry, {{named("attn_q"), q}, {named("attn_k"), kv}, {named("attn_v"), kv}}, out);
    else split(entry, {{named("ffn_gate"), p.ffn}, {named("ffn_up"), p.ffn}}, out);
  }
  tensors = std::move(out);
}

void rename_tensors(const Family& family, std::vector<NamedTensor>& tensors) {
  for (NamedTensor& entry : tensors) {
    const Place place = place_of(entry.name);
    for (const TensorName& name : family.gguf_names)
      if (place.layer >= 0 && place.part == name.theirs) {
        entry.name = fmt::format("blk.{}.{}{}", place.layer, name.ours, place.suffix);
        break;
      }
  }
}

}  // namespace sx
