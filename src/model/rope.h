// RoPE frequencies of a model: base, scaling, and the attention factor, computed once in double precision.
#pragma once
#include <vector>

#include "formats/model_config.h"

namespace sx {

struct RopeFrequencies {
  std::vector<double> frequencies;  // [dims/2], radians per position
  float factor = 1;                 // multiplies cos and sin (yarn)
};

// `context` is the longest sequence that will be run: "dynamic" and "longrope" scaling are fixed by it, so that a
// token's rotation never depends on how long the text became (docs/decisions/002-dynamic-rope.md).
RopeFrequencies rope_frequencies(const ModelConfig& config, const RopeConfig& rope, int context);
inline RopeFrequencies rope_frequencies(const ModelConfig& config, int context) {
  return rope_frequencies(config, config.rope, context);
}
// The longest text that the model can be expected to understand: what it was trained for, or what its scaling of RoPE
// stretches that to ("dynamic": any length).
int longest_text(const ModelConfig& config);

}  // namespace sx
