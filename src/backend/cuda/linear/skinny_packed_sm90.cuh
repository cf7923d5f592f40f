// Skinny GEMM, 17 to 64 rows with quantised weights on Hopper: TMA copies packed weights and tokens, consumer warps
// expand each weight once, to registers, and wgmma multiplies it with all tokens from shared memory. wgmma gives the
// bits of mma.sync (bench/cuda/probe_wgmma.cu), so the order of summation is that of kernels.h.
//
// Per 64 outputs and 16 k a warpgroup issues one wgmma; expanding takes some 40 instructions per 16 outputs and 32 k.
// For 28,672 x 4,096 and 64 rows that is 10 us of each scheduler and 8 of the tensor cores; memory needs 15 (Q4_0).
#pragma once
#include <algorithm>

#include "backend/cuda/linear/tma.cuh"

namespace sx::cuda {

// Two consumer warpgroups, and a producer warp; where registers are short, the producer is in a warpgroup that gives
// its own away.
constexpr int packed_threads(int more) { return more == 1 ? 288 : 384; }
constexpr int kPackedCluster = 4;                                    // blocks that share a tile, two split-K parts each
constexpr int kPackedSpare = 1024 + 256, kPackedSlots = 16;          // of shared memory, see kSpare; barriers
constexpr int kPackedShared = 227 * 1024, kPackedHalf = 113 * 1024;  // a multiprocessor's, and half of it

// Packed weights, in boxes of one group of `tiles` tiles; zeros outside.
template <class Format>
CUtensorMap packed_map(const LinearTask& task, int tiles) {
  CUtensorMap map;
  const auto row = cuuint64_t(task.parts.groups) * cuuint64_t(Format::kGroupBytes);
  const cuuint64_t sizes[3] = {128, row / 128, cuuint64_t(divide_up(task.out, kTileOut))}, strides[2] = {128, row};
  const cuuint32_t box[3] = {128, cuuint32_t(Format::kGroupBytes / 128), cuuint32_t(tiles)}, steps[3] = {1, 1, 1};
  static_assert(Format::kGroupBytes % 128 == 0);
  const CUresult result = encode_tiled()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<void*>(task.data), sizes,
                                         strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "tensor map of quantised weights");
  return map;
}

struct PackedPlan {
  int tiles, slots;
};

// Slots in shared memory, each with a group of some tiles and its tokens: first the tokens of all slots, two boxes of
// 64 k each, then the weights of all, then the barriers, full and free.
template <class Format, int kTokens, int kTiles>
struct PackedRing {
  static constexpr int kTokenBytes = kTokens * 2 * kStageLine, kWeightBytes = kTiles * Format::kGroupBytes,
                       kSlot = kTokenBytes + kWeightBytes;
  uint32_t shared;
  int slots;
  __device__ uint32_t tokens(int slot) const { return shared + uint32_t(slot * kTokenBytes); }
  __device__ uint32_t weights(int slot) const { return shared + uint32_t(slots * kTokenBytes + slot * kWeightBytes); }
  __device__ uint32_t full(int slot) const { return shared + uint32_t(slots * kSlot + slot * 16); }
  __device__ uint32_t free(int slot) const { return shared + uint32_t(slots * kSlot + slot * 16 + 8); }
};

#ifdef SX_HOPPER
// d[64 x 8 kTokenTiles] += a[64 x 16] b^T: a from registers, b from shared memory, K-major.
#define SX_D(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
template <int kTokenTiles>
__device__ __forceinline__ void packed_product(float (&d)[kTokenTiles * 4], const uint32_t* a, uint64_t b) {
  if constexpr (kTokenTiles == 2) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
        "1, 1, 1, 0;\n"
        : SX_D(0), SX_D(4)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else if constexpr (kTokenTiles == 4) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        "%14, %15}, {%16, %17, %18, %19}, %20, 1, 1, 1, 0;\n"
        : SX_D(0), SX_D(4), SX_D(8), SX_D(12)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  } else {
    static_assert(kTokenTiles == 8);
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
        "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, "
        "%36, 1, 1, 1, 0;\n"
        : SX_D(0), SX_D(4), SX_D(8), SX_D(12), SX_D(16), SX_D(20), SX_D(24), SX_D(28)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
  }
}
#undef SX_D

// Adds the split-K parts of all blocks of a cluster in order, and ends them as store_result does; each block has some
// of the rows. A block's first part lies at `first_sums`, its second at `second_sums`.
template <int kOuts>
__device__ __forceinline__ void packed_add_up(const LinearTask& task, uint32_t first_sums, uint32_t second_sums,
                                              int rank, int tile) {
  constexpr int kStride = kOuts + 8, kQuads = kOuts / 4;
  const int rows_each = (task.rows + kPackedCluster - 1) / kPackedCluster, first_row = rank * rows_each,
            rows = min(rows_each, task.rows - first_row);
  for (int e = int(threadIdx.x); e < rows * kQuads; e += 256) {
    const int row = first_row + e / kQuads, within = e % kQuads * 4, out = tile * kOuts + within;
    // Bias and old values, added at the end, are loaded while the parts are.
    float* const to = task.result + size_t(row) * size_t(task.out_stride) + out;
    float bias[4] = {}, old[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (task.bias && out + j < task.out) bias[j] = task.bias[out + j];
      if (task.accumulate && out + j < task.out) old[j] = to[j];
    }
    float4 part[kMostParts];
#pragma unroll
    for (int p = 0; p < kMostParts; ++p) {
      if (p < task.parts.parts)
        part[p] = load_from((p % 2 ? second_sums : first_sums) + uint32_t(row * kStride + within) * 4, p / 2);
    }
    float sum[4] = {part[0].x, part[0].y, part[0].z, part[0].w};
#pragma unroll
    for (int p = 1; p < kMostParts; ++p) {
      if (p >= task.parts.parts) continue;
      sum[0] = __fadd_rn(sum[0], part[p].x), sum[1] = __fadd_rn(sum[1], part[p].y);
      sum[2] = __fadd_rn(sum[2], part[p].z), sum[3] = __fadd_rn(sum[3], part[p].w);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (task.bias) sum[j] = __fadd_rn(sum[j], bias[j]);
      if (task.accumulate) sum[j] = __fadd_rn(sum[j], old[j]);
      if (out + j < task.out) to[j] = sum[j];
    }
  }
}
#endif

// Whole rows (not kSplit): a block computes 128 * kMore outputs of all tokens over the whole inner dimension, tile
// after tile; else the four blocks of a cluster share a tile, two split-K parts each, and each adds up some of the rows
// in the end. A block must read its weights once and its tokens from L2, which for 64 tokens, 4 bits and 256 outputs
// are as many bytes. Bound: memory bandwidth; some 200 KB per multiprocessor are on their way or waiting, the first
// weights before the tokens exist.
template <class Format, int kTokenTiles, int kMore, bool kSplit>
__global__ void __launch_bounds__(packed_threads(kMore), kMore == 1 ? 2 : 1)
    packed_rows(const __grid_constant__ LinearTask task, const __grid_constant__ PackedPlan plan,
                const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  constexpr int kTokens = 8 * kTokenTiles, kTiles = 8 * kMore, kOuts = kTiles * kTileOut,
                kCluster = kSplit ? kPackedCluster : 1;
  using Ring = PackedRing<Format, kTokens, kTiles>;
  extern __shared__ unsigned char raw[];
  const Ring ring{(hopper::shared_address(raw) + 1023u) & ~1023u, plan.slots};
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31;
  const int rank = int(blockIdx.x) % kCluster, first_tile = int(blockIdx.x) / kCluster,
            step = int(gridDim.x) / kCluster;
  const int first = kSplit ? rank * 2 * task.parts.per_part : 0,
            groups = kSplit ? min(2 * task.parts.per_part, task.parts.groups - first) : task.parts.groups;
  const uint32_t first_sums = ring.shared + uint32_t(plan.slots * Ring::kSlot + 256);  // behind the barriers
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.slots; ++i) {
      hopper::barrier_init(ring.full(i), 1);
      hopper::barrier_init(ring.free(i), 8);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();

  if (warp >= 8) {
    if constexpr (kMore > 1) hopper::give_registers<40>();
    if (threadIdx.x == 256) {
      const int all = max(0, (plan.tiles - first_tile + step - 1) / step * groups), ahead = min(all, plan.slots);
      int tile = first_tile, group = 0;
      const auto next = [&] {
        if (++group == groups) group = 0, tile += step;
      };
      const auto weights = [&](int slot) {
        hopper::barrier_arrive_expecting(ring.full(slot), uint32_t(Ring::kSlot));
        hopper::load_box(ring.weights(slot), weights_map, 0, (first + group) * (Format::kGroupBytes / 128),
                         tile * kTiles, ring.full(slot));
      };
      const auto tokens = [&](int slot, int at) {
        hopper::load_box(ring.tokens(slot), tokens_map, (first + at) * kGroup, 0, ring.full(slot));
        hopper::load_box(ring.tokens(slot) + kTokens * kStageLine, tokens_map, (first + at) * kGroup + kStageK, 0,
                         ring.full(slot));
      };
      for (int i = 0; i < ahead; ++i, next()) weights(i);  // needs nothing of earlier kernels
      wait_for_previous();
      hopper::fence_async_global();  // tokens were written by ordinary stores
      for (int i = 0, at = 0; i < ahead; ++i, at = at + 1 == groups ? 0 : at + 1) tokens(i, at);
      uint32_t parity = 0;
      for (int i = ahead, slot = 0; i < all; ++i, next()) {
        hopper::barrier_wait(ring.free(slot), parity);  // all consumers are done with what was there
        weights(slot);
        tokens(slot, group);
        if (++slot == plan.slots) slot = 0, parity ^= 1;
      }
    }
    __syncwarp();
    wait_for_previous();
  } else {
    if constexpr (kMore > 1) hopper::take_registers<232>();
    wait_for_previous();
    const auto tile_of = [&](int m) { return ((warp >> 2) * kMore + m) * 4 + (warp & 3); };  // of the block's
    const auto out_of = [&](int tile, int m, int j) {
      return (tile * kTiles + tile_of(m)) * kTileOut + (lane >> 2) + (j >> 1 & 1) * 8;
    };
    const auto row_of = [&](int j) { return (j >> 2) * 8 + (lane & 3) * 2 + (j & 1); };
    float sum[kMore][kTokenTiles * 4] = {}, total[kMore][kTokenTiles * 4];
    const auto store_sums = [&](uint32_t to) {  // the padding keeps these stores free of bank conflicts
#pragma unroll
      for (int m = 0; m < kMore; ++m) {
#pragma unroll
        for (int j = 0; j < kTokenTiles * 4; ++j) {
          asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + uint32_t(row_of(j) * (kOuts + 8) + out_of(0, m, j)) * 4),
                       "f"(sum[m][j])
                       : "memory");
        }
      }
    };
    int slot = 0;
    uint32_t parity = 0;
    for (int tile = first_tile; tile < plan.tiles; tile += step) {
#pragma unroll
      for (int m = 0; m < kMore; ++m) {
#pragma unroll
        for (int j = 0; j < kTokenTiles * 4; ++j) total[m][j] = -0.0f;  // -0 + p is p, bit for bit
      }
      int left = task.parts.per_part;
      for (int group = 0; group < groups; ++group) {
        hopper::barrier_wait(ring.full(slot), parity);
        __syncwarp();
        const uint32_t weights = ring.weights(slot);
#pragma unroll
        for (uint32_t half = 0; half < 2; ++half) {
          const uint64_t tokens = hopper::descriptor(ring.tokens(slot) + half * uint32_t(kTokens * kStageLine), 0);
          typename Format::Group packed[kMore];
#pragma unroll
          for (int m = 0; m < kMore; ++m)
            Format::read(weights + uint32_t(tile_of(m) * Format::kGroupBytes), lane, half, packed[m]);
#pragma unroll
          for (int s = 0; s < 2; ++s) {
            uint32_t a[kMore][8];
#pragma unroll
            for (int m = 0; m < kMore; ++m) Format::operands(packed[m], s, a[m]);
            hopper::products_begin();
#pragma unroll
            for (int m = 0; m < kMore; ++m) {  // 16 k further are 32 bytes further
              packed_product<kTokenTiles>(sum[m], a[m], tokens + uint64_t(s * 4));
              packed_product<kTokenTiles>(sum[m], a[m] + 4, tokens + uint64_t(s * 4 + 2));
            }
            hopper::products_commit();
            hopper::products_wait<1>();  // the operands of the step before are free
          }
        }
        hopper::products_wait<0>();
#pragma unroll
        for (int m = 0; m < kMore; ++m) hopper::hold(sum[m]);
        __syncwarp();
        if (lane == 0) hopper::barrier_arrive(ring.free(slot));
        if (++slot == plan.slots) slot = 0, parity ^= 1;
        if (--left > 0 && group + 1 < groups) continue;
        left = task.parts.per_part;  // the end of a part
        if constexpr (kSplit) {
          if (group >= task.parts.per_part) continue;  // the second part stays in registers
          store_sums(first_sums);
        }
#pragma unroll
        for (int m = 0; m < kMore; ++m) {
#pragma unroll
          for (int j = 0; j < kTokenTiles * 4; ++j) total[m][j] = __fadd_rn(total[m][j], sum[m][j]), sum[m][j] = 0;
        }
      }
      if constexpr (!kSplit) {
#pragma unroll
        for (int m = 0; m < kMore; ++m) {
#pragma unroll
          for (int j = 0; j < kTokenTiles * 4; ++j) {
            if (row_of(j) < task.rows && out_of(tile, m, j) < task.out)
              store_result(task, row_of(j), out_of(tile, m, j), total[m][j]);
          }
        }
      }
    }
    if constexpr (kSplit) {
      hopper::named_sync(1, 256);  // no warp needs the slots any more
      store_sums(ring.shared);
      asm volatile("barrier.cluster.arrive.release;" ::: "memory");
      asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
      packed_add_up<kOuts>(task, first_sums, ring.shared, rank, first_tile);
    }
  }
  if constexpr (kSplit) {
    if (warp >= 8) {  // all threads of a cluster meet
      asm volatile("barrier.cluster.arrive.release;" ::: "memory");
      asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");  // no block leaves while others read its sums
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
  }
#else
  __trap();
#endif
}

// kMore == 1: up to 32 rows.
template <class Format, int kMore, bool kSplit>
void launch_packed_rows(const LinearTask& task, cudaStream_t stream) {
  const auto start = [&]<int kTokenTiles>() {
    constexpr int kTokens = 8 * kTokenTiles, kTiles = 8 * kMore, kOuts = kTiles * kTileOut,
                  kCluster = kSplit ? kPackedCluster : 1;
    using Ring = PackedRing<Format, kTokens, kTiles>;
    const auto kernel = packed_rows<Format, kTokenTiles, kMore, kSplit>;
    static const cudaError_t allowed = [&] {  // once, before the first launch
      const cudaError_t first =
          cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPackedShared);
      if (first != cudaSuccess) return first;
      return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
    }();
    check(allowed, "shared memory");
    constexpr int kSums = kSplit ? kTokens * (kOuts + 8) * 4 : 0;  // of a part
    // Small blocks are two on a multiprocessor.
    constexpr int kHalf = (kPackedHalf - kPackedSpare - kSums) / Ring::kSlot,
                  kWhole = (kPackedShared - kPackedSpare - kSums) / Ring::kSlot, kFit = kMore == 1 ? kHalf : kWhole;
    const PackedPlan plan{divide_up(task.out, kOuts), std::min(kPackedSlots, kFit)};
    static_assert(kFit >= 2);
    static_assert(kSums <= kFit * Ring::kSlot);
    cudaLaunchConfig_t config{};
    config.gridDim =
        dim3(unsigned(kSplit ? plan.tiles * kCluster : std::min(plan.tiles, kDevice * (kMore == 1 ? 2 : 1))));
    config.blockDim = dim3(unsigned(packed_threads(kMore)));
    config.dynamicSmemBytes = size_t(plan.slots * Ring::kSlot + kSums + kPackedSpare);
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{};
    config.attrs = attributes;
    if (kSplit) {
      attributes[0].id = cudaLaunchAttributeClusterDimension;
      attributes[0].val.clusterDim.x = unsigned(kCluster);
      attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
      config.numAttrs = 1;
    }
    if (has_dependent_launch()) {
      attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
      attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    check(cudaLaunchKernelEx(&config, kernel, task, plan, packed_map<Format>(task, kTiles),
                             map_of(task.x, Half::kF16, task.rows, task.in, kTokens)),
          "launch of a product");
  };
  if (task.rows <= 16) return start.template operator()<2>();
  if (kMore == 1 || task.rows <= 32) return start.template operator()<4>();
  if constexpr (kMore > 1) start.template operator()<8>();
}

}  // namespace sx::cuda
