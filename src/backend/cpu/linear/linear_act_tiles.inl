// What all x86 kernels of quantised weights share: the order of reduction, and activations in tiles of up to 16 rows.
// Included by their kernel files, each in its own namespace.
//
// Order of reduction, for every output and row, whatever the number of rows. s is the exact integer dot product of a
// sub-block (32 or 16 inner values) with x ~ dx * q, t the exact sum of its q.
//   one activation scale per 64: for each super-block of 64 in order (the last may be shorter)
//     p = 0;  for each sub-block in order: p = fma(float(s), d, p);  with offsets p = fma(m, float(t), p)
//     acc = fma(p, dx, acc)
//   one activation scale per 32 (Q2_K, tables, Q8_0 of few inputs): for each sub-block in order
//     acc = fma(float(s), d * dx, acc);  with offsets acc = fma(m, dx * float(t), acc)
//   then acc * unit
// Q4_0's weights are -8..7 in s, those of other 4-bit types 0..15, those in six bits centred around 0 and times
// quant_factor(), which unit takes back. The integers do not depend on who multiplies, so AVX2, AVX-512,
// VNNI and AMX give the same bits.
#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kSuper = 64;     // inner values that share an activation scale; 32: see above
constexpr int kTileRows = 16;  // rows whose activations are interleaved

// The activations of a tile of up to 16 rows; `width` is the number of its rows, which are innermost in all arrays but
// q. Entries of lift are -128 times the sum of the q of a block, of its first and of its second half; with one scale
// per 64 there is a fourth, -8 times that of the block.
struct ActTile {
  int8_t* q;      // [blocks][width][32]
  int32_t* lift;  // [blocks][4 or 3][width]
  float* sum;     // [blocks][1 or 3][width]: sum of the q, with one scale per 32 times dx, of the halves as well
  float* dx;      // [scales][width]
  int width;
};

SX_INLINE size_t act_sums(int share) { return share == 32 ? 3 : 1; }
SX_INLINE size_t act_lifts(int share) { return share == 32 ? 3 : 4; }
SX_INLINE size_t act_scales(int in, int share) { return static_cast<size_t>((in + share - 1) / share); }
// Per row. A line more, because a tile of fewer than 16 rows is read as if it had 16.
SX_INLINE size_t act_row_bytes(int in, int share) {
  return (act_scales(in, 32) * (32 + 4 * act_sums(share) + 4 * act_lifts(share)) + act_scales(in, share) * 4 + 63) /
             64 * 64 +
         64;
}

// Activations of a call lie tile by tile with one scale per 32, then with one per 64; both have their places, used or
// not.
SX_INLINE ActTile act_tile(const void* act, int in, int rows, int tile, int share) {
  const size_t before = share == 32 ? 0 : act_row_bytes(in, 32) * static_cast<size_t>(rows);
  char* base = static_cast<char*>(const_cast<void*>(act)) + before +
               static_cast<size_t>(tile) * kTileRows * act_row_bytes(in, share);
  const int left = rows - tile * kTileRows, width = left < kTileRows ? left : kTileRows;
  const size_t cells = act_scales(in, 32) * static_cast<size_t>(width);
  ActTile t;
  t.width = width;
  t.q = reinterpret_cast<int8_t*>(base);
  t.lift = reinterpret_cast<int32_t*>(base + cells * 32);
  t.sum = reinterpret_cast<float*>(base + cells * (32 + 4 * act_lifts(share)));
  t.dx = reinterpret_cast<float*>(base + cells * (32 + 4 * act_lifts(share) + 4 * act_sums(share)));
  return t;
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
