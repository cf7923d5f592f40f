// Windows as one list for all layers, which is how files say them.
#include "formats/model_config.h"

#include <algorithm>

namespace sx {

std::vector<uint8_t> windowed_layers(const ModelConfig& config) {
  std::vector<uint8_t> out;
  for (const LayerParts& parts : config.each) out.push_back(parts.window > 0);
  const bool alike = std::adjacent_find(out.begin(), out.end(), std::not_equal_to<>()) == out.end();
  return alike ? std::vector<uint8_t>() : out;
}

void set_windowed_layers(ModelConfig& config, const std::vector<uint8_t>& windowed) {
  const int window = config.window;
  if (windowed.empty()) return;
  config.for_each_layer(
      [&](int i, LayerParts& parts) { parts.window = windowed[static_cast<size_t>(i)] ? window : 0; });
  if (!config.each.empty()) config.window = window;
}

void set_window_rope(ModelConfig& config, const RopeConfig& rope) {
  if (config.window == 0 || rope == config.rope) return;
  config.more_ropes = {rope};
  config.for_each_layer([](int, LayerParts& parts) { parts.rope = parts.window > 0 ? 1 : 0; });
}

}  // namespace sx
