#include "model/heads/eagle.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/heads/head_weights.h"
#include "model/feed_forward.h"
#include "model/rope.h"
#include "tensor/blocks.h"

namespace sx {
struct EagleHead::Layer {
  const float *input_norm, *hidden_norm;  // [width]; null where the layer has none
  const float *qkv_bias, *out_bias;       // or null
  const float *q_norm, *k_norm;           // [head_dim] or null
  std::unique_ptr<Matrix> qkv, out;
  FeedForwardWeights ffn;
  // Of MTP blocks.
  std::unique_ptr<Matrix> input;  // embedding and state -> width
  const float *token_norm, *state_norm, *final_norm;
};

// Activations of one step, f32, in backend memory.
struct EagleHead::Workspace : LayerBuffers {  // normed: [rows, the larger of width and the target's]
  float* embedded;                            // [rows, width]
  float* wide;                                // [rows, the widest concatenation]
  float* qkv;                                 // [rows, (heads + 2 kv_heads) * head_dim]
  float* attended;                            // [rows, heads * head_dim]
  float* rope;                                // [rows, dims]
  float* after_norm;                          // [rows, width], with norm_output only
  // Several MTP blocks: [rows, blocks, width] what each gives, and [blocks, width] for the row before; zeros.
  float *given = nullptr, *before = nullptr, *nothing = nullptr;
  float* picked;              // [outputs, width]
  float* logits;              // [outputs, draft_vocab]
  std::vector<float*> query;  // per layer: [rows, heads * head_dim], if wanted
};

EagleHead::EagleHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                     const EagleOptions& options)
    : file_(std::move(file)), target_(target), backend_(backend), options_(options) {}
EagleHead::~EagleHead() = default;

std::unique_ptr<EagleHead> EagleHead::load(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                                           const EagleOptions& options) {
  const HeadConfig& config = file->config();
  using Kind = HeadConfig::Kind;
  if (config.kind != Kind::kEagle1 && config.kind != Kind::kEagle3 && config.kind != Kind::kMtp)
    fail("{}: {} head where an EAGLE head is expected", file->path(), head_kind_name(config.kind));
  if (config.target_width != target.config().width || config.cell.vocab != target.config().vocab)
    fail("{}: the head was opened for another target", file->path());
  std::unique_ptr<EagleHead> head(new EagleHead(std::move(file), target, backend, options));
  if (options.context <= 0) head->options_.context = head->config().trained_length();
  RopeFrequencies rope = sx::rope_frequencies(head->config().cell, head->options_.context);
  head->frequencies_ = std::move(rope.frequencies);
  head->rope_factor_ = rope.factor;
  head->load_weights();
  head->allocate_workspace();
  head->make_mask_state();
  return head;
}

void EagleHead::load_weights() {
  HeadWeights weights(*file_, backend_);
  for (int i = 0; i < config().cell.layers; ++i) {
    const auto name = [&](const char* part) { return fmt::format("layers.{}.{}", i, part); };
    Layer layer;
    layer.input_norm = weights.vector({name("input_layernorm.weight")});
    layer.hidden_norm = weights.vector({name("hidden_norm.weight")});
    layer.ffn.norm.weight = weights.vector({name("post_attention_layernorm.weight")});
    layer.qkv = weights.matrix(
        {name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")});
    layer.out = weights.matrix({name("self_attn.o_proj.weight")});
    layer.ffn.gate_up = weights.matrix({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")});
    layer.ffn.down = weights.matrix({name("mlp.down_proj.weight")});
    layer.qkv_bias =
        weights.vector({name("self_attn.q_proj.bias"), name("self_attn.k_proj.bias"), name("self_attn.v_proj.bias")});
    layer.out_bias = weights.vector({name("self_attn.o_proj.bias")});
    layer.q_norm = weights.vector({name("self_attn.q_norm.weight")});
    layer.k_norm = weights.vector({name("self_attn.k_norm.weight")});
    layer.ffn.gate_up_bias = weights.vector({name("mlp.gate_proj.bias"), name("mlp.up_proj.bias")});
    layer.ffn.down_bias = weights.vector({name("mlp.down_proj.bias")});
    if (mtp()) {
      layer.input = weights.matrix({name("eh_proj.weight")});
      layer.token_norm = weights.vector({name("enorm.weight")});
      layer.state_norm = weights.vector({name("hnorm.weight")});
      layer.final_norm = config().own_final_norm ? weights.vector({name("norm.weight")}) : target_.final_norm();
    }
    layers_.push_back(std::move(layer));
  }
  embedding_ = config().own_embedding ? backend_.place_table(file_->get("embed_tokens.weight")) : target_.embedding();
  if (config().own_head) own_head_ = weights.matrix({"lm_head.weight"});
  head_ = own_head_ ? own_head_.get() : &target_.head();
  weight_bytes_ = weights.bytes() + (own_head_ ? 0 : head_->bytes());
  if (mtp()) return;
  fc_ = weights.matrix({"fc.weight"});
  if (!eagle3()) weight_bytes_ += fc_->bytes();  // EAGLE-3 needs it for the target's states only
  fc_bias_ = weights.vector({"fc.bias"});
  final_norm_ = weights.vector({"norm.weight"});
  input_norm_ = weights.vector({"input_norm.weight"});
  for (size_t i = 0; config().fc_norm && i < config().features.size(); ++i)
    fc_norms_.push_back(weights.vector({fmt::format("fc_norm.{}.weight", i)}));
}

void EagleHead::allocate_workspace() {
  const ModelConfig& c = config().cell;
  const auto rows = size_t(backend_.row_capacity(options_.max_rows)),
             outputs = size_t(backend_.output_capacity(options_.max_outputs));
  const size_t q = size_t(c.heads) * size_t(c.head_dim), kv = size_t(c.kv_heads) * size_t(c.head_dim);
  const size_t width = size_t(c.width), ffn = size_t(c.ffn), target = size_t(config().target_width);
  const size_t wide = std::max(2 * width, target * config().features.size());
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations of the draft head"); };
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->embedded = make(rows * width);
  work_->normed = make(rows * std::max(width, target));
  work_->wide = make(rows * wide);
  work_->qkv = make(rows * (q + 2 * kv));
  work_->attended = make(rows * q);
  work_->gate_up = make(rows * 2 * ffn);
  work_->activated = make(rows * ffn);
  work_->rope = make(rows * size_t(c.rope.dims));
  work_->after_norm = config().norm_output ? make(rows * width) : nullptr;
  work_->picked = make(outputs * width);
  work_->logits = make(outputs * size_t(config().draft_vocab));
  for (int i = 0; options_.queries && i < c.layers; ++i) work_->query.push_back(make(rows * q));
  outputs_ = {work_->logits, config().norm_output ? work_->after_norm : work_->x, work_->query};
  if (blocks() > 1) {
    const std::vector<float> zeros(static_cast<size_t>(state_width()));
    outputs_.states = work_->given = make(rows * zeros.size());
    work_->before = make(zeros.size()), work_->nothing = make(zeros.size());
    backend_.upload(work_->nothing, zeros.data(), zeros.size());
    follow(nullptr);
  }
  StepLimits limits;
  limits.rows = options_.max_rows;
  limits.outputs = options_.max_outputs;
  limits.width = int(std::max({wide, q, ffn}));
  limits.heads = c.heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.context = options_.context;
  limits.vocab = config().draft_vocab;
  backend_.reserve(limits);
}

void EagleHead::make_mask_state() {
  if (config().mask_token < 0) return;
  const Tensor& mask = file_->get("mask_hidden");  // [1, features * target width]
  std::vector<float> values(size_t(mask.elements()));
  dequantise(mask.type, mask.data, mask.elements(), values.data());
  float* hidden = backend_.allocate(values.size(), "mask state");
  backend_.upload(hidden, values.data(), values.size());
  float* state = backend_.allocate(size_t(config().cell.width), "mask state");
  fuse(hidden, 1, state);
  mask_state_ = state;
}

KvGeometry EagleHead::kv_geometry(int slots, int capacity, KvTypes type) const {
  const ModelConfig& c = config().cell;
  return {c.layers, c.kv_heads, c.head_dim, slots, capacity, type};
}

void EagleHead::take(std::span<const float* const> taps, std::span<const int32_t> which, float* features,
                     std::span<const int32_t> into) {
  take_features(config(), taps, which, features, backend_, into);
}

void EagleHead::fuse(const float* features, int rows, float* out) {
  const ModelConfig &c = config().cell, &t = target_.config();
  const int target = config().target_width, all = int(feature_width());
  SX_ASSERT(rows > 0 && rows <= options_.max_rows);
  Workspace& w = *work_;
  if (!eagle3()) {
    backend_.copy_rows(
        {.to = out, .from = features, .rows = rows, .width = target, .to_stride = target, .from_stride = target});
    // EAGLE-1 and MTP blocks alike are given the state behind the target's final norm. DeepSeek-V3's report leaves it
    // open; the modelling code that is published with DeepSeek's MTP weights hands on what the model's own forward()
    // returns, which ends with the norm, and so do vLLM (deepseek_mtp.py, mimo_mtp.py: the target's normed output),
    // SGLang (deepseek_nextn.py, mimo_mtp.py) and MiMo's modelling code, whose backbone is Qwen2Model. llama.cpp took
    // the state before the norm first and measured more accepted tokens behind it on Qwen 3.6 (its pull request 24025).
    backend_.norm(
        {.out = out, .x = out, .weight = target_.final_norm(), .rows = rows, .width = t.width, .eps = t.norm_eps});
    return;
  }
  for (size_t i = 0; config().fc_norm && i < config().features.size(); ++i) {
    backend_.copy_rows({.to = w.normed,
                        .from = features + i * size_t(target),
                        .rows = rows,
                        .width = target,
                        .to_stride = target,
                        .from_stride = all});
    backend_.norm(
        {.out = w.normed, .x = w.normed, .weight = fc_norms_[i], .rows = rows, .width = target, .eps = c.norm_eps});
    backend_.copy_rows({.to = w.wide + i * size_t(target),
                        .from = w.normed,
                        .rows = rows,
                        .width = target,
                        .to_stride = all,
                        .from_stride = target});
  }
  if (config().fc_norm) features = w.wide;
  if (config().norm_before_fc)
    backend_.norm({.out = w.wide, .x = features, .weight = input_norm_, .rows = rows, .width = all, .eps = c.norm_eps}),
        features = w.wide;
  backend_.linear(
      {.out = out, .x = features, .weight = fc_.get(), .bias = fc_bias_, .rows = rows, .out_stride = c.width});
}

void EagleHead::fuse(const float* features, std::span<const int32_t> which, float* out) {
  const int all = int(feature_width()), rows = int(which.size());
  SX_ASSERT(rows <= options_.max_rows);
  backend_.copy_rows({.to = work_->wide,
                      .from = features,
                      .rows = rows,
                      .width = all,
                      .to_stride = all,
                      .from_stride = all,
                      .which = which.data()});
  fuse(work_->wide, rows, out);
}

void EagleHead::fuse(std::span<const float* const> taps, std::span<const int32_t> which, float* out) {
  SX_ASSERT(int(which.size()) <= options_.max_rows);
  take(taps, which, work_->wide);
  fuse(work_->wide, int(which.size()), out);
}

const float* EagleHead::enter_cell(const EagleStep& step) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), width = c.width;
  backend_.embed({w.embedded, step.tokens.data(), rows, embedding_});
  if (!eagle3()) {  // [embedding; state] through fc; layer 0 has no input norm
    backend_.copy_rows(
        {.to = w.wide, .from = w.embedded, .rows = rows, .width = width, .to_stride = 2 * width, .from_stride = width});
    backend_.copy_rows({.to = w.wide + width,
                        .from = step.states,
                        .rows = rows,
                        .width = width,
                        .to_stride = 2 * width,
                        .from_stride = width});
    backend_.linear(
        {.out = w.x, .x = w.wide, .weight = fc_.get(), .bias = fc_bias_, .rows = rows, .out_stride = width});
    return w.x;
  }
  const Layer& first = layers_.front();
  backend_.norm({.out = w.embedded,
                 .x = w.embedded,
                 .weight = first.input_norm,
                 .rows = rows,
                 .width = width,
                 .eps = c.norm_eps});
  backend_.norm({.out = w.normed,
                 .x = step.states,
                 .weight = first.hidden_norm,
                 .rows = rows,
                 .width = width,
                 .eps = c.norm_eps});
  backend_.copy_rows(
      {.to = w.wide, .from = w.embedded, .rows = rows, .width = width, .to_stride = 2 * width, .from_stride = width});
  backend_.copy_rows({.to = w.wide + width,
                      .from = w.normed,
                      .rows = rows,
                      .width = width,
                      .to_stride = 2 * width,
                      .from_stride = width});
  // The states may be those of the last step, that is, x itself.
  const float* residual = config().norm_before_residual ? w.normed : step.states;
  if (residual != w.x)
    backend_.copy_rows(
        {.to = w.x, .from = residual, .rows = rows, .width = width, .to_stride = width, .from_stride = width});
  return w.wide;
}

void EagleHead::attention(const Layer& layer, int index, const float* input, const EagleStep& step, KvStore& kv,
                          bool cells_only) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), qkv = (c.heads + 2 * c.kv_heads) * c.head_dim;
  backend_.linear(
      {.out = w.qkv, .x = input, .weight = layer.qkv.get(), .bias = layer.qkv_bias, .rows = rows, .out_stride = qkv});
  backend_.rope_store({.qkv = w.qkv,
                       .table = w.rope,
                       .q_norm = layer.q_norm,
                       .k_norm = layer.k_norm,
                       .eps = c.norm_eps,
                       .shape = attention_shape(c),
                       .dims = c.rope.dims,
                       .style = c.rope.style,
                       .kv = &kv,
                       .layer = index,
                       .seqs = step.seqs});
  const int q = c.heads * c.head_dim;
  if (options_.queries)
    backend_.copy_rows(
        {.to = w.query[size_t(index)], .from = w.qkv, .rows = rows, .width = q, .to_stride = q, .from_stride = qkv});
  if (cells_only) return;
  backend_.attend({.out = w.attended,
                   .q = w.qkv,
                   .q_stride = qkv,
                   .shape = attention_shape(c),
                   .scale = attention_shape(c).scale(),
                   .window = step.window,
                   .kv = &kv,
                   .layer = index,
                   .seqs = step.seqs});
  backend_.linear({.out = w.x,
                   .x = w.attended,
                   .weight = layer.out.get(),
                   .bias = layer.out_bias,
                   .rows = rows,
                   .out_stride = c.width,
                   .accumulate = true});
}

void EagleHead::make_rope_table(const EagleStep& step) {
  backend_.rope_table({.table = work_->rope,
                       .positions = step.positions.data(),
                       .rows = int(step.tokens.size()),
                       .frequencies = frequencies_.data(),
                       .dims = config().cell.rope.dims,
                       .factor = rope_factor_});
}

// Logits of the rows of `from` that are wanted, behind this norm, if any.
void EagleHead::read_out(const float* from, const float* norm, const EagleStep& step) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int outputs = int(step.outputs.size());
  if (outputs == 0) return;
  backend_.copy_rows({.to = w.picked,
                      .from = from,
                      .rows = outputs,
                      .width = c.width,
                      .to_stride = c.width,
                      .from_stride = c.width,
                      .which = step.outputs.data()});
  if (norm)
    backend_.norm(
        {.out = w.picked, .x = w.picked, .weight = norm, .rows = outputs, .width = c.width, .eps = c.norm_eps});
  backend_.linear({.out = w.logits,
                   .x = w.picked,
                   .weight = head_,
                   .rows = outputs,
                   .out_stride = config().draft_vocab,
                   .outputs = true});
}

void EagleHead::follow(const float* states) {
  if (blocks() == 1) return;
  const int all = state_width();
  const float* from = states ? states : work_->nothing;
  backend_.copy_rows(
      {.to = work_->before, .from = from, .rows = 1, .width = all, .to_stride = all, .from_stride = all});
}

// Joins the normed embedding and the normed state of each row: x becomes the block's input. Rows of a text behind the
// first block take what the block before gave for the row before; nodes take what it gave for their parent.
const float* EagleHead::enter_block(int block, const EagleStep& step) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const Layer& layer = layers_[size_t(block)];
  const int rows = int(step.tokens.size()), width = c.width, all = state_width();
  const auto copy = [&](float* to, int to_stride, const float* from, int from_stride, int count) {
    backend_.copy_rows(
        {.to = to, .from = from, .rows = count, .width = width, .to_stride = to_stride, .from_stride = from_stride});
  };
  const auto join = [&](float* from, const float* weight, bool first) {
    backend_.norm({.out = w.normed, .x = from, .weight = weight, .rows = rows, .width = width, .eps = c.norm_eps});
    copy(w.wide + (first ? 0 : width), 2 * width, w.normed, width, rows);
  };
  join(w.embedded, layer.token_norm, !config().state_first);
  if (step.depth > 0) {
    const int from = step.depth >= blocks() ? blocks() - 1 : block - 1;
    copy(w.normed, width, step.states + ptrdiff_t(from) * width, all, rows);
  } else if (block == 0) {
    copy(w.normed, width, step.states, width, rows);
  } else {
    const ptrdiff_t from = ptrdiff_t(block - 1) * width;
    copy(w.normed, width, w.before + from, all, 1);
    if (rows > 1) copy(w.normed + width, width, w.given + from, all, rows - 1);
  }
  join(w.normed, layer.state_norm, config().state_first);
  backend_.linear({.out = w.x, .x = w.wide, .weight = layer.input.get(), .rows = rows, .out_stride = width});
  backend_.norm(
      {.out = w.normed, .x = w.x, .weight = layer.input_norm, .rows = rows, .width = width, .eps = c.norm_eps});
  return w.normed;
}

// The block of the rows' depth gives their logits. Those behind it only leave cells and states, for rows that follow.
// What a block hands on, to the next one or to itself, is its state behind its own final norm, as in vLLM (pull
// requests 45895 and 47448) and SGLang: the block's norm of states was trained on a normed one.
void EagleHead::run_blocks(const EagleStep& step, KvStore& kv) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), last = blocks() - 1, first = std::min(step.depth, last);
  make_rope_table(step);
  backend_.embed({w.embedded, step.tokens.data(), rows, embedding_});
  for (int i = first; i <= last; ++i) {
    const Layer& layer = layers_[size_t(i)];
    const bool cells_only = i == last && (first < last || step.cells_only);
    attention(layer, i, enter_block(i, step), step, kv, cells_only);
    if (cells_only) return;
    feed_forward(backend_, c, c, layer.ffn, w, rows);
    backend_.norm(
        {.out = w.after_norm, .x = w.x, .weight = layer.final_norm, .rows = rows, .width = c.width, .eps = c.norm_eps});
    if (last > 0)
      backend_.copy_rows({.to = w.given + ptrdiff_t(i) * c.width,
                          .from = w.after_norm,
                          .rows = rows,
                          .width = c.width,
                          .to_stride = state_width(),
                          .from_stride = c.width});
    if (i == first) read_out(w.after_norm, nullptr, step);
  }
}

void EagleHead::run_layers(const EagleStep& step, KvStore& kv) {
  if (mtp()) return run_blocks(step, kv);
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int rows = int(step.tokens.size());
  make_rope_table(step);
  const float* input = enter_cell(step);
  for (int i = 0; i < c.layers; ++i) {
    const Layer& layer = layers_[size_t(i)];
    if (i > 0) {
      backend_.norm(
          {.out = w.normed, .x = w.x, .weight = layer.input_norm, .rows = rows, .width = c.width, .eps = c.norm_eps});
      input = w.normed;
    }
    const bool cells_only = step.cells_only && i == c.layers - 1;
    attention(layer, i, input, step, kv, cells_only);
    if (cells_only) return;
    feed_forward(backend_, c, c, layer.ffn, w, rows);
  }
  if (config().norm_output)
    backend_.norm(
        {.out = w.after_norm, .x = w.x, .weight = final_norm_, .rows = rows, .width = c.width, .eps = c.norm_eps});
  read_out(w.x, eagle3() ? final_norm_ : nullptr, step);
}

const EagleOutputs& EagleHead::forward(const EagleStep& step, KvStore& kv) {
  const int rows = int(step.tokens.size());
  SX_ASSERT(rows > 0 && rows <= options_.max_rows && int(step.outputs.size()) <= options_.max_outputs && step.states);
  SX_ASSERT(step.positions.size() == step.tokens.size());
  const uint64_t depth = uint64_t(std::min(step.depth, blocks()));
  backend_.run(step, {this, &kv, step.states, (uint64_t(step.window) * 2 + step.cells_only) * 32 + depth},
               [&] { run_layers(step, kv); });
  return outputs_;
}

bool EagleHead::levels(TreeGrowthArgs& args, KvStore& kv) {
  SX_ASSERT(args.rules.rows <= std::min(options_.max_rows, options_.max_outputs) && args.states);
  EagleStep step;
  step.states = args.states;
  args.logits = outputs_.logits;
  args.vocab = args.stride = config().draft_vocab;
  args.left = outputs_.states;
  args.width = state_width();
  return backend_.grow_tree(args, step, {this, &kv, step.states, 0}, [&] { run_layers(step, kv); });
}

}  // namespace sx
