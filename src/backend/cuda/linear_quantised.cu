// Products with quantised weights, and their expansion to f16 for prompts.
#include <specextend/error.h>

#include "backend/cuda/linear_many.cuh"

namespace sx::cuda {
namespace {

// A warp expands one group (128 k) of one tile (16 rows), the very values the products use. A block: 8 groups of a
// tile. Moves the quantised bytes in and 2 bytes per element out; bound by memory bandwidth.
template <class Format>
__global__ void __launch_bounds__(256)
    expand_rows(const __grid_constant__ LinearTask task, uint16_t* to, const int first) {
  const int lane = int(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  const int group = int(blockIdx.x) * 8 + (int(threadIdx.x) >> 5), tile = int(blockIdx.y);
  let_next_start();
  const typename Format::Source source(task, first / kTileOut + tile, lane, task.parts.groups);
  typename Format::Group weights;
#pragma unroll
  for (int step = 0; step < 4; ++step) Format::load(source, weights, group, step);
  wait_for_previous();
  const int low = tile * kTileOut + g, high = low + 8;  // rows of `to`, which holds task.rows of them
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int k = group * kGroup + step * 32 + 8 * t;
    uint32_t a[8];
    Format::operands(weights, step, a);
    if (k >= task.in) continue;
    if (low < task.rows) {
      *reinterpret_cast<uint4*>(to + size_t(low) * size_t(task.in) + size_t(k)) = make_uint4(a[0], a[2], a[4], a[6]);
    }
    if (high < task.rows) {
      *reinterpret_cast<uint4*>(to + size_t(high) * size_t(task.in) + size_t(k)) = make_uint4(a[1], a[3], a[5], a[7]);
    }
  }
}

}  // namespace

void multiply_q4(const LinearTask& task, Way way, cudaStream_t stream) {
  multiply_rows<Q4Format>(task, way, stream);
}
void multiply_q8(const LinearTask& task, Way way, cudaStream_t stream) {
  multiply_rows<Q8Format<false>>(task, way, stream);
}
void multiply_q8_offset(const LinearTask& task, Way way, cudaStream_t stream) {
  multiply_rows<Q8Format<true>>(task, way, stream);
}

void dequantise_rows(void* to, const WeightSegment& segment, int in, int first, int count, cudaStream_t stream) {
  if (first % kTileOut != 0)
    throw Error("CUDA: dequantise_rows: first row " + std::to_string(first) + " is inside a tile");
  LinearTask task{};
  task.data = segment.data;
  task.scales = segment.scales;
  task.in = in;
  task.out = segment.out;
  task.rows = count;
  task.sub = segment.sub;
  task.parts = parts_of(in);
  const dim3 grid(unsigned((task.parts.groups + 7) / 8), unsigned((count + kTileOut - 1) / kTileOut));
  auto* f16 = static_cast<uint16_t*>(to);
  if (segment.format == WeightSegment::Format::kQ4) {
    launch(expand_rows<Q4Format>, grid, dim3(256), 0, stream, task, f16, first);
  } else if (segment.has_offset) {
    launch(expand_rows<Q8Format<true>>, grid, dim3(256), 0, stream, task, f16, first);
  } else {
    launch(expand_rows<Q8Format<false>>, grid, dim3(256), 0, stream, task, f16, first);
  }
}

}  // namespace sx::cuda
