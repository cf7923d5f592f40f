#include "model/heads/longspec.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "model/heads/head_weights.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

constexpr int
    kOwn = 0,
    kScratch = 1;  // layers of the store: cells; what is stored along when queries of the other attention are rotated
constexpr int kWords = 8;  // of ancestor bits

// Where row `row` of queries whose first `dims` dimensions are rotated by halves lies if they are rotated by pairs of
// neighbours.
int64_t paired(int64_t row, int64_t head_dim, int64_t dims) {
  const int64_t head = row / head_dim, at = row % head_dim, half = dims / 2;
  if (at >= dims) return row;
  return head * head_dim + (at < half ? 2 * at : 2 * (at - half) + 1);
}

}  // namespace

// Activations of one step, f32, in backend memory, and the integers of look().
struct LongSpecHead::Workspace {
  float* x;                    // [rows, width] residual stream
  float* normed;               // [rows, width]
  float* qkv;                  // [rows, (heads + 2 kv_heads) * head_dim]
  float* cross;                // the same; keys and values stay 0
  float* attended;             // [rows, heads * head_dim]
  float* rope;                 // [rows, dims]
  float* picked;               // [outputs, width] residual stream of the outputs
  float* picked_queries;       // [outputs, heads * head_dim]
  float* gate_up;              // [outputs, 2 ffn]
  float* activated;            // [outputs, ffn]
  float* logits;               // [outputs, draft_vocab]
  std::vector<uint64_t> bits;  // [outputs][kWords]: the bits of node 0
  std::vector<Token> tokens;   // [outputs], not read
  std::vector<int32_t> positions, outputs;
  std::vector<SeqRows> seqs;
};

LongSpecHead::LongSpecHead(std::shared_ptr<const HeadFile> file, const Model& target, Backend& backend,
                           const LongSpecOptions& options)
    : file_(std::move(file)), target_(target), backend_(backend), options_(options) {}
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
  load_cross_query();
  if (config().own_head) own_head_ = weights.matrix({"lm_head.weight"});
  head_ = own_head_ ? own_head_.get() : &target_.head();
  weight_bytes_ = weights.bytes() + cross_query_->bytes() + (own_head_ ? 0 : head_->bytes());
}

// Its queries meet the target's keys, whose dimensions lie as the target's file has them; the head's are rotated by
// halves.
void LongSpecHead::load_cross_query() {
  const ModelConfig& c = config().cell;
  const Tensor& weight = file_->get("layers.0.cross_attn.q_proj.weight");
  const Tensor* bias = file_->find("layers.0.cross_attn.q_proj.bias");
  const bool pairs = target_.config().rope.style != RopeStyle::kHalves;
  const auto place = [&](int64_t row) { return pairs ? paired(row, c.head_dim, target_.config().rope.dims) : row; };
  const int64_t rows = weight.shape[0];
  const size_t row_bytes = weight.bytes() / size_t(rows);
  std::vector<std::byte> ordered(weight.bytes());
  for (int64_t r = 0; r < rows; ++r)
    std::memcpy(ordered.data() + size_t(place(r)) * row_bytes,
                static_cast<const std::byte*>(weight.data) + size_t(r) * row_bytes, row_bytes);
  Tensor view = weight;
  view.data = ordered.data();
  cross_query_ = backend_.make_matrix({&view, 1});
  file_->release(weight);
  if (!bias) return;
  std::vector<float> values(size_t(rows), 0), moved(values);
  dequantise(bias->type, bias->data, rows, values.data());
  for (int64_t r = 0; r < rows; ++r) moved[size_t(place(r))] = values[size_t(r)];
  float* placed = backend_.allocate(moved.size(), "head weights");
  backend_.upload(placed, moved.data(), moved.size());
  cross_bias_ = placed;
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
  work_->cross = make(rows * (q + 2 * kv));
  work_->attended = make(std::max(rows, outputs) * q);
  work_->rope = make(rows * size_t(target_.config().rope.dims));
  work_->picked = make(outputs * width);
  work_->picked_queries = make(outputs * q);
  work_->gate_up = make(outputs * 2 * ffn);
  work_->activated = make(outputs * ffn);
  work_->logits = make(outputs * size_t(config().draft_vocab));
  const size_t most = size_t(options_.max_outputs);
  work_->bits.resize(most * kWords);
  for (size_t i = 0; i < most; ++i) work_->bits[i * kWords] = 1;
  work_->tokens.resize(most);
  work_->positions.resize(most);
  for (size_t i = 0; i < most; ++i) work_->outputs.push_back(int(i));
  work_->seqs.resize(1);
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
  backend_.linear({.out = w.cross,
                   .x = w.normed,
                   .weight = cross_query_.get(),
                   .bias = cross_bias_,
                   .rows = rows,
                   .out_stride = qkv});
  backend_.rope_store({.qkv = w.cross,
                       .table = w.rope,
                       .eps = c.norm_eps,
                       .shape = attention_shape(c),
                       .dims = t.rope.dims,
                       .style = t.rope.style,
                       .kv = &kv,
                       .layer = kScratch,
                       .seqs = step.seqs});
  backend_.copy_rows({.to = w.picked,
                      .from = w.x,
                      .rows = outputs,
                      .width = c.width,
                      .to_stride = c.width,
                      .from_stride = c.width,
                      .which = step.outputs.data()});
  backend_.copy_rows({.to = w.picked_queries,
                      .from = w.cross,
                      .rows = outputs,
                      .width = q,
                      .to_stride = q,
                      .from_stride = qkv,
                      .which = step.outputs.data()});
}

void LongSpecHead::forward(const StepInputs& step, KvStore& kv, int window) {
  outputs_ = int(step.outputs.size());
  SX_ASSERT(!step.tokens.empty() && int(step.tokens.size()) <= options_.max_rows && outputs_ <= options_.max_outputs);
  SX_ASSERT(step.positions.size() == step.tokens.size() && (outputs_ == 0 || !step.prompt));
  backend_.run(step, {this, &kv, nullptr, uint64_t(window)}, [&] { own_cells(step, kv, window); });
}

void LongSpecHead::cross_attend(const StepInputs& step, const KvStore& target) {
  const ModelConfig& c = config().cell;
  Workspace& w = *work_;
  backend_.attend({.out = w.attended,
                   .q = w.picked_queries,
                   .q_stride = c.heads * c.head_dim,
                   .shape = attention_shape(c),
                   .scale = attention_shape(c).scale(),
                   .kv = &target,
                   .layer = target_.config().layers - 1,
                   .seqs = step.seqs});
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
  const size_t rows = size_t(outputs_);
  w.seqs[0] = {0, outputs_, slot, seen - 1, w.bits.data(), kWords};
  const StepInputs step{std::span(w.tokens).first(rows), std::span(w.positions).first(rows), w.seqs,
                        std::span(w.outputs).first(rows)};
  // Where the target is spread over ranks they attend, which cannot be part of a step.
  const bool remote = target_.spread();
  if (remote) cross_attend(step, target);
  backend_.run(step, {this, &target, work_->picked, 0}, [&] {
    if (!remote) cross_attend(step, target);
    feed_forward(outputs_);
  });
  return w.logits;
}

}  // namespace sx
