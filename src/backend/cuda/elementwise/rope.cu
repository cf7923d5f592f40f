// RoPE: the angles of a step, and rope_store, which norms and rotates queries and keys and writes K and V to their
// cells.
#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "backend/cuda/kv/packed.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostHeadDim = 256;
constexpr int kWarps = 8;

// One thread: the cosine and sine of one row and pair, in double as the definition has it. Bound: latency.
__global__ void rope_table_kernel(RopeTableCall c) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x), pairs = c.dims / 2;
  let_next_start();
  wait_for_previous();
  if (i >= c.rows * pairs) return;
  const int row = i / pairs;
  double sine, cosine;
  sincos(__dmul_rn(double(c.positions[row]), c.frequencies[i % pairs]), &sine, &cosine);
  reinterpret_cast<float2*>(c.table)[i] =
      make_float2(float(__dmul_rn(cosine, double(c.factor))), float(__dmul_rn(sine, double(c.factor))));
}

// One warp: one head of one row, through shared memory: 4 bytes read per element; 4 (queries), 2 or 1 (keys, values)
// written. Bound: latency for a few rows, memory for many.
template <bool packed>
__global__ void rope_store_kernel(RopeStoreCall c) {
  __shared__ float buffer[kWarps][kMostHeadDim];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, all = c.heads + 2 * c.kv_heads, dim = c.head_dim;
  const int h = int(blockIdx.x) * kWarps + warp, row = blockIdx.y;
  const bool is_query = h < c.heads, is_value = h >= c.heads + c.kv_heads;
  let_next_start();
  wait_for_previous();
  if (h >= all) return;
  const RowInfo info = c.info[row];
  float2
      turn[kMostHeadDim / 64];  // (cos, sin), loaded together with the head: one round trip to memory instead of three
#pragma unroll
  for (int j = 0; j < kMostHeadDim / 64; ++j) {
    const int i = lane + 32 * j;
    if (!is_value && i < c.dims / 2)
      turn[j] = reinterpret_cast<const float2*>(c.table + size_t(row) * size_t(c.dims))[i];
  }
  float* head = c.qkv + (size_t(row) * size_t(all) + size_t(h)) * size_t(dim);
  float* x = buffer[warp];
  float sum = 0;
  for (int e = 2 * lane; e < dim; e += 64) {
    float2 v = *reinterpret_cast<const float2*>(head + e);
    if (is_value) {  // finite, so that a weight of 0 makes it nothing
      v.x = v.x != v.x ? 0.0f : fminf(fmaxf(v.x, -3.3e38f), 3.3e38f);
      v.y = v.y != v.y ? 0.0f : fminf(fmaxf(v.y, -3.3e38f), 3.3e38f);
    }
    *reinterpret_cast<float2*>(x + e) = v;
    sum = fmaf(v.x, v.x, sum);
    sum = fmaf(v.y, v.y, sum);
  }
  if (info.slot < 0) return;  // the same for the whole warp
  if (!is_value) {
    if (const float* weight = is_query ? c.q_norm : c.k_norm) {
      const float factor = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fdiv_rn(warp_sum(sum), float(dim)), c.eps)));
      for (int e = 2 * lane; e < dim; e += 64) {  // its own elements
        x[e] = __fmul_rn(__fmul_rn(x[e], factor), weight[e]);
        x[e + 1] = __fmul_rn(__fmul_rn(x[e + 1], factor), weight[e + 1]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int j = 0; j < kMostHeadDim / 64; ++j)
      if (lane + 32 * j < c.dims / 2) rotate_pair(x, lane + 32 * j, turn[j], c.dims, c.style);
  }
  __syncwarp();
  if (is_query) {
    for (int e = 2 * lane; e < dim; e += 64)
      *reinterpret_cast<float2*>(head + e) = *reinterpret_cast<const float2*>(x + e);
    return;
  }
  const int kv_head = h - c.heads - (is_value ? c.kv_heads : 0);
  const size_t cell = cell_index(c.kv, c.layer, info.slot, kv_head, info.cell);
  if constexpr (packed) return store_side(is_value ? values_of(c.kv) : keys_of(c.kv), cell, x, lane);
  uint16_t* scales = is_value ? c.kv.v_scale : c.kv.k_scale;
  if (scales) scales += cell * size_t(dim / 32);
  store_head(c.kv.type, (is_value ? c.kv.v : c.kv.k) + cell * cell_bytes(c.kv), scales, x, dim, lane);
}

}  // namespace

void rope_table(const RopeTableCall& c, cudaStream_t stream) {
  const int count = c.rows * (c.dims / 2);
  if (count <= 0) return;
  launch(rope_table_kernel, unsigned((count + 127) / 128), 128, 0, stream, c);
}

void rope_store(const RopeStoreCall& call, cudaStream_t stream) {
  constexpr int kMostRows = 65535;
  const int all = call.heads + 2 * call.kv_heads;
  for (int first = 0; first < call.rows; first += kMostRows) {
    RopeStoreCall c = call;
    c.qkv += size_t(first) * size_t(all) * size_t(c.head_dim);
    c.table += size_t(first) * size_t(c.dims);
    c.info += first;
    c.rows = call.rows - first < kMostRows ? call.rows - first : kMostRows;
    launch(call.kv.packed ? rope_store_kernel<true> : rope_store_kernel<false>,
           dim3(unsigned((all + kWarps - 1) / kWarps), unsigned(c.rows)), kWarps * 32, 0, stream, c);
  }
}

}  // namespace sx::cuda
