// What is in the folder of a draft head: for people who were given one.
#include <filesystem>
#include <map>

#include "base/error.h"
#include "model/convert/quantize_head.h"
#include "specextend/inspect.h"

namespace sx {
namespace {

// Opened alone, a head stands on a target of very many layers; features near its end were not named in the config.
std::string describe_features(const HeadConfig& config) {
  if (config.kind == HeadConfig::Kind::kLongSpec) return "keys and values of the last layer";
  if (config.kind == HeadConfig::Kind::kAssistant)
    return "the state after the last layer, and keys and values of the last layers with and without a window";
  if (config.kind != HeadConfig::Kind::kEagle3 && config.kind != HeadConfig::Kind::kDFlash)
    return "the state after the last layer";
  if (config.features.empty() || config.features.back() > 512) return "the inputs of a low, a middle and a high layer";
  return fmt::format("the inputs of layers {}", fmt::join(config.features, ", "));
}

}  // namespace

bool is_head(const std::string& path) { return is_head_folder(path); }

HeadSummary inspect_head(const std::string& folder) {
  const auto head = open_head_alone(folder);
  const HeadConfig& c = head->config();
  const bool medusa = c.kind == HeadConfig::Kind::kMedusa;
  HeadSummary s;
  s.path = head->path();
  s.kind = head_kind_name(c.kind);
  s.layers = medusa ? c.medusa_layers : c.cell.layers;
  s.heads = medusa ? c.medusa_heads : 1;
  s.width = c.cell.width, s.target_width = c.target_width, s.vocab = c.cell.vocab, s.draft_vocab = c.draft_vocab;
  s.context = c.trained_length();
  s.reads = describe_features(c);
  if (!medusa && c.kind != HeadConfig::Kind::kLongSpec && c.kind != HeadConfig::Kind::kAssistant)
    s.cell_values = size_t(2 * c.cell.layers) * size_t(c.cell.kv_heads) * size_t(c.cell.head_dim);
  s.own_embedding = c.own_embedding, s.own_output = c.own_head || medusa;
  std::map<std::string, int> types;
  std::map<std::string, size_t> files;
  for (const NamedTensor& t : head->tensors()) {
    s.parameters += static_cast<uint64_t>(t.tensor.elements());
    s.weight_bytes += t.tensor.bytes();
    ++types[dtype_name(t.tensor.type)];
    std::error_code ignored;
    files[t.file] = std::filesystem::file_size(t.file, ignored);
    s.tensors.push_back({t.original,
                         dtype_name(t.tensor.type),
                         {t.tensor.shape.begin(), t.tensor.shape.begin() + t.tensor.rank},
                         t.tensor.bytes()});
  }
  for (const auto& [name, bytes] : files) s.file_bytes += bytes;
  for (const auto& [type, count] : types) s.types += fmt::format("{}{} {}", s.types.empty() ? "" : ", ", type, count);
  return s;
}

}  // namespace sx
