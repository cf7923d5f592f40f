#include "model/model.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "model/model_weights.h"

namespace sx {

struct Model::Layer {
  LayerParts parts;
  size_t rope;  // which of the tables of a step
  NormWeights norm, post_norm;
  const float *q_norm, *k_norm;      // [head_dim], or as long as all heads, or null
  const float *qkv_bias, *out_bias;  // or null
  const float* sinks;                // [heads] or null
  std::unique_ptr<Matrix> qkv, out;
  FeedForwardWeights ffn;
};

// Activations of one step, f32, in backend memory.
struct Model::Workspace : LayerBuffers {
  float* qkv;                // [rows, (heads + 2 kv_heads) * head_dim]
  float* attended;           // [rows, heads * head_dim]
  std::vector<float*> rope;  // per RoPE: [rows, dims]
  float* picked;             // [outputs, width]
  float* logits;             // [outputs, vocab]
  std::vector<float*> hidden, query;
};

Model::Model(std::shared_ptr<const ModelFile> file, Backend& backend, const ModelOptions& options)
    : file_(std::move(file)), backend_(backend), options_(options) {}
Model::~Model() = default;

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
  model->allocate_workspace();
  return model;
}

void Model::load_layer(int index) {
  const ModelConfig& c = config();
  const LayerParts& p = c.layer(index);
  WeightReader read(*file_, backend_, options_.check_weights);
  const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", index, part); };
  const int q = p.heads * p.head_dim, kv = p.kv_heads * p.head_dim;
  Layer layer;
  layer.parts = p;
  layer.rope = p.rope == kNoRope ? ropes_.size() - 1 : size_t(p.rope);
  if (p.attention_norm) layer.norm = read.norm(name("attn_norm"));
  if (p.attention_post_norm) layer.post_norm = read.norm(name("post_attention_norm"));
  const bool whole = p.qk_norm == HeadNorm::kWhole, any = p.qk_norm != HeadNorm::kNone;
  layer.q_norm = any ? read.norm_vector(name("attn_q_norm.weight"), whole ? q : p.head_dim) : nullptr;
  layer.k_norm = any ? read.norm_vector(name("attn_k_norm.weight"), whole ? kv : p.head_dim) : nullptr;
  layer.qkv = read.matrix({name("attn_q.weight"), name("attn_k.weight"), name("attn_v.weight")});
  layer.out = read.matrix({name("attn_output.weight")});
  layer.qkv_bias = read.stacked({{name("attn_q.bias"), q}, {name("attn_k.bias"), kv}, {name("attn_v.bias"), kv}});
  layer.out_bias = read.stacked({{name("attn_output.bias"), c.width}});
  layer.sinks = p.sinks ? read.stacked({{name("attn_sinks.weight"), p.heads}}) : nullptr;
  if (p.ffn_norm && !p.parallel) layer.ffn.norm = read.norm(name("ffn_norm"));
  if (p.ffn_post_norm) layer.ffn.post_norm = read.norm(name("post_ffw_norm"));
  if (p.experts > 0) {
    read.experts(index, p, layer.ffn);
  } else if (p.gated) {
    layer.ffn.gate_up = read.matrix({name("ffn_gate.weight"), name("ffn_up.weight")});
    layer.ffn.gate_up_bias = read.stacked({{name("ffn_gate.bias"), p.ffn}, {name("ffn_up.bias"), p.ffn}});
  } else {
    layer.ffn.gate_up = read.matrix({name("ffn_up.weight")});
    layer.ffn.gate_up_bias = read.stacked({{name("ffn_up.bias"), p.ffn}});
  }
  if (p.experts == 0) {
    layer.ffn.down = read.matrix({name("ffn_down.weight")});
    layer.ffn.down_bias = read.stacked({{name("ffn_down.bias"), c.width}});
  }
  weight_bytes_ += read.bytes();
  layers_.push_back(std::move(layer));
}

void Model::load_weights() {
  const ModelConfig& c = config();
  WeightReader read(*file_, backend_, options_.check_weights);
  const Tensor table = file_->get("token_embd.weight", {c.vocab, c.width});
  if (!c.tied_head) read.check_matrix("token_embd.weight", table);  // tied: when the head is made
  embedding_ = backend_.place_table(table);
  for (int i = 0; i < c.layers; ++i) {
    load_layer(i);
    if (options_.progress) options_.progress(double(i + 1) / (c.layers + 1));
  }
  final_norm_ = read.norm("output_norm");
  head_ = read.matrix({c.tied_head ? "token_embd.weight" : "output.weight"});
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
  bool branches = c.residual_scale != 1;
  for (const Layer& layer : layers_) branches = branches || layer.post_norm.weight || layer.ffn.post_norm.weight;
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->normed = make(rows * width);
  work_->branch = branches ? make(rows * width) : nullptr;
  work_->qkv = make(rows * (q + 2 * kv));
  work_->attended = make(rows * q);
  work_->gate_up = make(rows * std::max(2 * ffn, experts));
  work_->activated = make(rows * ffn);
  for (const RopeFrequencies& rope : ropes_) work_->rope.push_back(make(rows * 2 * rope.frequencies.size()));
  work_->picked = make(outputs * width);
  work_->logits = backend_.allocate(outputs * size_t(c.vocab), "logits");
  for (size_t i = 0; i < options_.taps.hidden.size(); ++i) work_->hidden.push_back(make(rows * width));
  for (size_t i = 0; i < options_.taps.query.size(); ++i) work_->query.push_back(make(rows * q));
  outputs_.hidden = work_->hidden;
  outputs_.query = work_->query;
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

KvGeometry Model::kv_geometry(int slots, int capacity, DType type) const {
  const ModelConfig& c = config();
  return {.layers = c.layers,
          .kv_heads = c.kv_heads,
          .head_dim = c.head_dim,
          .slots = slots,
          .capacity = capacity,
          .type = type};
}

void Model::tap_queries(std::span<const int> layers) {
  SX_ASSERT(layers.size() <= work_->query.size());
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
  const float* input = normed(backend_, c, layer.norm, w.x, w.normed, rows, p.parallel ? nullptr : layer.qkv.get());
  backend_.linear(
      {.out = w.qkv, .x = input, .weight = layer.qkv.get(), .bias = layer.qkv_bias, .rows = rows, .out_stride = qkv});
  const bool whole = p.qk_norm == HeadNorm::kWhole;
  const auto norm_all = [&](float* x, const float* weight, int width) {
    backend_.norm({.out = x, .x = x, .weight = weight, .rows = rows, .width = width, .eps = c.norm_eps, .stride = qkv});
  };
  if (whole) norm_all(w.qkv, layer.q_norm, q), norm_all(w.qkv + q, layer.k_norm, p.kv_heads * p.head_dim);
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
  tap(options_.taps.query, index, w.query, w.qkv, qkv, q, rows);
  if (cells_only) return;
  if (p.window > 0) window = window > 0 ? std::min(window, p.window) : p.window;
  backend_.attend({.out = w.attended,
                   .q = w.qkv,
                   .q_stride = qkv,
                   .shape = shape,
                   .scale = attention_scale(p),
                   .window = window,
                   .soft_cap = p.attention_soft_cap,
                   .sinks = layer.sinks,
                   .kv = &kv,
                   .layer = index,
                   .seqs = step.seqs});
  add_product(backend_, c, layer.post_norm, *layer.out, layer.out_bias, w.attended, w, rows);
}

// What the ops of a step depend on besides its shape.
uint64_t Model::key_of(const LayerPlan& plan) const {
  uint64_t key = mix64(uint64_t(plan.window) + 1);
  for (const uint8_t* skip : {plan.skip_attention, plan.skip_ffn}) {
    key = mix64(key + 1);
    for (size_t i = 0; skip && i < layers_.size(); ++i) key = mix64(key * 2 + skip[i]);
  }
  for (int layer : options_.taps.query) key = mix64(key * 3 + uint64_t(layer));
  return key;
}

void Model::run_layers(const Step& step, KvStore& kv, const LayerPlan& plan) {
  const ModelConfig& c = config();
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), outputs = int(step.outputs.size());
  backend_.embed({w.x, step.tokens.data(), rows, embedding_});
  if (c.embedding_scale != 1) scale_rows(w.x, rows, c.width, c.embedding_scale);
  for (size_t i = 0; i < ropes_.size(); ++i)
    backend_.rope_table({.table = w.rope[i],
                         .positions = step.positions.data(),
                         .rows = rows,
                         .frequencies = ropes_[i].frequencies.data(),
                         .dims = int(2 * ropes_[i].frequencies.size()),
                         .factor = ropes_[i].factor});
  const auto& taps = options_.taps.hidden;
  const bool end_unread = outputs == 0 && std::find(taps.begin(), taps.end(), c.layers) == taps.end();
  for (int i = 0; i < c.layers; ++i) {
    const bool cells_only = end_unread && i == c.layers - 1;
    tap(taps, i, w.hidden, w.x, c.width, c.width, rows);
    if (!plan.skip_attention || !plan.skip_attention[i])
      attention(layers_[size_t(i)], i, step, kv, plan.window, cells_only);
    if (!cells_only && (!plan.skip_ffn || !plan.skip_ffn[i]))
      feed_forward(backend_, c, layers_[size_t(i)].parts, layers_[size_t(i)].ffn, w, rows);
  }
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
  backend_.linear(
      {.out = w.logits, .x = w.picked, .weight = head_.get(), .rows = outputs, .out_stride = c.vocab, .outputs = true});
  if (c.logit_scale != 1) scale_rows(w.logits, outputs, c.vocab, c.logit_scale);
  if (c.final_soft_cap > 0) backend_.soft_cap({w.logits, outputs, c.vocab, c.final_soft_cap});
}

const float* Model::more_logits(int first, int count) {
  SX_ASSERT(first >= 0 && count > 0 && first + count <= options_.max_rows && count <= options_.max_outputs);
  read_out(work_->x + size_t(first) * size_t(config().width), count, nullptr);
  return work_->logits;
}

const StepOutputs& Model::forward(const Step& step, KvStore& kv, const LayerPlan& plan) {
  SX_ASSERT(!step.tokens.empty() && int(step.tokens.size()) <= options_.max_rows &&
            int(step.outputs.size()) <= options_.max_outputs);
  SX_ASSERT(step.positions.size() == step.tokens.size());
  backend_.run(step, {this, &kv, nullptr, key_of(plan)}, [&] { run_layers(step, kv, plan); });
  return outputs_;
}

bool Model::levels(TreeGrowthArgs& args, KvStore& kv, const LayerPlan& plan) {
  SX_ASSERT(args.rules.rows <= std::min(options_.max_rows, options_.max_outputs) && args.vocab <= config().vocab);
  Step step;
  args.logits = outputs_.logits;
  args.stride = config().vocab;
  return backend_.grow_tree(args, step, {this, &kv, nullptr, key_of(plan)}, [&] { run_layers(step, kv, plan); });
}

}  // namespace sx
