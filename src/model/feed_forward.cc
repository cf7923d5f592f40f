#include "model/feed_forward.h"

namespace sx {

const float* normed(Backend& backend, const ModelConfig& config, const NormWeights& weights, const float* x, float* out,
                    int rows, const Matrix* only_for) {
  if (!weights.weight) return x;
  backend.norm({.out = out,
                .x = x,
                .weight = weights.weight,
                .rows = rows,
                .width = config.width,
                .eps = config.norm_eps,
                .only_for = only_for,
                .centred = config.centred_norms,
                .bias = weights.bias});
  return out;
}

void add_product(Backend& backend, const ModelConfig& config, const NormWeights& post_norm, const Matrix& weight,
                 const float* bias, const float* input, const LayerBuffers& buffers, int rows) {
  const bool direct = !post_norm.weight && config.residual_scale == 1;
  backend.linear({.out = direct ? buffers.x : buffers.branch,
                  .x = input,
                  .weight = &weight,
                  .bias = bias,
                  .rows = rows,
                  .out_stride = config.width,
                  .accumulate = direct});
  if (direct) return;
  const float* added = normed(backend, config, post_norm, buffers.branch, buffers.branch, rows, nullptr);
  backend.copy_rows({.to = buffers.x,
                     .from = added,
                     .rows = rows,
                     .width = config.width,
                     .to_stride = config.width,
                     .from_stride = config.width,
                     .add = true,
                     .scale = config.residual_scale});
}

void feed_forward(Backend& backend, const ModelConfig& config, const LayerParts& parts,
                  const FeedForwardWeights& weights, const LayerBuffers& buffers, int rows) {
  // A parallel block's feed-forward reads what attention has read.
  const float* input =
      parts.parallel ? buffers.normed
                     : normed(backend, config, weights.norm, buffers.x, buffers.normed, rows, weights.gate_up.get());
  backend.linear_glu({.out = buffers.gate_up,
                      .x = input,
                      .weight = weights.gate_up.get(),
                      .bias = weights.gate_up_bias,
                      .rows = rows,
                      .out_stride = parts.gated ? 2 * parts.ffn : parts.ffn},
                     {.out = buffers.activated,
                      .gate_up = buffers.gate_up,
                      .rows = rows,
                      .width = parts.ffn,
                      .only_for = weights.down.get(),
                      .activation = parts.activation,
                      .gated = parts.gated});
  add_product(backend, config, weights.post_norm, *weights.down, weights.down_bias, buffers.activated, buffers, rows);
}

}  // namespace sx
