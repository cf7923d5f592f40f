// The feed-forward part of a layer, which models and EAGLE heads share: it adds to the residual stream.
#pragma once
#include <memory>

#include "backend/backend.h"
#include "backend/ranks/ranks.h"
#include "formats/model_config.h"

namespace sx {

// A norm's weights, in backend memory; the weights are null where there is no such norm.
struct NormWeights {
  const float* weight = nullptr;  // [width]
  const float* bias = nullptr;    // [width] or null
};

struct FeedForwardWeights {
  NormWeights norm, post_norm;
  std::unique_ptr<Matrix> gate_up, down;  // gate_up: up alone where the layer is not gated
  std::unique_ptr<Matrix> router;         // mixtures: width -> experts; the others are the experts'
  const float *router_bias = nullptr, *choice_bias = nullptr;
  const float *gate_up_bias = nullptr, *down_bias = nullptr;  // or null
};

// Activations of a step that layers read and write, f32, in backend memory.
struct LayerBuffers {
  float* x;          // [rows, width] residual stream
  float* normed;     // [rows, width]
  float* branch;     // [rows, width] what a part adds, where it is normed or scaled before; else null
  float* gate_up;    // [rows, 2 ffn]; mixtures: the router's logits, [rows, experts]
  float* activated;  // [rows, ffn]
  // Where columns are divided among ranks: weights are this rank's, and so are the results of matrices until they are
  // gathered.
  Ranks* ranks = nullptr;
  float* own = nullptr;  // [rows, ffn or heads * head_dim] a rank's columns, without gaps
};

// out = norm(x), or x where there is no norm. `only_for`: see NormArgs.
const float* normed(Backend& backend, const ModelConfig& config, const NormWeights& weights, const float* x, float* out,
                    int rows, const Matrix* only_for);
// x += weight * input (+ bias), with the norm and the scale that stand between.
void add_product(Backend& backend, const ModelConfig& config, const NormWeights& post_norm, const Matrix& weight,
                 const float* bias, const float* input, const LayerBuffers& buffers, int rows);
void feed_forward(Backend& backend, const ModelConfig& config, const LayerParts& parts,
                  const FeedForwardWeights& weights, const LayerBuffers& buffers, int rows);

}  // namespace sx
