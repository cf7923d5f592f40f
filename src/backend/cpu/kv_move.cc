// kv_move(): copies cells of every layer, inside a store or between two, and turns their keys to another position. With
// delta 0 the bits are copied; otherwise the stored key is widened to f32, rotated and rounded back.
#include <cmath>

#include "backend/cpu/attention.h"
#include "backend/cpu/kv_rotate.h"
#include "base/error.h"

namespace sx::cpu {
namespace {

constexpr int kMaxTurns = 4;  // tables kept per thread: moves mostly come in runs of one delta

// cos and sin of delta * frequency, in double.
void fill_table(float* table, const KvMoveArgs& a, int delta) {
  for (int i = 0; i < a.dims / 2; ++i) {
    const double angle = a.frequencies[i] * delta;
    table[2 * i] = static_cast<float>(std::cos(angle));
    table[2 * i + 1] = static_cast<float>(std::sin(angle));
  }
}

class Mover {
 public:
  explicit Mover(const KvMoveArgs& args)
      : a_(args), from_(static_cast<const CpuKvStore&>(*args.from)), to_(static_cast<CpuKvStore&>(*args.to)) {}

  void head(int layer, int h) {
    const KvLayout& l = from_.layout();
    for (const KvMove& m : a_.moves) {
      if (m.src == m.dst && m.delta == 0 && a_.from == a_.to && a_.from_slot == a_.to_slot) continue;
      const std::byte* k = from_.keys(a_.from_slot, layer, h, m.src / kBlock);
      std::byte* new_k = to_.keys(a_.to_slot, layer, h, m.dst / kBlock);
      if (m.delta == 0) {
        copy_key(l, k, m.src % kBlock, new_k, m.dst % kBlock);
      } else {
        float x[kMaxHeadDim];
        load_key(l, k, m.src % kBlock, x);
        rotate(x, table(m.delta), a_.dims, a_.style);
        store_key(l, new_k, m.dst % kBlock, x);
      }
      copy_value(l, from_.values(a_.from_slot, layer, h, m.src / kBlock), m.src % kBlock,
                 to_.values(a_.to_slot, layer, h, m.dst / kBlock), m.dst % kBlock);
    }
  }

 private:
  const float* table(int delta) {
    for (int i = 0; i < known_; ++i)
      if (delta_[i] == delta) return tables_[i];
    const int i = known_ < kMaxTurns ? known_++ : next_++ % kMaxTurns;
    delta_[i] = delta;
    fill_table(tables_[i], a_, delta);
    return tables_[i];
  }

  const KvMoveArgs& a_;
  const CpuKvStore& from_;
  CpuKvStore& to_;
  int known_ = 0, next_ = 0;
  int delta_[kMaxTurns];
  float tables_[kMaxTurns][kMaxHeadDim];
};

}  // namespace

void kv_move(const KvMoveArgs& a, Isa, ThreadPool& pool) {
  if (a.moves.empty()) return;
  const KvGeometry &from = a.from->geometry(), &to = a.to->geometry();
  SX_ASSERT(from.layers == to.layers && from.kv_heads == to.kv_heads);
  SX_ASSERT(from.head_dim == to.head_dim && from.type == to.type);
  SX_ASSERT(a.from_slot >= 0 && a.from_slot < from.slots && a.to_slot >= 0 && a.to_slot < to.slots);
  SX_ASSERT(a.dims <= from.head_dim);
  for (const KvMove& m : a.moves) {
    SX_ASSERT(m.src >= 0 && m.src < from.capacity && m.dst >= 0 && m.dst < to.capacity);
    SX_ASSERT(m.delta == 0 || (a.frequencies != nullptr && a.dims > 0));
  }
  const int heads = from.layers * from.kv_heads, threads = pool.size();
  const auto share = [&](int thread) {
    Mover mover(a);
    for (int i = heads * thread / threads; i < heads * (thread + 1) / threads; ++i)
      mover.head(i / from.kv_heads, i % from.kv_heads);
  };
  pool.run(share);
}

}  // namespace sx::cpu
