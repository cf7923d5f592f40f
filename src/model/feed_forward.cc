#include "model/feed_forward.h"

#include <optional>

namespace sx {

namespace {

NormArgs norm_of(const ModelConfig& config, const NormWeights& weights, const float* x, float* out, int rows,
                 const Matrix* only_for) {
  return {.out = out,
          .x = x,
          .weight = weights.weight,
          .rows = rows,
          .width = config.width,
          .eps = config.norm_eps,
          .only_for = only_for,
          .centred = config.centred_norms,
          .bias = weights.bias};
}

}  // namespace

const float* normed(Backend& backend, const ModelConfig& config, const NormWeights& weights, const float* x, float* out,
                    int rows, const Matrix* only_for) {
  if (!weights.weight) return x;
  backend.norm(norm_of(config, weights, x, out, rows, only_for));
  return out;
}

namespace {

bool adds_directly(const ModelConfig& config, const NormWeights& post_norm) {
  return !post_norm.weight && config.residual_scale == 1;
}

void add_branch(Backend& backend, const ModelConfig& config, const NormWeights& post_norm, const LayerBuffers& buffers,
                int rows) {
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

// What a mixture's op asks for where columns are divided among ranks.
struct GatheredExperts final : ExpertsPart {
  GatheredExperts(Backend& on, Ranks& all, int inner, int width) : backend(on), ranks(all), cut(all.columns(inner)) {
    ffn = inner;
    first_inner = all.share(cut).first;
    first_out = all.share(all.columns(width)).first;
  }
  void gather(const float* mine, float* inner, int rows, bool on_device) const override {
    if (!on_device) return ranks.gather(inner, rows, ffn, cut);
    backend.gather({.rows = inner, .mine = mine, .count = rows, .stride = ffn, .cut = cut, .launched = true});
  }
  Backend& backend;
  Ranks& ranks;
  RankCut cut;
};

void mixture(Backend& backend, const ModelConfig& config, const LayerParts& parts, const FeedForwardWeights& weights,
             const LayerBuffers& buffers, int rows) {
  const bool norms = weights.norm.weight;
  const float* const input = norms ? buffers.normed : buffers.x;
  const bool direct = adds_directly(config, weights.post_norm);
  const LinearArgs router{.out = buffers.gate_up,
                          .x = input,
                          .weight = weights.router.get(),
                          .bias = weights.router_bias,
                          .rows = rows,
                          .out_stride = parts.experts};
  std::optional<GatheredExperts> part;
  if (buffers.ranks) part.emplace(backend, *buffers.ranks, parts.ffn, config.width);
  float* const out = direct ? buffers.x : buffers.branch;
  const ExpertsArgs experts{.out = out,
                            .x = input,
                            .logits = buffers.gate_up,
                            .gate_up = weights.gate_up.get(),
                            .down = weights.down.get(),
                            .gate_up_bias = weights.gate_up_bias,
                            .down_bias = weights.down_bias,
                            .rows = rows,
                            .used = parts.experts_used,
                            .routing = parts.routing,
                            .renormalise = parts.renormalise,
                            .choice_bias = weights.choice_bias,
                            .scale = parts.expert_scale,
                            .limit = parts.swiglu_limit,
                            .alpha = parts.swiglu_alpha,
                            .accumulate = direct,
                            .part = part ? &*part : nullptr};
  if (norms) {
    backend.mixture(norm_of(config, weights.norm, buffers.x, buffers.normed, rows, nullptr), router, experts);
  } else {
    backend.linear(router);
    backend.experts(experts);
  }
  if (buffers.ranks)
    backend.gather({.rows = out, .count = rows, .stride = config.width, .cut = buffers.ranks->columns(config.width)});
  if (!direct) add_branch(backend, config, weights.post_norm, buffers, rows);
}

}  // namespace

void add_product(Backend& backend, const ModelConfig& config, const NormWeights& post_norm, const Matrix& weight,
                 const float* bias, const float* input, const LayerBuffers& buffers, int rows) {
  const bool direct = adds_directly(config, post_norm);
  float* const out = direct ? buffers.x : buffers.branch;
  Ranks* const ranks = buffers.ranks;
  const RankCut cut = ranks ? ranks->columns(config.width) : RankCut{.total = config.width};
  backend.linear({.out = out + (ranks ? ranks->share(cut).first : 0),
                  .x = input,
                  .weight = &weight,
                  .bias = bias,
                  .rows = rows,
                  .out_stride = config.width,
                  .accumulate = direct});
  if (ranks) backend.gather({.rows = out, .count = rows, .stride = config.width, .cut = cut});
  if (!direct) add_branch(backend, config, post_norm, buffers, rows);
}

void feed_forward(Backend& backend, const ModelConfig& config, const LayerParts& parts,
                  const FeedForwardWeights& weights, const LayerBuffers& buffers, int rows) {
  if (parts.experts > 0) return mixture(backend, config, parts, weights, buffers, rows);
  // A parallel block's feed-forward reads what attention has read.
  const float* input =
      parts.parallel ? buffers.normed
                     : normed(backend, config, weights.norm, buffers.x, buffers.normed, rows, weights.gate_up.get());
  Ranks* const ranks = buffers.ranks;
  const RankCut cut = ranks ? ranks->columns(parts.ffn) : RankCut{.total = parts.ffn};
  const int ffn = ranks ? ranks->share(cut).size() : parts.ffn;
  backend.linear_glu({.out = buffers.gate_up,
                      .x = input,
                      .weight = weights.gate_up.get(),
                      .bias = weights.gate_up_bias,
                      .rows = rows,
                      .out_stride = parts.gated ? 2 * ffn : ffn},
                     {.out = ranks ? buffers.own : buffers.activated,
                      .gate_up = buffers.gate_up,
                      .rows = rows,
                      .width = ffn,
                      .only_for = ranks ? nullptr : weights.down.get(),
                      .activation = parts.activation,
                      .gated = parts.gated});
  if (ranks)
    backend.gather({.rows = buffers.activated, .mine = buffers.own, .count = rows, .stride = parts.ffn, .cut = cut});
  add_product(backend, config, weights.post_norm, *weights.down, weights.down_bias, buffers.activated, buffers, rows);
}

}  // namespace sx
