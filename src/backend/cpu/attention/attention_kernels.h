// The block kernels of attention, one table per instruction set and layout. A tile is up to 6 rows, with AMX 16 (query
// heads of one or several tokens that share a KV head); its state is a running maximum m (log2 units), sum l and output
// o per row. Folding a block of 64 positions into a tile is the only arithmetic there is: decode, verification and
// prefill all call the same function, and what it does to a row depends on nothing but that row's state, query, visible
// range and block.
#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/cpu/isa.h"
#include "backend/cpu/kv/layout.h"

namespace sx::cpu {

inline constexpr int kTileRows = 6, kMostTileRows = 16;

// State of a tile, in floats: m[8], l[8] (for tiles of 16 rows m[16], l[16]), then o in the kernel's own order.
inline constexpr int kStateHead = 16;
inline constexpr int state_floats(int tile_rows, int padded) {
  return (tile_rows <= 8 ? kStateHead : 2 * kMostTileRows) + tile_rows * padded;
}
// Packed queries of a tile: bytes that are enough for every kernel.
inline constexpr size_t query_bytes(int tile_rows, int padded) {
  return static_cast<size_t>(tile_rows) * static_cast<size_t>(padded) * 4 + 64;
}

struct FoldArgs {
  float* state;             // [state_floats]
  const std::byte* query;   // as packed by pack()
  const std::byte* keys;    // one K block, in the form that the kernels read
  const std::byte* values;  // one V block, likewise
  int rows;                 // of the tile
  int padded;
  // Row i sees positions [begin[i], end[i]) of the block; null: all rows see all 64. A row that sees none is left
  // alone.
  const uint8_t* begin = nullptr;
  const uint8_t* end = nullptr;
  const std::byte* next_keys = nullptr;  // K block that comes next: prefetch it and `values` meanwhile; null: no need
  float soft_cap = 0;                    // as in AttendArgs
};

// The soft cap in log2 units, which is how kernels have scores: x becomes limit * tanh(x / limit), and tanh is
// (1 - e) / (1 + e) with e = 2^-(steep * |x|).
struct SoftCap {
  float limit, steep;
  explicit SoftCap(float cap) : limit(cap * 1.44269504f), steep(2 / cap) {}
};

struct AttentionKernels {
  // Packs row `row` of a tile: x [dim] times scale * log2(e), zero in the padding. Row 0 must come first (it clears).
  void (*pack)(std::byte* query, int row, const float* x, int dim, int padded, float scale);
  void (*fold)(const FoldArgs& args);
  // into = into (+) from for every row of the tile; a row that has seen nothing (l == 0) is neutral, bit for bit.
  void (*merge)(float* into, const float* from, int padded);
  // Copies one row's state from tile to tile.
  void (*copy_row)(float* to, int to_row, const float* from, int from_row, int padded);
  // out[dim] = o / l of one row.
  void (*finish)(const float* state, int row, float* out, int dim, int padded);

  int tile_rows = kTileRows;
  // Write a block in the form that fold() reads; null: it reads the layout itself. next: a block of the same side that
  // is fetched meanwhile, or `block` itself; out: 64 * padded * 4 + 256 bytes.
  using Ready = void (*)(const std::byte* block, const std::byte* next, int padded, std::byte* out);
  Ready ready_keys = nullptr, ready_values = nullptr;
  // For blocks that several tiles fold: kernels of the same states and bits that read ready blocks. Null: none.
  const AttentionKernels* shared = nullptr;
  // Called by a thread before and after its work. Null: nothing to do.
  void (*enter)() = nullptr;
  void (*leave)() = nullptr;

  int sums_at() const { return tile_rows <= 8 ? kStateHead / 2 : kMostTileRows; }  // of l in a state
};

// The table for a store's layouts.
const AttentionKernels& attention_kernels(const KvLayout& keys, const KvLayout& values, Isa isa);

// Rotates `cells` neighbouring keys of a tile of 16, whole heads of 2 * half elements in the halves style, and writes
// them to as many neighbours of another tile (or to their own place), with the bits of widening, rotate() and rounding.
// from, to: the first cell's first element; table: [half][cos, sin]. Null for layouts that have no such kernel.
using TurnCells = void (*)(const std::byte* from, std::byte* to, int cells, const float* table, int half);
TurnCells turn_cells(const KvLayout& layout);

// An empty state: m = -1e30, l = 0, o = 0.
void reset_state(float* state, const AttentionKernels& kernels, int padded);

}  // namespace sx::cpu
