// A mixture's norm, router and choice of experts by clusters of blocks; see router.cuh.
#include "backend/cuda/linear/experts.h"
#include "backend/cuda/linear/router.cuh"
#include "backend/cuda/linear/tma.cuh"
#include "backend/cuda/runtime/hopper.cuh"

namespace sx::cuda {
namespace {

constexpr int kCluster = 8;  // blocks that share the experts of a row
constexpr int kMostWidth = 8192;

#ifdef SX_HOPPER
__device__ __forceinline__ float load_early(const float* from) {
  float v;
  asm volatile("ld.global.L1::no_allocate.f32 %0, [%1];" : "=f"(v) : "l"(from));
  return v;
}
#endif

// A cluster: one row. Each block norms it for itself, as norm_kernel does (whose number of threads it has, and so its
// order), and multiplies it with some experts' weights, a warp for each, as multiply_f32 does; the first block chooses.
// A block reads the row and its weights, f32; kHeld of a lane's for its first expert are asked for before the row is
// there. Bound: latency.
template <int kPerLane, int kThreads, int kHeld>
__global__ void __launch_bounds__(kThreads) route_normed_row(const __grid_constant__ RouterCall c, bool whole) {
#ifdef SX_HOPPER
  extern __shared__ __align__(16) float normed[];  // [width]
  __shared__ float part[32], logits[kMostExperts];
  const NormCall& norm = c.norm;
  const int threads = int(blockDim.x), t = int(threadIdx.x), lane = t & 31, warps = threads / 32, width = norm.width;
  const int experts = c.route.lists.experts, each = (experts + kCluster - 1) / kCluster, rank = int(blockIdx.x),
            row = int(blockIdx.y), first = rank * each + (t >> 5), end = min(experts, (rank + 1) * each);
  let_next_start();
  cluster_arrive();  // the first block must have begun before others write to it
  float early[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int k = lane + 32 * i;
    early[i] = first < end && k < width ? load_early(c.weight + size_t(first) * size_t(width) + k) : 0;
  }
  const int groups = (width + 3) / 4;
  wait_for_previous();
  const float* x = norm.x + size_t(row) * size_t(width);
  float4 v[2];  // wider rows than kMostWidth are not served
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int g = t + i * threads;
    v[i] = g < groups ? load4(x, 4 * g, width, whole) : make_float4(0, 0, 0, 0);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum = fmaf(v[i].x, v[i].x, sum), sum = fmaf(v[i].y, v[i].y, sum);
    sum = fmaf(v[i].z, v[i].z, sum), sum = fmaf(v[i].w, v[i].w, sum);
  }
  const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(block_sum(sum, part), float(width)), norm.eps)));
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int g = t + i * threads;
    if (g >= groups) continue;
    const float4 w = load4(norm.weight, 4 * g, width, whole);
    v[i].x = __fmul_rn(__fmul_rn(v[i].x, factor), w.x), v[i].y = __fmul_rn(__fmul_rn(v[i].y, factor), w.y);
    v[i].z = __fmul_rn(__fmul_rn(v[i].z, factor), w.z), v[i].w = __fmul_rn(__fmul_rn(v[i].w, factor), w.w);
    store4(normed, 4 * g, width, whole, v[i]);
    if (rank == 0)
      store4_half(static_cast<uint16_t*>(norm.out16) + size_t(row) * size_t(width), 4 * g, width, whole, norm.half,
                  v[i]);
  }
  __syncthreads();
  cluster_wait();
  for (int e = first; e < end; e += warps) {
    const float* weights = c.weight + size_t(e) * size_t(width);
    float total = 0;
    if (e != first) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) early[i] = lane + 32 * i < width ? weights[lane + 32 * i] : 0;
    }
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane + 32 * i < width) total = __fmaf_rn(early[i], normed[lane + 32 * i], total);
    for (int k0 = lane + 32 * kHeld; k0 < width; k0 += 32 * kHeld) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) early[i] = k0 + 32 * i < width ? weights[k0 + 32 * i] : 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (k0 + 32 * i < width) total = __fmaf_rn(early[i], normed[k0 + 32 * i], total);
    }
    total = warp_sum(total);
    if (lane != 0) continue;
    if (c.bias) total = __fadd_rn(total, c.bias[e]);
    asm volatile(
        "{\n .reg .b32 there;\n mapa.shared::cluster.u32 there, %0, 0;\n st.shared::cluster.f32 [there], %1;\n}\n" ::
            "r"(hopper::shared_address(logits + e)),
        "f"(total)
        : "memory");
  }
  cluster_arrive_release();
  cluster_wait();
  if (rank == 0 && t < 32) route_row<kPerLane>(c.route, logits, row);
#else
  __trap();
#endif
}

template <int kPerLane>
void route_by(const RouterCall& c, cudaStream_t stream) {
  const int width = c.norm.width;
  const auto aligned = [](const void* p, size_t bytes) { return reinterpret_cast<uintptr_t>(p) % bytes == 0; };
  const bool whole = width % 4 == 0 && aligned(c.norm.x, 16) && aligned(c.norm.weight, 16) && aligned(c.norm.out16, 8);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(kCluster), unsigned(c.norm.rows));
  config.blockDim = dim3(unsigned(norm_threads(width)));
  config.dynamicSmemBytes = size_t(width) * sizeof(float);
  config.stream = stream;
  cudaLaunchAttribute attributes[2]{};
  config.attrs = attributes;
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = unsigned(kCluster);
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  config.numAttrs = 1;
  if (has_dependent_launch()) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  const auto kernel =
      config.blockDim.x <= 512 ? route_normed_row<kPerLane, 512, 64> : route_normed_row<kPerLane, 1024, 16>;
  check(cudaLaunchKernelEx(&config, kernel, c, whole), "launch of a router");
}

}  // namespace

bool router_serves(const NormArgs& norm, const CudaMatrix& router) {
  return can_stream() && !norm.centred && norm.width <= kMostWidth && router.segments().size() == 1 &&
         router.segments()[0].format == WeightSegment::Format::kF32;
}

void route_normed(const RouterCall& call, cudaStream_t stream) {
  call.route.lists.experts <= 128 ? route_by<4>(call, stream) : route_by<kMostExperts / 32>(call, stream);
}

}  // namespace sx::cuda
