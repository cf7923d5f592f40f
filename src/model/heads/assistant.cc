#include "model/heads/assistant.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/feed_forward.h"
#include "model/heads/head_weights.h"

namespace sx {

struct AssistantHead::Layer {
  std::unique_ptr<TargetAttention> attention;
  NormWeights norm, post_norm;
  std::unique_ptr<Matrix> out;
  FeedForwardWeights ffn;
  float scale = 1;        // of the residual stream behind the layer
  bool windowed = false;  // it looks at the target's layers with a sliding window
};

// Activations of one step, f32, in backend memory.
struct AssistantHead::Workspace : LayerBuffers {
  float* embedded = nullptr;  // [rows, target_width]
  float* joined = nullptr;    // [rows, 2 target_width] embedding and state
  float* attended = nullptr;  // [rows, heads * head_dim]
  float* logits = nullptr;    // [rows, vocab]
  float* states = nullptr;    // [rows, target_width]
};

AssistantHead::AssistantHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend, int max_rows)
    : file_(std::move(file)),
      target_(target),
      backend_(backend),
      max_rows_(max_rows),
      own_(max_rows),
      sight_(max_rows),
      positions_(size_t(max_rows)) {}
AssistantHead::~AssistantHead() = default;

std::unique_ptr<AssistantHead> AssistantHead::load(std::shared_ptr<const HeadFile> file, const Model& target,
                                                   Backend& backend, int max_rows) {
  const HeadConfig& config = file->config();
  if (config.kind != HeadConfig::Kind::kAssistant)
    fail("{}: {} head where an assistant is expected", file->path(), head_kind_name(config.kind));
  if (config.target_width != target.config().width || config.cell.vocab != target.config().vocab)
    fail("{}: the head was opened for another target", file->path());
  std::unique_ptr<AssistantHead> head(new AssistantHead(std::move(file), target, backend, max_rows));
  head->load_weights();
  head->allocate_workspace();
  return head;
}

void AssistantHead::load_weights() {
  HeadWeights weights(*file_, backend_);
  const ModelConfig& c = config().cell;
  for (int i = 0; i < c.layers; ++i) {
    const auto name = [&](const char* part) { return fmt::format("layers.{}.{}", i, part); };
    const int at = config().target_layers[size_t(i)], window = target_.config().layer(at).window;
    Layer layer;
    layer.windowed = window > 0;
    // The pending token, from which a window is counted, has no cell yet. Queries and keys are normed: nothing else
    // scales what they give.
    layer.attention =
        std::make_unique<TargetAttention>(*file_, target_, backend_,
                                          TargetAttentionOptions{.name = name("self_attn"),
                                                                 .layer = at,
                                                                 .heads = c.heads,
                                                                 .norm_eps = c.norm_eps,
                                                                 .scale = 1,
                                                                 .window = window > 0 ? std::max(1, window - 1) : 0,
                                                                 .max_rows = max_rows_});
    weight_bytes_ += layer.attention->bytes();
    layer.norm.weight = weights.vector({name("input_layernorm.weight")});
    layer.post_norm.weight = weights.vector({name("post_attention_layernorm.weight")});
    layer.ffn.norm.weight = weights.vector({name("pre_feedforward_layernorm.weight")});
    layer.ffn.post_norm.weight = weights.vector({name("post_feedforward_layernorm.weight")});
    layer.out = weights.matrix({name("self_attn.o_proj.weight")});
    layer.ffn.gate_up = weights.matrix({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")});
    layer.ffn.down = weights.matrix({name("mlp.down_proj.weight")});
    layer.scale = weights.number(name("layer_scalar"));
    if (!std::isfinite(layer.scale)) fail("{}: tensor '{}' is no number", file_->path(), name("layer_scalar"));
    layers_.push_back(std::move(layer));
  }
  final_norm_ = weights.vector({"norm.weight"});
  input_ = weights.matrix({"pre_projection.weight"});
  output_ = weights.matrix({"post_projection.weight"});
  head_ = weights.matrix({config().own_head ? "lm_head.weight" : "embed_tokens.weight"});
  weight_bytes_ += weights.bytes();
}

void AssistantHead::allocate_workspace() {
  const ModelConfig& c = config().cell;
  const auto rows = size_t(std::max(backend_.row_capacity(max_rows_), backend_.output_capacity(max_rows_)));
  const size_t width = size_t(c.width), ffn = size_t(c.ffn), target = size_t(config().target_width);
  const size_t q = size_t(c.heads) * size_t(c.head_dim);
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations of the draft head"); };
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->normed = make(rows * width);
  work_->branch = make(rows * width);
  work_->gate_up = make(rows * 2 * ffn);
  work_->activated = make(rows * ffn);
  work_->embedded = make(rows * target);
  work_->joined = make(rows * 2 * target);
  work_->attended = make(rows * q);
  work_->logits = make(rows * size_t(c.vocab));
  work_->states = make(rows * target);
  scratch_ = backend_.make_kv({1, c.kv_heads, c.head_dim, 1, max_rows_, backend_.default_kv_type()});
  StepLimits limits;
  limits.rows = limits.outputs = max_rows_;
  limits.width = int(std::max({2 * target, width, q, ffn}));
  limits.heads = c.heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.context = target_.context();
  limits.vocab = c.vocab;
  backend_.reserve(limits);
}

void AssistantHead::take(const float* states, int rows, float* out) {
  const ModelConfig& t = target_.config();
  backend_.norm(
      {.out = out, .x = states, .weight = target_.final_norm(), .rows = rows, .width = t.width, .eps = t.norm_eps});
}

// Joins what the rows are made of.
void AssistantHead::enter(const StepInputs& step, const float* states) {
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), target = config().target_width;
  const auto join = [&](float* to, const float* from, float scale) {
    backend_.copy_rows({.to = to,
                        .from = from,
                        .rows = rows,
                        .width = target,
                        .to_stride = 2 * target,
                        .from_stride = target,
                        .scale = scale});
  };
  backend_.embed({w.embedded, step.tokens.data(), rows, target_.embedding()});
  join(w.joined, w.embedded, target_.config().embedding_scale);
  join(w.joined + target, states, 1);
  backend_.linear({.out = w.x, .x = w.joined, .weight = input_.get(), .rows = rows, .out_stride = config().cell.width});
}

void AssistantHead::ask(Layer& layer, const StepInputs& step) {
  Workspace& w = *work_;
  const float* input = normed(backend_, config().cell, layer.norm, w.x, w.normed, int(step.tokens.size()), nullptr);
  layer.attention->project(input, step, *scratch_, 0);
}

void AssistantHead::answer(const Layer& layer, int rows) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  add_product(backend_, c, layer.post_norm, *layer.out, nullptr, w.attended, w, rows);
  feed_forward(backend_, c, c, layer.ffn, w, rows);
  if (layer.scale != 1)
    backend_.copy_rows({.to = w.x,
                        .from = w.x,
                        .rows = rows,
                        .width = c.width,
                        .to_stride = c.width,
                        .from_stride = c.width,
                        .scale = layer.scale});
}

void AssistantHead::read_out(int rows) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  backend_.norm({.out = w.normed, .x = w.x, .weight = final_norm_, .rows = rows, .width = c.width, .eps = c.norm_eps});
  backend_.linear(
      {.out = w.states, .x = w.normed, .weight = output_.get(), .rows = rows, .out_stride = config().target_width});
  backend_.linear(
      {.out = w.logits, .x = w.normed, .weight = head_.get(), .rows = rows, .out_stride = c.vocab, .outputs = true});
}

// Ops that see cells are given those of their step: queries are made in one step and answered in another.
AssistantOutputs AssistantHead::forward(const AssistantRows& in) {
  Workspace& w = *work_;
  const int rows = int(in.tokens.size());
  SX_ASSERT(rows > 0 && rows <= max_rows_);
  std::fill_n(positions_.begin(), rows, in.position);
  StepInputs own = own_.step(rows, 0, 1);
  own.tokens = in.tokens, own.positions = std::span(positions_).first(size_t(rows)), own.outputs = {};
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const TargetCells& cells = layer.windowed ? in.windows : in.whole;
    SX_ASSERT(cells.kv && cells.seen - 1 + rows <= cells.kv->geometry().capacity);
    backend_.run(own, {this, scratch_.get(), in.states, 2 * i}, [&] {
      if (i == 0) enter(own, in.states);
      ask(layer, own);
    });
    const StepInputs look = sight_.step(rows, cells.slot, cells.seen);
    const TargetAttention& attention = *layer.attention;
    const auto attend = [&] {
      attention.attend(w.attended, attention.queries(), attention.stride(), *cells.kv, look.seqs);
    };
    // Where the target is spread over ranks they attend, which cannot be part of a step.
    const bool remote = target_.spread();
    if (remote) attend();
    backend_.run(look, {this, cells.kv, w.attended, 2 * i + 1}, [&] {
      if (!remote) attend();
      answer(layer, rows);
      if (i + 1 == layers_.size()) read_out(rows);
    });
  }
  return {w.logits, w.states};
}

}  // namespace sx
