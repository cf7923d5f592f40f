// A small world for the tests of attention: tokens whose q, k, v are pure functions of their number, stores that are
// filled through rope_store, and rows attended in any batch. No rotation (cos 1, sin 0): index and content are
// independent.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/kv/store.h"
#include "base/rng.h"

namespace sx::cpu::testing {

struct Shape {
  Isa isa = Isa::kGeneric;
  KvTypes type = DType::kF32;
  int heads = 6, kv_heads = 2, dim = 64;

  std::string name() const {
    return std::string(isa_name(isa)) + " " + kv_types_name(type) + " heads " + std::to_string(heads) + "/" +
           std::to_string(kv_heads) + " dim " + std::to_string(dim);
  }
};

inline uint64_t random_bits(uint64_t& state) { return mix64(state += 0x9e3779b97f4a7c15ull); }
inline int random_below(uint64_t& state, int n) {
  return static_cast<int>(random_bits(state) % static_cast<uint64_t>(n));
}

// [(heads + 2 kv_heads) * dim] of one token: near normal, keys with an outlier dimension.
inline std::vector<float> token_vector(const Shape& s, int token) {
  std::vector<float> x(static_cast<size_t>((s.heads + 2 * s.kv_heads) * s.dim));
  uint64_t state = mix64(static_cast<uint64_t>(token) + 77);
  for (size_t i = 0; i < x.size(); ++i) {
    double sum = 0;
    for (int j = 0; j < 4; ++j) sum += uniform_from(random_bits(state));
    x[i] = static_cast<float>((sum - 2) * 1.8 * 1.3);
    if (i % 16 == 3) x[i] += 1;
  }
  return x;
}

// Rows of one sequence for a call: tokens[i] goes to cell history + uncommitted + i.
struct Rows {
  int slot = 0, history = 0;
  std::vector<int> tokens;
  std::vector<uint64_t> ancestors;  // empty: chain
  int words = 0;
  int uncommitted = 0;
};

class World {
 public:
  World(const Shape& s, int slots, int capacity, int max_rows = 600)
      : shape(s), store(make_kv_store({1, s.kv_heads, s.dim, slots, capacity, s.type}, s.isa)) {
    limits = {max_rows, 0, s.heads, s.kv_heads, s.dim, capacity, 0};
  }

  // Writes the rows (rope_store) and attends; out: [rows of all sequences][heads * dim] in order.
  std::vector<float> step(const std::vector<Rows>& all, int threads = 1, int window = 0) {
    if (!pool || pool->size() != threads) {
      pool = std::make_unique<ThreadPool>(threads);
      scratch.reserve(limits, threads);
    }
    std::vector<SeqRows> seqs;
    std::vector<float> qkv;
    for (const Rows& r : all) {
      SeqRows s;
      s.first_row = static_cast<int32_t>(qkv.size() / width());
      s.rows = static_cast<int32_t>(r.tokens.size());
      s.slot = r.slot;
      s.history = r.history;
      s.uncommitted = r.uncommitted;
      if (!r.ancestors.empty()) s.ancestors = r.ancestors.data(), s.words = r.words;
      seqs.push_back(s);
      for (int t : r.tokens) {
        const auto x = token_vector(shape, t);
        qkv.insert(qkv.end(), x.begin(), x.end());
      }
    }
    const size_t rows = qkv.size() / width();
    const int dims = shape.dim / 2 * 2;
    std::vector<float> table(rows * static_cast<size_t>(dims));
    for (size_t i = 0; i < table.size(); i += 2) table[i] = 1;
    RopeStoreArgs r{};
    r.qkv = qkv.data();
    r.table = table.data();
    r.shape = {shape.heads, shape.kv_heads, shape.dim}, r.dims = dims;
    r.style = RopeStyle::kHalves;
    r.kv = store.get();
    r.seqs = seqs;
    rope_store(r, shape.isa, *pool);
    std::vector<float> out(rows * out_width(), 1e9f);
    AttendArgs a{};
    a.out = out.data();
    a.q = qkv.data();
    a.q_stride = static_cast<int>(width());
    a.shape = {shape.heads, shape.kv_heads, shape.dim};
    a.scale = scale();
    a.window = window;
    a.soft_cap = soft_cap;
    a.sinks = sinks.empty() ? nullptr : sinks.data();
    a.kv = store.get();
    a.seqs = seqs;
    attend(a, shape.isa, *pool, scratch);
    return out;
  }

  // Fills cells [0, n) of a slot with tokens first, first + 1, ...
  void fill(int slot, int n, int first) {
    for (int i = 0; i < n; i += 256) {
      Rows r{slot, i, {}, {}, 0};
      for (int j = i; j < std::min(n, i + 256); ++j) r.tokens.push_back(first + j);
      write_only(r);
    }
  }

  void write_only(const Rows& r) {
    auto& s = static_cast<CpuKvStore&>(*store);
    for (size_t i = 0; i < r.tokens.size(); ++i) {
      const auto x = token_vector(shape, r.tokens[i]);
      const int cell = r.history + static_cast<int>(i);
      const float* k = x.data() + shape.heads * shape.dim;
      for (int h = 0; h < shape.kv_heads; ++h) {
        store_key(s.key_layout(), s.keys(r.slot, 0, h, cell / kBlock), cell % kBlock, k + h * shape.dim);
        store_value(s.value_layout(), s.values(r.slot, 0, h, cell / kBlock), cell % kBlock,
                    k + (shape.kv_heads + h) * shape.dim);
      }
    }
  }

  float scale() const { return 1 / std::sqrt(static_cast<float>(shape.dim)); }
  size_t width() const { return static_cast<size_t>((shape.heads + 2 * shape.kv_heads) * shape.dim); }
  size_t out_width() const { return static_cast<size_t>(shape.heads * shape.dim); }

  Shape shape;
  float soft_cap = 0;        // of all steps
  std::vector<float> sinks;  // likewise; empty: none
  StepLimits limits;
  std::unique_ptr<KvStore> store;
  std::unique_ptr<ThreadPool> pool;
  AttentionScratch scratch;
};

// Attention of `token` over `seen` in double precision, on the unrounded values. [heads * dim]
inline std::vector<double> naive(const Shape& s, int token, const std::vector<int>& seen, double soft_cap = 0,
                                 const std::vector<float>& sinks = {}) {
  std::vector<double> out(static_cast<size_t>(s.heads * s.dim));
  const auto q = token_vector(s, token);
  std::vector<std::vector<float>> all;
  for (int t : seen) all.push_back(token_vector(s, t));
  const int group = s.heads / s.kv_heads;
  for (int h = 0; h < s.heads; ++h) {
    std::vector<double> w(seen.size());
    double top = -1e300, sum = 0;
    for (size_t i = 0; i < seen.size(); ++i) {
      const float* k = all[i].data() + (s.heads + h / group) * s.dim;
      double dot = 0;
      for (int d = 0; d < s.dim; ++d) dot += double(q[static_cast<size_t>(h * s.dim + d)]) * k[d];
      w[i] = dot / std::sqrt(double(s.dim));
      if (soft_cap > 0) w[i] = soft_cap * std::tanh(w[i] / soft_cap);
      top = std::max(top, w[i]);
    }
    if (!sinks.empty()) sum = std::exp(double(sinks[static_cast<size_t>(h)]) - top);
    for (size_t i = 0; i < seen.size(); ++i) {
      w[i] = std::exp(w[i] - top);
      sum += w[i];
      const float* v = all[i].data() + (s.heads + s.kv_heads + h / group) * s.dim;
      for (int c = 0; c < s.dim; ++c) out[static_cast<size_t>(h * s.dim + c)] += w[i] * v[c];
    }
    for (int c = 0; c < s.dim; ++c) out[static_cast<size_t>(h * s.dim + c)] /= sum;
  }
  return out;
}

// Root mean square of the difference over that of the reference.
inline double relative_error(const float* x, const std::vector<double>& reference) {
  double e = 0, r = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    e += (x[i] - reference[i]) * (x[i] - reference[i]);
    r += reference[i] * reference[i];
  }
  return std::sqrt(e / r);
}

inline double tolerance(DType type) {
  switch (type) {
    case DType::kF32: return 1e-5;
    case DType::kF16: return 2e-3;
    case DType::kBF16: return 1.2e-2;
    case DType::kQ4_0: return 0.25;
    case DType::kQ4_1: return 0.2;
    default: return 3e-2;
  }
}
inline double tolerance(const KvTypes& types) { return std::max(tolerance(types.keys), tolerance(types.values)); }

// A random tree: parents before children, now and then a further root. Returns ancestor bits (self included).
inline std::vector<uint64_t> random_tree(int rows, int words, uint64_t& state, int bushy,
                                         std::vector<int>* parents = nullptr) {
  std::vector<uint64_t> bits(static_cast<size_t>(rows * words));
  if (parents) parents->assign(static_cast<size_t>(rows), -1);
  for (int i = 0; i < rows; ++i) {
    // bushy 0: mostly the last row (long paths); larger: any earlier row.
    const bool root = i == 0 || random_below(state, 40) == 0;
    const int parent = root ? -1 : random_below(state, 8) >= bushy ? i - 1 : random_below(state, i);
    for (int w = 0; w < words && parent >= 0; ++w)
      bits[static_cast<size_t>(i * words + w)] = bits[static_cast<size_t>(parent * words + w)];
    bits[static_cast<size_t>(i * words + i / 64)] |= uint64_t(1) << (i % 64);
    if (parents) (*parents)[static_cast<size_t>(i)] = parent;
  }
  return bits;
}

}  // namespace sx::cpu::testing
