// rope_store(): per-head norm and rotation, and K and V written to their cells. This is plain code without an
// instruction set of its own: every row is independent and takes a few microseconds, and all sets get the same bits.
#include <algorithm>
#include <cmath>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/kv/rotate.h"
#include "base/error.h"

namespace sx::cpu {
namespace {

constexpr int kWorthSharing = 16384;  // elements below which waking other threads costs more than it saves

// x = x / sqrt(mean(x^2) + eps) * weight, the sum in eight fixed lanes.
void norm_head(float* x, const float* weight, int dim, float eps) {
  float lanes[8] = {};
  for (int i = 0; i < dim; ++i) lanes[i % 8] += x[i] * x[i];
  const float sum = ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
  const float inverse = 1.0f / std::sqrt(sum / static_cast<float>(dim) + eps);
  for (int i = 0; i < dim; ++i) x[i] = x[i] * inverse * weight[i];
}

void store_row(const RopeStoreArgs& a, CpuKvStore& store, const SeqRows& seq, int i) {
  const size_t row = static_cast<size_t>(seq.first_row + i);
  float* x = a.qkv + row * static_cast<size_t>((a.shape.heads + 2 * a.shape.kv_heads) * a.shape.head_dim);
  const float* table = a.table + row * static_cast<size_t>(a.dims);
  for (int h = 0; h < a.shape.heads + a.shape.kv_heads; ++h) {  // k lies behind q and is rotated in place as well
    float* head = x + h * a.shape.head_dim;
    const float* weight = h < a.shape.heads ? a.q_norm : a.k_norm;
    if (weight) norm_head(head, weight, a.shape.head_dim, a.eps);
    rotate(head, table, a.dims, a.style);
  }
  const int cell = seq.history + seq.uncommitted + i, b = cell / kBlock, p = cell % kBlock;
  const float* k = x + a.shape.heads * a.shape.head_dim;
  const float* v = k + a.shape.kv_heads * a.shape.head_dim;
  for (int h = 0; h < a.shape.kv_heads; ++h) {
    store_key(store.key_layout(), store.keys(seq.slot, a.layer, h, b), p, k + h * a.shape.head_dim);
    store_value(store.value_layout(), store.values(seq.slot, a.layer, h, b), p, v + h * a.shape.head_dim);
  }
}

}  // namespace

void rope_store(const RopeStoreArgs& a, Isa, ThreadPool& pool) {
  auto& store = static_cast<CpuKvStore&>(*a.kv);
  SX_ASSERT(a.shape.head_dim == store.geometry().head_dim && a.shape.kv_heads == store.geometry().kv_heads &&
            a.dims <= a.shape.head_dim);
  int rows = 0;
  for (const SeqRows& s : a.seqs) {
    SX_ASSERT(s.history >= 0 && s.uncommitted >= 0 && s.slot < store.geometry().slots);
    SX_ASSERT(s.history + s.uncommitted + s.rows <= store.geometry().capacity);
    store.written(s.slot, s.history + s.uncommitted, s.history + s.uncommitted + s.rows);
    rows += s.rows;
  }
  const int threads =
      rows * (a.shape.heads + 2 * a.shape.kv_heads) * a.shape.head_dim < kWorthSharing ? 1 : pool.size();
  const auto share = [&](int thread) {  // contiguous shares: neighbours share cache lines of a block
    const int64_t n = rows, from = n * thread / threads, to = n * (thread + 1) / threads;
    int64_t at = 0;
    for (const SeqRows& s : a.seqs) {
      for (int64_t i = std::max<int64_t>(0, from - at); i < std::min<int64_t>(s.rows, to - at); ++i)
        store_row(a, store, s, static_cast<int>(i));
      at += s.rows;
    }
  };
  if (threads == 1) share(0);
  else pool.run(share);
}

}  // namespace sx::cpu
