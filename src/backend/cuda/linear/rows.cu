// Skinny GEMM for decoding and verification: which kernel a segment goes to, and f32 weights.
#include "backend/cuda/linear/linear.h"

#include <specextend/error.h>

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/linear/kernels.h"

namespace sx::cuda {
namespace {

// A thread adds up the split-K parts of one element. It moves parts * rows * out floats, mostly in L2.
__global__ void __launch_bounds__(256) add_parts(const __grid_constant__ LinearTask task) {
  const int out = int(blockIdx.x) * 256 + int(threadIdx.x), row = int(blockIdx.y);
  let_next_start();
  wait_for_previous();
  if (out >= task.out) return;
  const float* from = task.scratch + size_t(row) * size_t(task.out) + size_t(out);
  float part[kMostParts];
#pragma unroll
  for (int p = 0; p < kMostParts; ++p)
    part[p] = p < task.parts.parts ? from[size_t(p) * size_t(task.rows) * size_t(task.out)] : 0;
  float total = part[0];
#pragma unroll
  for (int p = 1; p < kMostParts; ++p) {
    if (p < task.parts.parts) total = __fadd_rn(total, part[p]);
  }
  float* to = task.result + size_t(row) * size_t(task.out_stride) + out;
  if (task.bias) total = __fadd_rn(total, task.bias[out]);
  if (task.accumulate) total = __fadd_rn(total, *to);
  *to = total;
}

// f32 weights (rare and small: routers of mixtures). A warp computes one output of kRows rows: lane l sums k = l, l +
// 32, ..., then the lanes are added in a tree. The weights are read once per kRows rows; bound by latency and L2, so
// loads are started many at a time.
template <int kRows>
__global__ void __launch_bounds__(256) multiply_f32(const __grid_constant__ LinearTask task) {
  constexpr int kAtOnce = kRows == 1 ? 16 : 4;
  const int lane = int(threadIdx.x) & 31, out = int(blockIdx.x) * 8 + (int(threadIdx.x) >> 5),
            first = int(blockIdx.y) * kRows;
  let_next_start();
  wait_for_previous();
  if (out >= task.out) return;
  const float* weights = static_cast<const float*>(task.data) + size_t(out) * size_t(task.in);
  const float* rows[kRows];  // rows behind the last repeat it; the result is dropped
#pragma unroll
  for (int i = 0; i < kRows; ++i)
    rows[i] = static_cast<const float*>(task.x) + size_t(min(first + i, task.rows - 1)) * size_t(task.in);
  float sum[kRows] = {};
  for (int k0 = lane; k0 < task.in; k0 += 32 * kAtOnce) {
    float w[kAtOnce], x[kAtOnce][kRows];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int k = min(k0 + 32 * j, task.in - 1);
      w[j] = weights[k];
#pragma unroll
      for (int i = 0; i < kRows; ++i) x[j][i] = rows[i][k];
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      if (k0 + 32 * j >= task.in) break;
#pragma unroll
      for (int i = 0; i < kRows; ++i) sum[i] = __fmaf_rn(w[j], x[j][i], sum[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum[i] = __fadd_rn(sum[i], __shfl_xor_sync(0xffffffffu, sum[i], distance));
    }
    if (lane != 0 || first + i >= task.rows) continue;
    float* to = task.result + size_t(first + i) * size_t(task.out_stride) + out;
    if (task.bias) sum[i] = __fadd_rn(sum[i], task.bias[out]);
    if (task.accumulate) sum[i] = __fadd_rn(sum[i], *to);
    *to = sum[i];
  }
}

// Rows [first, first + task.rows) of the call, at most kManyRows of them.
void multiply_segment(const WeightSegment& segment, const LinearTask& task, Way way, cudaStream_t stream) {
  using Format = WeightSegment::Format;
  switch (segment.format) {
    case Format::kBF16: return multiply_bf16(task, way, stream);
    case Format::kF16: return multiply_f16(task, way, stream);
    case Format::kQ4:
    case Format::kF4:
    case Format::kQ8: return multiply_quantised(segment, task, way, stream);
    case Format::kF32: break;
  }
  const unsigned blocks = unsigned((task.out + 7) / 8);
  if (task.rows == 1) return launch(multiply_f32<1>, dim3(blocks), dim3(256), 0, stream, task);
  launch(multiply_f32<8>, dim3(blocks, unsigned((task.rows + 7) / 8)), dim3(256), 0, stream, task);
}

}  // namespace

int parts_per_block(const LinearTask& task) {
  const int tiles = (task.out + kManyOuts - 1) / kManyOuts, blocks = std::max(1, kDevice / tiles);
  return (task.parts.parts + blocks - 1) / blocks;
}

namespace {

// 9 rows and more of 16-bit weights on Hopper: tiles that two blocks share, as large as needed for all blocks to be
// there at once; whole rows for more outputs. few_rows alone would win a few of these, but not beside the others: it
// uses L1, they use shared memory, and reconfiguring that between two kernels cost a step of 16 rows a quarter of its
// time.
Way way_of_halves(const LinearTask& task) {
  const auto at_once = [&](int outs) { return (task.out + outs - 1) / outs * 2 <= kDevice; };
  return at_once(64) ? Way::kWhole2 : at_once(96) ? Way::kWhole2x96 : at_once(128) ? Way::kWhole2x128 : Way::kStream;
}

// 17 rows and more of quantised weights on Hopper: whole rows where they fill half of the device or more. 9 to 16 rows
// would gain there too, but other matrices lose, and the two kernels divide the shared memory in different ways.
Way way_of_quantised(const LinearTask& task) {
  if (!can_stream() || task.rows <= 2 * kFewRows) return Way::kFew;
  return task.out >= 64 * kDevice ? Way::kStream : Way::kParts4;
}

}  // namespace

// few_rows serves few rows, and weights that stay in L2. The rest goes to stream_rows and parts_rows where the device
// has them, or else to many_rows, whose blocks take 216 KB of shared memory; whole rows of up to half the device's
// blocks would leave the other half idle.
Way way_of(const LinearTask& task, bool half) {
  static const bool fits = [] {
    int device = 0, bytes = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "device");
    return bytes >= 227 * 1024;
  }();
  if (!fits || is_small(task) || task.in % 8 != 0 || task.rows <= kFewRows) return Way::kFew;
  if (half && can_stream()) return way_of_halves(task);
  if (!half) return way_of_quantised(task);
  if (task.rows <= 2 * kFewRows) return Way::kFew;
  return parts_per_block(task) < task.parts.parts ? Way::kScratch : Way::kInside;
}

size_t linear_scratch_bytes(int rows, int out) {
  return size_t(kMostParts) * size_t(std::min(rows, kManyRows)) * size_t(std::min(out, kSplitBelow)) * sizeof(float);
}

void linear_rows_by(const CudaMatrix& matrix, const LinearCall& call, void* scratch, Way way, cudaStream_t stream) {
  if ((matrix.wants_half() && !call.x16) || (matrix.wants_f32() && !call.x)) throw Error("CUDA: linear: x is missing");
  for (const WeightSegment& segment : matrix.segments()) {
    const bool f32 = segment.format == WeightSegment::Format::kF32;
    const auto* x = static_cast<const std::byte*>(f32 ? static_cast<const void*>(call.x) : call.x16);
    for (int first = 0; first < call.rows; first += kManyRows) {
      LinearTask task{};
      task.data = segment.data;
      task.x = x + size_t(first) * size_t(matrix.in()) * (f32 ? sizeof(float) : sizeof(uint16_t));
      task.bias = call.bias ? call.bias + segment.first_out : nullptr;
      task.result = call.out + size_t(first) * size_t(call.out_stride) + segment.first_out;
      task.scratch = static_cast<float*>(scratch);
      task.in = matrix.in();
      task.out = segment.out;
      task.rows = std::min(call.rows - first, kManyRows);
      task.out_stride = call.out_stride;
      task.accumulate = call.accumulate;
      task.parts = parts_of(matrix.in());
      const bool only_few = f32 || task.in % 8 != 0;
      const bool half = segment.format == WeightSegment::Format::kBF16 || segment.format == WeightSegment::Format::kF16;
      const bool has =
          way == Way::kFew || way == Way::kStream || (segment.quantised() ? way == Way::kParts4 : way != Way::kParts4);
      const bool by_shape = way == Way::kByShape || (way >= Way::kStream && !can_stream()) || !has;
      Way this_way = only_few ? Way::kFew : by_shape ? way_of(task, half) : way;
      if (this_way == Way::kScratch && parts_per_block(task) >= task.parts.parts) this_way = Way::kInside;
      multiply_segment(segment, task, this_way, stream);
      if (this_way == Way::kScratch) {
        launch(add_parts, dim3(unsigned((task.out + 255) / 256), unsigned(task.rows)), dim3(256), 0, stream, task);
      }
    }
  }
}

bool linear_glu(const CudaMatrix& matrix, const LinearCall& call, void* out16, cudaStream_t stream) {
  if (matrix.segments().size() != 1 || !call.x16 || call.accumulate) return false;
  const WeightSegment& segment = matrix.segments()[0];
  const bool is_half = segment.format == WeightSegment::Format::kBF16 || segment.format == WeightSegment::Format::kF16;
  LinearTask task{};
  task.data = segment.data;
  task.bias = call.bias;
  task.in = matrix.in();
  task.out = segment.out;
  task.out_stride = call.out_stride;
  task.parts = parts_of(matrix.in());
  task.glu = true;
  task.rows = std::min(call.rows, kManyRows);
  if (!is_half || way_of(task, true) != Way::kStream) return false;
  for (int first = 0; first < call.rows; first += kManyRows) {
    const size_t at = size_t(first);
    task.x = static_cast<const uint16_t*>(call.x16) + at * size_t(task.in);
    task.result = call.out ? call.out + at * size_t(call.out_stride) : nullptr;
    task.result16 = static_cast<uint16_t*>(out16) + at * size_t(task.out / 2);
    task.rows = std::min(call.rows - first, kManyRows);
    multiply_stream(task, matrix.half(), stream);
  }
  return true;
}

void linear_rows(const CudaMatrix& matrix, const LinearCall& call, void* scratch, cudaStream_t stream) {
  linear_rows_by(matrix, call, scratch, Way::kByShape, stream);
}

}  // namespace sx::cuda
