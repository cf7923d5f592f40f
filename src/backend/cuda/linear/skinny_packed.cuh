// Skinny GEMM with quantised weights from memory to registers: up to 16 rows, small matrices, and all devices before
// Hopper. See kernels.h for the order of summation and formats.cuh for the operands.
#pragma once
#include <algorithm>

#include "backend/cuda/linear/formats.cuh"

namespace sx::cuda {

// 16 bytes of tokens to shared memory through L1, zeros unless wanted.
__device__ __forceinline__ void fetch_tokens(uint32_t to, const uint16_t* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 16, %2;\n" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
// Four matrices of 8 tokens and 8 k, whose lines lanes 8i .. 8i + 7 point to: operands of two MMAs.
__device__ __forceinline__ void read_tokens(uint4& b, uint32_t from) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(b.x), "=r"(b.y), "=r"(b.z), "=r"(b.w)
               : "r"(from)
               : "memory");
}

// A block computes kTiles tiles of 16 outputs of the 8 * kTokenTiles tokens from 8 * kTokenTiles * token_block on:
// those at `block`, and then those `stride` further; each of its 8 warps has one split-K part, kAhead groups of it in
// registers, across the ends of tiles. A block must read the weights of its outputs once and reads the tokens from L1
// and L2 through a ring of kRing groups in shared memory, one for each warp. Bound: memory bandwidth; some 80 KB per
// multiprocessor are in flight, the first of them before the tokens exist.
template <class Format, int kTiles, int kTokenTiles, int kAhead, int kRing>
__device__ __forceinline__ void packed_few_block(const LinearTask& task, int block, int stride, int token_block,
                                                 unsigned char* shared) {
  constexpr int kOuts = kTileOut * kTiles, kTokens = 8 * kTokenTiles,
                kStride = kOuts + 4;  // the padding makes the stores below free of bank conflicts
  float(&sums)[kMostParts][kTokens][kStride] =
      *reinterpret_cast<float(*)[kMostParts][kTokens][kStride]>(shared + kTokens * kRing * 2048);
  const int part = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  const int first = part * task.parts.per_part, last = min(first + task.parts.per_part, task.parts.groups);
  const int tiles = (task.out + kOuts - 1) / kOuts;
  const ptrdiff_t to_next = ptrdiff_t(stride) * kTiles * task.parts.groups * Format::kGroupBytes;
  let_next_start();

  typename Format::Group weights[kAhead][kTiles];
  typename Format::Source sources[kTiles];
#pragma unroll
  for (int i = 0; i < kTiles; ++i) sources[i].begin(task, block * kTiles + i, lane, last);
#pragma unroll
  for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) Format::load(sources[i], weights[ahead][i], first + ahead, step);
    }
  }
  wait_for_previous();

  // A warp's tokens: kRing times [8 tokens of kTokens][step][token][4 chunks of 8 k], chunk c of token r at c ^ r / 2:
  // writes and reads of 8 lanes meet all banks. Rows behind the last repeat it; the result is dropped.
  const int first_token = token_block * kTokens;
  const uint16_t* x[kTokenTiles];
#pragma unroll
  for (int n = 0; n < kTokenTiles; ++n)
    x[n] = static_cast<const uint16_t*>(task.x) +
           size_t(min(first_token + n * 8 + g, task.rows - 1)) * size_t(task.in) + 8 * t;
  const uint32_t ring = uint32_t(__cvta_generic_to_shared(shared)) + uint32_t(part * kTokenTiles * kRing * 2048);
  const uint32_t write_at = ring + uint32_t(g * 64 + ((t ^ g >> 1) & 3) * 16),
                 read_at = ring + uint32_t((lane & 7) * 64 + ((lane >> 3 ^ (lane & 7) >> 1) & 3) * 16);
  const auto slot = [](int i) { return uint32_t(i & (kRing - 1)) * uint32_t(kTokenTiles * 2048); };
  int fetched = 0, fetch_next = first, used = 0;  // groups, over all tiles
  const int all = (tiles - block + stride - 1) / stride * max(0, last - first);
  const auto fetch = [&] {
    if (fetched < all) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        const uint16_t* from = x[n] + size_t(fetch_next) * kGroup;
#pragma unroll
        for (int step = 0; step < 4; ++step)  // rows have whole steps
          fetch_tokens(write_at + slot(fetched) + uint32_t(n * 2048 + step * 512), from + step * 32,
                       fetch_next * kGroup + step * 32 < task.in);
      }
      if (++fetch_next == last) fetch_next = first;
      ++fetched;
    }
    asm volatile("cp.async.commit_group;\n" ::: "memory");
  };
#pragma unroll
  for (int i = 0; i < kRing - 1; ++i) fetch();

  for (int tile = block; tile < tiles; tile += stride) {
    const bool more = tile + stride < tiles;
    float sum[kTiles][kTokenTiles][4] = {};
    for (int group = first; group < last; group += kAhead) {
      // What comes after the last groups of this tile are the first of the next.
      const bool ends = group + kAhead >= last;
      const int next = ends ? first : group + kAhead;
      if (ends) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i)
          sources[i].move(to_next, more && (tile + stride) * kTiles + i < (task.out + 15) / 16);
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int here = group + ahead;
        if (ahead > 0 && here >= last) {  // nothing there; for the next tile there may be
#pragma unroll
          for (int step = 0; step < 4; ++step) {
#pragma unroll
            for (int i = 0; i < kTiles; ++i) Format::load(sources[i], weights[ahead][i], next + ahead, step);
          }
          continue;
        }
        const uint32_t from = read_at + slot(used++);
        asm volatile("cp.async.wait_group %0;\n" ::"n"(kRing - 2) : "memory");
        __syncwarp();  // all lanes' tokens of this group have arrived, and all are done with the ones before
        fetch();
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          uint4 b[kTokenTiles];
#pragma unroll
          for (int n = 0; n < kTokenTiles; ++n) read_tokens(b[n], from + uint32_t(n * 2048 + step * 512));
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            uint32_t a[8];
            Format::operands(weights[ahead][i], step, a);
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) multiply<Format::kHalf>(sum[i][n], a, b[n].x, b[n].y);
#pragma unroll
            for (int n = 0; n < kTokenTiles; ++n) multiply<Format::kHalf>(sum[i][n], a + 4, b[n].z, b[n].w);
            Format::load(sources[i], weights[ahead][i], next + ahead, step);
          }
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
      const int row = e / kOuts, within = e % kOuts, out = tile * kOuts + within;
      if (first_token + row >= task.rows || out >= task.out) continue;
      float total = sums[0][row][within];
      for (int p = 1; p < task.parts.parts; ++p) total = __fadd_rn(total, sums[p][row][within]);
      store_result(task, first_token + row, out, total);
    }
    if (more) __syncthreads();
  }
}

// Bytes of shared memory of a block.
template <int kTiles, int kTokenTiles, int kRing>
inline constexpr int kPackedFewShared = 8 * kTokenTiles* kRing * 2048 +
                                        kMostParts * 8 * kTokenTiles*(kTileOut* kTiles + 4) * 4;

template <class Format, int kTiles, int kTokenTiles, int kAhead, int kBlocks, int kRing>
__global__ void __launch_bounds__(256, kBlocks) packed_few(const __grid_constant__ LinearTask task) {
  extern __shared__ __align__(128) unsigned char shared[];
  packed_few_block<Format, kTiles, kTokenTiles, kAhead, kRing>(task, int(blockIdx.x), int(gridDim.x), int(blockIdx.y),
                                                               shared);
}

template <class Format, int kTiles, int kTokenTiles, int kAhead, int kBlocks, int kRing>
void launch_packed_few(const LinearTask& task, cudaStream_t stream) {
  constexpr int kOuts = kTileOut * kTiles, kTokens = 8 * kTokenTiles;
  constexpr int kShared = kPackedFewShared<kTiles, kTokenTiles, kRing>;
  const auto kernel = packed_few<Format, kTiles, kTokenTiles, kAhead, kBlocks, kRing>;
  static const cudaError_t allowed =  // once, before the first launch
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  check(allowed, "shared memory");
  const int tiles = (task.out + kOuts - 1) / kOuts;
  const dim3 grid(unsigned(std::min(tiles, kBlocks * kDevice)), unsigned((task.rows + kTokens - 1) / kTokens));
  launch(kernel, grid, dim3(256), kShared, stream, task);
}

}  // namespace sx::cuda
