#include "model/heads/target_attention.h"

#include <cstring>

#include "base/error.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

// Where row `row` of queries whose first `dims` dimensions are rotated by halves lies if they are rotated by pairs of
// neighbours.
int64_t paired(int64_t row, int64_t head_dim, int64_t dims) {
  const int64_t head = row / head_dim, at = row % head_dim, half = dims / 2;
  if (at >= dims) return row;
  return head * head_dim + (at < half ? 2 * at : 2 * (at - half) + 1);
}

std::vector<float> values_of(const Tensor& tensor) {
  std::vector<float> values(size_t(tensor.elements()));
  dequantise(tensor.type, tensor.data, tensor.elements(), values.data());
  return values;
}

const float* upload(Backend& backend, const std::vector<float>& values) {
  float* placed = backend.allocate(values.size(), "head weights");
  backend.upload(placed, values.data(), values.size());
  return placed;
}

}  // namespace

// The queries meet the target's keys, whose dimensions lie as the target's file has them; heads are published for
// rotation by halves.
TargetAttention::TargetAttention(const HeadFile& file, const Model& target, Backend& backend,
                                 const TargetAttentionOptions& options)
    : target_(target), backend_(backend), options_(options) {
  const ModelConfig& t = target.config();
  const LayerParts& parts = t.layer(options.layer);
  shape_ = {options.heads, parts.kv_heads, parts.head_dim};
  const RopeConfig& rope = parts.rope == kNoRope ? t.rope : t.rope_at(parts.rope);
  rope_ = rope_frequencies(t, rope, target.context());
  if (parts.rope == kNoRope) rope_ = {std::vector<double>(rope_.frequencies.size()), 1};
  const auto dims = int64_t(2 * rope_.frequencies.size());
  const bool pairs = t.rope.style != RopeStyle::kHalves;
  const auto place = [&](int64_t row) { return pairs ? paired(row, parts.head_dim, dims) : row; };

  const Tensor& weight = file.get(options.name + ".q_proj.weight");
  const auto rows = size_t(weight.shape[0]), row_bytes = weight.bytes() / rows;
  std::vector<std::byte> ordered(weight.bytes());
  for (size_t r = 0; r < rows; ++r)
    std::memcpy(ordered.data() + size_t(place(int64_t(r))) * row_bytes, weight.row(int64_t(r)), row_bytes);
  Tensor view = weight;
  view.data = ordered.data();
  query_ = backend.make_matrix({&view, 1});
  file.release(weight);
  const auto vector = [&](const char* part) -> const float* {
    const Tensor* found = file.find(options.name + part);
    if (!found) return nullptr;
    std::vector<float> values = values_of(*found), moved(values);
    for (size_t r = 0; r < values.size(); ++r) moved[size_t(place(int64_t(r)))] = values[r];
    return upload(backend, moved);
  };
  bias_ = vector(".q_proj.bias");
  norm_ = vector(".q_norm.weight");
  const auto most = size_t(backend.row_capacity(options.max_rows));
  table_ = backend.allocate(most * size_t(dims), "activations of the draft head");
  qkv_ = backend.allocate(most * size_t(stride()), "activations of the draft head");
}

void TargetAttention::project(const float* x, const StepInputs& step, KvStore& scratch, int scratch_layer) {
  const int rows = int(step.tokens.size()), dims = int(2 * rope_.frequencies.size());
  backend_.rope_table({.table = table_,
                       .positions = step.positions.data(),
                       .rows = rows,
                       .frequencies = rope_.frequencies.data(),
                       .dims = dims,
                       .factor = rope_.factor});
  backend_.linear({.out = qkv_, .x = x, .weight = query_.get(), .bias = bias_, .rows = rows, .out_stride = stride()});
  backend_.rope_store({.qkv = qkv_,
                       .table = table_,
                       .q_norm = norm_,
                       .eps = options_.norm_eps,
                       .shape = shape_,
                       .dims = dims,
                       .style = target_.config().rope.style,
                       .kv = &scratch,
                       .layer = scratch_layer,
                       .seqs = step.seqs});
}

void TargetAttention::attend(float* out, const float* queries, int stride, const KvStore& target,
                             std::span<const SeqRows> seqs) const {
  backend_.attend({.out = out,
                   .q = queries,
                   .q_stride = stride,
                   .shape = shape_,
                   .scale = options_.scale,
                   .window = options_.window,
                   .kv = &target,
                   .layer = options_.layer,
                   .seqs = seqs});
}

SharedSight::SharedSight(int max_rows)
    : bits_(size_t(max_rows) * kWords), tokens_(size_t(max_rows)), positions_(size_t(max_rows)), seqs_(1) {
  for (int i = 0; i < max_rows; ++i) bits_[size_t(i) * kWords] = 1, outputs_.push_back(i);
}

// Every row stands in the place of the last cell that is seen, as node 0 of a tree behind the others.
StepInputs SharedSight::step(int rows, int slot, int seen) {
  const auto count = size_t(rows);
  SX_ASSERT(rows > 0 && count <= tokens_.size() && seen > 0);
  seqs_[0] = {0, rows, slot, seen - 1, bits_.data(), kWords};
  return {std::span(tokens_).first(count), std::span(positions_).first(count), seqs_, std::span(outputs_).first(count)};
}

}  // namespace sx
