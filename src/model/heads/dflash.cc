#include "model/heads/dflash.h"

#include <algorithm>

#include "base/error.h"
#include "model/feed_forward.h"
#include "model/heads/head_weights.h"
#include "model/rope.h"

namespace sx {

struct DFlashHead::Layer {
  const float *input_norm, *q_norm, *k_norm;
  const float *qkv_bias, *out_bias;  // or null
  std::unique_ptr<Matrix> qkv, out;
  FeedForwardWeights ffn;
  int window;   // 0: none
  bool causal;  // within the block
};

// Activations of one step, f32, in backend memory.
struct DFlashHead::Workspace : LayerBuffers {
  float* context;      // [rows, width] what cells are made of
  float* qkv;          // [rows, (heads + 2 kv_heads) * head_dim]
  float* attended;     // [rows, heads * head_dim]
  float* rope;         // [rows, dims]
  float* picked;       // [block, width]
  float* logits;       // [block, draft_vocab]
  float* before;       // DSpark: [nodes, rank]
  float* node_logits;  // DSpark: [nodes, draft_vocab]
};

DFlashHead::DFlashHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                       const DFlashOptions& options)
    : file_(std::move(file)), target_(target), backend_(backend), options_(options) {}
DFlashHead::~DFlashHead() = default;

std::unique_ptr<DFlashHead> DFlashHead::load(std::shared_ptr<const HeadFile> file, const Model& target,
                                             Backend& backend, const DFlashOptions& options) {
  if (file->config().kind != HeadConfig::Kind::kDFlash)
    fail("{}: {} head where a DFlash drafter is expected", file->path(), head_kind_name(file->config().kind));
  std::unique_ptr<DFlashHead> head(new DFlashHead(std::move(file), target, backend, options));
  if (options.context <= 0) head->options_.context = head->config().trained_length();
  head->options_.max_rows = std::max(options.max_rows, head->config().block);
  RopeFrequencies rope = sx::rope_frequencies(head->config().cell, head->options_.context);
  head->frequencies_ = std::move(rope.frequencies);
  head->rope_factor_ = rope.factor;
  head->load_weights();
  head->allocate_workspace();
  return head;
}

void DFlashHead::load_weights() {
  HeadWeights weights(*file_, backend_);
  for (int i = 0; i < config().cell.layers; ++i) {
    const auto name = [&](const char* part) { return fmt::format("layers.{}.{}", i, part); };
    Layer layer;
    layer.input_norm = weights.vector({name("input_layernorm.weight")});
    layer.q_norm = weights.vector({name("self_attn.q_norm.weight")});
    layer.k_norm = weights.vector({name("self_attn.k_norm.weight")});
    layer.qkv = weights.matrix(
        {name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")});
    layer.qkv_bias =
        weights.vector({name("self_attn.q_proj.bias"), name("self_attn.k_proj.bias"), name("self_attn.v_proj.bias")});
    layer.out = weights.matrix({name("self_attn.o_proj.weight")});
    layer.out_bias = weights.vector({name("self_attn.o_proj.bias")});
    layer.ffn.norm.weight = weights.vector({name("post_attention_layernorm.weight")});
    layer.ffn.gate_up = weights.matrix({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")});
    layer.ffn.down = weights.matrix({name("mlp.down_proj.weight")});
    layer.ffn.gate_up_bias = weights.vector({name("mlp.gate_proj.bias"), name("mlp.up_proj.bias")});
    layer.ffn.down_bias = weights.vector({name("mlp.down_proj.bias")});
    layer.window = config().block_windows[size_t(i)];
    layer.causal = config().block_causal[size_t(i)] != 0;
    layers_.push_back(std::move(layer));
  }
  embedding_ = config().own_embedding ? backend_.place_table(file_->get("embed_tokens.weight")) : target_.embedding();
  if (config().own_head) own_head_ = weights.matrix({"lm_head.weight"});
  head_ = own_head_ ? own_head_.get() : &target_.head();
  weight_bytes_ = weights.bytes() + (own_head_ ? 0 : head_->bytes());
  fc_ = weights.matrix({"fc.weight"});
  context_norm_ = weights.vector({"hidden_norm.weight"});
  final_norm_ = weights.vector({"norm.weight"});
  if (markov_rank() == 0) return;
  markov_in_ = backend_.place_table(file_->get("markov_head.markov_w1.weight"));
  markov_out_ = weights.matrix({"markov_head.markov_w2.weight"});
}

void DFlashHead::allocate_workspace() {
  const ModelConfig& c = config().cell;
  const auto rows = size_t(backend_.row_capacity(options_.max_rows)),
             outputs = size_t(backend_.output_capacity(std::max(config().block, options_.max_nodes)));
  const size_t q = size_t(c.heads) * size_t(c.head_dim), kv = size_t(c.kv_heads) * size_t(c.head_dim);
  const size_t width = size_t(c.width), ffn = size_t(c.ffn), vocab = size_t(config().draft_vocab);
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations of the draft head"); };
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->normed = make(rows * width);
  work_->branch = nullptr;
  work_->context = make(rows * width);
  work_->qkv = make(rows * (q + 2 * kv));
  work_->attended = make(rows * q);
  work_->gate_up = make(rows * 2 * ffn);
  work_->activated = make(rows * ffn);
  work_->rope = make(rows * size_t(c.rope.dims));
  work_->picked = make(outputs * width);
  work_->logits = make(outputs * vocab);
  work_->before = markov_rank() > 0 ? make(rows * size_t(markov_rank())) : nullptr;
  work_->node_logits = markov_rank() > 0 ? make(outputs * vocab) : nullptr;
  StepLimits limits;
  limits.rows = options_.max_rows;
  limits.outputs = std::max(config().block, options_.max_nodes);
  limits.width = int(std::max({feature_width(), q, ffn, width, size_t(markov_rank())}));
  limits.heads = c.heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.context = options_.context;
  limits.vocab = config().draft_vocab;
  backend_.reserve(limits);
}

KvGeometry DFlashHead::kv_geometry(int slots, int capacity, KvTypes type) const {
  const ModelConfig& c = config().cell;
  return {c.layers, c.kv_heads, c.head_dim, slots, capacity, type};
}

void DFlashHead::take(std::span<const float* const> taps, std::span<const int32_t> which, float* features) {
  take_features(config(), taps, which, features, backend_);
}

void DFlashHead::make_rope_table(const StepInputs& step) {
  backend_.rope_table({.table = work_->rope,
                       .positions = step.positions.data(),
                       .rows = int(step.positions.size()),
                       .frequencies = frequencies_.data(),
                       .dims = config().cell.rope.dims,
                       .factor = rope_factor_});
}

void DFlashHead::store_cells(const Layer& layer, int index, const float* input, const StepInputs& step, KvStore& kv) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  backend_.linear({.out = w.qkv,
                   .x = input,
                   .weight = layer.qkv.get(),
                   .bias = layer.qkv_bias,
                   .rows = int(step.tokens.size()),
                   .out_stride = attention_shape(c).qkv_width()});
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
}

// All layers make their cells of the same states.
void DFlashHead::context(const StepInputs& step, const float* features, KvStore& kv) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int rows = int(step.tokens.size());
  SX_ASSERT(rows > 0 && rows <= options_.max_rows);
  backend_.linear({.out = w.context, .x = features, .weight = fc_.get(), .rows = rows, .out_stride = c.width});
  backend_.norm(
      {.out = w.context, .x = w.context, .weight = context_norm_, .rows = rows, .width = c.width, .eps = c.norm_eps});
  backend_.run(step, {this, &kv, w.context, 0}, [&] {
    make_rope_table(step);
    for (int i = 0; i < c.layers; ++i) store_cells(layers_[size_t(i)], i, w.context, step, kv);
  });
}

void DFlashHead::run_layer(int index, const StepInputs& step, KvStore& kv) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const Layer& layer = layers_[size_t(index)];
  const int rows = int(step.tokens.size());
  backend_.norm(
      {.out = w.normed, .x = w.x, .weight = layer.input_norm, .rows = rows, .width = c.width, .eps = c.norm_eps});
  store_cells(layer, index, w.normed, step, kv);
  backend_.attend({.out = w.attended,
                   .q = w.qkv,
                   .q_stride = attention_shape(c).qkv_width(),
                   .shape = attention_shape(c),
                   .scale = attention_shape(c).scale(),
                   .window = layer.window,
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
  feed_forward(backend_, c, c, layer.ffn, w, rows);
}

void DFlashHead::read_out(const StepInputs& step) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  const int outputs = int(step.outputs.size());
  backend_.copy_rows({.to = w.picked,
                      .from = w.x,
                      .rows = outputs,
                      .width = c.width,
                      .to_stride = c.width,
                      .from_stride = c.width,
                      .which = step.outputs.data()});
  backend_.norm(
      {.out = w.picked, .x = w.picked, .weight = final_norm_, .rows = outputs, .width = c.width, .eps = c.norm_eps});
  backend_.linear({.out = w.logits,
                   .x = w.picked,
                   .weight = head_,
                   .rows = outputs,
                   .out_stride = config().draft_vocab,
                   .outputs = true});
}

// A step has one way for rows to see each other, so layers of one kind in a row are a step.
const float* DFlashHead::block(const StepInputs& together, const StepInputs& in_order, KvStore& kv) {
  const int layers = config().cell.layers;
  SX_ASSERT(int(together.tokens.size()) == config().block && int(together.outputs.size()) == levels());
  for (int first = 0, end; first < layers; first = end) {
    const bool causal = layers_[size_t(first)].causal;
    for (end = first + 1; end < layers && layers_[size_t(end)].causal == causal;) ++end;
    const StepInputs& step = causal ? in_order : together;
    backend_.run(step, {this, &kv, work_->x, uint64_t(first) + 1}, [&] {
      make_rope_table(step);
      if (first == 0) backend_.embed({work_->x, step.tokens.data(), int(step.tokens.size()), embedding_});
      for (int i = first; i < end; ++i) run_layer(i, step, kv);
      if (end == layers) read_out(step);
    });
  }
  return work_->logits;
}

const float* DFlashHead::markov_logits(const StepInputs& step, std::span<const int32_t> which) {
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), vocab = config().draft_vocab;
  SX_ASSERT(markov_rank() > 0 && rows <= options_.max_nodes && which.size() == step.tokens.size());
  backend_.copy_rows({.to = w.node_logits,
                      .from = w.logits,
                      .rows = rows,
                      .width = vocab,
                      .to_stride = vocab,
                      .from_stride = vocab,
                      .which = which.data()});
  backend_.run(step, {this, nullptr, w.before, 0}, [&] {
    backend_.embed({w.before, step.tokens.data(), rows, markov_in_});
    backend_.linear({.out = w.node_logits,
                     .x = w.before,
                     .weight = markov_out_.get(),
                     .rows = rows,
                     .out_stride = vocab,
                     .accumulate = true,
                     .outputs = true});
  });
  return w.node_logits;
}

}  // namespace sx
