#include "model/heads/longspec.h"

#include <algorithm>

#include "base/error.h"
#include "model/heads/head_weights.h"

namespace sx {
namespace {

constexpr int
    kOwn = 0,
    kScratch = 1;  // layers of the store: cells; what is stored along when queries of the other attention are rotated

}  // namespace

// Activations of one step, f32, in backend memory.
struct LongSpecHead::Workspace {
  float* x;               // [rows, width] residual stream
  float* normed;          // [rows, width]
  float* qkv;             // [rows, (heads + 2 kv_heads) * head_dim]
  float* attended;        // [rows, heads * head_dim]
  float* rope;            // [rows, dims]
  float* picked;          // [outputs, width] residual stream of the outputs
  float* picked_queries;  // [outputs, heads * head_dim]
  float* gate_up;         // [outputs, 2 ffn]
  float* activated;       // [outputs, ffn]
  float* logits;          // [outputs, draft_vocab]
};

LongSpecHead::LongSpecHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                           const LongSpecOptions& options)
    : file_(std::move(file)),
      target_(target),
      backend_(backend),
      options_(options),
      sight_(std::max(1, options.max_outputs)) {}
LongSpecHead::~LongSpecHead() = default;

std::unique_ptr<LongSpecHead> LongSpecHead::load(std::shared_ptr<const HeadFile> file, const Model& target,
                                                 Backend& backend, const LongSpecOptions& options) {
  const HeadConfig& config = file->config();
  if (config.kind != HeadConfig::Kind::kLongSpec)
    fail("{}: {} head where a LongSpec head is expected", file->path(), head_kind_name(config.kind));
  if (config.target_width != target.config().width || config.cell.vocab != target.config().vocab)
    fail("{}: the head was opened for another target", file->path());
  std::unique_ptr<LongSpecHead> head(new LongSpecHead(std::move(file), target, backend, options));
  head->load_weights();
  head->allocate_workspace();
  return head;
}

void LongSpecHead::load_weights() {
  HeadWeights weights(*file_, backend_);
  const auto name = [](const char* part) { return fmt::format("layers.0.{}", part); };
  input_norm_ = weights.vector({name("input_layernorm.weight")});
  cross_norm_ = weights.vector({name("post_self_attention_layernorm.weight")});
  ffn_norm_ = weights.vector({name("post_cross_attention_layernorm.weight")});
  qkv_ = weights.matrix(
      {name("self_attn.q_proj.weight"), name("self_attn.k_proj.weight"), name("self_attn.v_proj.weight")});
  qkv_bias_ =
      weights.vector({name("self_attn.q_proj.bias"), name("self_attn.k_proj.bias"), name("self_attn.v_proj.bias")});
  out_ = weights.matrix({name("self_attn.o_proj.weight")});
  out_bias_ = weights.vector({name("self_attn.o_proj.bias")});
  cross_out_ = weights.matrix({name("cross_attn.o_proj.weight")});
  cross_out_bias_ = weights.vector({name("cross_attn.o_proj.bias")});
  gate_up_ = weights.matrix({name("mlp.gate_proj.weight"), name("mlp.up_proj.weight")});
  gate_up_bias_ = weights.vector({name("mlp.gate_proj.bias"), name("mlp.up_proj.bias")});
  down_ = weights.matrix({name("mlp.down_proj.weight")});
  down_bias_ = weights.vector({name("mlp.down_proj.bias")});
  const AttentionShape shape = attention_shape(config().cell);
  cross_ = std::make_unique<TargetAttention>(*file_, target_, backend_,
                                             TargetAttentionOptions{.name = name("cross_attn"),
                                                                    .layer = target_.config().layers - 1,
                                                                    .heads = shape.heads,
                                                                    .scale = shape.scale(),
                                                                    .max_rows = options_.max_rows});
  if (config().own_head) own_head_ = weights.matrix({"lm_head.weight"});
  head_ = own_head_ ? own_head_.get() : &target_.head();
  weight_bytes_ = weights.bytes() + cross_->bytes() + (own_head_ ? 0 : head_->bytes());
}

void LongSpecHead::allocate_workspace() {
  const ModelConfig& c = config().cell;
  const auto rows = size_t(backend_.row_capacity(options_.max_rows));
  // Outputs of the one step are the rows of the other.
  const auto outputs =
      size_t(std::max(backend_.row_capacity(options_.max_outputs), backend_.output_capacity(options_.max_outputs)));
  const size_t q = size_t(c.heads) * size_t(c.head_dim), kv = size_t(c.kv_heads) * size_t(c.head_dim);
  const size_t width = size_t(c.width), ffn = size_t(c.ffn);
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations of the draft head"); };
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->normed = make(std::max(rows, outputs) * width);
  work_->qkv = make(rows * (q + 2 * kv));
  work_->attended = make(std::max(rows, outputs) * q);
  work_->rope = make(rows * size_t(target_.config().rope.dims));
  work_->picked = make(outputs * width);
  work_->picked_queries = make(outputs * q);
  work_->gate_up = make(outputs * 2 * ffn);
  work_->activated = make(outputs * ffn);
  work_->logits = make(outputs * size_t(config().draft_vocab));
  StepLimits limits;
  limits.rows = options_.max_rows;
  limits.outputs = options_.max_outputs;
  limits.width = std::max({c.width, c.heads * c.head_dim, c.ffn});
  limits.heads = c.heads;
  limits.kv_heads = c.kv_heads;
  limits.head_dim = c.head_dim;
  limits.context = std::max(options_.cells, target_.context());
  limits.vocab = config().draft_vocab;
  backend_.reserve(limits);
}

KvGeometry LongSpecHead::kv_geometry(int slots, KvTypes type) const {
  const ModelConfig& c = config().cell;
  return {2, c.kv_heads, c.head_dim, slots, options_.cells, type};
}

void LongSpecHead::own_cells(const StepInputs& step, KvStore& kv, int window) {
  const ModelConfig &c = config().cell, &t = target_.config();
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), outputs = int(step.outputs.size());
  const int q = c.heads * c.head_dim, qkv = q + 2 * c.kv_heads * c.head_dim;
  const auto frequencies = target_.rope_frequencies();
  backend_.rope_table({.table = w.rope,
                       .positions = step.positions.data(),
                       .rows = rows,
                       .frequencies = frequencies.data(),
                       .dims = t.rope.dims,
                       .factor = target_.rope_factor()});
  backend_.embed({w.x, step.tokens.data(), rows, target_.embedding()});
  backend_.norm({.out = w.normed, .x = w.x, .weight = input_norm_, .rows = rows, .width = c.width, .eps = c.norm_eps});
  backend_.linear(
      {.out = w.qkv, .x = w.normed, .weight = qkv_.get(), .bias = qkv_bias_, .rows = rows, .out_stride = qkv});
  backend_.rope_store({.qkv = w.qkv,
                       .table = w.rope,
                       .eps = c.norm_eps,
                       .shape = attention_shape(c),
                       .dims = t.rope.dims,
                       .style = RopeStyle::kHalves,
                       .kv = &kv,
                       .layer = kOwn,
                       .seqs = step.seqs});
  if (outputs == 0) return;
  backend_.attend({.out = w.attended,
                   .q = w.qkv,
                   .q_stride = qkv,
                   .shape = attention_shape(c),
                   .scale = attention_shape(c).scale(),
                   .window = window,
                   .kv = &kv,
                   .layer = kOwn,
                   .seqs = step.seqs});
  backend_.linear({.out = w.x,
                   .x = w.attended,
                   .weight = out_.get(),
                   .bias = out_bias_,
                   .rows = rows,
                   .out_stride = c.width,
                   .accumulate = true});
  backend_.norm({.out = w.normed, .x = w.x, .weight = cross_norm_, .rows = rows, .width = c.width, .eps = c.norm_eps});
  cross_->project(w.normed, step, kv, kScratch);
  backend_.copy_rows({.to = w.picked,
                      .from = w.x,
                      .rows = outputs,
                      .width = c.width,
                      .to_stride = c.width,
                      .from_stride = c.width,
                      .which = step.outputs.data()});
  backend_.copy_rows({.to = w.picked_queries,
                      .from = cross_->queries(),
                      .rows = outputs,
                      .width = q,
                      .to_stride = q,
                      .from_stride = cross_->stride(),
                      .which = step.outputs.data()});
}

void LongSpecHead::forward(const StepInputs& step, KvStore& kv, int window) {
  outputs_ = int(step.outputs.size());
  SX_ASSERT(!step.tokens.empty() && int(step.tokens.size()) <= options_.max_rows && outputs_ <= options_.max_outputs);
  SX_ASSERT(step.positions.size() == step.tokens.size() && (outputs_ == 0 || !step.prompt));
  backend_.run(step, {this, &kv, nullptr, uint64_t(window)}, [&] { own_cells(step, kv, window); });
}

void LongSpecHead::feed_forward(int rows) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  backend_.linear({.out = w.picked,
                   .x = w.attended,
                   .weight = cross_out_.get(),
                   .bias = cross_out_bias_,
                   .rows = rows,
                   .out_stride = c.width,
                   .accumulate = true});
  backend_.norm({.out = w.normed,
                 .x = w.picked,
                 .weight = ffn_norm_,
                 .rows = rows,
                 .width = c.width,
                 .eps = c.norm_eps,
                 .only_for = gate_up_.get()});
  backend_.linear_glu(
      {.out = w.gate_up,
       .x = w.normed,
       .weight = gate_up_.get(),
       .bias = gate_up_bias_,
       .rows = rows,
       .out_stride = 2 * c.ffn},
      {.out = w.activated, .gate_up = w.gate_up, .rows = rows, .width = c.ffn, .only_for = down_.get()});
  backend_.linear({.out = w.picked,
                   .x = w.activated,
                   .weight = down_.get(),
                   .bias = down_bias_,
                   .rows = rows,
                   .out_stride = c.width,
                   .accumulate = true});
  backend_.linear({.out = w.logits,
                   .x = w.picked,
                   .weight = head_,
                   .rows = rows,
                   .out_stride = config().draft_vocab,
                   .outputs = true});
}

const float* LongSpecHead::look(const KvStore& target, int slot, int seen) {
  Workspace& w = *work_;
  SX_ASSERT(outputs_ > 0 && seen > 0 && seen - 1 + outputs_ <= target.geometry().capacity);
  const StepInputs step = sight_.step(outputs_, slot, seen);
  const auto attend = [&] { cross_->attend(w.attended, w.picked_queries, cross_->width(), target, step.seqs); };
  // Where the target is spread over ranks they attend, which cannot be part of a step.
  const bool remote = target_.spread();
  if (remote) attend();
  backend_.run(step, {this, &target, work_->picked, 0}, [&] {
    if (!remote) attend();
    feed_forward(outputs_);
  });
  return w.logits;
}

}  // namespace sx
