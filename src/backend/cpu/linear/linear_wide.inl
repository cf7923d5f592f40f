// What the AVX-512 and AMX kernels of 4-bit weights share: activations with one scale per 256 values, and the last
// step. Included by linear_avx512.cc and linear_amx.cc, each in its own namespace.
//
// Order of reduction, for every output and row, whatever the number of rows:
//   for each super-block of 256 inner values in order (the last may be shorter):
//     p = 0;  for each block of 32 in order:  p = fma(float(s), d, p);  with offsets p = fma(m, float(t), p)
//     acc = fma(p, dx, acc)
// where x ~ dx * q, s is the exact integer dot product of the block (of weights -8..7 for Q4_0, else 0..15) and t the
// exact sum of the block's q. The integers do not depend on who multiplies, so vpdpbusd and tdpbssd give the same bits.
#include <immintrin.h>

#include "backend/cpu/linear/linear_kernels.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kSuper = 256;    // inner values that share an activation scale
constexpr int kTileRows = 16;  // rows whose activations are interleaved
constexpr int kOutputs = 16;   // of a group

// The activations of a tile of up to 16 rows; `width` is the number of its rows. Blocks follow each other, in a block
// rows do.
struct WideTile {
  const int8_t* q;      // [blocks][width][32]
  const int32_t* lift;  // [blocks][width]: -8 times the sum of the block's q
  const float* sum;     // [blocks][width]: that sum
  const float* dx;      // [super-blocks][width]
  int width;
};

SX_INLINE size_t wide_blocks(int in) { return static_cast<size_t>((in + 31) / 32); }
SX_INLINE size_t wide_supers(int in) { return static_cast<size_t>((in + kSuper - 1) / kSuper); }
// Per row. A line more, because a tile of fewer than 16 rows is read as if it had 16.
SX_INLINE size_t wide_row_bytes(int in) { return (wide_blocks(in) * 40 + wide_supers(in) * 4 + 63) / 64 * 64 + 64; }

SX_INLINE WideTile wide_tile_at(const void* wide, int in, int rows, int tile) {
  const char* base = static_cast<const char*>(wide) + static_cast<size_t>(tile) * kTileRows * wide_row_bytes(in);
  const int left = rows - tile * kTileRows, width = left < kTileRows ? left : kTileRows;
  const size_t cells = wide_blocks(in) * static_cast<size_t>(width);
  WideTile t;
  t.width = width;
  t.q = reinterpret_cast<const int8_t*>(base);
  t.lift = reinterpret_cast<const int32_t*>(base + cells * 32);
  t.sum = reinterpret_cast<const float*>(base + cells * 36);
  t.dx = reinterpret_cast<const float*>(base + cells * 40);
  return t;
}

// One row's 16 results: out = acc + bias, then old + that.
SX_INLINE void wide_finish(const LinearJob& job, int group, int row, __m512 acc) {
  float* y = job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + group * kOutputs;
  const int left = job.outputs - group * kOutputs;
  const __mmask16 valid = left < kOutputs ? static_cast<__mmask16>((1u << left) - 1) : static_cast<__mmask16>(0xffff);
  if (job.bias) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(valid, job.bias + group * kOutputs));
  if (job.accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(valid, y), acc);
  _mm512_mask_storeu_ps(y, valid, acc);
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
