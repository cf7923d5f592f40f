// What the two TMA kernels for 16-bit float weights on Hopper share: stages of 64 k in shared memory, and a warp's MMAs
// with one of them. See kernels.h for the order of summation and formats.cuh for the operands.
#pragma once
#include <algorithm>

#include "backend/cuda/runtime/hopper.cuh"
#include "backend/cuda/linear/formats.cuh"

namespace sx::cuda {

constexpr int kStageK = 64, kStageLine = kStageK * 2;  // a stage has lines of 128 bytes, swizzled: weights, then tokens
constexpr int kSpare = 1024 + 256;  // of shared memory: to align the stages, and the barriers behind them
constexpr int kStagesOfGroup = kGroup / kStageK;

__host__ __device__ constexpr int stage_bytes(int outs, int tokens) { return (outs + tokens) * kStageLine; }
inline int tokens_of(int rows) { return divide_up(rows, 16) * 16; }

// [rows][in] of 16-bit elements in boxes of `box_rows` x 64, swizzled; zeros outside.
inline CUtensorMap map_of(const void* data, Half half, int rows, int in, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {cuuint64_t(in), cuuint64_t(rows)}, strides[1] = {cuuint64_t(in) * 2};
  const cuuint32_t box[2] = {kStageK, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  const auto type = half == Half::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result =
      encode_tiled()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                     CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "tensor map of a product");
  return map;
}

// Calls function<number of token tiles>() for the rows of a task.
template <class Function>
void by_tokens(int rows, const Function& function) {
  switch (tokens_of(rows)) {
    case 16: return function.template operator()<2>();
    case 32: return function.template operator()<4>();
    case 48: return function.template operator()<6>();
    default: return function.template operator()<8>();
  }
}

#ifdef SX_HOPPER
// The barrier of all threads of a cluster. What they wrote before an arrival with release, all can read after the wait.
__device__ __forceinline__ void cluster_arrive_release() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }

// Four floats of the shared memory of block `rank` of the cluster, at the address they would have here.
__device__ __forceinline__ float4 load_from(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
      : "r"(address), "r"(rank)
      : "memory");
  return v;
}

// A warp's MMAs: 16 * kOutTiles outputs of all tokens. Lane (g, t) takes line `line` of 8 as its row g of weights and
// of tokens: two g that are neighbours then have lines four apart, and the reads of 8 lanes meet all banks. Chunk 4
// step + t of 16 bytes lies at chunk ^ line.
template <Half kHalf, int kTokenTiles, int kOutTiles = 2>
struct WarpProducts {
  uint32_t zero;  // see many_rows
  float sum[kOutTiles][kTokenTiles][4] = {};
  __device__ explicit WarpProducts(const LinearTask& task) : zero(uint32_t(task.parts.parts) >> 16) {}
  static __device__ __forceinline__ int t() { return int(threadIdx.x) & 3; }
  static __device__ __forceinline__ int line() { return (int(threadIdx.x) >> 3 & 3) | (int(threadIdx.x) & 4); }
  // Where this lane begins to read in both operands.
  static __device__ __forceinline__ uint32_t at() { return uint32_t(line() * kStageLine + (t() ^ line()) * 16); }

  // Shared memory: the stage's lines of the warp's outputs and of the tokens, both + at(); from tile to tile of 16
  // outputs there are `apart` bytes. Returns 0 when all has been read. The release of the stage must depend on it,
  // because an arrival at a barrier may overtake loads that are in flight (docs/decisions/010-ring-release-race.md).
  __device__ __forceinline__ uint32_t stage(uint32_t weights, uint32_t tokens, uint32_t apart = 16 * kStageLine) {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint32_t chunk = uint32_t(step) * 64;
      uint32_t a[kOutTiles][8];
#pragma unroll
      for (int i = 0; i < kOutTiles; ++i) {
        uint4 low, high;
        read_shared(low, (weights ^ chunk) + uint32_t(i) * apart);
        read_shared(high, (weights ^ chunk) + uint32_t(i) * apart + uint32_t(8 * kStageLine));
        a[i][0] = low.x | zero, a[i][1] = high.x | zero, a[i][2] = low.y | zero, a[i][3] = high.y | zero;
        a[i][4] = low.z | zero, a[i][5] = high.z | zero, a[i][6] = low.w | zero, a[i][7] = high.w | zero;
      }
      const uint32_t from = tokens ^ chunk;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        uint4 b;
        read_shared(b, from + uint32_t(n * 8 * kStageLine));
#pragma unroll
        for (int i = 0; i < kOutTiles; ++i) multiply<kHalf>(sum[i][n], a[i], b.x, b.y);
#pragma unroll
        for (int i = 0; i < kOutTiles; ++i) multiply<kHalf>(sum[i][n], a[i] + 4, b.z, b.w);
      }
    }
    // Between them these sums have used everything.
    uint32_t used = 0;
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) used |= __float_as_uint(sum[kOutTiles - 1][n][0]);
#pragma unroll
    for (int i = 0; i + 1 < kOutTiles; ++i) used |= __float_as_uint(sum[i][kTokenTiles - 1][0]);
    return used & zero;
  }
  // use(i, n, j, row, output of the warp's) for every sum.
  template <class Use>
  __device__ __forceinline__ void all(const Use& use) const {
#pragma unroll
    for (int i = 0; i < kOutTiles; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) use(i, n, j, n * 8 + t() + (j & 1) * 4, i * 16 + line() + (j >> 1) * 8);
      }
    }
  }
};
#endif

}  // namespace sx::cuda
