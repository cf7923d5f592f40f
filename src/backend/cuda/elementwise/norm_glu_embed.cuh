// Device helpers shared by the row ops, the K/V ops and the choosing of tokens. Reductions have one fixed order.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/runtime/views.h"
#include "tensor/rope_style.h"

namespace sx::cuda {

inline constexpr unsigned kAllLanes = 0xffffffffu;

// The same sum in all lanes.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = __fadd_rn(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ __forceinline__ double warp_sum(double x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = __dadd_rn(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}
__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, step));
  return x;
}

// The sum over all threads of a block, the same in each; `part` holds a number per warp, and is free again after the
// next barrier.
template <class T>
__device__ __forceinline__ T block_sum(T x, T* part) {
  x = warp_sum(x);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_sum(lane < warps ? part[lane] : T(0));
}
__device__ __forceinline__ float block_max(float x, float* part) {
  x = warp_max(x);
  const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
  if (lane == 0) part[threadIdx.x / 32] = x;
  __syncthreads();
  return warp_max(lane < warps ? part[lane] : -INFINITY);
}

// Round to nearest even; f16 saturates, NaN stays one.
__device__ __forceinline__ float clamp_f16(float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; }
__device__ __forceinline__ uint16_t f16_bits(float x) { return __half_as_ushort(__float2half_rn(clamp_f16(x))); }
__device__ __forceinline__ uint16_t bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }
__device__ __forceinline__ float f16_value(uint16_t x) { return __half2float(__ushort_as_half(x)); }
__device__ __forceinline__ float bf16_value(uint16_t x) { return __uint_as_float(uint32_t(x) << 16); }
__device__ __forceinline__ uint16_t half_bits(Half half, float x) {
  return half == Half::kBF16 ? bf16_bits(x) : f16_bits(x);
}
__device__ __forceinline__ uint32_t half_pair(Half half, float x, float y) {
  return uint32_t(half_bits(half, x)) | uint32_t(half_bits(half, y)) << 16;
}

__device__ __forceinline__ float silu_times(float gate, float up) {
  return __fmul_rn(__fdiv_rn(gate, __fadd_rn(1.0f, expf(-gate))), up);
}

// Four floats at x[i .. i + 3] of which those below `count` exist; `whole`: x is 16-byte aligned and count a multiple
// of 4.
__device__ __forceinline__ float4 load4(const float* x, int i, int count, bool whole) {
  if (whole) return *reinterpret_cast<const float4*>(x + i);
  float4 v = make_float4(0, 0, 0, 0);
  if (i < count) v.x = x[i];
  if (i + 1 < count) v.y = x[i + 1];
  if (i + 2 < count) v.z = x[i + 2];
  if (i + 3 < count) v.w = x[i + 3];
  return v;
}
__device__ __forceinline__ void store4(float* x, int i, int count, bool whole, float4 v) {
  if (whole) {
    *reinterpret_cast<float4*>(x + i) = v;
    return;
  }
  if (i < count) x[i] = v.x;
  if (i + 1 < count) x[i + 1] = v.y;
  if (i + 2 < count) x[i + 2] = v.z;
  if (i + 3 < count) x[i + 3] = v.w;
}
// The same to 16-bit numbers; `whole`: 8-byte aligned.
__device__ __forceinline__ void store4_half(uint16_t* x, int i, int count, bool whole, Half half, float4 v) {
  if (whole) {
    *reinterpret_cast<uint2*>(x + i) = make_uint2(half_pair(half, v.x, v.y), half_pair(half, v.z, v.w));
    return;
  }
  if (i < count) x[i] = half_bits(half, v.x);
  if (i + 1 < count) x[i + 1] = half_bits(half, v.y);
  if (i + 2 < count) x[i + 2] = half_bits(half, v.z);
  if (i + 3 < count) x[i + 3] = half_bits(half, v.w);
}

// Pair i of a head in shared memory, by its cosine and sine.
__device__ __forceinline__ void rotate_pair(float* x, int i, float2 turn, int dims, RopeStyle style) {
  const int at = style == RopeStyle::kHalves ? i : 2 * i, gap = style == RopeStyle::kHalves ? dims / 2 : 1;
  const float a = x[at], b = x[at + gap];
  x[at] = __fsub_rn(__fmul_rn(a, turn.x), __fmul_rn(b, turn.y));
  x[at + gap] = __fadd_rn(__fmul_rn(a, turn.y), __fmul_rn(b, turn.x));
}

// Rounds one head from shared memory into a cell (16-bit types: 4-byte aligned, even dim; Q8_0: dim a multiple of 32),
// by one warp. Q8_0 as quantise() rounds: scale = largest / 127, numbers by the scale before its own rounding.
__device__ __forceinline__ void store_head(DType type, std::byte* cell, uint16_t* scales, const float* x, int dim,
                                           int lane) {
  if (type != DType::kQ8_0) {
    const Half half = type == DType::kBF16 ? Half::kBF16 : Half::kF16;
    for (int e = 2 * lane; e < dim; e += 64) reinterpret_cast<uint32_t*>(cell)[e / 2] = half_pair(half, x[e], x[e + 1]);
    return;
  }
  for (int e = lane; e < dim; e += 32) {
    const float d = __fdiv_rn(warp_max(fabsf(x[e])), 127.0f);
    float inverse = d == 0 ? 0.0f : __fdiv_rn(1.0f, d);
    if (!isfinite(inverse)) inverse = 0;
    const float q = fminf(fmaxf(roundf(__fmul_rn(x[e], inverse)), -127.0f), 127.0f);
    reinterpret_cast<int8_t*>(cell)[e] = int8_t(int(q));
    if (lane == 0) scales[e / 32] = f16_bits(d);
  }
}

// Where a cell of one head lies, in cells.
__host__ __device__ __forceinline__ size_t cell_index(const KvView& kv, int layer, int slot, int head, int cell) {
  return size_t(slot) * kv.slot_cells() + size_t(layer) * kv.layer_cells() + size_t(head) * kCellBlock +
         place_of(cell, uint32_t(kv.block_cells()));
}
__host__ __device__ __forceinline__ size_t cell_bytes(const KvView& kv) {
  return size_t(kv.head_dim) * (kv.type == DType::kQ8_0 ? 1 : 2);
}

}  // namespace sx::cuda
