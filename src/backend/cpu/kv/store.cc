#include "backend/cpu/kv/store.h"

#include <unistd.h>

#include <algorithm>

#include "base/cpu_count.h"
#include "base/error.h"

namespace sx::cpu {

CpuKvStore::CpuKvStore(const KvGeometry& geometry, Isa isa, ThreadPool* pool)
    : KvStore(geometry),
      key_layout_(make_layout(geometry.type.keys, geometry.type.values, geometry.head_dim, isa)),
      value_layout_(make_layout(geometry.type.values, geometry.type.keys, geometry.head_dim, isa)),
      pool_(pool) {
  if (geometry.layers <= 0 || geometry.kv_heads <= 0 || geometry.slots <= 0 || geometry.capacity <= 0)
    fail("KV store of {} layers, {} heads, {} slots, {} cells: all must be positive", geometry.layers,
         geometry.kv_heads, geometry.slots, geometry.capacity);
  blocks_ = (geometry.capacity - 1) / kBlock + 1;
  extent_ = std::min(blocks_, kExtent);
  extents_ = (blocks_ + extent_ - 1) / extent_;
  geometry_.capacity = blocks_ * kBlock;
  v_at_ = static_cast<size_t>(extent_) * key_layout_.bytes;
  head_bytes_ = v_at_ + static_cast<size_t>(extent_) * value_layout_.bytes;
  const size_t page = std::max<size_t>(4096, static_cast<size_t>(::sysconf(_SC_PAGESIZE)));
  const size_t heads = static_cast<size_t>(geometry.layers) * static_cast<size_t>(geometry.kv_heads);
  extent_bytes_ = (heads * head_bytes_ + page - 1) / page * page;
  memory_ = Pages(static_cast<size_t>(geometry.slots) * static_cast<size_t>(extents_) * extent_bytes_, "the KV store");
  spread(memory_);
  shared_ = std::make_unique<SharedExtents>(ExtentShape{.memory = memory_.data(),
                                                        .slots = geometry.slots,
                                                        .extents = extents_,
                                                        .cells = extent_ * kBlock,
                                                        .bytes = extent_bytes_},
                                            cpu_count().nodes);
}

KvUse CpuKvStore::use() const {
  return {.shared = shared_->shared_bytes(), .own = shared_->own_bytes(), .saved = shared_->saved_bytes()};
}

// The heads of neighbouring layers follow one another in an extent: they are given back together.
void CpuKvStore::release(const KvReleaseArgs& a) {
  SX_ASSERT(a.slot >= 0 && a.slot < geometry_.slots && a.first >= 0 && a.end <= geometry_.capacity);
  SX_ASSERT(a.first_layer >= 0 && a.layers >= 0 && a.layers <= geometry_.layers - a.first_layer);
  const size_t layer = static_cast<size_t>(geometry_.kv_heads) * head_bytes_;
  const bool all = a.layers == geometry_.layers;
  shared_->release({.slot = a.slot,
                    .first = a.first,
                    .end = a.end,
                    .at = static_cast<size_t>(a.first_layer) * layer,
                    .bytes = all ? extent_bytes_ : static_cast<size_t>(a.layers) * layer});
}

bool CpuKvStore::share(int from, int to, int cells) {
  SX_ASSERT(from >= 0 && from < geometry_.slots && to >= 0 && to < geometry_.slots);
  SX_ASSERT(from != to && cells >= 0 && cells <= geometry_.capacity);
  // Below a block a copy costs less than the pages that the two would write next.
  return cells >= kBlock && shared_->share(from, to, cells, pool_);
}

void CpuKvStore::leave(int slot) {
  shared_->release(
      {.slot = slot, .first = 0, .end = geometry_.capacity, .at = 0, .bytes = extent_bytes_, .only_snapshots = true});
}

std::unique_ptr<KvStore> make_kv_store(const KvGeometry& geometry, Isa isa, ThreadPool* pool) {
  return std::make_unique<CpuKvStore>(geometry, isa, pool);
}

}  // namespace sx::cpu
