// Which format a quantised matrix has, and its expansion to f16 for prompts.
#include <specextend/error.h>

#include "backend/cuda/linear_formats.cuh"

namespace sx::cuda {

template <class Format>
void multiply_packed(const LinearTask& task, Way way, cudaStream_t stream);  // linear_packed.cuh

namespace {

// Calls function<format>().
template <class Function>
void by_format(const WeightSegment& segment, const Function& function) {
  if (segment.format == WeightSegment::Format::kQ4) {
    segment.has_offset ? function.template operator()<Q4Format<true>>() : function.template operator()<Q4Format<false>>();
  } else if (segment.sub == 32) {
    segment.has_offset ? function.template operator()<Q8Format<true, 32>>()
                       : function.template operator()<Q8Format<false, 32>>();
  } else {
    segment.has_offset ? function.template operator()<Q8Format<true, 16>>()
                       : function.template operator()<Q8Format<false, 16>>();
  }
}

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
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int k = group * kGroup + step * 32 + 4 * t;
    uint32_t a[8];
    Format::operands(weights, step, a);
    if (k >= task.in) continue;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = tile * kTileOut + g + 8 * i;  // of `to`, which holds task.rows of them
      if (row >= task.rows) continue;
      uint16_t* const at = to + size_t(row) * size_t(task.in) + size_t(k);
      *reinterpret_cast<uint2*>(at) = make_uint2(a[i], a[i + 2]);
      *reinterpret_cast<uint2*>(at + 16) = make_uint2(a[i + 4], a[i + 6]);
    }
  }
}

}  // namespace

void multiply_quantised(const WeightSegment& segment, const LinearTask& task, Way way, cudaStream_t stream) {
  by_format(segment, [&]<class Format>() { multiply_packed<Format>(task, way, stream); });
}

void dequantise_rows(void* to, const WeightSegment& segment, int in, int first, int count, cudaStream_t stream) {
  if (first % kTileOut != 0)
    throw Error("CUDA: dequantise_rows: first row " + std::to_string(first) + " is inside a tile");
  LinearTask task{};
  task.data = segment.data;
  task.in = in;
  task.out = segment.out;
  task.rows = count;
  task.parts = parts_of(in);
  const dim3 grid(unsigned((task.parts.groups + 7) / 8), unsigned((count + kTileOut - 1) / kTileOut));
  auto* f16 = static_cast<uint16_t*>(to);
  by_format(segment, [&]<class Format>() { launch(expand_rows<Format>, grid, dim3(256), 0, stream, task, f16, first); });
}

}  // namespace sx::cuda
