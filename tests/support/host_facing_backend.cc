#include "support/host_facing_backend.h"

#include <algorithm>
#include <cstring>

namespace sx::testing {
namespace {

int rows_of(std::span<const SeqRows> seqs) {
  int rows = 0;
  for (const SeqRows& seq : seqs) rows = std::max(rows, seq.first_row + seq.rows);
  return rows;
}

}  // namespace

float* HostFacingBackend::allocate(size_t count, const char*) {
  memory_.push_back(std::make_unique<float[]>(count));
  return memory_.back().get();
}

void HostFacingBackend::reserve(const StepLimits& l) {
  StepLimits& m = limits_;
  m.rows = std::max(m.rows, l.rows), m.outputs = std::max(m.outputs, std::max(l.outputs, l.rows)),
  m.width = std::max(m.width, l.width), m.heads = std::max(m.heads, l.heads);
  m.kv_heads = std::max(m.kv_heads, l.kv_heads), m.head_dim = std::max(m.head_dim, l.head_dim);
  m.experts = std::max(m.experts, l.experts), m.experts_used = std::max(m.experts_used, l.experts_used);
  m.expert_ffn = std::max(m.expert_ffn, l.expert_ffn);
  m.context = std::max(m.context, l.context), m.vocab = std::max(m.vocab, l.vocab);
  right_->reserve(m);
}

void HostFacingBackend::need_rows(int rows) {
  if (rows > limits_.rows) reserve({.rows = rows, .outputs = rows});
}

void HostFacingBackend::upload(float* to, const float* from, size_t count) {
  std::memmove(to, from, count * sizeof(float));
}
void HostFacingBackend::download(float* to, const float* from, size_t count) { upload(to, from, count); }

float* HostFacingBackend::room(size_t which, int rows, size_t stride) {
  if (scratch_.size() <= which) scratch_.resize(which + 1);
  Scratch& s = scratch_[which];
  const size_t count = std::max<size_t>(1, size_t(right_->row_capacity(rows)) * stride);
  if (count > s.count) s = {right_->allocate(2 * count, "scratch of a test"), 2 * count};
  return s.memory;
}

float* HostFacingBackend::put(size_t which, const float* host, int rows, size_t stride) {
  if (!host) return nullptr;
  float* far = room(which, rows, stride);
  if (rows > 0) right_->upload(far, host, size_t(rows) * stride);
  return far;
}

void HostFacingBackend::get(float* host, const float* far, int rows, size_t stride) {
  right_->download(host, far, size_t(rows) * stride);
}

void HostFacingBackend::step(int rows, const Token* tokens, const int32_t* positions, std::span<const SeqRows> seqs,
                             const KvStore* kv, FunctionRef body) {
  need_rows(rows);
  const std::vector<Token> some_tokens(size_t(rows), 0);
  const std::vector<int32_t> some_positions(size_t(rows), 0);
  constexpr int kChain = 16;
  std::vector<SeqRows> chains;
  for (int first = 0; first < rows && seqs.empty(); first += kChain)
    chains.push_back({first, std::min(kChain, rows - first), 0, 0});
  StepInputs inputs{tokens ? std::span(tokens, size_t(rows)) : std::span(some_tokens),
                    positions ? std::span(positions, size_t(rows)) : std::span(some_positions),
                    seqs.empty() ? std::span<const SeqRows>(chains) : seqs,
                    {}};
  // Chains that are too deep for a tree are prompts.
  for (const SeqRows& seq : inputs.seqs)
    inputs.prompt = inputs.prompt || (!seq.ancestors && seq.rows - 1 > right_->max_depth());
  right_->run(inputs, {this, kv, nullptr, ++steps_}, body);
}

void HostFacingBackend::copy_rows(const CopyRowsArgs& args) {
  need_rows(args.rows);
  CopyRowsArgs a = args;
  const int from_rows = args.which ? *std::max_element(args.which, args.which + args.rows) + 1 : args.rows;
  const int to_rows = args.into ? *std::max_element(args.into, args.into + args.rows) + 1 : args.rows;
  a.to = put(0, args.to, to_rows, size_t(args.to_stride));
  // The last row has no stride behind it.
  a.from = put(1, args.from, 1, size_t(from_rows - 1) * size_t(args.from_stride) + size_t(args.width));
  right_->copy_rows(a);
  get(args.to, a.to, to_rows, size_t(args.to_stride));
}

void HostFacingBackend::embed(const EmbedArgs& args) {
  EmbedArgs a = args;
  const auto width = size_t(args.table.columns());
  a.out = room(0, args.rows, width);
  step(args.rows, args.tokens, nullptr, {}, nullptr, [&] { right_->embed(a); });
  get(args.out, a.out, args.rows, width);
}

void HostFacingBackend::norm(const NormArgs& args) {
  need_rows(args.rows);
  NormArgs a = args;
  const auto width = size_t(args.width), stride = args.stride > 0 ? size_t(args.stride) : width;
  a.x = a.out = put(0, args.x, args.rows, stride);
  if (args.out != args.x) a.out = put(1, args.out, args.rows, stride);
  a.weight = put(2, args.weight, width);
  a.bias = put(3, args.bias, width);
  right_->norm(a);
  get(args.out, a.out, args.rows, stride);
}

void HostFacingBackend::linear(const LinearArgs& args) {
  need_rows(args.rows);
  LinearArgs a = args;
  const auto stride = size_t(args.out_stride);
  a.out = put(0, args.out, args.rows, stride);
  a.x = put(1, args.x, args.rows, size_t(args.weight->in()));
  a.bias = put(2, args.bias, size_t(args.weight->out()));
  right_->linear(a);
  get(args.out, a.out, args.rows, stride);
}

void HostFacingBackend::rope_table(const RopeTableArgs& args) {
  RopeTableArgs a = args;
  a.table = room(0, args.rows, size_t(args.dims));
  step(args.rows, nullptr, args.positions, {}, nullptr, [&] { right_->rope_table(a); });
  get(args.table, a.table, args.rows, size_t(args.dims));
}

void HostFacingBackend::rope_store(const RopeStoreArgs& args) {
  RopeStoreArgs a = args;
  const int rows = rows_of(args.seqs);
  const auto width = size_t((args.shape.heads + 2 * args.shape.kv_heads) * args.shape.head_dim);
  a.qkv = put(0, args.qkv, rows, width);
  a.table = put(1, args.table, rows, size_t(args.dims));
  a.q_norm = put(2, args.q_norm, size_t(args.shape.head_dim));
  a.k_norm = put(3, args.k_norm, size_t(args.shape.head_dim));
  step(rows, nullptr, nullptr, args.seqs, args.kv, [&] { right_->rope_store(a); });
  get(args.qkv, a.qkv, rows, width);
}

void HostFacingBackend::attend(const AttendArgs& args) {
  AttendArgs a = args;
  const int rows = rows_of(args.seqs);
  const auto width = size_t(args.shape.heads * args.shape.head_dim);
  a.out = room(0, rows, width);
  a.q = put(1, args.q, rows, size_t(args.q_stride));
  a.sinks = put(2, args.sinks, size_t(args.shape.heads));
  step(rows, nullptr, nullptr, args.seqs, args.kv, [&] { right_->attend(a); });
  get(args.out, a.out, rows, width);
}

void HostFacingBackend::glu(const GluArgs& args) {
  need_rows(args.rows);
  GluArgs a = args;
  const auto width = size_t(args.width);
  a.out = room(0, args.rows, width);
  a.gate_up = put(1, args.gate_up, args.rows, args.gated ? 2 * width : width);
  right_->glu(a);
  get(args.out, a.out, args.rows, width);
}

void HostFacingBackend::experts(const ExpertsArgs& args) {
  need_rows(args.rows);
  const int experts = args.gate_up->experts();
  if (experts > limits_.experts || args.used > limits_.experts_used || args.down->in() > limits_.expert_ffn)
    reserve({.rows = args.rows,
             .width = args.gate_up->in(),
             .outputs = args.rows,
             .experts = experts,
             .experts_used = args.used,
             .expert_ffn = args.down->in()});
  ExpertsArgs a = args;
  const auto width = size_t(args.gate_up->in());
  a.out = put(0, args.out, args.rows, width);
  a.x = put(1, args.x, args.rows, width);
  a.logits = put(2, args.logits, args.rows, size_t(experts));
  a.gate_up_bias = put(3, args.gate_up_bias, size_t(experts) * size_t(args.gate_up->out()));
  a.down_bias = put(4, args.down_bias, size_t(experts) * width);
  a.choice_bias = put(5, args.choice_bias, size_t(experts));
  right_->experts(a);
  get(args.out, a.out, args.rows, width);
}

void HostFacingBackend::soft_cap(const SoftCapArgs& args) {
  need_rows(args.rows);
  SoftCapArgs a = args;
  a.x = put(0, args.x, args.rows, size_t(args.width));
  right_->soft_cap(a);
  get(args.x, a.x, args.rows, size_t(args.width));
}

void HostFacingBackend::kv_score(const KvScoreArgs& args) {
  need_rows(1);
  KvScoreArgs a = args;
  a.q = put(0, args.q, std::max<size_t>(1, args.layers.size()) * size_t(args.heads * args.head_dim));
  right_->kv_score(a);
}

void HostFacingBackend::kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) {
  need_rows(1);
  KvRetrieveArgs a = args;
  a.score.q = put(0, args.score.q, args.score.layers.size() * size_t(args.score.heads * args.score.head_dim));
  right_->kv_retrieve(a, choice);
}

void HostFacingBackend::choose(const ChooseArgs& args) {
  need_rows(int(args.rows.size()));
  std::vector<ChooseRow> rows(args.rows.begin(), args.rows.end());
  const auto vocab = size_t(args.vocab);
  float* logits = room(0, int(rows.size()), vocab);
  for (size_t i = 0; i < rows.size(); ++i) {
    right_->upload(logits + i * vocab, rows[i].logits, vocab);
    rows[i].logits = logits + i * vocab;
  }
  right_->choose({args.out, rows, args.vocab});
}

void HostFacingBackend::probabilities(const ProbabilitiesArgs& args) {
  need_rows(1);
  ProbabilitiesArgs a = args;
  a.row.logits = put(0, args.row.logits, size_t(args.vocab));
  right_->probabilities(a);
}

void HostFacingBackend::top_k(const TopKArgs& args) {
  need_rows(args.rows);
  TopKArgs a = args;
  const auto stride = size_t(args.stride ? args.stride : args.vocab);
  a.logits = put(0, args.logits, args.rows, stride);
  right_->top_k(a);
}

}  // namespace sx::testing
