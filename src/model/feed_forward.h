// The gated feed-forward part of a layer, which models and EAGLE heads share: it adds to the residual stream w.x.
#pragma once
#include "backend/backend.h"
#include "formats/model_config.h"

namespace sx {

// `Layer` has the weights ffn_norm, gate_up and down with their biases, `Workspace` the buffers that each step fills.
template <class Layer, class Workspace>
void feed_forward(Backend& backend, const ModelConfig& c, const Layer& layer, const Workspace& w, int rows) {
  backend.norm({.out = w.normed,
                .x = w.x,
                .weight = layer.ffn_norm,
                .rows = rows,
                .width = c.width,
                .eps = c.norm_eps,
                .only_for = layer.gate_up.get()});
  backend.linear_glu(
      {.out = w.gate_up,
       .x = w.normed,
       .weight = layer.gate_up.get(),
       .bias = layer.gate_up_bias,
       .rows = rows,
       .out_stride = 2 * c.ffn},
      {.out = w.activated, .gate_up = w.gate_up, .rows = rows, .width = c.ffn, .only_for = layer.down.get()});
  backend.linear({.out = w.x,
                  .x = w.activated,
                  .weight = layer.down.get(),
                  .bias = layer.down_bias,
                  .rows = rows,
                  .out_stride = c.width,
                  .accumulate = true});
}

}  // namespace sx
