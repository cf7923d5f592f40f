// What the problems on K/V share: heads with their norms and frequencies, and the calls that store and attend.
#pragma once
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <vector>

#include "problem.h"
#include "random_data.h"

namespace sx::parity {

inline constexpr int kLayers = 2, kChunk = 64;
inline constexpr float kEps = 1e-6f;

inline size_t product(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

// Backend memory for one rope_store call of up to kChunk rows and one attended row, used again and again.
struct Desk {
  float *qkv, *table, *q_norm, *k_norm, *sinks, *out;
};

// A table row's heads and what they share: norm weights, frequencies, and the calls with all their arguments.
class Heads {
 public:
  Heads(const OpRow& row, Random& random) : row_(row), frequencies_(rope_frequencies(row.rotated())) {
    if (row.sinks) sinks_ = random.normals(static_cast<size_t>(row.heads));
    for (float& sink : sinks_) sink = 3 * sink + 2;  // against sums of a few hundred: from nothing to half of all
    if (!row.qk_norm) return;
    q_norm_ = random.normals(static_cast<size_t>(row.head_dim));
    k_norm_ = random.normals(static_cast<size_t>(row.head_dim));
  }
  int width() const { return (row_.heads + 2 * row_.kv_heads) * row_.head_dim; }  // of a row of qkv
  int q_width() const { return row_.heads * row_.head_dim; }
  const std::vector<double>& frequencies() const { return frequencies_; }

  std::unique_ptr<KvStore> make_kv(Backend& backend, int slots, int capacity) const {
    return backend.make_kv({kLayers, row_.kv_heads, row_.head_dim, slots, capacity, row_.kv_types()});
  }
  void reserve(Backend& backend, int rows, int context) const {
    backend.reserve({.rows = std::max(rows, kChunk),
                     .width = width(),
                     .heads = row_.heads,
                     .kv_heads = row_.kv_heads,
                     .head_dim = row_.head_dim,
                     .context = context});
  }
  // [positions, dims/2, 2]
  std::vector<float> table(std::span<const int> positions) const {
    std::vector<float> out;
    for (const int position : positions) {
      for (const double f : frequencies_) {
        out.push_back(static_cast<float>(std::cos(position * f)));
        out.push_back(static_cast<float>(std::sin(position * f)));
      }
    }
    return out;
  }
  Desk make_desk(Backend& backend) const {
    return {backend.allocate(product(kChunk, width()), "rows"),
            backend.allocate(product(kChunk, row_.rotated()), "table"),
            row_.qk_norm ? upload(backend, q_norm_) : nullptr,
            row_.qk_norm ? upload(backend, k_norm_) : nullptr,
            row_.sinks ? upload(backend, sinks_) : nullptr,
            backend.allocate(static_cast<size_t>(q_width()), "attended row")};
  }
  RopeStoreArgs store_args(const Desk& desk, float* qkv, const float* table, KvStore& kv, int layer) const {
    RopeStoreArgs args{};
    args.qkv = qkv, args.table = table, args.q_norm = desk.q_norm, args.k_norm = desk.k_norm, args.eps = kEps;
    args.shape = {row_.heads, row_.kv_heads, row_.head_dim}, args.dims = row_.rotated();
    args.style = row_.style, args.kv = &kv, args.layer = layer;
    return args;
  }
  AttendArgs attend_args(const Desk& desk, float* out, const float* qkv, const KvStore& kv, int layer) const {
    return {.out = out,
            .q = qkv,
            .q_stride = width(),
            .shape = {row_.heads, row_.kv_heads, row_.head_dim},
            .scale = 1 / std::sqrt(static_cast<float>(row_.head_dim)),
            .window = row_.window,
            .soft_cap = static_cast<float>(row_.soft_cap),
            .sinks = desk.sinks,
            .kv = &kv,
            .layer = layer,
            .seqs = {}};
  }
  // Stores all rows of qkv, [any, width], as cells 0, 1, ... at those positions.
  void fill(Backend& backend, const Desk& desk, const std::vector<float>& qkv, KvStore& kv, int layer, int slot) const {
    const int rows = static_cast<int>(qkv.size() / static_cast<size_t>(width()));
    for (int done = 0; done < rows; done += kChunk) {
      std::vector<int> positions;
      for (int i = done; i < std::min(rows, done + kChunk); ++i) positions.push_back(i);
      store(backend, desk, qkv.data() + product(done, width()), positions, kv, layer, {slot, done});
    }
  }
  struct Place {
    int slot, cell;
  };
  // Stores up to kChunk rows from there on; the rotated queries stay on the desk.
  void store(Backend& backend, const Desk& desk, const float* qkv, std::span<const int> positions, KvStore& kv,
             int layer, Place to) const {
    std::copy_n(qkv, positions.size() * static_cast<size_t>(width()), desk.qkv);
    const std::vector<float> turns = table(positions);
    std::copy(turns.begin(), turns.end(), desk.table);
    const SeqRows seq = {0, static_cast<int>(positions.size()), to.slot, to.cell, nullptr, 0};
    RopeStoreArgs args = store_args(desk, desk.qkv, desk.table, kv, layer);
    args.seqs = {&seq, 1};
    backend.rope_store(args);
  }
  // Stores one row at the cell, attends from there over everything before, leaves both on the desk.
  void decode(Backend& backend, const Desk& desk, const float* qkv, KvStore& kv, int layer, Place at) const {
    store(backend, desk, qkv, {&at.cell, 1}, kv, layer, at);
    const SeqRows one = {0, 1, at.slot, at.cell, nullptr, 0};
    AttendArgs args = attend_args(desk, desk.out, desk.qkv, kv, layer);
    args.seqs = {&one, 1};
    backend.attend(args);
  }

 private:
  OpRow row_;
  std::vector<double> frequencies_;
  std::vector<float> q_norm_, k_norm_, sinks_;
};

}  // namespace sx::parity
