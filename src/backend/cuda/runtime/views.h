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
// Per layer, K and V are each [slots][kv_heads][capacity][head_dim] of `type`: BF16, F16, or int8 with one f16 scale
// per 32 elements, [slots][kv_heads][capacity][head_dim / 32], value = scale * q (Q8_0). In packed stores each side has
// its own type, and 4 bits are words of neighbours with f16 scales apart from them (kv/nibbles.h).
struct KvView {
  DType type;
  int layers, slots, kv_heads, capacity, head_dim;
  std::byte *k, *v;             // layer 0
  uint16_t *k_scale, *v_scale;  // f16 bits, layer 0; null where there are none
  size_t layer_cells() const {
    return size_t(slots) * size_t(kv_heads) * size_t(capacity);
  }  // of one layer and of all its heads
  bool packed = false;
  DType value_type = DType::kF32;  // packed: of V; `type` is that of K
};

}  // namespace sx::cuda
