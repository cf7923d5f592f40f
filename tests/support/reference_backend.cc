// Every op as its definition reads. Weights are dequantised to f32 at set-up; K and V are kept as f32 after rounding
// through the store's type, so that what other backends lose by storing is lost here too, and nothing else is.
#include "support/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "backend/host_rows.h"
#include "backend/host_scores.h"
#include "base/error.h"
#include "base/rng.h"
#include "support/reference_experts.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx {
namespace {

class ReferenceMatrix final : public Matrix {
 public:
  explicit ReferenceMatrix(std::span<const Tensor> parts) { add(parts); }
  // All experts, stacked by outputs: row e * out() + o.
  static std::unique_ptr<ReferenceMatrix> of_experts(std::span<const Tensor> parts) {
    std::vector<Tensor> stacked;
    const auto experts = parts.front().shape[0];
    for (int64_t e = 0; e < experts; ++e)
      for (const Tensor& part : parts) {
        const Tensor one{part.type, 2, {part.shape[1], part.shape[2]}, nullptr};
        stacked.push_back({part.type, 2, one.shape, part.data + static_cast<size_t>(e) * one.bytes()});
      }
    auto matrix = std::make_unique<ReferenceMatrix>(stacked);
    matrix->experts_ = static_cast<int>(experts);
    matrix->out_ /= matrix->experts_;
    return matrix;
  }
  size_t bytes() const override { return bytes_; }
  const float* row(int o) const { return values_.data() + static_cast<size_t>(o) * static_cast<size_t>(in_); }

 private:
  void add(std::span<const Tensor> parts) {
    if (parts.empty()) fail("a matrix needs at least one part");
    in_ = static_cast<int>(parts.front().columns());
    for (const Tensor& part : parts) {
      if (part.rank != 2 || part.columns() != in_) {
        fail("matrix part of rank {} with {} columns: expected rank 2 with {} columns", part.rank, part.columns(), in_);
      }
      const size_t before = values_.size();
      values_.resize(before + static_cast<size_t>(part.elements()));
      dequantise(part.type, part.data, part.elements(), values_.data() + before);
      out_ += static_cast<int>(part.rows());
      bytes_ += part.bytes();
    }
  }
  std::vector<float> values_;  // [out, in]
  size_t bytes_ = 0;           // of the parts as they came
};

// Rounds one head's K or V through the store's type. Quantised: runs of 32 along the head, the last one may be shorter.
void round_through(DType type, float* x, int count) {
  switch (type) {
    case DType::kF16:
      for (int i = 0; i < count; ++i) x[i] = f16_to_float(float_to_f16(x[i]));
      return;
    case DType::kBF16:
      for (int i = 0; i < count; ++i) x[i] = bf16_to_float(float_to_bf16(x[i]));
      return;
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
      for (int from = 0; from < count; from += 32) {
        const int n = std::min(32, count - from);
        float run[32] = {};
        std::byte block[sizeof(BlockQ8_0)];
        std::copy_n(x + from, n, run);
        quantise(type, run, 32, block);
        dequantise(type, block, 32, run);
        std::copy_n(run, n, x + from);
      }
      return;
    default: return;
  }
}

class ReferenceKv final : public KvStore {
 public:
  explicit ReferenceKv(const KvGeometry& geometry) : KvStore(geometry) {
    for (const DType type : {geometry.type.keys, geometry.type.values})
      if (type != DType::kF32 && type != DType::kF16 && type != DType::kBF16 && type != DType::kQ8_0 &&
          type != DType::kQ4_0 && type != DType::kQ4_1)
        fail("KV type {} is not supported: expected F32, F16, BF16, Q8_0, Q4_0 or Q4_1", dtype_name(type));
    geometry_.capacity = (geometry.capacity + kBlock - 1) / kBlock * kBlock;
    cell_ = static_cast<size_t>(geometry_.kv_heads) * static_cast<size_t>(geometry_.head_dim);
    const size_t cells = static_cast<size_t>(geometry_.layers) * static_cast<size_t>(geometry_.slots) *
                         static_cast<size_t>(geometry_.capacity);
    keys_.resize(cells * cell_);
    values_.resize(cells * cell_);
  }
  size_t bytes() const override { return (keys_.size() + values_.size()) * sizeof(float); }

  // One head of one cell: [head_dim].
  float* key(int layer, int slot, int cell, int head) { return keys_.data() + offset(layer, slot, cell, head); }
  float* value(int layer, int slot, int cell, int head) { return values_.data() + offset(layer, slot, cell, head); }
  const float* key(int layer, int slot, int cell, int head) const {
    return keys_.data() + offset(layer, slot, cell, head);
  }
  const float* value(int layer, int slot, int cell, int head) const {
    return values_.data() + offset(layer, slot, cell, head);
  }

 private:
  size_t offset(int layer, int slot, int cell, int head) const {
    SX_ASSERT(layer >= 0 && layer < geometry_.layers && slot >= 0 && slot < geometry_.slots);
    SX_ASSERT(cell >= 0 && cell < geometry_.capacity && head >= 0 && head < geometry_.kv_heads);
    const auto place = (static_cast<size_t>(layer) * static_cast<size_t>(geometry_.slots) + static_cast<size_t>(slot)) *
                           static_cast<size_t>(geometry_.capacity) +
                       static_cast<size_t>(cell);
    return place * cell_ + static_cast<size_t>(head) * static_cast<size_t>(geometry_.head_dim);
  }
  std::vector<float> keys_, values_;  // [layers, slots, capacity, kv_heads, head_dim]
  size_t cell_ = 0;                   // floats of a cell's keys in one layer
};

void rms_norm(float* out, const float* x, const float* weight, int width, float eps) {
  double sum = 0;
  for (int i = 0; i < width; ++i) sum += static_cast<double>(x[i]) * x[i];
  const double inverse = 1 / std::sqrt(sum / width + static_cast<double>(eps));
  for (int i = 0; i < width; ++i) out[i] = static_cast<float>(x[i] * inverse * weight[i]);
}

void layer_norm(const NormArgs& a, float* out, const float* x) {
  double mean = 0, square = 0;
  for (int i = 0; i < a.width; ++i) mean += x[i];
  mean /= a.width;
  for (int i = 0; i < a.width; ++i) square += (x[i] - mean) * (x[i] - mean);
  const double inverse = 1 / std::sqrt(square / a.width + static_cast<double>(a.eps));
  for (int i = 0; i < a.width; ++i)
    out[i] = static_cast<float>((x[i] - mean) * inverse * a.weight[i] + (a.bias ? a.bias[i] : 0.0f));
}

double activate(Activation kind, double x) {
  switch (kind) {
    case Activation::kSilu: return x / (1 + std::exp(-x));
    case Activation::kGeluTanh: return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case Activation::kGelu: return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
    case Activation::kRelu2: return x > 0 ? x * x : 0;
  }
  return x;
}

// Turns pair i of a head; the pair's two places depend on the style.
void rotate_pair(float* head, int i, int dims, RopeStyle style, double cosine, double sine) {
  const int a = style == RopeStyle::kHalves ? i : 2 * i;
  const int b = style == RopeStyle::kHalves ? i + dims / 2 : 2 * i + 1;
  const double x = head[a], y = head[b];
  head[a] = static_cast<float>(x * cosine - y * sine);
  head[b] = static_cast<float>(x * sine + y * cosine);
}

// Whether a node of the tail is row `row` of this step or an ancestor of it.
bool is_ancestor(const SeqRows& seq, int row, int node) {
  if (!seq.ancestors) return node <= seq.uncommitted + row;
  const uint64_t* bits = seq.ancestors + static_cast<ptrdiff_t>(row) * seq.words;
  return (bits[node / 64] >> (node % 64)) & 1;
}

// The cells that row `row` of the sequence sees, in the order of attention.
std::vector<int> visible_cells(const SeqRows& seq, int row, int window) {
  std::vector<int> cells;
  for (int c = 0; c < seq.history; ++c) cells.push_back(c);
  for (int node = 0; node < seq.uncommitted + seq.rows; ++node) {
    if (is_ancestor(seq, row, node)) cells.push_back(seq.history + node);
  }
  // cells[i] has index i; the row itself is the last.
  const int size = static_cast<int>(cells.size());
  if (window > 0 && size > window) cells.erase(cells.begin(), cells.begin() + (size - window));
  return cells;
}

// Logits after bias and penalties, in f32 as the definition says.
std::vector<float> adjusted_logits(const ChooseRow& row, int vocab) {
  std::vector<float> logits(row.logits, row.logits + vocab);
  const Sampling& s = *row.sampling;
  const auto known = [&](Token t) { return t >= 0 && t < vocab; };
  for (const TokenBias& b : row.bias) {
    if (known(b.token)) logits[static_cast<size_t>(b.token)] += b.bias;
  }
  for (const TokenCount& c : row.counts) {
    if (!known(c.token) || c.count <= 0) continue;
    float& logit = logits[static_cast<size_t>(c.token)];
    logit = logit > 0 ? logit / s.repeat_penalty : logit * s.repeat_penalty;
    logit -= s.presence_penalty + s.frequency_penalty * static_cast<float>(c.count);
  }
  return logits;
}

// The tokens that sampling may choose, most probable first.
std::vector<Token> candidates_of(const std::vector<float>& logits, const ChooseRow& row) {
  const Sampling& s = *row.sampling;
  std::vector<Token> ids;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (std::isfinite(logits[t]) && row.allows(static_cast<Token>(t))) ids.push_back(static_cast<Token>(t));
  }
  const auto logit = [&](Token t) { return static_cast<double>(logits[static_cast<size_t>(t)]); };
  std::stable_sort(ids.begin(), ids.end(), [&](Token a, Token b) { return logit(a) > logit(b); });
  if (s.top_k > 0 && ids.size() > static_cast<size_t>(s.top_k)) ids.resize(static_cast<size_t>(s.top_k));
  if (s.top_p < 1 && !ids.empty()) {  // the shortest prefix that holds top_p of what top-k left
    double total = 0, kept = 0;
    for (const Token t : ids) total += std::exp(logit(t) - logit(ids[0]));
    size_t n = 0;
    do kept += std::exp(logit(ids[n++]) - logit(ids[0]));
    while (n < ids.size() && kept < s.top_p * total);
    ids.resize(n);
  }
  if (s.min_p > 0 && !ids.empty()) {  // probability at least min_p times the largest
    const double least = logit(ids[0]) + std::log(static_cast<double>(s.min_p));
    std::erase_if(ids, [&](Token t) { return logit(t) < least; });
  }
  return ids;
}

// The first of the largest; NaN never wins, and with nothing above -infinity it is the first.
Token first_of_largest(const std::vector<float>& logits, const ChooseRow& row) {
  Token best = kNoToken;
  float most = -HUGE_VALF;
  for (size_t t = 0; t < logits.size(); ++t) {
    if (!row.allows(static_cast<Token>(t))) continue;
    if (best == kNoToken || logits[t] > most) best = static_cast<Token>(t);
    if (logits[t] > most) most = logits[t];
  }
  return best;
}

Token choose_token(const ChooseRow& row, int vocab) {
  const std::vector<float> logits = adjusted_logits(row, vocab);
  const Sampling& s = *row.sampling;
  Token best = first_of_largest(logits, row);
  if (!(s.temperature > 0)) return best;
  std::vector<Token> ids = candidates_of(logits, row);
  std::sort(ids.begin(), ids.end());
  double most = 0;
  const double inverse = 1.0 / static_cast<double>(s.temperature);
  for (size_t i = 0; i < ids.size(); ++i) {
    const double scaled = static_cast<double>(logits[static_cast<size_t>(ids[i])]) * inverse;
    const double score = scaled + gumbel(s.seed, row.position, static_cast<uint64_t>(ids[i]));
    if (i == 0 || score > most) most = score, best = ids[i];
  }
  return best;
}

void distribution_of(const ChooseRow& row, int vocab, double* out) {
  const std::vector<float> logits = adjusted_logits(row, vocab);
  std::fill_n(out, vocab, 0.0);
  const std::vector<Token> ids = candidates_of(logits, row);
  if (!(row.sampling->temperature > 0) || ids.empty()) {
    if (const Token best = first_of_largest(logits, row); best != kNoToken) out[best] = 1;
    return;
  }
  const double temperature = static_cast<double>(row.sampling->temperature);
  const auto scaled = [&](Token t) { return static_cast<double>(logits[static_cast<size_t>(t)]) / temperature; };
  double sum = 0;
  for (const Token t : ids) sum += out[t] = std::exp(scaled(t) - scaled(ids[0]));  // ids[0] is the likeliest
  for (const Token t : ids) out[t] /= sum;
}

// row: [vocab]; out: [k]. What is not finite comes last.
void likeliest(const float* row, int vocab, int k, Candidate* out) {
  std::vector<double> logit(row, row + vocab);
  std::vector<Token> ids(static_cast<size_t>(vocab));
  for (size_t t = 0; t < ids.size(); ++t) {
    ids[t] = static_cast<Token>(t);
    if (!std::isfinite(logit[t])) logit[t] = -HUGE_VAL;
  }
  const auto value = [&](Token t) { return logit[static_cast<size_t>(t)]; };
  std::stable_sort(ids.begin(), ids.end(), [&](Token a, Token b) { return value(a) > value(b); });
  const double largest = value(ids[0]);
  double sum = 0;
  for (const double x : logit) sum += std::exp(x - largest);
  for (int i = 0; i < k; ++i) {
    const Token t = ids[static_cast<size_t>(i)];
    const bool finite = std::isfinite(value(t));
    out[i] = {t, finite ? static_cast<float>(value(t) - largest - std::log(sum)) : -HUGE_VALF, row[t]};
  }
}

class ReferenceBackend final : public Backend {
 public:
  std::string name() const override { return "reference"; }
  DType default_kv_type() const override { return DType::kF32; }

  std::unique_ptr<Matrix> make_matrix(std::span<const Tensor> parts) override {
    return std::make_unique<ReferenceMatrix>(parts);
  }
  std::unique_ptr<Matrix> make_experts(std::span<const Tensor> parts) override {
    return ReferenceMatrix::of_experts(parts);
  }
  std::unique_ptr<KvStore> make_kv(const KvGeometry& geometry) override {
    return std::make_unique<ReferenceKv>(geometry);
  }
  Tensor place_table(const Tensor& table) override { return table; }
  float* allocate(size_t count, const char*) override { return memory_.emplace_back(count).data(); }
  void reserve(const StepLimits&) override {}
  void upload(float* to, const float* from, size_t count) override { std::memmove(to, from, count * sizeof(float)); }
  void download(float* to, const float* from, size_t count) override { upload(to, from, count); }
  void run(const StepInputs&, const StepKey&, FunctionRef body) override { body(); }
  void copy_rows(const CopyRowsArgs& a) override { copy_host_rows(a); }

  void embed(const EmbedArgs& a) override {
    const int64_t width = a.table.columns();
    for (int r = 0; r < a.rows; ++r) dequantise(a.table.type, a.table.row(a.tokens[r]), width, a.out + r * width);
  }

  void norm(const NormArgs& a) override {
    for (int r = 0; r < a.rows; ++r) {
      const ptrdiff_t at = static_cast<ptrdiff_t>(r) * (a.stride > 0 ? a.stride : a.width);
      if (a.centred) layer_norm(a, a.out + at, a.x + at);
      else rms_norm(a.out + at, a.x + at, a.weight, a.width, a.eps);
    }
  }

  void linear(const LinearArgs& a) override {
    const auto& matrix = static_cast<const ReferenceMatrix&>(*a.weight);
    for (int r = 0; r < a.rows; ++r) {
      const float* x = a.x + static_cast<ptrdiff_t>(r) * matrix.in();
      for (int o = 0; o < matrix.out(); ++o) {
        float& out = a.out[static_cast<ptrdiff_t>(r) * a.out_stride + o];
        const float* w = matrix.row(o);
        double sum = 0;
        for (int i = 0; i < matrix.in(); ++i) sum += static_cast<double>(x[i]) * w[i];
        if (a.bias) sum += a.bias[o];
        if (a.accumulate) sum += out;
        out = static_cast<float>(sum);
      }
    }
  }

  void rope_table(const RopeTableArgs& a) override {
    for (int r = 0; r < a.rows; ++r) {
      for (int i = 0; i < a.dims / 2; ++i) {
        const double angle = a.positions[r] * a.frequencies[i];
        float* pair = a.table + (static_cast<ptrdiff_t>(r) * (a.dims / 2) + i) * 2;
        pair[0] = static_cast<float>(std::cos(angle) * a.factor);
        pair[1] = static_cast<float>(std::sin(angle) * a.factor);
      }
    }
  }

  void rope_store(const RopeStoreArgs& a) override {
    const ptrdiff_t stride = static_cast<ptrdiff_t>(a.shape.heads + 2 * a.shape.kv_heads) * a.shape.head_dim;
    for (const SeqRows& seq : a.seqs) {
      for (int i = 0; i < seq.rows; ++i) {
        const int r = seq.first_row + i;
        const int cell = seq.history + seq.uncommitted + i;
        store_row(a, a.qkv + r * stride, a.table + static_cast<ptrdiff_t>(r) * a.dims, seq.slot, cell);
      }
    }
  }

  void attend(const AttendArgs& a) override {
    for (const SeqRows& seq : a.seqs) {
      for (int i = 0; i < seq.rows; ++i) {
        const std::vector<int> cells = visible_cells(seq, i, a.window);
        const ptrdiff_t r = seq.first_row + i;
        for (int h = 0; h < a.shape.heads; ++h) {
          const float* q = a.q + r * a.q_stride + static_cast<ptrdiff_t>(h) * a.shape.head_dim;
          attend_head(a, q, seq.slot, h, cells, a.out + (r * a.shape.heads + h) * a.shape.head_dim);
        }
      }
    }
  }

  void glu(const GluArgs& a) override {
    for (int r = 0; r < a.rows; ++r) {
      const float* gate = a.gate_up + static_cast<ptrdiff_t>(r) * (a.gated ? 2 : 1) * a.width;
      for (int i = 0; i < a.width; ++i) {
        const double up = a.gated ? static_cast<double>(gate[a.width + i]) : 1.0;
        a.out[static_cast<ptrdiff_t>(r) * a.width + i] = static_cast<float>(activate(a.activation, gate[i]) * up);
      }
    }
  }

  void experts(const ExpertsArgs& a) override {
    reference_experts(a, static_cast<const ReferenceMatrix&>(*a.gate_up).row(0),
                      static_cast<const ReferenceMatrix&>(*a.down).row(0));
  }

  void soft_cap(const SoftCapArgs& a) override {
    const double cap = a.cap;
    for (ptrdiff_t i = 0; i < static_cast<ptrdiff_t>(a.rows) * a.width; ++i)
      a.x[i] = static_cast<float>(cap * std::tanh(a.x[i] / cap));
  }

  void kv_move(const KvMoveArgs& a) override {
    const auto& from = static_cast<const ReferenceKv&>(*a.from);
    auto& to = static_cast<ReferenceKv&>(*a.to);
    const KvGeometry& g = to.geometry();
    for (const KvMove& move : a.moves) {
      for (int layer = 0; layer < g.layers; ++layer) {
        for (int h = 0; h < g.kv_heads; ++h) {
          if ((a.layer >= 0 && layer != a.layer) || (a.head >= 0 && h != a.head)) continue;
          float* key = to.key(layer, a.to_slot, move.dst, h);
          const auto bytes = static_cast<size_t>(g.head_dim) * sizeof(float);
          std::memmove(key, from.key(layer, a.from_slot, move.src, h), bytes);
          std::memmove(to.value(layer, a.to_slot, move.dst, h), from.value(layer, a.from_slot, move.src, h), bytes);
          if (move.delta == 0) continue;
          for (int i = 0; i < a.dims / 2; ++i) {
            const double angle = move.delta * a.frequencies[i];
            rotate_pair(key, i, a.dims, a.style, std::cos(angle), std::sin(angle));
          }
          round_through(g.type.keys, key, g.head_dim);
        }
      }
    }
  }

  void kv_score(const KvScoreArgs& a) override {
    if (a.mean || !a.layers.empty()) return score_layers(a, [this](const KvScoreArgs& one) { kv_score(one); });
    const size_t chunks = a.borders.size() - 1;
    for (int h = 0; h < a.heads; ++h) score_head(a, h, a.out + static_cast<size_t>(h) * chunks);
  }

  // [count][layers][kv_heads][key, value][head_dim]
  size_t kv_cell_bytes(const KvStore& kv) const override {
    const KvGeometry& g = kv.geometry();
    return static_cast<size_t>(g.layers) * static_cast<size_t>(g.kv_heads) * 2 * static_cast<size_t>(g.head_dim) *
           sizeof(float);
  }
  void kv_read(const KvStore& kv, const KvCellsArgs& a, std::byte* out) override {
    auto& from = const_cast<ReferenceKv&>(static_cast<const ReferenceKv&>(kv));
    each_head(from, a, [&](float* x, size_t bytes) { std::memcpy(out, x, bytes), out += bytes; });
  }
  void kv_write(KvStore& kv, const KvCellsArgs& a, const std::byte* from) override {
    each_head(static_cast<ReferenceKv&>(kv), a,
              [&](float* x, size_t bytes) { std::memcpy(x, from, bytes), from += bytes; });
  }

  void choose(const ChooseArgs& a) override {
    for (size_t r = 0; r < a.rows.size(); ++r)
      mark_broken(a.rows[r], a.vocab), a.out[r] = choose_token(a.rows[r], a.vocab);
  }

  void probabilities(const ProbabilitiesArgs& a) override {
    mark_broken(a.row, a.vocab), distribution_of(a.row, a.vocab, a.out);
  }

  void top_k(const TopKArgs& a) override {
    for (ptrdiff_t r = 0; r < a.rows; ++r)
      likeliest(a.logits + r * (a.stride > 0 ? a.stride : a.vocab), a.vocab, a.k, a.out + r * a.k);
  }

 private:
  // body(key or value, bytes) in the order of kv_read.
  template <class Body>
  static void each_head(ReferenceKv& kv, const KvCellsArgs& a, Body body) {
    const KvGeometry& g = kv.geometry();
    const auto bytes = static_cast<size_t>(g.head_dim) * sizeof(float);
    for (int cell = a.first; cell < a.first + a.count; ++cell) {
      for (int layer = 0; layer < g.layers; ++layer) {
        for (int h = 0; h < g.kv_heads; ++h) {
          body(kv.key(layer, a.slot, cell, h), bytes);
          body(kv.value(layer, a.slot, cell, h), bytes);
        }
      }
    }
  }

  // row: [(heads + 2 kv_heads) * head_dim]; table: [dims/2, 2].
  static void store_row(const RopeStoreArgs& a, float* row, const float* table, int slot, int cell) {
    auto& kv = static_cast<ReferenceKv&>(*a.kv);
    for (int h = 0; h < a.shape.heads + a.shape.kv_heads; ++h) {  // queries, then keys
      float* head = row + static_cast<ptrdiff_t>(h) * a.shape.head_dim;
      const bool is_key = h >= a.shape.heads;
      float* turned = is_key ? kv.key(a.layer, slot, cell, h - a.shape.heads) : head;
      if (is_key) std::copy_n(head, a.shape.head_dim, turned);
      if (const float* weight = is_key ? a.k_norm : a.q_norm) rms_norm(turned, turned, weight, a.shape.head_dim, a.eps);
      for (int i = 0; i < a.dims / 2; ++i) rotate_pair(turned, i, a.dims, a.style, table[2 * i], table[2 * i + 1]);
      if (is_key) round_through(kv.geometry().type.keys, turned, a.shape.head_dim);
    }
    for (int h = 0; h < a.shape.kv_heads; ++h) {
      float* value = kv.value(a.layer, slot, cell, h);
      std::copy_n(row + static_cast<ptrdiff_t>(a.shape.heads + a.shape.kv_heads + h) * a.shape.head_dim,
                  a.shape.head_dim, value);
      round_through(kv.geometry().type.values, value, a.shape.head_dim);
    }
  }

  // One query head of one row over the cells it sees; q and out: [head_dim].
  static void attend_head(const AttendArgs& a, const float* q, int slot, int head, const std::vector<int>& cells,
                          float* out) {
    const int kv_head = head / (a.shape.heads / a.shape.kv_heads);
    const auto& kv = static_cast<const ReferenceKv&>(*a.kv);
    std::vector<double> weight(cells.size());
    for (size_t c = 0; c < cells.size(); ++c) {
      const float* key = kv.key(a.layer, slot, cells[c], kv_head);
      double sum = 0;
      for (int d = 0; d < a.shape.head_dim; ++d) sum += static_cast<double>(q[d]) * key[d];
      weight[c] = sum * a.scale;
      if (a.soft_cap > 0) weight[c] = std::tanh(weight[c] / a.soft_cap) * a.soft_cap;
    }
    const double largest = *std::max_element(weight.begin(), weight.end());
    double total = a.sinks ? std::exp(a.sinks[head] - largest) : 0;
    for (double& w : weight) total += w = std::exp(w - largest);
    std::vector<double> mean(static_cast<size_t>(a.shape.head_dim));
    for (size_t c = 0; c < cells.size(); ++c) {
      const float* value = kv.value(a.layer, slot, cells[c], kv_head);
      for (size_t d = 0; d < mean.size(); ++d) mean[d] += weight[c] / total * value[d];
    }
    for (size_t d = 0; d < mean.size(); ++d) out[d] = static_cast<float>(mean[d]);
  }

  // One query head over all chunks; out: [chunks].
  static void score_head(const KvScoreArgs& a, int h, float* out) {
    const auto& kv = static_cast<const ReferenceKv&>(*a.kv);
    const int kv_head = h / (a.heads / a.kv_heads);
    const auto element = [&](int cell, int d) {  // of q k * scale
      const double q = a.q[static_cast<ptrdiff_t>(h) * a.head_dim + d];
      return q * a.scale * kv.key(a.layer, a.slot, cell, kv_head)[d];
    };
    const auto logit = [&](int cell) {
      double sum = 0;
      for (int d = 0; d < a.head_dim; ++d) sum += element(cell, d);
      return sum;
    };
    double largest = -HUGE_VAL, total = 0;
    for (int c = a.borders.front(); c < a.borders.back(); ++c) largest = std::max(largest, logit(c));
    for (int c = a.borders.front(); c < a.borders.back(); ++c) total += std::exp(logit(c) - largest);
    for (size_t i = 0; i + 1 < a.borders.size(); ++i) {
      const int from = a.borders[i], to = a.borders[i + 1];
      double mass = 0, peak = 0, sum = 0, bound = 0;
      for (int c = from; c < to; ++c) {
        const double weight = std::exp(logit(c) - largest) / total;
        mass += weight, peak = std::max(peak, weight), sum += logit(c);
      }
      for (int d = 0; d < a.head_dim; ++d) {
        double most = -HUGE_VAL;
        for (int c = from; c < to; ++c) most = std::max(most, element(c, d));
        bound += most;
      }
      out[i] = static_cast<float>(a.kind == ScoreKind::kMass    ? mass
                                  : a.kind == ScoreKind::kPeak  ? peak
                                  : a.kind == ScoreKind::kLogit ? sum / (to - from)
                                                                : bound);
    }
  }

  std::vector<std::vector<float>> memory_;
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace sx
