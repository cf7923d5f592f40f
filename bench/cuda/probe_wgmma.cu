// nvcc -std=c++20 -O3 -Isrc -gencode=arch=compute_90a,code=sm_90a -o probe_wgmma bench/cuda/probe_wgmma.cu
//
// Does wgmma give the bits of mma.sync? Chains of MMAs of 64 outputs x 16 k x 64 tokens, both ways from the same
// registers and sums, and mma.sync with the 16 k of each product in another order. Prints how many sums differ: if
// none, kernels for many rows may use wgmma where those for few use mma.sync, and the order inside a product is free.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "backend/cuda/runtime/hopper.cuh"

namespace {

constexpr int kSteps = 32, kOuts = 64, kTokens = 64, kK = 16 * kSteps;

template <bool bf16>
__device__ void multiply(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#define SX_MULTIPLY(type)                                             \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type \
               ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "         \
               "{%0,%1,%2,%3};\n"                                     \
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
  if constexpr (bf16) {
    SX_MULTIPLY("bf16");
  } else {
    SX_MULTIPLY("f16");
  }
}

// One warpgroup. w: [64 outputs][k], x: [64 tokens][k], both 16-bit. counts: sums that differ {wgmma, other order},
// all.
template <bool bf16>
__global__ void __launch_bounds__(128) probe(const uint16_t* w, const uint16_t* x, unsigned* counts) {
#ifdef SX_HOPPER
  namespace hopper = sx::cuda::hopper;
  __shared__ __align__(1024) unsigned char tokens[16 * 128];  // [k][token], swizzled
  const int thread = int(threadIdx.x), warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3;
  w += size_t(blockIdx.x) * kOuts * kK, x += size_t(blockIdx.x) * kTokens * kK;
  float d[32] = {}, c[8][4] = {}, other[8][4] = {};
  for (int step = 0; step < kSteps; ++step) {
    for (int i = thread; i < 16 * kTokens; i += 128) {
      const int k = i / kTokens, n = i % kTokens;
      memcpy(tokens + k * 128 + ((n / 8) ^ (k % 8)) * 16 + n % 8 * 2, x + n * kK + step * 16 + k, 2);
    }
    hopper::fence_async_shared();
    __syncthreads();
    const auto pair = [&](const uint16_t* row, int k, bool turned) {  // elements k, k + 1, or those in another place
      const int a = turned ? (k * 5 + 3) % 16 : k, b = turned ? ((k + 1) * 5 + 3) % 16 : k + 1;
      return uint32_t(row[step * 16 + a]) | uint32_t(row[step * 16 + b]) << 16;
    };
    uint32_t a[2][4];
    for (int turned = 0; turned < 2; ++turned) {
      for (int j = 0; j < 4; ++j)
        a[turned][j] = pair(w + (warp * 16 + g + (j & 1) * 8) * kK, 2 * t + (j >> 1) * 8, turned);
    }
    for (int n = 0; n < 8; ++n) {
      const uint16_t* row = x + (n * 8 + g) * kK;
      multiply<bf16>(c[n], a[0], pair(row, 2 * t, false), pair(row, 2 * t + 8, false));
      multiply<bf16>(other[n], a[1], pair(row, 2 * t, true), pair(row, 2 * t + 8, true));
    }
    hopper::hold(d);
    hopper::products_begin();
    hopper::product_registers<bf16>(d, a[0], hopper::descriptor(hopper::shared_address(tokens), 0));
    hopper::products_commit();
    hopper::products_wait<0>();
    hopper::hold(d);
    __syncthreads();
  }
  for (int n = 0; n < 8; ++n) {
    for (int j = 0; j < 4; ++j) {
      if (__float_as_uint(d[n * 4 + j]) != __float_as_uint(c[n][j])) atomicAdd(counts, 1u);
      if (__float_as_uint(other[n][j]) != __float_as_uint(c[n][j])) atomicAdd(counts + 1, 1u);
      if (fabsf(d[n * 4 + j] - c[n][j]) > 1e-2f * (1 + fabsf(c[n][j])))
        atomicAdd(counts + 2, 1u);  // the probe is wrong
    }
  }
#endif
}

template <bool bf16>
void run(const char* name, float spread) {
  constexpr int kBlocks = 132;
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  const auto fill = [&](size_t count) {
    std::vector<uint16_t> values(count);
    for (uint16_t& v : values) {
      const float f = normal(random) * std::exp2f(spread * normal(random));
      if constexpr (bf16) {
        const __nv_bfloat16 h = __float2bfloat16(f);
        std::memcpy(&v, &h, 2);
      } else {
        const __half h = __float2half(f);
        std::memcpy(&v, &h, 2);
      }
    }
    void* to = nullptr;
    cudaMalloc(&to, count * 2);
    cudaMemcpy(to, values.data(), count * 2, cudaMemcpyHostToDevice);
    return static_cast<uint16_t*>(to);
  };
  uint16_t *w = fill(size_t(kBlocks) * kOuts * kK), *x = fill(size_t(kBlocks) * kTokens * kK);
  unsigned* counts = nullptr;
  unsigned got[3] = {};
  cudaMalloc(&counts, sizeof got);
  cudaMemset(counts, 0, sizeof got);
  probe<bf16><<<kBlocks, 128>>>(w, x, counts);
  cudaMemcpy(got, counts, sizeof got, cudaMemcpyDeviceToHost);
  std::printf("%s spread %g: of %d sums %u differ with wgmma, %u with k in another order, %u are far off (%s)\n", name,
              double(spread), kBlocks * kOuts * kTokens, got[0], got[1], got[2],
              cudaGetErrorString(cudaGetLastError()));
  cudaFree(w), cudaFree(x), cudaFree(counts);
}

}  // namespace

int main() {
  for (const float spread : {0.0f, 1.0f, 3.0f}) run<true>("bf16", spread);
  for (const float spread : {0.0f, 1.0f}) run<false>("f16", spread);
}
