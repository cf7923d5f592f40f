// Skinny GEMM, up to 32 rows per block: decoding, verification of short drafts, and all GEMMs with small matrices. See
// kernels.h for the order of summation and formats.cuh for the operands.
#pragma once
#include "backend/cuda/linear/formats.cuh"

namespace sx::cuda {

// A block computes 16 * kTiles outputs, those at `block`, of the 8 * kTokenTiles tokens from 8 * kTokenTiles *
// token_block on; each of its 8 warps has one split-K part, kAhead groups of it in registers. A block must read the
// weights of its outputs once (16 * kTiles * in elements) and reads the tokens from L1 and L2. Bound: memory bandwidth;
// registers keep 32 KB (16-bit weights) per tile and group ahead in flight, the first of them before the tokens exist.
template <class Format, int kTiles, int kTokenTiles, int kAhead>
__device__ __forceinline__ void few_rows_block(const LinearTask& task, int block, int token_block) {
  constexpr int kOuts = kTileOut * kTiles, kTokens = 8 * kTokenTiles,
                kStride = kOuts + 4;                // the padding makes the stores below free of bank conflicts
  constexpr int kSteps = kTokenTiles == 1 ? 4 : 2;  // steps whose tokens are in flight
  __shared__ float sums[kMostParts][kTokens][kStride];
  const int part = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int first = part * task.parts.per_part, last = min(first + task.parts.per_part, task.parts.groups);
  let_next_start();

  typename Format::Group weights[kAhead][kTiles];
  const auto source = [&](int i) { return typename Format::Source(task, block * kTiles + i, lane, last); };
  const typename Format::Source sources[2] = {source(0), source(kTiles - 1)};
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) Format::load(sources[i], weights[ahead][i], first + ahead, step);
    }
  }
  wait_for_previous();

  // Rows behind the last are never read. (A single row's check is in the end: which way takes less registers differs.)
  const int first_token = token_block * kTokens;
  const int x_end = kTokenTiles > 1 || first_token + g < task.rows ? min(task.in, last * kGroup) - 8 * t : 0;
  const uint16_t* x = static_cast<const uint16_t*>(task.x) + size_t(first_token + g) * size_t(task.in) + 8 * t;
  const size_t tile_stride = 8 * size_t(task.in);
  uint4 tokens[kSteps][kTokenTiles];
  const auto load_x = [&](uint4(&to)[kTokenTiles], int k) {
#pragma unroll
    for (int i = 0; i < kTokenTiles; ++i) {
      const bool there = kTokenTiles == 1 || first_token + g + 8 * i < task.rows;
      if constexpr (Format::kOddRows) {
        to[i] = load_odd(x + size_t(i) * tile_stride, k, there ? x_end : 0);
      } else {
        to[i] = load_tokens(x + size_t(i) * tile_stride + k, there && k < x_end);
      }
    }
  };
#pragma unroll
  for (int step = 0; step < kSteps; ++step) load_x(tokens[step], first * kGroup + step * 32);

  float sum[kTiles][kTokenTiles][4] = {};
  for (int group = first; group < last; group += kAhead) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
      if (ahead > 0 && group + ahead >= last) break;
#pragma unroll
      for (int step = 0; step < 4; ++step) {
        uint4(&b)[kTokenTiles] = tokens[step % kSteps];
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
          uint32_t a[8];
          Format::operands(weights[ahead][i], step, a);
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n) multiply<Format::kHalf>(sum[i][n], a, b[n].x, b[n].y);
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n) multiply<Format::kHalf>(sum[i][n], a + 4, b[n].z, b[n].w);
          Format::load(sources[i], weights[ahead][i], group + ahead + kAhead, step);
        }
        load_x(b, (group + ahead) * kGroup + (step + kSteps) * 32);
      }
    }
  }

#pragma unroll
  for (int i = 0; i < kTiles; ++i) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) sums[part][n * 8 + 2 * t + (j & 1)][i * kTileOut + g + (j >> 1) * 8] = sum[i][n][j];
    }
  }
  __syncthreads();
  for (int e = int(threadIdx.x); e < kTokens * kOuts; e += 256) {
    const int row = e / kOuts, within = e % kOuts, out = block * kOuts + within;
    if (first_token + row >= task.rows || out >= task.out) continue;
    float total = sums[0][row][within];
    for (int p = 1; p < task.parts.parts; ++p) total = __fadd_rn(total, sums[p][row][within]);
    store_result(task, first_token + row, out, total);
  }
}

template <class Format, int kTiles, int kTokenTiles, int kAhead>
__global__ void __launch_bounds__(256, kTiles* kTokenTiles == 1 && kAhead == Format::kAhead ? 3
                                       : kTiles == 2 && kAhead > Format::kAhead             ? 1
                                                                                            : 2)
    few_rows(const __grid_constant__ LinearTask task) {
  few_rows_block<Format, kTiles, kTokenTiles, kAhead>(task, int(blockIdx.x), int(blockIdx.y));
}

template <class Format, int kTiles, int kTokenTiles, int kAhead>
void launch_few(const LinearTask& task, cudaStream_t stream) {
  const int outs = kTileOut * kTiles, tokens = 8 * kTokenTiles;
  const dim3 grid(unsigned((task.out + outs - 1) / outs), unsigned((task.rows + tokens - 1) / tokens));
  launch(few_rows<Format, kTiles, kTokenTiles, kAhead>, grid, dim3(256), 0, stream, task);
}

}  // namespace sx::cuda
