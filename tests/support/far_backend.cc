#include "support/far_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "base/rng.h"

namespace sx::testing {
namespace {

constexpr size_t kBytes = size_t{8} << 30;  // of address space
constexpr size_t kAlign = 256, kGap = 4096;

std::byte* map(int protection) {
  void* p = mmap(nullptr, kBytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) fail("FarBackend: no address space");
  return static_cast<std::byte*>(p);
}

int deepest(const SeqRows& seq) {
  if (!seq.ancestors) return seq.uncommitted + seq.rows - 1;
  int most = 0;
  for (int r = 0; r < seq.rows; ++r) {
    int count = 0;
    for (int w = 0; w < seq.words; ++w)
      count += std::popcount(seq.ancestors[size_t(r) * size_t(seq.words) + size_t(w)]);
    most = std::max(most, count - 1);
  }
  return most;
}

int rows_of(std::span<const SeqRows> seqs) {
  int rows = 0;
  for (const SeqRows& seq : seqs) rows = std::max(rows, seq.first_row + seq.rows);
  return rows;
}

}  // namespace

FarBackend::FarBackend(std::unique_ptr<Backend> right)
    : ForwardingBackend(std::move(right)), far_(map(PROT_NONE)), real_(map(PROT_READ | PROT_WRITE)) {}

FarBackend::~FarBackend() {
  munmap(far_, kBytes);
  munmap(real_, kBytes);
}

// --- Memory.

std::byte* FarBackend::take(size_t bytes, const char* purpose) {
  expect_no_step("allocate");
  const size_t begin = used_, end = begin + bytes;
  used_ = (end + kGap + kAlign - 1) / kAlign * kAlign;
  if (used_ > kBytes) fail("FarBackend: {} bytes for {} are too much", bytes, purpose);
  pieces_.push_back({begin, end});
  return far_ + begin;
}

float* FarBackend::allocate(size_t count, const char* purpose) {
  return reinterpret_cast<float*>(take(count * sizeof(float), purpose));
}

Tensor FarBackend::place_table(const Tensor& table) {
  Tensor placed = table;
  std::byte* far = take(table.bytes(), "table");
  std::memcpy(near(far, table.bytes(), "table"), table.data, table.bytes());
  placed.data = far;
  return placed;
}

std::byte* FarBackend::near(const void* far, size_t bytes, const char* what) const {
  const auto* p = static_cast<const std::byte*>(far);
  if (p < far_ || p >= far_ + used_) fail("FarBackend: {} at {} is not backend memory", what, far);
  const size_t at = size_t(p - far_);
  const auto next = std::upper_bound(pieces_.begin(), pieces_.end(), at,
                                     [](size_t a, const Piece& piece) { return a < piece.begin; });
  const Piece& piece = *std::prev(next);
  if (at + bytes > piece.end) fail("FarBackend: {} end {} bytes behind their buffer", what, at + bytes - piece.end);
  return real_ + at;
}

float* FarBackend::floats(const float* far, size_t rows, size_t stride, size_t width, const char* what) const {
  const size_t count = rows == 0 ? 0 : (rows - 1) * stride + width;
  return reinterpret_cast<float*>(near(far, count * sizeof(float), what));
}

void FarBackend::expect_host(const void* p, const char* what) const {
  const auto* byte = static_cast<const std::byte*>(p);
  if (byte >= far_ && byte < far_ + kBytes) fail("FarBackend: {} must be host memory", what);
}

void FarBackend::upload(float* to, const float* from, size_t count) {
  if (records_) expect_no_step("upload");
  expect_host(from, "what is uploaded");
  std::memcpy(floats(to, 1, count, count, "the upload's target"), from, count * sizeof(float));
}

void FarBackend::download(float* to, const float* from, size_t count) {
  if (records_) expect_no_step("download");
  expect_host(to, "the download's target");
  std::memcpy(to, floats(from, 1, count, count, "what is downloaded"), count * sizeof(float));
}

void FarBackend::wait() {
  expect_no_step("wait");
  right_->wait();
}

// --- Steps.

void FarBackend::run(const StepInputs& inputs, const StepKey& key, FunctionRef body) {
  expect_no_step("run");
  const size_t rows = inputs.tokens.size(), outputs = inputs.outputs.size();
  if (rows == 0 || inputs.positions.size() != rows || rows_of(inputs.seqs) != int(rows))
    fail("FarBackend: the step's arrays do not fit");
  for (const int32_t row : inputs.outputs)
    if (row < 0 || row >= int(rows)) fail("FarBackend: output row {} of a step of {}", row, rows);
  for (const SeqRows& seq : inputs.seqs) {
    if (inputs.prompt && seq.ancestors) fail("FarBackend: a tree among the rows of a prompt");
    if (!inputs.prompt && deepest(seq) > max_depth())
      fail("FarBackend: a row at depth {} of a step that is no prompt", deepest(seq));
  }
  inputs_ = &inputs, trace_ = 1;
  try {
    body();
  } catch (...) {
    inputs_ = nullptr;
    throw;
  }
  inputs_ = nullptr;
  const Shape shape{key.owner, key.kv, key.input, key.plan, rows, outputs, inputs.seqs.size(), inputs.prompt};
  const auto [at, fresh] = recorded_.emplace(shape, trace_);
  if (!fresh && at->second != trace_)
    fail("FarBackend: two steps with equal keys ran different ops ({} rows, {} outputs)", rows, outputs);
}

void FarBackend::expect_no_step(const char* op) const {
  if (inputs_) fail("FarBackend: {} inside a step", op);
}

void FarBackend::expect_rows(const char* op, int rows, bool outputs_only) const {
  if (!inputs_ || size_t(rows) == inputs_->outputs.size() || (!outputs_only && size_t(rows) == inputs_->tokens.size()))
    return;
  fail("FarBackend: {} on {} rows in a step of {} rows and {} outputs", op, rows, inputs_->tokens.size(),
       inputs_->outputs.size());
}

void FarBackend::expect_seqs(const char* op, std::span<const SeqRows> seqs) const {
  expect_host(seqs.data(), "sequences");
  if (!inputs_) fail("FarBackend: {} outside a step", op);
  if (seqs.data() != inputs_->seqs.data() || seqs.size() != inputs_->seqs.size())
    fail("FarBackend: {} was given other sequences than its step", op);
}

// What is in rows of padding is nobody's business.
void FarBackend::spoil(float* out, int rows, size_t stride, size_t width) const {
  for (size_t r = size_t(rows); r < padded(rows); ++r)
    std::fill_n(out + r * stride, width, std::numeric_limits<float>::quiet_NaN());
}

void FarBackend::note(const char* op, std::initializer_list<const void*> memory,
                      std::initializer_list<int64_t> numbers) {
  if (!inputs_) return;
  for (; *op; ++op) trace_ = mix64(trace_ * 2 + uint64_t(*op));
  for (const void* p : memory) trace_ = mix64(trace_ * 3 + reinterpret_cast<uintptr_t>(p));
  for (const int64_t n : numbers) trace_ = mix64(trace_ * 5 + uint64_t(n));
}

// --- Ops.

void FarBackend::copy_rows(const CopyRowsArgs& args) {
  if (!inputs_ || !args.launched) expect_rows("copy_rows", args.rows);
  else if (args.rows > launched_rows(int(inputs_->tokens.size()))) fail("FarBackend: copy_rows beyond a step's rows");
  if (inputs_ && args.which && (args.which != inputs_->outputs.data() || size_t(args.rows) != inputs_->outputs.size()))
    fail("FarBackend: copy_rows was given other rows than the step's outputs");
  CopyRowsArgs a = args;
  const size_t rows = args.launched ? size_t(args.rows) : padded(args.rows);
  size_t from_rows = rows, to_rows = rows;
  if (args.into) {
    if (inputs_ || !args.which) fail("FarBackend: copy_rows into chosen rows within a step, or of rows in order");
    expect_host(args.into, "places of rows");
    to_rows = size_t(*std::max_element(args.into, args.into + args.rows)) + 1;
  }
  if (args.which) {
    expect_host(args.which, "chosen rows");
    from_rows = size_t(*std::max_element(args.which, args.which + args.rows)) + 1;
  }
  a.to = floats(args.to, to_rows, size_t(args.to_stride), size_t(args.width), "copied rows");
  a.from = floats(args.from, from_rows, size_t(args.from_stride), size_t(args.width), "rows to be copied");
  note("copy_rows", {args.to, args.from},
       {args.width, args.to_stride, args.from_stride, args.which != nullptr, args.add,
        std::bit_cast<int32_t>(args.scale)});
  right_->copy_rows(a);
  if (!args.launched && !args.into) spoil(a.to, args.rows, size_t(args.to_stride), size_t(args.width));
}

void FarBackend::embed(const EmbedArgs& args) {
  expect_rows("embed", args.rows);
  expect_host(args.tokens, "tokens");
  if (!inputs_ || args.tokens != inputs_->tokens.data())
    fail("FarBackend: embed was given other tokens than its step's");
  EmbedArgs a = args;
  const auto width = size_t(args.table.shape[1]);
  a.table.data = near(args.table.data, args.table.bytes(), "the table");
  a.out = floats(args.out, padded(args.rows), width, width, "embedded rows");
  note("embed", {args.out, args.table.data}, {});
  right_->embed(a);
  spoil(a.out, args.rows, width, width);
}

void FarBackend::norm(const NormArgs& args) {
  // Heads of the launched rows may be normed as rows of their own.
  if (!inputs_ || args.rows % launched_rows(int(inputs_->tokens.size())) != 0) expect_rows("norm", args.rows);
  NormArgs a = args;
  const auto width = size_t(args.width), stride = args.stride > 0 ? size_t(args.stride) : width;
  a.out = floats(args.out, padded(args.rows), stride, width, "normed rows");
  a.x = floats(args.x, padded(args.rows), stride, width, "rows to be normed");
  a.weight = vector(args.weight, width, "norm weights");
  a.bias = vector(args.bias, width, "a norm's bias");
  note("norm", {args.out, args.x, args.weight, args.bias}, {args.width, args.stride, args.centred});
  right_->norm(a);
  spoil(a.out, args.rows, stride, width);
}

void FarBackend::linear(const LinearArgs& args) {
  expect_rows("linear", args.rows, args.outputs);
  if (inputs_ && !args.outputs && size_t(args.rows) != inputs_->tokens.size())
    fail("FarBackend: linear on outputs does not say so");
  LinearArgs a = args;
  const auto in = size_t(args.weight->in()), out = size_t(args.weight->out()), stride = size_t(args.out_stride);
  a.out = floats(args.out, padded(args.rows), stride, out, "products");
  a.x = floats(args.x, padded(args.rows), in, in, "rows to be multiplied");
  a.bias = vector(args.bias, out, "a bias");
  note("linear", {args.out, args.x, args.weight, args.bias}, {args.out_stride, args.accumulate, args.outputs});
  right_->linear(a);
  spoil(a.out, args.rows, stride, out);
}

void FarBackend::rope_table(const RopeTableArgs& args) {
  expect_rows("rope_table", args.rows);
  expect_host(args.positions, "positions");
  expect_host(args.frequencies, "frequencies");
  if (!inputs_ || args.positions != inputs_->positions.data())
    fail("FarBackend: rope_table was given other positions than its step's");
  RopeTableArgs a = args;
  const auto dims = size_t(args.dims);
  a.table = floats(args.table, padded(args.rows), dims, dims, "turns");
  note("rope_table", {args.table, args.frequencies}, {args.dims, std::bit_cast<int32_t>(args.factor)});
  right_->rope_table(a);
  spoil(a.table, args.rows, dims, dims);
}

void FarBackend::rope_store(const RopeStoreArgs& args) {
  expect_seqs("rope_store", args.seqs);
  RopeStoreArgs a = args;
  const int rows = rows_of(args.seqs);
  const auto dims = size_t(args.dims),
             width = size_t((args.shape.heads + 2 * args.shape.kv_heads) * args.shape.head_dim);
  a.qkv = floats(args.qkv, padded(rows), width, width, "queries, keys and values");
  a.table = floats(args.table, padded(rows), dims, dims, "turns");
  a.q_norm = vector(args.q_norm, size_t(args.shape.head_dim), "norm weights");
  a.k_norm = vector(args.k_norm, size_t(args.shape.head_dim), "norm weights");
  note("rope_store", {args.qkv, args.table, args.q_norm, args.k_norm, args.kv},
       {args.shape.heads, args.shape.kv_heads, args.layer, int(args.style)});
  right_->rope_store(a);
  spoil(a.qkv, rows, width, width);
}

void FarBackend::attend(const AttendArgs& args) {
  expect_seqs("attend", args.seqs);
  AttendArgs a = args;
  const int rows = rows_of(args.seqs);
  const auto width = size_t(args.shape.heads * args.shape.head_dim);
  a.out = floats(args.out, padded(rows), width, width, "attended rows");
  a.q = floats(args.q, padded(rows), size_t(args.q_stride), width, "queries");
  a.sinks = vector(args.sinks, size_t(args.shape.heads), "sinks");
  note("attend", {args.out, args.q, args.kv, args.sinks},
       {args.q_stride, args.shape.heads, args.layer, args.window, std::bit_cast<int32_t>(args.scale),
        std::bit_cast<int32_t>(args.soft_cap)});
  right_->attend(a);
  spoil(a.out, rows, width, width);
}

void FarBackend::glu(const GluArgs& args) {
  expect_rows("glu", args.rows);
  GluArgs a = args;
  const auto width = size_t(args.width);
  a.out = floats(args.out, padded(args.rows), width, width, "activated rows");
  const size_t stride = args.gated ? 2 * width : width;
  a.gate_up = floats(args.gate_up, padded(args.rows), stride, stride, "gates");
  note("glu", {args.out, args.gate_up}, {args.width, int(args.activation), args.gated});
  right_->glu(a);
  spoil(a.out, args.rows, width, width);
}

void FarBackend::experts(const ExpertsArgs& args) {
  expect_rows("experts", args.rows);
  ExpertsArgs a = args;
  const auto rows = padded(args.rows), width = size_t(args.gate_up->in()), experts = size_t(args.gate_up->experts());
  a.out = floats(args.out, rows, width, width, "rows of experts");
  a.x = floats(args.x, rows, width, width, "rows for experts");
  a.logits = floats(args.logits, rows, experts, experts, "a router's logits");
  a.gate_up_bias = vector(args.gate_up_bias, experts * size_t(args.gate_up->out()), "biases of experts");
  a.down_bias = vector(args.down_bias, experts * size_t(args.down->out()), "biases of experts");
  a.choice_bias = vector(args.choice_bias, experts, "a router's bias");
  note("experts", {args.out, args.x, args.logits, args.gate_up, args.down},
       {args.used, int(args.routing), args.renormalise, args.accumulate});
  right_->experts(a);
  spoil(a.out, args.rows, width, width);
}

void FarBackend::soft_cap(const SoftCapArgs& args) {
  expect_rows("soft_cap", args.rows);
  SoftCapArgs a = args;
  const auto width = size_t(args.width);
  a.x = floats(args.x, padded(args.rows), width, width, "rows to be capped");
  note("soft_cap", {args.x}, {args.width, std::bit_cast<int32_t>(args.cap)});
  right_->soft_cap(a);
  spoil(a.x, args.rows, width, width);
}

// What gives numbers to the host, or depends on more than the step's arrays, cannot be part of a recorded step.
void FarBackend::kv_move(const KvMoveArgs& args) {
  expect_no_step("kv_move");
  expect_host(args.moves.data(), "moves");
  right_->kv_move(args);
}

void FarBackend::kv_score(const KvScoreArgs& args) {
  expect_no_step("kv_score");
  expect_host(args.out, "scores");
  KvScoreArgs a = args;
  a.q = vector(args.q, std::max<size_t>(1, args.layers.size()) * size_t(args.heads * args.head_dim), "the query");
  right_->kv_score(a);
}

void FarBackend::kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) {
  expect_no_step("kv_retrieve");
  expect_host(args.score.borders.data(), "borders");
  KvRetrieveArgs a = args;
  a.score.q =
      vector(args.score.q, args.score.layers.size() * size_t(args.score.heads * args.score.head_dim), "the query");
  right_->kv_retrieve(a, choice);
}

void FarBackend::kv_read(const KvStore& kv, const KvCellsArgs& args, std::byte* out) {
  expect_no_step("kv_read");
  expect_host(out, "cells as bytes");
  right_->kv_read(kv, args, out);
}

void FarBackend::kv_write(KvStore& kv, const KvCellsArgs& args, const std::byte* from) {
  expect_no_step("kv_write");
  expect_host(from, "cells as bytes");
  right_->kv_write(kv, args, from);
}

void FarBackend::choose(const ChooseArgs& args) {
  expect_no_step("choose");
  expect_host(args.out, "chosen tokens");
  std::vector<ChooseRow> rows(args.rows.begin(), args.rows.end());
  for (ChooseRow& row : rows) {
    if (row.allowed) expect_host(row.allowed, "allowed tokens");
    row.logits = vector(row.logits, size_t(args.vocab), "logits");
  }
  right_->choose({args.out, rows, args.vocab});
}

void FarBackend::probabilities(const ProbabilitiesArgs& args) {
  expect_no_step("distribution");
  expect_host(args.out, "probabilities");
  ProbabilitiesArgs a = args;
  a.row.logits = vector(args.row.logits, size_t(args.vocab), "logits");
  right_->probabilities(a);
}

void FarBackend::top_k(const TopKArgs& args) {
  expect_no_step("top_k");
  expect_host(args.out, "candidates");
  TopKArgs a = args;
  a.logits = floats(args.logits, size_t(args.rows), size_t(args.stride ? args.stride : args.vocab), size_t(args.vocab),
                    "logits");
  right_->top_k(a);
}

}  // namespace sx::testing
