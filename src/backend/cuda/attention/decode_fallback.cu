// Decode attention for head sizes that the tensor-core kernels do not support: tiny models of tests.
#include "backend/cuda/attention/decode_mma.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {

namespace {

constexpr int kMostPerLane = 8;  // head_dim <= 256

struct AnyCells {
  const std::byte* data;
  const uint16_t* scale;
  DType type;
  int head_dim;
  __device__ float at(size_t cell, int column) const {
    const size_t i = cell * size_t(head_dim) + size_t(column);
    if (type == DType::kBF16) return __bfloat162float(__ldcg(reinterpret_cast<const __nv_bfloat16*>(data) + i));
    if (type == DType::kF16) return __half2float(__ldcg(reinterpret_cast<const __half*>(data) + i));
    const __half* scales = reinterpret_cast<const __half*>(scale) + cell * size_t(head_dim / 32);
    const float factor = __half2float(__ldcg(scales + column / 32));
    return __fmul_rn(factor, float(__ldcg(reinterpret_cast<const signed char*>(data) + i)));
  }
};

// One warp: one row and head, one cell after the other in index order, which depends on nothing else. A warp reads 2
// head_dim elements per cell; bound by latency.
__global__ void attend_any_kernel(const AttendCall call, size_t first_cell) {
  let_next_start();
  const int row = int(blockIdx.x), head = int(blockIdx.y), lane = int(threadIdx.x);
  const int kv_head = head / (call.heads / call.kv_heads);
  const RowInfo info = call.step.rows[row];
  wait_for_previous();
  if (info.slot < 0) return;
  const size_t base = first_cell + size_t(info.slot) * call.kv.slot_cells() + size_t(kv_head) * kCellBlock;
  const uint32_t block_cells = uint32_t(call.kv.block_cells());
  const AnyCells k{call.kv.k, call.kv.k_scale, call.kv.type, call.head_dim};
  const AnyCells v{call.kv.v, call.kv.v_scale, call.kv.type, call.head_dim};
  const float* query = call.q + size_t(row) * size_t(call.q_stride) + size_t(head) * size_t(call.head_dim);
  const float scale = __fmul_rn(call.scale, kLog2E);
  float q[kMostPerLane], o[kMostPerLane] = {};
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    const int column = lane + 32 * i;
    q[i] = column < call.head_dim ? __fmul_rn(__ldcg(query + column), scale) : 0.0f;
  }
  float m = minus_infinity(), l = 0;
  const auto fold = [&](int index) {
    const size_t cell = base + place_of(index, block_cells);
    float score = 0;
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) {
      if (lane + 32 * i < call.head_dim) score = __fmaf_rn(q[i], k.at(cell, lane + 32 * i), score);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) score = __fadd_rn(score, __shfl_xor_sync(0xffffffffu, score, step));
    if (call.soft_cap > 0) score = cap_score(score, call.soft_cap);
    const MergeScales scales = merge_states(m, l, score, 1.0f);
#pragma unroll
    for (int i = 0; i < kMostPerLane; ++i) {
      if (lane + 32 * i < call.head_dim) o[i] = merge_values(o[i], v.at(cell, lane + 32 * i), scales);
    }
  };
  const int low = first_seen(info.index, call.window);
  for (int index = low; index < info.history; ++index) fold(index);
  int index = info.history;
  for (int word = 0; word < kAncestorWords; ++word) {
    uint64_t bits = call.step.ancestors[size_t(row) * kAncestorWords + word];
    for (; bits != 0; bits &= bits - 1, ++index) {
      if (index >= low) fold(info.history + 64 * word + __ffsll(static_cast<long long>(bits)) - 1);
    }
  }
  const float factor = call.sinks != nullptr ? add_sink(m, l, call.sinks[head]) : 1.0f;
#pragma unroll
  for (int i = 0; i < kMostPerLane; ++i) {
    const int column = lane + 32 * i;
    if (column >= call.head_dim) continue;
    const float result = __fdiv_rn(__fmul_rn(o[i], factor), l);
    const size_t at = (size_t(row) * size_t(call.heads) + size_t(head)) * size_t(call.head_dim) + size_t(column);
    call.out[at] = result;
    if (call.out16 != nullptr) store_half(call.out16, call.half, at, result);
  }
}

}  // namespace

void attend_any(const AttendCall& call, cudaStream_t stream) {
  launch(attend_any_kernel, dim3(unsigned(call.rows), unsigned(call.heads)), dim3(32), 0, stream, call,
         size_t(call.layer) * call.kv.layer_cells());
}

}  // namespace sx::cuda
