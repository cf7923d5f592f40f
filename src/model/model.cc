#include "model/model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "model/model_state.h"
#include "model/model_weights.h"

namespace sx {

Model::Model(std::shared_ptr<const ModelFile> file, Backend& backend, const ModelOptions& options)
    : file_(std::move(file)), backend_(backend), options_(options) {
  ranks_ = options.spread ? backend.ranks() : nullptr;
  columns_ = ranks_ && ranks_->by_columns() ? ranks_ : nullptr;
  own_layers_ = ranks_ ? ranks_->layers(config().layers) : RankShare{0, config().layers};
}

std::unique_ptr<Model> Model::load(std::shared_ptr<const ModelFile> file, Backend& backend,
                                   const ModelOptions& options) {
  std::unique_ptr<Model> model(new Model(std::move(file), backend, options));
  const ModelConfig& c = model->config();
  model->context_ = options.context > 0 ? options.context : c.context;
  for (int i = 0; i < c.ropes(); ++i) model->ropes_.push_back(sx::rope_frequencies(c, c.rope_at(i), model->context_));
  bool none = false;
  for (int i = 0; i < c.layers; ++i) none = none || c.layer(i).rope == kNoRope;
  if (none) model->ropes_.push_back({std::vector<double>(size_t(c.rope.dims / 2)), 1});
  model->load_weights();
  model->options_.requantise = nullptr;
  model->allocate_workspace();
  return model;
}

void Model::load_layer(int index) {
  const ModelConfig& c = config();
  const LayerParts& p = c.layer(index);
  WeightReader read(*file_, backend_, options_.check_weights, options_.requantise);
  const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
  const int q = p.heads * p.head_dim, kv = p.kv_heads * p.head_dim, group = p.heads / p.kv_heads;
  const auto columns = [&](int total) {
    return columns_ ? columns_->share(columns_->columns(total)) : RankShare{0, total};
  };
  const RankShare heads = ranks_ ? ranks_->kv_heads(p.kv_heads) : RankShare{0, p.kv_heads};
  const RankShare q_rows{heads.first * group * p.head_dim, heads.end * group * p.head_dim},
      kv_rows{heads.first * p.head_dim, heads.end * p.head_dim}, width = columns(c.width), ffn = columns(p.ffn);
  Layer layer;
  layer.parts = p;
  layer.parts.heads = heads.size() * group, layer.parts.kv_heads = heads.size();
  layer.rope = p.rope == kNoRope ? ropes_.size() - 1 : size_t(p.rope);
  if (p.attention_norm) layer.norm = read.norm(name("attn_norm"));
  if (p.attention_post_norm) layer.post_norm = read.norm(name("post_attention_norm"));
  const bool whole = p.qk_norm == HeadNorm::kWhole, any = whole || p.qk_norm == HeadNorm::kEach;
  layer.q_norm = any ? read.norm_vector(name("attn_q_norm.weight"), whole ? q : p.head_dim) : nullptr;
  layer.k_norm = any ? read.norm_vector(name("attn_k_norm.weight"), whole ? kv : p.head_dim) : nullptr;
  if (p.qk_norm == HeadNorm::kBehind) {
    layer.rotated_norm = read.norm_product(name("attn_q_norm.weight"), name("attn_k_norm.weight"), p.head_dim,
                                           ropes_[layer.rope].factor);
    layer.k_norm = read.ones(p.head_dim);
  }
  if (!heads.empty()) {
    layer.qkv = read.matrix(
        {{name("attn_q.weight"), q_rows}, {name("attn_k.weight"), kv_rows}, {name("attn_v.weight"), kv_rows}});
    layer.qkv_bias = read.stacked(
        {{name("attn_q.bias"), q, q_rows}, {name("attn_k.bias"), kv, kv_rows}, {name("attn_v.bias"), kv, kv_rows}});
    layer.sinks = p.sinks
                      ? read.stacked({{name("attn_sinks.weight"), p.heads, {heads.first * group, heads.end * group}}})
                      : nullptr;
  }
  layer.out = read.matrix({{name("attn_output.weight"), width}});
  layer.out_bias = read.stacked({{name("attn_output.bias"), c.width, width}});
  if (p.ffn_norm && !p.parallel) layer.ffn.norm = read.norm(name("ffn_norm"));
  if (p.ffn_post_norm) layer.ffn.post_norm = read.norm(name("post_ffw_norm"));
  if (p.experts > 0) {
    read.experts(index, p, layer.ffn, columns_);
  } else if (p.gated) {
    layer.ffn.gate_up = read.matrix({{name("ffn_gate.weight"), ffn}, {name("ffn_up.weight"), ffn}});
    layer.ffn.gate_up_bias = read.stacked({{name("ffn_gate.bias"), p.ffn, ffn}, {name("ffn_up.bias"), p.ffn, ffn}});
  } else {
    layer.ffn.gate_up = read.matrix({{name("ffn_up.weight"), ffn}});
    layer.ffn.gate_up_bias = read.stacked({{name("ffn_up.bias"), p.ffn, ffn}});
  }
  if (p.experts == 0) {
    layer.ffn.down = read.matrix({{name("ffn_down.weight"), width}});
    layer.ffn.down_bias = read.stacked({{name("ffn_down.bias"), c.width, width}});
  }
  weight_bytes_ += read.bytes();
  layers_.push_back(std::move(layer));
}

void Model::load_weights() {
  const ModelConfig& c = config();
  WeightReader read(*file_, backend_, options_.check_weights, options_.requantise);
  const Tensor table = file_->get("token_embd.weight", {c.vocab, c.width});
  const bool embeds = !ranks_ || ranks_->leads();
  if (embeds && (!c.tied_head || ranks_)) read.check_matrix("token_embd.weight", table);  // tied: when the head is made
  if (options_.original) embedding_ = options_.original->embedding();
  else if (embeds || columns_) embedding_ = backend_.place_table(table);
  for (int i = own_layers_.first; i < own_layers_.end; ++i) {
    load_layer(i);
    if (options_.progress) options_.progress(double(i + 1 - own_layers_.first) / (own_layers_.size() + 1));
  }
  final_norm_ = read.norm("output_norm");
  const RankShare vocab = columns_ ? columns_->share(columns_->columns(c.vocab)) : RankShare{0, c.vocab};
  const char* const head = c.tied_head ? "token_embd.weight" : "output.weight";
  if (columns_ || !ranks_ || ranks_->last()) head_ = read.head({head, vocab});
  weight_bytes_ += read.bytes();
  if (options_.progress) options_.progress(1);
}

void Model::allocate_workspace() {
  const ModelConfig& c = config();
  const auto rows = size_t(backend_.row_capacity(options_.max_rows)),
             outputs = size_t(backend_.output_capacity(options_.max_outputs));
  const size_t q = size_t(c.heads) * size_t(c.head_dim), kv = size_t(c.kv_heads) * size_t(c.head_dim);
  const size_t width = size_t(c.width), ffn = size_t(c.ffn), experts = size_t(c.experts);
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations"); };
  bool branches = c.residual_scale != 1, rotated = false;
  for (const Layer& layer : layers_) {
    branches = branches || layer.post_norm.weight || layer.ffn.post_norm.weight;
    rotated = rotated || layer.rotated_norm;
  }
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->normed = make(rows * width);
  work_->branch = branches ? make(rows * width) : nullptr;
  work_->qkv = make(rows * (q + 2 * kv));
  work_->attended = make(rows * q);
  if (rotated) work_->rotated = make(size_t(backend_.row_capacity(int(rows) * c.heads)) * size_t(c.head_dim));
  if (c.query_growth > 0) work_->growth.reserve(size_t(options_.max_rows));
  work_->whole = columns_ ? make(rows * q) : nullptr;
  work_->ranks = columns_;
  work_->own = columns_ ? make(rows * std::max(q, ffn)) : nullptr;
  work_->gate_up = make(rows * std::max(2 * ffn, experts));
  work_->activated = make(rows * ffn);
  for (const RopeFrequencies& rope : ropes_) work_->rope.push_back(make(rows * 2 * rope.frequencies.size()));
  work_->picked = make(outputs * width);
  work_->logits = backend_.allocate(outputs * size_t(c.vocab), "logits");
  for (size_t i = 0; i < options_.taps.hidden.size(); ++i) work_->hidden.push_back(make(rows * width));
  // One block, so that a row's queries of all layers are copied at once.
  const size_t tapped = std::max(options_.taps.query.size(), size_t(options_.most_queries));
  float* const queries = tapped > 0 ? make(tapped * rows * q) : nullptr;
  for (size_t i = 0; i < tapped; ++i) work_->query.push_back(queries + i * rows * q);
  outputs_.hidden = work_->hidden;
  outputs_.query = std::span<const float* const>(work_->query.data(), options_.taps.query.size());
  outputs_.logits = work_->logits;
  StepLimits limits;
  limits.rows = options_.max_rows;
  limits.outputs = options_.max_outputs;
  limits.width = int(std::max({width, q, ffn}));
  limits.heads = c.heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.context = context_;
  limits.vocab = c.vocab;
  limits.experts = c.experts;
  limits.experts_used = c.experts_used;
  limits.expert_ffn = c.experts > 0 ? c.ffn : 0;
  backend_.reserve(limits);
}

KvGeometry Model::kv_geometry(int slots, int capacity, KvTypes type) const {
  const ModelConfig& c = config();
  return {.layers = c.layers,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .slots = slots,
          .capacity = capacity,
          .type = type,
          .spread = ranks_ != nullptr};
}

void Model::tap_queries(std::span<const int> layers) {
  SX_ASSERT(layers.size() <= work_->query.size());
  if (ranks_ && ranks_->leads()) {
    begin(RankCommand::kTapQueries).put_all(layers);
    ranks_->announce();
  }
  options_.taps.query.assign(layers.begin(), layers.end());
  outputs_.query = std::span<const float* const>(work_->query.data(), layers.size());
}

void Model::scale_rows(float* x, int rows, int width, float scale) {
  backend_.copy_rows(
      {.to = x, .from = x, .rows = rows, .width = width, .to_stride = width, .from_stride = width, .scale = scale});
}

void Model::tap(const std::vector<int>& wanted, int layer, std::span<float* const> to, const float* from, int stride,
                int width, int rows) {
  for (size_t i = 0; i < wanted.size(); ++i)
    if (wanted[i] == layer)
      backend_.copy_rows(
          {.to = to[i], .from = from, .rows = rows, .width = width, .to_stride = width, .from_stride = stride});
}

// cells_only: nobody reads what the layer gives, only its cells and queries.
void Model::attention(const Layer& layer, int index, const Step& step, KvStore& kv, int window, bool cells_only) {
  const ModelConfig& c = config();
  const LayerParts& p = layer.parts;
  Workspace& w = *work_;
  const AttentionShape shape = attention_shape(p);
  const int rows = int(step.tokens.size()), q = shape.q_width(), qkv = shape.qkv_width();
  const LayerParts& all = c.layer(index);
  const bool any = p.kv_heads > 0;  // of ranks some may have no head
  const RankCut q_cut{.total = all.kv_heads, .scale = all.heads / all.kv_heads * all.head_dim},
      k_cut{.total = all.kv_heads, .scale = all.head_dim};
  const float* input = normed(backend_, c, layer.norm, w.x, w.normed, rows, p.parallel ? nullptr : layer.qkv.get());
  if (any)
    backend_.linear(
        {.out = w.qkv, .x = input, .weight = layer.qkv.get(), .bias = layer.qkv_bias, .rows = rows, .out_stride = qkv});
  const bool whole = p.qk_norm == HeadNorm::kWhole;
  if (whole) norm_whole(w.qkv, rows, qkv, layer.q_norm, q_cut), norm_whole(w.qkv + q, rows, qkv, layer.k_norm, k_cut);
  if (any)
    backend_.rope_store({.qkv = w.qkv,
                         .table = w.rope[layer.rope],
                         .q_norm = whole ? nullptr : layer.q_norm,
                         .k_norm = whole ? nullptr : layer.k_norm,
                         .eps = c.norm_eps,
                         .shape = shape,
                         .dims = int(2 * ropes_[layer.rope].frequencies.size()),
                         .style = c.rope.style,
                         .kv = &kv,
                         .layer = index,
                         .seqs = step.seqs});
  float* const queries = layer.rotated_norm && any ? norm_rotated(layer, rows) : w.qkv;
  const int q_stride = queries == w.qkv ? qkv : q;
  if (any) grow_queries(queries, q_stride, q);
  tap_query(index, rows, queries, q_stride, q_cut);
  if (cells_only) return;
  if (p.window > 0) window = window > 0 ? std::min(window, p.window) : p.window;
  if (any)
    backend_.attend({.out = columns_ ? w.own : w.attended,
                     .q = queries,
                     .q_stride = q_stride,
                     .shape = shape,
                     .scale = attention_scale(p),
                     .window = window,
                     .soft_cap = p.attention_soft_cap,
                     .sinks = layer.sinks,
                     .kv = &kv,
                     .layer = index,
                     .seqs = step.seqs});
  if (columns_)
    backend_.gather({.rows = w.attended, .mine = w.own, .count = rows, .stride = q_cut.width(), .cut = q_cut});
  add_product(backend_, c, layer.post_norm, *layer.out, layer.out_bias, w.attended, w, rows);
}

// A norm over all heads of q or k, of which x has this rank's.
void Model::norm_whole(float* x, int rows, int stride, const float* weight, const RankCut& cut) {
  const auto norm = [&](float* at, int between) {
    backend_.norm({.out = at,
                   .x = at,
                   .weight = weight,
                   .rows = rows,
                   .width = cut.width(),
                   .eps = config().norm_eps,
                   .stride = between});
  };
  if (!columns_) return norm(x, stride);
  const RankShare own = columns_->share(cut);
  const int width = cut.width();
  float* const whole = work_->whole;
  const auto copy = [&](float* to, int to_stride, const float* from, int from_stride) {
    if (own.empty()) return;
    backend_.copy_rows({.to = to,
                        .from = from,
                        .rows = rows,
                        .width = own.size(),
                        .to_stride = to_stride,
                        .from_stride = from_stride});
  };
  copy(whole + own.first, width, x, stride);
  backend_.gather({.rows = whole, .count = rows, .stride = width, .cut = cut});
  norm(whole, width);
  copy(x, stride, whole + own.first, width);
}

// Keeps the rotated queries of a tapped layer; of ranks by columns rank 0 has those of all.
void Model::tap_query(int layer, int rows, const float* q, int stride, const RankCut& cut) {
  const RankShare own = columns_ ? columns_->share(cut) : RankShare{0, cut.width()};
  for (size_t i = 0; i < options_.taps.query.size(); ++i) {
    if (options_.taps.query[i] != layer) continue;
    if (!own.empty())
      backend_.copy_rows({.to = work_->query[i] + own.first,
                          .from = q,
                          .rows = rows,
                          .width = own.size(),
                          .to_stride = cut.width(),
                          .from_stride = stride});
    if (columns_)
      backend_.gather({.rows = work_->query[i], .count = rows, .stride = cut.width(), .cut = cut, .to_first = true});
  }
}

// Norms of q and k behind RoPE. Weights of k would change what is cached by dimension, so that cells could not be
// rotated to other positions; k therefore has a plain norm, which RoPE does not change, and q the weights of both.
// Returns q as [rows, heads * head_dim].
float* Model::norm_rotated(const Layer& layer, int rows) {
  const AttentionShape shape = attention_shape(layer.parts);
  float* const q = work_->rotated;
  backend_.copy_rows({.to = q,
                      .from = work_->qkv,
                      .rows = rows,
                      .width = shape.q_width(),
                      .to_stride = shape.q_width(),
                      .from_stride = shape.qkv_width()});
  backend_.norm({.out = q,
                 .x = q,
                 .weight = layer.rotated_norm,
                 .rows = backend_.launched_rows(rows) * shape.heads,
                 .width = shape.head_dim,
                 .eps = config().norm_eps});
  return q;
}

void Model::find_growth(std::span<const int32_t> positions) {
  const ModelConfig& c = config();
  std::vector<QueryGrowth>& growth = work_->growth;
  growth.clear();
  if (c.query_growth == 0) return;
  for (size_t i = 0; i < positions.size(); ++i) {
    const int periods = positions[i] / c.query_period;
    const auto factor = float(1 + double(c.query_growth) * std::log1p(double(periods)));
    if (growth.empty() || growth.back().factor != factor) growth.push_back({int(i), 0, factor});
    ++growth.back().rows;
  }
}

void Model::grow_queries(float* q, int stride, int width) {
  const std::vector<QueryGrowth>& growth = work_->growth;
  for (const QueryGrowth& part : growth) {
    if (part.factor == 1) continue;
    float* const rows = q + ptrdiff_t(part.first) * stride;
    backend_.copy_rows({.to = rows,
                        .from = rows,
                        .rows = part.rows,
                        .width = width,
                        .to_stride = stride,
                        .from_stride = stride,
                        .scale = part.factor,
                        .launched = growth.size() > 1});  // padding would reach into the next rows
  }
}

// What the ops of a step depend on besides its shape.
uint64_t Model::key_of(const Step& step, const LayerPlan& plan) {
  uint64_t key = mix64(uint64_t(plan.window) + 1);
  for (const uint8_t* skip : {plan.skip_attention, plan.skip_ffn}) {
    key = mix64(key + 1);
    for (size_t i = 0; skip && i < size_t(config().layers); ++i) key = mix64(key * 2 + skip[i]);
  }
  for (int layer : options_.taps.query) key = mix64(key * 3 + uint64_t(layer));
  find_growth(step.positions);
  for (const QueryGrowth& part : work_->growth) {
    key = mix64(key * 5 + std::bit_cast<uint32_t>(part.factor));
    if (work_->growth.size() > 1) key = mix64(key * 7 + uint64_t(part.rows));
  }
  return key;
}

void Model::run_layers(const Step& step, KvStore& kv, const LayerPlan& plan) {
  const ModelConfig& c = config();
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), outputs = int(step.outputs.size());
  if (!ranks_ || columns_ || ranks_->leads()) {  // a later stage has the hidden states of the one before it
    backend_.embed({w.x, step.tokens.data(), rows, embedding_});
    if (c.embedding_scale != 1) scale_rows(w.x, rows, c.width, c.embedding_scale);
  }
  for (size_t i = 0; i < ropes_.size(); ++i)
    backend_.rope_table({.table = w.rope[i],
                         .positions = step.positions.data(),
                         .rows = rows,
                         .frequencies = ropes_[i].frequencies.data(),
                         .dims = int(2 * ropes_[i].frequencies.size()),
                         .factor = ropes_[i].factor});
  const auto& taps = options_.taps.hidden;
  const bool end_unread = outputs == 0 && std::find(taps.begin(), taps.end(), c.layers) == taps.end();
  for (int i = own_layers_.first; i < own_layers_.end; ++i) {
    const Layer& layer = layers_[size_t(i - own_layers_.first)];
    const bool cells_only = end_unread && i == c.layers - 1;
    tap(taps, i, w.hidden, w.x, c.width, c.width, rows);
    if (!plan.skip_attention || !plan.skip_attention[i]) attention(layer, i, step, kv, plan.window, cells_only);
    if (!cells_only && (!plan.skip_ffn || !plan.skip_ffn[i])) feed_forward(backend_, c, c.layer(i), layer.ffn, w, rows);
  }
  if (ranks_ && ranks_->by_layers() && !ranks_->last()) return;
  tap(taps, c.layers, w.hidden, w.x, c.width, c.width, rows);
  if (outputs > 0) read_out(w.x, outputs, step.outputs.data());
}

void Model::read_out(const float* x, int outputs, const int32_t* which) {
  const ModelConfig& c = config();
  Workspace& w = *work_;
  backend_.copy_rows({.to = w.picked,
                      .from = x,
                      .rows = outputs,
                      .width = c.width,
                      .to_stride = c.width,
                      .from_stride = c.width,
                      .which = which});
  normed(backend_, c, final_norm_, w.picked, w.picked, outputs, nullptr);
  const RankCut cut = columns_ ? columns_->columns(c.vocab) : RankCut{.total = c.vocab};
  backend_.linear({.out = w.logits + (columns_ ? columns_->share(cut).first : 0),
                   .x = w.picked,
                   .weight = head_.get(),
                   .rows = outputs,
                   .out_stride = c.vocab,
                   .outputs = true});
  if (columns_) backend_.gather({.rows = w.logits, .count = outputs, .stride = c.vocab, .cut = cut, .to_first = true});
  if (columns_ && !columns_->leads()) return;
  if (c.logit_scale != 1) scale_rows(w.logits, outputs, c.vocab, c.logit_scale);
  if (c.final_soft_cap > 0) backend_.soft_cap({w.logits, outputs, c.vocab, c.final_soft_cap});
}

const float* Model::more_logits(int first, int count) {
  SX_ASSERT(first >= 0 && count > 0 && first + count <= options_.max_rows && count <= options_.max_outputs);
  if (ranks_ && ranks_->leads()) {
    begin(RankCommand::kMoreLogits).put(first).put(count);
    ranks_->announce();
  }
  if (!ranks_ || columns_ || ranks_->last())
    read_out(work_->x + size_t(first) * size_t(config().width), count, nullptr);
  if (ranks_) collect_logits(count);
  return work_->logits;
}

const StepOutputs& Model::forward(const Step& step, KvStore& kv, const LayerPlan& plan) {
  SX_ASSERT(!step.tokens.empty() && int(step.tokens.size()) <= options_.max_rows &&
            int(step.outputs.size()) <= options_.max_outputs);
  SX_ASSERT(step.positions.size() == step.tokens.size());
  if (const auto ends = micro_batches(step); !ends.empty()) return run_micro_batches(step, kv, plan, ends), outputs_;
  if (ranks_) announce_step(step, kv, plan), receive_states(step);
  backend_.run(step, {this, &kv, nullptr, key_of(step, plan)}, [&] { run_layers(step, kv, plan); });
  if (ranks_) hand_on(step);
  return outputs_;
}

bool Model::levels(TreeGrowthArgs& args, KvStore& kv, const LayerPlan& plan) {
  SX_ASSERT(args.rules.rows <= std::min(options_.max_rows, options_.max_outputs) && args.vocab <= config().vocab);
  if (config().query_growth > 0) return false;  // a device that grows trees keeps the positions to itself
  Step step;
  args.logits = outputs_.logits;
  args.stride = config().vocab;
  return backend_.grow_tree(args, step, {this, &kv, nullptr, key_of(step, plan)}, [&] { run_layers(step, kv, plan); });
}

}  // namespace sx
