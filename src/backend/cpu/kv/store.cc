#include "backend/cpu/kv/store.h"

#include <algorithm>

#include "base/error.h"

namespace sx::cpu {

CpuKvStore::CpuKvStore(const KvGeometry& geometry, Isa isa)
    : KvStore(geometry), layout_(make_layout(geometry.type, geometry.head_dim, isa)) {
  if (geometry.layers <= 0 || geometry.kv_heads <= 0 || geometry.slots <= 0 || geometry.capacity <= 0)
    fail("KV store of {} layers, {} heads, {} slots, {} cells: all must be positive", geometry.layers,
         geometry.kv_heads, geometry.slots, geometry.capacity);
  blocks_ = (geometry.capacity - 1) / kBlock + 1;
  extent_ = std::min(blocks_, kExtent);
  extents_ = (blocks_ + extent_ - 1) / extent_;
  geometry_.capacity = blocks_ * kBlock;
  v_at_ = static_cast<size_t>(extent_) * layout_.k_bytes;
  head_bytes_ = v_at_ + static_cast<size_t>(extent_) * layout_.v_bytes;
  const size_t heads = static_cast<size_t>(geometry.slots) * static_cast<size_t>(extents_) *
                       static_cast<size_t>(geometry.layers) * static_cast<size_t>(geometry.kv_heads);
  memory_ = Pages(heads * head_bytes_, "the KV store");
}

// The heads of neighbouring layers follow one another in an extent: they are given back together.
void CpuKvStore::release(const KvReleaseArgs& a) const {
  SX_ASSERT(a.slot >= 0 && a.slot < geometry_.slots && a.first >= 0 && a.end <= geometry_.capacity);
  SX_ASSERT(a.first_layer >= 0 && a.layers >= 0 && a.layers <= geometry_.layers - a.first_layer);
  const int cells = extent_ * kBlock;
  const size_t bytes = static_cast<size_t>(a.layers) * static_cast<size_t>(geometry_.kv_heads) * head_bytes_;
  for (int extent = (a.first + cells - 1) / cells; (extent + 1) * cells <= a.end; ++extent) {
    const std::byte* at = keys(a.slot, a.first_layer, 0, extent * extent_);
    memory_.release(static_cast<size_t>(at - memory_.data()), bytes);
  }
}

std::unique_ptr<KvStore> make_kv_store(const KvGeometry& geometry, Isa isa) {
  return std::make_unique<CpuKvStore>(geometry, isa);
}

}  // namespace sx::cpu
