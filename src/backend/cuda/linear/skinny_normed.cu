// A norm and the GEMM that reads it in one kernel, for a few rows and quantised weights. A row's bits are those of
// norm_kernel and of THE ORDER.
#include <algorithm>

#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "backend/cuda/linear/skinny_chain.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostWidth = 4096, kMostRows = 4, kTiles = 2;

struct NormedTask {
  LinearTask task;  // x is not read
  NormCall norm;    // nothing is written
  int threads;      // of norm_kernel
  bool whole;       // rows and weights can be read four numbers at a time
};

// A block: 32 outputs of one row, a warp for each split-K part; it norms the row for itself. It reads its weights once,
// the first of them before the row is there, and 8 bytes per input of the row from L2. Bound: latency.
template <class Format>
__global__ void __launch_bounds__(kChainThreads, 2) normed_few(const __grid_constant__ NormedTask c) {
  extern __shared__ __align__(16) uint4 token[];
  __shared__ float sums[kMostParts][kTiles * kTileOut], squares[32];
  const LinearTask& task = c.task;
  const int t = int(threadIdx.x), warp = t >> 5, lane = t & 31, block = int(blockIdx.x), row = int(blockIdx.y);
  const int first = warp * task.parts.per_part, last = min(first + task.parts.per_part, task.parts.groups);
  let_next_start();
  Chain<Format, kTiles, Format::kAhead> chain;
#pragma unroll
  for (int i = 0; i < kTiles; ++i) chain.sources[i].begin(task, block * kTiles + i, lane, last);
  chain.begin(first);
  wait_for_previous();
  // Thread v of norm_kernel's has the groups of four v and v + c.threads; here it is thread v % 256.
  constexpr int kHeld = kMostWidth / 4 / kChainThreads;
  const int width = c.norm.width, quads = (width + 3) / 4;
  const float* x = c.norm.x + size_t(row) * size_t(width);
  float4 v[kHeld], weight[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int g = t + i * kChainThreads;
    v[i] = weight[i] = make_float4(0, 0, 0, 0);
    if (g < quads) v[i] = load4(x, 4 * g, width, c.whole), weight[i] = load4(c.norm.weight, 4 * g, width, c.whole);
  }
#pragma unroll
  for (int round = 0; round < 2; ++round) {
    float sum = 0;
#pragma unroll
    for (int i = round; i < kHeld; i += 2) {
      sum = fmaf(v[i].x, v[i].x, sum), sum = fmaf(v[i].y, v[i].y, sum);
      sum = fmaf(v[i].z, v[i].z, sum), sum = fmaf(v[i].w, v[i].w, sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) squares[round * kChainWarps + warp] = sum;
  }
  __syncthreads();
  const float all = warp_sum(lane < c.threads / 32 ? squares[lane] : 0.0f);
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(all, float(width)), c.norm.eps)));
  uint2* const to = reinterpret_cast<uint2*>(token);
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int g = t + i * kChainThreads;
    if (g >= task.parts.groups * (kGroup / 4)) continue;  // zeros behind the end
    const float4 w = weight[i];
    const float a = __fmul_rn(__fmul_rn(v[i].x, factor), w.x), b = __fmul_rn(__fmul_rn(v[i].y, factor), w.y),
                d = __fmul_rn(__fmul_rn(v[i].z, factor), w.z), e = __fmul_rn(__fmul_rn(v[i].w, factor), w.w);
    to[g] = g < quads ? make_uint2(half_pair(Format::kHalf, a, b), half_pair(Format::kHalf, d, e)) : make_uint2(0, 0);
  }
  __syncthreads();
  chain.run(reinterpret_cast<const uint32_t*>(token), first, last, task.parts.per_part,
            [&](const float(&sum)[kTiles][4]) {
#pragma unroll
              for (int i = 0; i < kTiles; ++i) {
                if ((lane & 3) != 0) break;
                sums[warp][i * kTileOut + (lane >> 2)] = sum[i][0];
                sums[warp][i * kTileOut + (lane >> 2) + 8] = sum[i][2];
              }
            });
  __syncthreads();
  const int out = block * kTiles * kTileOut + t;
  if (t >= kTiles * kTileOut || out >= task.out) return;
  float total = sums[0][t];
  for (int p = 1; p < task.parts.parts; ++p) total = __fadd_rn(total, sums[p][t]);
  store_result(task, row, out, total);
}

}  // namespace

bool linear_normed_serves(const NormArgs& norm, const CudaMatrix& matrix, int rows) {
  if (norm.centred || (norm.stride != 0 && norm.stride != norm.width) || norm.width > kMostWidth ||
      norm.width % 8 != 0 || rows > kMostRows || matrix.segments().size() != 1)
    return false;
  const WeightSegment& segment = matrix.segments()[0];
  // With more outputs the blocks would read more rows than weights.
  return segment.quantised() && divide_up(segment.out, kTileOut) <= 3 * kDevice;
}

void linear_normed(const CudaMatrix& matrix, const NormArgs& norm, const LinearCall& call, cudaStream_t stream) {
  const WeightSegment& segment = matrix.segments()[0];
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  const NormedTask task{.task = {.data = segment.data,
                                 .x = nullptr,
                                 .bias = call.bias,
                                 .result = call.out,
                                 .scratch = nullptr,
                                 .in = matrix.in(),
                                 .out = segment.out,
                                 .rows = call.rows,
                                 .out_stride = call.out_stride,
                                 .accumulate = call.accumulate,
                                 .parts = parts_of(matrix.in()),
                                 .glu = false,
                                 .result16 = nullptr},
                        .norm = {.out = nullptr,
                                 .out16 = nullptr,
                                 .half = matrix.half(),
                                 .x = norm.x,
                                 .weight = norm.weight,
                                 .rows = call.rows,
                                 .width = norm.width,
                                 .eps = norm.eps},
                        .threads = norm_threads(norm.width),
                        .whole = norm.width % 4 == 0 && aligned(norm.x) && aligned(norm.weight)};
  by_format(segment, [&]<class Format>() {
    launch(normed_few<Format>, dim3(unsigned(divide_up(segment.out, kTiles * kTileOut)), unsigned(call.rows)),
           dim3(kChainThreads), token_bytes(matrix.in()), stream, task);
  });
}

}  // namespace sx::cuda
