// What the AVX-512 and AMX kernels of quantised weights share: activations in tiles of up to 16 rows, and the last
// step. Included by linear_avx512.cc and linear_amx.cc, each in its own namespace.
//
// Order of reduction, for every output and row, whatever the number of rows. s is the exact integer dot product of a
// sub-block (32 or 16 inner values) with x ~ dx * q, t the exact sum of its q.
//   4-bit weights, one activation scale per 64: for each super-block of 64 in order (the last may be shorter)
//     p = 0;  for each block of 32 in order: p = fma(float(s), d, p);  with offsets p = fma(m, float(t), p)
//     acc = fma(p, dx, acc)
//   others, one activation scale per 32: for each sub-block in order
//     acc = fma(float(s), d * dx, acc);  with offsets acc = fma(m, dx * float(t), acc)
// Q4_0's weights are -8..7 in s, those of other 4-bit types 0..15. The integers do not depend on who multiplies, so
// vpdpbusd and tdpbssd give the same bits.
#include <immintrin.h>

#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kSuper = 64;     // inner values that share an activation scale: 4-bit weights; 32: others
constexpr int kTileRows = 16;  // rows whose activations are interleaved
constexpr int kOutputs = 16;   // of a group

// The activations of a tile of up to 16 rows; `width` is the number of its rows, which are innermost in all arrays but
// q. With one scale per 32 there are three entries of lift and sum for a block: all of it, its first and its second
// half.
struct ActTile {
  int8_t* q;      // [blocks][width][32]
  int32_t* lift;  // [blocks][1 or 3][width]: -8 (4-bit weights) or -128 times the sum of the q
  float* sum;     // [blocks][1 or 3][width]: that sum, with one scale per 32 times dx
  float* dx;      // [scales][width]
  int width;
};

SX_INLINE size_t act_scales(int in, int share) { return static_cast<size_t>((in + share - 1) / share); }
// Per row. A line more, because a tile of fewer than 16 rows is read as if it had 16.
SX_INLINE size_t act_row_bytes(int in, int share) {
  const size_t sums = share == 32 ? 3 : 1;
  return (act_scales(in, 32) * (32 + 8 * sums) + act_scales(in, share) * 4 + 63) / 64 * 64 + 64;
}

// Activations of a call lie tile by tile with one scale per 32, then with one per 64; both have their places, used or
// not.
SX_INLINE ActTile act_tile(const void* act, int in, int rows, int tile, int share) {
  const size_t sums = share == 32 ? 3 : 1, before = share == 32 ? 0 : act_row_bytes(in, 32) * static_cast<size_t>(rows);
  char* base = static_cast<char*>(const_cast<void*>(act)) + before +
               static_cast<size_t>(tile) * kTileRows * act_row_bytes(in, share);
  const int left = rows - tile * kTileRows, width = left < kTileRows ? left : kTileRows;
  const size_t cells = act_scales(in, 32) * static_cast<size_t>(width);
  ActTile t;
  t.width = width;
  t.q = reinterpret_cast<int8_t*>(base);
  t.lift = reinterpret_cast<int32_t*>(base + cells * 32);
  t.sum = reinterpret_cast<float*>(base + cells * (32 + 4 * sums));
  t.dx = reinterpret_cast<float*>(base + cells * (32 + 8 * sums));
  return t;
}

// One row's 16 results: out = acc + bias, then old + that.
SX_INLINE void finish(const LinearJob& job, int group, int row, __m512 acc) {
  float* y = job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + group * kOutputs;
  const int left = job.outputs - group * kOutputs;
  const __mmask16 valid = left < kOutputs ? static_cast<__mmask16>((1u << left) - 1) : static_cast<__mmask16>(0xffff);
  if (job.bias) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(valid, job.bias + group * kOutputs));
  if (job.accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(valid, y), acc);
  _mm512_mask_storeu_ps(y, valid, acc);
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
