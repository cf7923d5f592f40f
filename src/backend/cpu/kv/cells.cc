// kv_read() and kv_write(): cells of every layer and head as bytes, [count][layer][kv head][key, value], each as
// layout.h packs it. A block of one head is one thread's work; the heads of a block follow each other, so that the
// bytes of its cells stay near.
#include <algorithm>

#include "backend/cpu/attention/attention.h"
#include "base/error.h"

namespace sx::cpu {
namespace {

// body(layer, head, cell, offset of its key in the bytes)
template <class Body>
void each_head(const CpuKvStore& kv, const KvCellsArgs& a, ThreadPool& pool, Body body) {
  const KvGeometry& g = kv.geometry();
  SX_ASSERT(a.slot >= 0 && a.slot < g.slots && a.first >= 0 && a.count >= 0 && a.count <= g.capacity - a.first);
  if (a.count == 0) return;
  const size_t whole = kv_cell_bytes(kv), part = packed_bytes(kv.key_layout()) + packed_bytes(kv.value_layout());
  const int heads = g.layers * g.kv_heads, end = a.first + a.count, first_block = a.first / kBlock;
  const int64_t items = int64_t{(end - 1) / kBlock + 1 - first_block} * heads;
  pool.run([&](int thread) {
    for (int64_t i = items * thread / pool.size(); i < items * (thread + 1) / pool.size(); ++i) {
      const int block = first_block + static_cast<int>(i / heads), head = static_cast<int>(i % heads);
      for (int c = std::max(a.first, block * kBlock); c < std::min(end, (block + 1) * kBlock); ++c)
        body(head / g.kv_heads, head % g.kv_heads, c,
             static_cast<size_t>(c - a.first) * whole + static_cast<size_t>(head) * part);
    }
  });
}

}  // namespace

size_t kv_cell_bytes(const CpuKvStore& kv) {
  const KvGeometry& g = kv.geometry();
  return static_cast<size_t>(g.layers) * static_cast<size_t>(g.kv_heads) *
         (packed_bytes(kv.key_layout()) + packed_bytes(kv.value_layout()));
}

void kv_read(const CpuKvStore& kv, const KvCellsArgs& a, std::byte* out, ThreadPool& pool) {
  const KvLayout &k = kv.key_layout(), &v = kv.value_layout();
  each_head(kv, a, pool, [&](int layer, int head, int cell, size_t at) {
    pack_key(k, kv.keys(a.slot, layer, head, cell / kBlock), cell % kBlock, out + at);
    pack_value(v, kv.values(a.slot, layer, head, cell / kBlock), cell % kBlock, out + at + packed_bytes(k));
  });
}

void kv_write(CpuKvStore& kv, const KvCellsArgs& a, const std::byte* from, ThreadPool& pool) {
  const KvLayout &k = kv.key_layout(), &v = kv.value_layout();
  if (a.count > 0) kv.written(a.slot, a.first, a.first + a.count);
  each_head(kv, a, pool, [&](int layer, int head, int cell, size_t at) {
    unpack_key(k, kv.keys(a.slot, layer, head, cell / kBlock), cell % kBlock, from + at);
    unpack_value(v, kv.values(a.slot, layer, head, cell / kBlock), cell % kBlock, from + at + packed_bytes(k));
  });
}

}  // namespace sx::cpu
