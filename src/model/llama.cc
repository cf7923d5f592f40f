#include "model/llama.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "base/error.h"
#include "base/rng.h"
#include "model/feed_forward.h"
#include "model/rope.h"
#include "tensor/blocks.h"
#include "tensor/finite.h"

namespace sx {

struct Model::Layer {
  const float *attention_norm, *ffn_norm, *q_norm, *k_norm;     // [width], [width], [head_dim] or null
  const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias;  // or null
  std::unique_ptr<Matrix> qkv, out, gate_up, down;
  int window;
};

// Activations of one step, f32, in backend memory.
struct Model::Workspace {
  float* x;          // [rows, width] residual stream
  float* normed;     // [rows, width]
  float* qkv;        // [rows, (heads + 2 kv_heads) * head_dim]
  float* attended;   // [rows, heads * head_dim]
  float* gate_up;    // [rows, 2 ffn]
  float* activated;  // [rows, ffn]
  float* rope;       // [rows, dims]
  float* picked;     // [outputs, width]
  float* logits;     // [outputs, vocab]
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
  RopeFrequencies rope = sx::rope_frequencies(c, model->context_);
  model->frequencies_ = std::move(rope.frequencies);
  model->rope_factor_ = rope.factor;
  model->load_weights();
  model->allocate_workspace();
  return model;
}

std::unique_ptr<Matrix> Model::matrix(std::initializer_list<std::string> names) {
  std::vector<Tensor> parts;
  for (const auto& name : names) {
    parts.push_back(file_->get(name));
    if (options_.check_weights) check_finite(name, parts.back());
  }
  auto made = backend_.make_matrix(parts);
  for (const auto& part : parts)
    if (part.data != file_->get("token_embd.weight").data) file_->release(part);
  weight_bytes_ += made->bytes();
  return made;
}

bool Model::read_vector(const std::string& name, int size, bool required, float* out) {
  const NamedTensor* found = file_->find(name);
  if (!found) {
    if (required) fail("'{}': tensor '{}' is missing", file_->path(), name);
    return false;
  }
  if (found->tensor.elements() != size)
    fail("'{}': tensor '{}' has {} elements, expected {}", file_->path(), name, found->tensor.elements(), size);
  check_finite(name, found->tensor);
  dequantise(found->tensor.type, found->tensor.data, size, out);
  return true;
}

// A weight that is no number would make a text of nothing, without a word: quantised activations lose it on the way.
void Model::check_finite(const std::string& name, const Tensor& tensor) const {
  const int64_t at = first_not_finite(tensor.type, tensor.data, tensor.elements());
  if (at >= 0)
    fail(
        "'{}': tensor '{}' holds a NaN or an infinity at row {}, column {}: the file is damaged or was converted wrongly",
        file_->path(), name, at / tensor.columns(), at % tensor.columns());
}

const float* Model::vector(const std::string& name, int size, bool required) {
  std::vector<float> values(static_cast<size_t>(size));
  if (!read_vector(name, size, required, values.data())) return nullptr;
  float* out = backend_.allocate(values.size(), "norm weights");
  backend_.upload(out, values.data(), values.size());
  return out;
}

void Model::load_weights() {
  const ModelConfig& c = config();
  const Tensor table = file_->get("token_embd.weight", {c.vocab, c.width});
  if (options_.check_weights && !c.tied_head) check_finite("token_embd.weight", table);  // tied: when the head is made
  embedding_ = backend_.place_table(table);
  const int q = c.heads * c.head_dim, kv = c.kv_heads * c.head_dim;
  for (int i = 0; i < c.layers; ++i) {
    const auto name = [&](const char* part) { return fmt::format("blk.{}.{}", i, part); };
    // Biases of stacked matrices are stacked too; a missing one is zero.
    const auto stacked = [&](std::initializer_list<std::pair<const char*, int>> parts) -> const float* {
      int total = 0;
      bool any = false;
      for (const auto& [part, size] : parts) any = any || file_->find(name(part)), total += size;
      if (!any) return nullptr;
      std::vector<float> values(static_cast<size_t>(total));
      for (size_t at = 0; const auto& [part, size] : parts) {
        read_vector(name(part), size, false, values.data() + at);
        at += size_t(size);
      }
      float* out = backend_.allocate(values.size(), "biases");
      backend_.upload(out, values.data(), values.size());
      return out;
    };
    Layer layer;
    layer.attention_norm = vector(name("attn_norm.weight"), c.width, true);
    layer.ffn_norm = vector(name("ffn_norm.weight"), c.width, true);
    layer.q_norm = c.qk_norm ? vector(name("attn_q_norm.weight"), c.head_dim, true) : nullptr;
    layer.k_norm = c.qk_norm ? vector(name("attn_k_norm.weight"), c.head_dim, true) : nullptr;
    layer.qkv = matrix({name("attn_q.weight"), name("attn_k.weight"), name("attn_v.weight")});
    layer.out = matrix({name("attn_output.weight")});
    layer.gate_up = matrix({name("ffn_gate.weight"), name("ffn_up.weight")});
    layer.down = matrix({name("ffn_down.weight")});
    layer.qkv_bias = stacked({{"attn_q.bias", q}, {"attn_k.bias", kv}, {"attn_v.bias", kv}});
    layer.out_bias = stacked({{"attn_output.bias", c.width}});
    layer.gate_up_bias = stacked({{"ffn_gate.bias", c.ffn}, {"ffn_up.bias", c.ffn}});
    layer.down_bias = stacked({{"ffn_down.bias", c.width}});
    layer.window = c.windowed_layers.empty() || c.windowed_layers[size_t(i)] ? c.window : 0;
    layers_.push_back(std::move(layer));
    if (options_.progress) options_.progress(double(i + 1) / (c.layers + 1));
  }
  final_norm_ = vector("output_norm.weight", c.width, true);
  head_ = matrix({c.tied_head ? "token_embd.weight" : "output.weight"});
  if (options_.progress) options_.progress(1);
}

void Model::allocate_workspace() {
  const ModelConfig& c = config();
  const auto rows = size_t(backend_.row_capacity(options_.max_rows)),
             outputs = size_t(backend_.output_capacity(options_.max_outputs));
  const size_t q = size_t(c.heads) * size_t(c.head_dim), kv = size_t(c.kv_heads) * size_t(c.head_dim);
  const size_t width = size_t(c.width), ffn = size_t(c.ffn);
  const auto make = [&](size_t count) { return backend_.allocate(count, "activations"); };
  work_ = std::make_unique<Workspace>();
  work_->x = make(rows * width);
  work_->normed = make(rows * width);
  work_->qkv = make(rows * (q + 2 * kv));
  work_->attended = make(rows * q);
  work_->gate_up = make(rows * 2 * ffn);
  work_->activated = make(rows * ffn);
  work_->rope = make(rows * size_t(c.rope.dims));
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
  Workspace& w = *work_;
  const int rows = int(step.tokens.size()), q = c.heads * c.head_dim, qkv = q + 2 * c.kv_heads * c.head_dim;
  backend_.norm({.out = w.normed,
                 .x = w.x,
                 .weight = layer.attention_norm,
                 .rows = rows,
                 .width = c.width,
                 .eps = c.norm_eps,
                 .only_for = layer.qkv.get()});
  backend_.linear({.out = w.qkv,
                   .x = w.normed,
                   .weight = layer.qkv.get(),
                   .bias = layer.qkv_bias,
                   .rows = rows,
                   .out_stride = qkv});
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
  tap(options_.taps.query, index, w.query, w.qkv, qkv, q, rows);
  if (cells_only) return;
  if (layer.window > 0) window = window > 0 ? std::min(window, layer.window) : layer.window;
  backend_.attend({.out = w.attended,
                   .q = w.qkv,
                   .q_stride = qkv,
                   .shape = attention_shape(c),
                   .scale = attention_shape(c).scale(),
                   .window = window,
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
  backend_.rope_table({.table = w.rope,
                       .positions = step.positions.data(),
                       .rows = rows,
                       .frequencies = frequencies_.data(),
                       .dims = c.rope.dims,
                       .factor = rope_factor_});
  const auto& taps = options_.taps.hidden;
  const bool end_unread = outputs == 0 && std::find(taps.begin(), taps.end(), c.layers) == taps.end();
  for (int i = 0; i < c.layers; ++i) {
    const bool cells_only = end_unread && i == c.layers - 1;
    tap(taps, i, w.hidden, w.x, c.width, c.width, rows);
    if (!plan.skip_attention || !plan.skip_attention[i])
      attention(layers_[size_t(i)], i, step, kv, plan.window, cells_only);
    if (!cells_only && (!plan.skip_ffn || !plan.skip_ffn[i]))
      feed_forward(backend_, config(), layers_[size_t(i)], *work_, rows);
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
  backend_.norm(
      {.out = w.picked, .x = w.picked, .weight = final_norm_, .rows = outputs, .width = c.width, .eps = c.norm_eps});
  backend_.linear(
      {.out = w.logits, .x = w.picked, .weight = head_.get(), .rows = outputs, .out_stride = c.vocab, .outputs = true});
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
