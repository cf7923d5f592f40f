// Quantised weights from memory to registers: up to 8 rows, small matrices, and all devices that are no Hopper. See
// linear_kernels.h for the order of summation and linear_formats.cuh for the operands.
#pragma once
#include "backend/cuda/linear_formats.cuh"

namespace sx::cuda {

// Eight tokens' elements k .. k + 3 and k + 16 .. k + 19; see load_tokens.
__device__ __forceinline__ uint4 load_split_tokens(const uint16_t* from, bool wanted) {
  uint4 v;
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.s32 p, %5, 0;\n"
      " mov.b32 %0, 0;\n mov.b32 %1, 0;\n mov.b32 %2, 0;\n mov.b32 %3, 0;\n"
      " @p ld.global.v2.u32 {%0, %1}, [%4];\n @p ld.global.v2.u32 {%2, %3}, [%4 + 32];\n}\n"
      : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w) : "l"(from), "r"(int(wanted)) : "memory");
  return v;
}

// A block computes tiles of 16 outputs, every gridDim.x-th, of the 8 * kTokenTiles tokens from 8 * kTokenTiles * blockIdx.y
// on; each of its 8 warps one part of the inner dimension, kAhead groups of it in registers, across the ends of tiles:
// parts of 4,096 inputs are 4 groups, and a block per tile would spend its time on beginning and ending. It must move the
// weights of its outputs once and reads the tokens from L1 and L2. Bound: memory bandwidth; some 80 KB per multiprocessor are
// in flight, the first of them before the tokens exist.
template <class Format, int kTokenTiles, int kAhead, int kBlocks>
__global__ void __launch_bounds__(256, kBlocks) packed_few(const __grid_constant__ LinearTask task) {
  constexpr int kTokens = 8 * kTokenTiles, kStride = kTileOut + 4;  // the padding makes the stores free of bank conflicts
  constexpr int kSteps = kTokenTiles == 1 ? 4 : 2;                  // steps whose tokens are in flight
  __shared__ float sums[2][kMostParts][kTokens][kStride];
  const int part = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  const int first = part * task.parts.per_part, last = min(first + task.parts.per_part, task.parts.groups);
  const int tiles = (task.out + kTileOut - 1) / kTileOut, stride = int(gridDim.x);
  const ptrdiff_t to_next = ptrdiff_t(stride) * task.parts.groups * Format::kGroupBytes;
  let_next_start();

  typename Format::Group weights[kAhead];
  typename Format::Source source(task, int(blockIdx.x), lane, last);
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
    for (int step = 0; step < 4; ++step) Format::load(source, weights[ahead], first + ahead, step);
  }
  wait_for_previous();

  const int first_token = int(blockIdx.y) * kTokens;
  const uint16_t* x = static_cast<const uint16_t*>(task.x) + size_t(first_token + g) * size_t(task.in) + 4 * t;
  const size_t row_tile = 8 * size_t(task.in);
  uint4 tokens[kSteps][kTokenTiles];
  const auto load_x = [&](uint4(&to)[kTokenTiles], int group, int step) {
    const uint16_t* at = x + size_t(group) * kGroup + step * 32;
    const bool inside = group * kGroup + step * 32 < task.in;  // rows have whole steps
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i)
      to[i] = load_split_tokens(at + size_t(i) * row_tile, inside && first_token + g + 8 * i < task.rows);
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) load_x(tokens[step], first, step);

  int buffer = 0;
  for (int tile = int(blockIdx.x); tile < tiles; tile += stride, buffer ^= 1) {
    float sum[kTokenTiles][4] = {};
    for (int group = first; group < last; group += kAhead) {
      // What comes after the last groups of this tile are the first of the next.
      const bool ends = group + kAhead >= last;
      const int next = ends ? first : group + kAhead;
      if (ends) {
        source.data += to_next, source.scales += to_next;
        if (tile + stride >= tiles) source.end = 0;
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int here = group + ahead;
        if (ahead == 0 || here < last) {
          const int after = here + 1 < last ? here + 1 : first;
#pragma unroll
          for (int step = 0; step < 4; ++step) {
            uint4(&b)[kTokenTiles] = tokens[step % kSteps];
            uint32_t a[8];
            Format::operands(weights[ahead], step, a);
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) multiply<Format::kHalf>(sum[n], a, b[n].x, b[n].y);
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) multiply<Format::kHalf>(sum[n], a + 4, b[n].z, b[n].w);
            Format::load(source, weights[ahead], next + ahead, step);
            load_x(b, step + kSteps < 4 ? here : after, (step + kSteps) % 4);
          }
        } else {
#pragma unroll
          for (int step = 0; step < 4; ++step) Format::load(source, weights[ahead], next + ahead, step);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[buffer][part][n * 8 + 2 * t + (j & 1)][g + (j >> 1) * 8] = sum[n][j];
    }
    __syncthreads();  // and nobody is still reading the other buffer
    for (int e = int(threadIdx.x); e < kTokens * kTileOut; e += 256) {
      const int row = e / kTileOut, within = e % kTileOut, out = tile * kTileOut + within;
      if (first_token + row >= task.rows || out >= task.out) continue;
      float total = sums[buffer][0][row][within];
      for (int p = 1; p < task.parts.parts; ++p) total = __fadd_rn(total, sums[buffer][p][row][within]);
      store_result(task, first_token + row, out, total);
    }
  }
}

template <class Format, int kTokenTiles, int kAhead, int kBlocks>
void launch_packed_few(const LinearTask& task, cudaStream_t stream) {
  const int tiles = (task.out + kTileOut - 1) / kTileOut, tokens = 8 * kTokenTiles;
  const dim3 grid(unsigned(std::min(tiles, kBlocks * kDevice)), unsigned((task.rows + tokens - 1) / tokens));
  launch(packed_few<Format, kTokenTiles, kAhead, kBlocks>, grid, dim3(256), 0, stream, task);
}

}  // namespace sx::cuda
