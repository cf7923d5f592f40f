// CudaKv: memory for the cells of a store, where they lie in it, and the checks of its geometry.
#include <specextend/error.h>

#include <algorithm>
#include <bit>
#include <numeric>
#include <string>

#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/kv/kv.h"
#include "backend/cuda/kv/nibbles.h"
#include "backend/cuda/runtime/device_units.h"
#include "backend/kv_units.h"

namespace sx::cuda {
namespace {

std::string number(int n) { return std::to_string(n); }

void check_geometry(const KvGeometry& g) {
  for (const DType type : {g.type.keys, g.type.values})
    if (type != DType::kBF16 && type != DType::kF16 && type != DType::kQ8_0 && !is_nibbles(type))
      throw Error("KV type " + std::string(dtype_name(type)) + ": expected F16, BF16, Q8_0, Q4_0 or Q4_1");
  if (g.layers <= 0 || g.kv_heads <= 0 || g.slots <= 0 || g.capacity <= 0)
    throw Error("KV store of " + number(g.layers) + " layers, " + number(g.kv_heads) + " heads, " + number(g.slots) +
                " slots, " + number(g.capacity) + " cells: all must be positive");
  if (g.head_dim <= 0 || g.head_dim > 256 || g.head_dim % 2 != 0)
    throw Error("head size " + number(g.head_dim) + ": expected an even number up to 256");
  const bool blocks = g.type != DType::kBF16 && g.type != DType::kF16;  // of 32 elements, or two types
  if (blocks && g.head_dim % 32 != 0)
    throw Error("head size " + number(g.head_dim) + " with KV type " + kv_types_name(g.type) +
                ": expected a multiple of 32");
}

size_t cell_row(DType type, int dim) { return size_t(side_words(type, dim)) * 4; }
size_t scale_row(DType type, int dim) { return size_t(side_scales(type, dim)) * sizeof(uint16_t); }

// Memory for one side: the words of all cells, and what lies apart from them.
void take_side(DType type, const KvView& view, DeviceMemory& memory, std::byte*& words, uint16_t*& scales) {
  words = static_cast<std::byte*>(memory.take(view.cells() * cell_row(type, view.head_dim), "the KV store"));
  if (const size_t apart = view.cells() * scale_row(type, view.head_dim); apart > 0)
    scales = static_cast<uint16_t*>(memory.take(apart, "the KV store"));
}

// Bytes of a block of cells, with everything that belongs to them.
size_t block_bytes(const KvView& view) {
  const size_t row = cell_row(view.type, view.head_dim) + scale_row(view.type, view.head_dim) +
                     cell_row(view.value_type, view.head_dim) + scale_row(view.value_type, view.head_dim);
  return size_t(view.layers) * size_t(view.kv_heads) * kCellBlock * row;
}

// Arrays of a store in a range of addresses.
class Range {
 public:
  UnitShape shape;
  explicit Range(const KvView& view) : view_(view) { shape.slots = view.slots, shape.block_cells = kCellBlock; }

  // Cells of a store, or of its tile, with rows of so many bytes; returns the number of the array.
  size_t add(const KvView& view, size_t row, bool lasts) {
    shape.arrays.push_back({.block_bytes = view.block_cells() * row, .lasts = lasts});
    return shape.arrays.size() - 1;
  }
  // Units are about as large as a block, which needs few calls, but no larger: memory is shared by whole units. The
  // addresses of a slot end with a unit in every array.
  void place(size_t granularity) {
    constexpr size_t kMost = 8, kSpare = size_t(512) << 20;
    size_t largest = 0, multiple = 1;
    for (const UnitShape::Array& array : shape.arrays) largest = std::max(largest, array.block_bytes);
    shape.unit = granularity * std::bit_floor(std::clamp<size_t>(largest / granularity, 1, kMost));
    for (const UnitShape::Array& array : shape.arrays)
      multiple = std::lcm(multiple, shape.unit / std::gcd(shape.unit, array.block_bytes));
    const size_t used = size_t(view_.blocks()), blocks = (used + multiple - 1) / multiple * multiple;
    spare_blocks = int(blocks - used);
    for (UnitShape::Array& array : shape.arrays) {
      array.at = bytes, array.slot_bytes = blocks * array.block_bytes;
      one_text += (used * array.block_bytes + shape.unit - 1) / shape.unit * shape.unit;
      bytes += size_t(shape.slots) * array.slot_bytes;
    }
    shape.window = bytes, shape.spare = kSpare;
    bytes += shape.unit;
  }
  size_t bytes = 0;
  size_t one_text = 0;  // bytes of the units of a text that fills its slot
  int spare_blocks = 0;

 private:
  const KvView& view_;
};

}  // namespace

struct CudaKv::Units {
  std::shared_ptr<UnitPool> pool;
  DeviceUnits memory;
  KvUnits units;
  Units(const Range& range, const std::shared_ptr<UnitPool>& from, cudaStream_t stream)
      : pool(from), memory(from, range.bytes, range.shape.unit, stream), units(range.shape, memory) {
    pool->join(units);
  }
  ~Units() {
    use_device(pool->device());
    pool->part(units);
  }
};

CudaKv::CudaKv(const KvGeometry& g, DeviceMemory& memory, const std::shared_ptr<UnitPool>& pool, cudaStream_t stream)
    : KvStore(g) {
  check_geometry(g);
  geometry_.capacity = (g.capacity - 1) / kBlock * kBlock + kBlock;
  view_ = {g.type.keys, g.layers, g.slots, g.kv_heads, geometry_.capacity,
           g.head_dim,  nullptr,  nullptr, nullptr,    nullptr};
  view_.packed = !g.type.same() || is_nibbles(g.type.keys);
  view_.value_type = g.type.values;
  if (view_.packed) {
    // F16 keeps three more bits than BF16, which alone has the range of the latter.
    const bool bf16 = g.type.keys == DType::kBF16 || g.type.values == DType::kBF16;
    tile_ = view_;
    tile_.type = tile_.value_type = bf16 ? DType::kBF16 : DType::kF16;
    tile_.layers = 1, tile_.packed = false;
  }
  const size_t slot = size_t(view_.blocks()) * (block_bytes(view_) + (view_.packed ? block_bytes(tile_) : 0));
  bytes_ = size_t(g.slots) * slot;
  if (pool && pool->serves(slot)) reserve(memory, pool, stream);
  else take(memory);
  if (view_.slot_cells() > UINT32_MAX || view_.cells() / kCellBlock > INT32_MAX)
    throw Error("KV store of " + number(g.slots) + " slots of " + number(g.capacity) + " cells: too large");
}

CudaKv::~CudaKv() = default;

// Where K and V have one type, they share an array, so that fewer units are used in part.
void CudaKv::reserve(DeviceMemory& memory, const std::shared_ptr<UnitPool>& pool, cudaStream_t stream) {
  const DType types[] = {view_.type, view_.value_type};
  view_.sides = view_.type == view_.value_type ? 2 : 1;
  tile_.sides = 2;
  Range range(view_);
  size_t words[2] = {}, scales[2] = {};
  for (int side = 0; side < 3 - view_.sides; ++side) {
    words[side] = range.add(view_, cell_row(types[side], view_.head_dim), true);
    if (const size_t row = scale_row(types[side], view_.head_dim); row > 0) scales[side] = range.add(view_, row, true);
  }
  const size_t tile = view_.packed ? range.add(tile_, size_t(view_.head_dim) * 2, false) : 0;
  range.place(pool->granularity());
  view_.spare_blocks = tile_.spare_blocks = range.spare_blocks;
  memory.expect(range.one_text, "cells");
  if (memory.counts_only()) return;
  units_ = std::make_unique<Units>(range, pool, stream);
  std::byte* const data = units_->memory.data();
  const auto at = [&](size_t array) { return data + range.shape.arrays[array].at; };
  const auto side_of = [&](DType type, int side, std::byte*& to, uint16_t*& apart) {
    const bool joined = view_.sides == 2;
    const size_t behind = joined && side == 1 ? size_t(view_.kv_heads) * kCellBlock : 0;  // cells
    to = at(words[joined ? 0 : side]) + behind * cell_row(type, view_.head_dim);
    if (const size_t row = scale_row(type, view_.head_dim); row > 0)
      apart = reinterpret_cast<uint16_t*>(at(scales[joined ? 0 : side]) + behind * row);
  };
  side_of(types[0], 0, view_.k, view_.k_scale);
  side_of(types[1], 1, view_.v, view_.v_scale);
  if (!view_.packed) return;
  tile_.k = at(tile);
  tile_.v = tile_.k + size_t(tile_.kv_heads) * kCellBlock * size_t(tile_.head_dim) * 2;
}

void CudaKv::take(DeviceMemory& memory) {
  take_side(view_.type, view_, memory, view_.k, view_.k_scale);
  take_side(view_.value_type, view_, memory, view_.v, view_.v_scale);
  if (!view_.packed) return;
  take_side(tile_.type, tile_, memory, tile_.k, tile_.k_scale);
  take_side(tile_.type, tile_, memory, tile_.v, tile_.v_scale);
}

// Engines call these by themselves, on any thread.
void CudaKv::bind() const { check(use_device(units_->pool->device()), "device"); }

bool CudaKv::share(int from, int to, int cells) {
  if (!units_) return false;
  bind();
  return units_->units.share(from, to, cells);
}

void CudaKv::cut(int slot, int cells) {
  if (!units_) return;
  bind();
  units_->units.cut(slot, cells);
}

bool CudaKv::hold(int slot, int first, int end) {
  if (!units_) return true;
  bind();
  return units_->units.hold(slot, first, std::min(end, geometry_.capacity));
}

KvUse CudaKv::use() const { return units_ ? units_->units.use() : KvUse{}; }

}  // namespace sx::cuda
