// How 64 positions of one KV head lie in memory, and how single cells get in and out. Three families:
//
//   matrix (bf16 and q8 on neon-i8mm): tiles of the 2x2 matrix instructions, one 16-byte vector = 2 columns
//     K bf16 [pos/16][d/4][pos%16][d%4]   V bf16 [c/16][pos/4][c%16][pos%4]
//     K q8   [pos/16][d/8][pos%16][d%8]   V q8   [c/16][pos/8][c%16][pos%8]
//   lanes (everything else): K lanes are positions, V lanes are channels
//     K      [pos/16][d][pos%16]          V      [pos][c]
//   records (q4_0, q4_1): positions one after the other, see records.h
//
// q8 blocks end with 64 float scales, one per position (x = scale * q over the whole head vector). Heads are padded
// to a multiple of 16; padding is never written, so it stays zero. V holds finite numbers only (see store_cell),
// hence a masked position, whose weight is exactly 0, adds exactly nothing whatever stale bytes it has.
#pragma once
#include <cstddef>
#include <cstdint>

#include "backend/cpu/isa.h"
#include "backend/ops.h"
#include "tensor/dtype.h"

namespace sx::cpu {

inline constexpr int kMaxHeadDim = 256;

// Blocks of one side, K or V.
struct KvLayout {
  DType type = DType::kF32;
  bool matrix = false;  // which family
  int dim = 0;          // elements of a head
  int padded = 0;       // rounded up to 16
  size_t record = 0;    // bytes of a position where blocks are records, else 0
  size_t bytes = 0;     // of a block, scales included

  size_t scales_at() const { return size_t(kBlock) * static_cast<size_t>(padded); }  // q8: bytes before the scales
};

// Of a store whose other side has the type `other`. The matrix family has kernels for two sides of one type only (those
// of records are unpacked to bf16), so a store of two others has lanes on both sides.
KvLayout make_layout(DType type, DType other, int head_dim, Isa isa);

// Writes position p of a block. k, v: [dim]. Values are rounded to nearest even; V is clamped to finite numbers (NaN
// becomes 0), f16 saturates.
void store_key(const KvLayout& layout, std::byte* block, int p, const float* k);
void store_value(const KvLayout& layout, std::byte* block, int p, const float* v);
// Reads position p back. k, v: [dim].
void load_key(const KvLayout& layout, const std::byte* block, int p, float* k);
void load_value(const KvLayout& layout, const std::byte* block, int p, float* v);
// Copies the bits of a position from one block to another (or within one).
void copy_key(const KvLayout& layout, const std::byte* from, int p, std::byte* to, int q);
void copy_value(const KvLayout& layout, const std::byte* from, int p, std::byte* to, int q);
// The bits of a position outside of blocks, the same for both families: q8's scale, then the elements in order. packed:
// [packed_bytes], at any address.
size_t packed_bytes(const KvLayout& layout);
void pack_key(const KvLayout& layout, const std::byte* block, int p, std::byte* packed);
void pack_value(const KvLayout& layout, const std::byte* block, int p, std::byte* packed);
void unpack_key(const KvLayout& layout, std::byte* block, int p, const std::byte* packed);
void unpack_value(const KvLayout& layout, std::byte* block, int p, const std::byte* packed);

}  // namespace sx::cpu
