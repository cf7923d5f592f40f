// What kernels see of a step and of a K/V store: plain structs of device pointers, passed by value.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/token.h"
#include "tensor/dtype.h"

namespace sx::cuda {

// The 16-bit type that activations are rounded to for the tensor cores.
enum class Half : uint8_t { kBF16, kF16 };

struct RowInfo {
  int32_t slot;     // of the K/V store; -1: a padding row, for which nothing is read or stored
  int32_t history;  // committed cells of its sequence
  int32_t cell;     // where its own K/V go: history + node
  int32_t index;    // its place in the order of attention: history + depth
};

// Up to `rows` rows of one sequence, in consecutive rows of the step. rows == 0: padding.
struct RowTile {
  int32_t first_row, rows, slot, history;
};

// The integers of a step in device memory, at addresses that never change, so that recorded graphs find them. Row
// counts are padded up to a few sizes.
struct StepView {
  const Token* tokens;        // [rows]
  const int32_t* positions;   // [rows]
  const int32_t* outputs;     // [outputs] rows whose logits are wanted; padding: 0
  const RowInfo* rows;        // [rows]
  const uint64_t* ancestors;  // [rows][kAncestorWords] bits over the nodes of the tail (cell - history), self included
  const RowTile* tiles;       // [tiles]
};
inline constexpr int kAncestorWords = 8;  // 512 nodes
inline constexpr int kTileRows = 16;      // rows of a tile at most

// Which stores there are: those whose K and V have one type that the attention kernels read, and packed ones (4 bits,
// or two types), a layer of which is widened to a store of the first kind before attention reads it (kv/packed.h). Only
// the code of packed stores looks at `value_type`.
//
// Cells come in blocks of 64 that hold all layers and heads, so that cells that follow one another lie together and
// slots can share their memory (backend/kv_units.h): K and V are each [slots][blocks][layers][sides][kv_heads][64
// cells] of [head_dim] of `type`: BF16, F16, or int8 with one f16 scale per 32 elements, in the same order, value =
// scale * q (Q8_0). With two sides K and V lie in one array, V of a layer behind its K, and v is k and a side further;
// with one they have an array each. In packed stores each side has its own type, and 4 bits are words of neighbours
// with f16 scales apart from them (kv/nibbles.h).
inline constexpr int kCellBlock = 64;
struct KvView {
  DType type;
  int layers, slots, kv_heads, capacity, head_dim;
  std::byte *k, *v;             // layer 0
  uint16_t *k_scale, *v_scale;  // f16 bits, layer 0; null where there are none
  bool packed = false;
  DType value_type = DType::kF32;  // packed: of V; `type` is that of K
  int sides = 1;
  int spare_blocks = 0;  // of a slot, behind those of its capacity: addresses without memory
  // All in cells of one head: from a layer to the next, from a block to the next, from a slot to the next, and those of
  // an array.
  constexpr size_t layer_cells() const { return size_t(sides) * size_t(kv_heads) * kCellBlock; }
  constexpr size_t block_cells() const { return size_t(layers) * layer_cells(); }
  constexpr int blocks() const { return (capacity + kCellBlock - 1) / kCellBlock + spare_blocks; }
  constexpr size_t slot_cells() const { return size_t(blocks()) * block_cells(); }
  constexpr size_t cells() const { return size_t(slots) * slot_cells(); }
};

// Where a cell lies, from cell 0 of its slot, layer and head on. Stores are not larger than 32 bits of this
// (kv/store.cu).
constexpr uint32_t place_of(int cell, uint32_t block_cells) {
  return uint32_t(cell) / kCellBlock * block_cells + uint32_t(cell) % kCellBlock;
}

}  // namespace sx::cuda
