// The K/V memory of the CPU backend. Cells of a slot come in extents of 1,024 positions that hold every layer and head,
// so physical pages follow the longest context used, not the capacity; inside an extent the K blocks of a head are
// contiguous and so are its V blocks: [slot][extent][layer][kv head][K blocks | V blocks]. Slots with a common
// prefix share its physical memory (shared_extents.h).
#pragma once
#include <cstddef>
#include <memory>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cpu/kv/layout.h"
#include "backend/cpu/kv/shared_extents.h"
#include "backend/kv_sharing.h"
#include "base/memory.h"

namespace sx::cpu {

class CpuKvStore : public KvStore, public KvSharing {
 public:
  // pool: of the backend, to copy what is shared; null: a thread does it.
  CpuKvStore(const KvGeometry& geometry, Isa isa, ThreadPool* pool = nullptr);

  size_t bytes() const override { return memory_.size(); }
  KvUse use() const override;
  const KvLayout& key_layout() const { return key_layout_; }
  const KvLayout& value_layout() const { return value_layout_; }
  int blocks() const { return blocks_; }  // per slot

  // Block b holds the cells [64 b, 64 b + 64). Blocks of one extent (b / 16) follow one another.
  std::byte* keys(int slot, int layer, int head, int b) const { return at(slot, layer, head, b, key_layout_.bytes, 0); }
  std::byte* values(int slot, int layer, int head, int b) const {
    return at(slot, layer, head, b, value_layout_.bytes, v_at_);
  }

  // Gives back the memory of extents that lie in the range.
  void release(const KvReleaseArgs& args);
  bool share(int from, int to, int cells) override;
  void leave(int slot) override;
  // Ops that write cells [first, end) of a slot say so before.
  void written(int slot, int first, int end) { shared_->written(slot, first, end); }

  // One key vector as floats: [head_dim].
  void load_key(int slot, int layer, int head, int cell, float* k) const {
    cpu::load_key(key_layout_, keys(slot, layer, head, cell / kBlock), cell % kBlock, k);
  }
  void load_value(int slot, int layer, int head, int cell, float* v) const {
    cpu::load_value(value_layout_, values(slot, layer, head, cell / kBlock), cell % kBlock, v);
  }

 private:
  static constexpr int kExtent = 16;  // blocks
  static_assert(kExtent * kBlock % kSpan == 0 || kSpan % (kExtent * kBlock) == 0);

  std::byte* at(int slot, int layer, int head, int b, size_t block_bytes, size_t offset) const {
    const size_t extent = static_cast<size_t>(slot) * static_cast<size_t>(extents_) + static_cast<size_t>(b / extent_);
    const size_t place =
        static_cast<size_t>(layer) * static_cast<size_t>(geometry_.kv_heads) + static_cast<size_t>(head);
    return memory_.data() + extent * extent_bytes_ + place * head_bytes_ + offset +
           static_cast<size_t>(b % extent_) * block_bytes;
  }

  KvLayout key_layout_, value_layout_;
  int blocks_ = 0, extent_ = kExtent, extents_ = 0;
  size_t v_at_ = 0, head_bytes_ = 0;  // of one extent of one head
  size_t extent_bytes_ = 0;           // whole pages
  Pages memory_;
  ThreadPool* pool_;
  std::unique_ptr<SharedExtents> shared_;
};

// Throws sx::Error on a geometry or type it cannot serve.
std::unique_ptr<KvStore> make_kv_store(const KvGeometry& geometry, Isa isa, ThreadPool* pool = nullptr);

}  // namespace sx::cpu
