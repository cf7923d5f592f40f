#include "formats/mtp_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "formats/family.h"
#include "formats/hf_config.h"

namespace sx {
namespace {

constexpr int kMostBlocks = 16;

constexpr TensorName kDeepSeek[] = {{"eh_proj.weight", kMtpInput},         {"enorm.weight", kMtpTokenNorm},
                                    {"hnorm.weight", kMtpStateNorm},       {"shared_head.norm.weight", kMtpFinalNorm},
                                    {"shared_head.head.weight", kMtpHead}, {"embed_tokens.weight", kMtpEmbedding}};
constexpr TensorName kMiMoTensors[] = {{"input_proj.weight", kMtpInput},
                                       {"token_layernorm.weight", kMtpTokenNorm},
                                       {"hidden_layernorm.weight", kMtpStateNorm},
                                       {"final_layernorm.weight", kMtpFinalNorm}};

// "12.rest" -> 12, and `text` becomes "rest".
std::optional<int> take_index(std::string_view& text) {
  int index = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  const auto digits = static_cast<size_t>(end - text.data());
  if (error != std::errc() || digits == 0 || digits > 4 || digits == text.size() || text[digits] != '.')
    return std::nullopt;
  text.remove_prefix(digits + 1);
  return index;
}

// The number N of "blk.N.rest".
std::optional<int> block_of(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  return take_index(name);
}

}  // namespace

std::optional<std::string> mtp_tensor_name(std::string_view name, const ModelConfig& config) {
  const auto renamed = [&](std::string_view prefix, std::span<const TensorName> names,
                           int first) -> std::optional<std::string> {
    if (!name.starts_with(prefix)) return std::nullopt;
    std::string_view part = name.substr(prefix.size());
    const auto index = take_index(part);
    if (!index || *index < first) return std::nullopt;
    const int block = *index - first + config.layers;
    for (const TensorName& known : names)
      if (part == known.theirs) return fmt::format("blk.{}.{}.weight", block, known.ours);
    return canonical_name(fmt::format("model.layers.{}.{}", block, part), config.family);
  };
  if (auto found = renamed("model.mtp_layers.", kMiMoTensors, 0)) return found;
  return renamed("model.layers.", kDeepSeek, config.layers);
}

std::vector<NamedTensor> take_mtp_tensors(int said, std::vector<NamedTensor>& tensors, ModelConfig& config) {
  const int most = std::clamp(said, 0, kMostBlocks);
  const auto own = [&](const NamedTensor& tensor) {
    const auto block = block_of(tensor.name);
    return !block || *block < config.layers || *block >= config.layers + most;
  };
  const auto first = std::stable_partition(tensors.begin(), tensors.end(), own);
  std::vector<NamedTensor> taken(std::make_move_iterator(first), std::make_move_iterator(tensors.end()));
  tensors.erase(first, tensors.end());
  const auto has_input = [&](int block) {
    const std::string name = fmt::format("blk.{}.{}.weight", config.layers + block, kMtpInput);
    return std::any_of(taken.begin(), taken.end(), [&](const NamedTensor& tensor) { return tensor.name == name; });
  };
  config.mtp_blocks = 0;
  while (config.mtp_blocks < most && has_input(config.mtp_blocks)) ++config.mtp_blocks;
  return taken;
}

}  // namespace sx
