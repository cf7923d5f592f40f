// Which format a quantised matrix has, and its expansion to f16 for prompts.
#include <specextend/error.h>

#include "backend/cuda/linear/formats.cuh"

namespace sx::cuda {

template <class Format>
void multiply_packed(const LinearTask& task, Way way, cudaStream_t stream);  // packed.cuh

namespace {

// Word j of lane t of four goes to word t of lane j: what was 2 k of each 8 becomes 8 consecutive ones.
__device__ __forceinline__ void exchange(uint32_t (&v)[4], int t) {
#pragma unroll
  for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (j & bit) continue;
      const uint32_t got = __shfl_xor_sync(0xffffffffu, t & bit ? v[j] : v[j | bit], bit);
      (t & bit ? v[j] : v[j | bit]) = got;
    }
  }
}

// A warp expands one group (128 k) of one tile (16 rows) to the values that the GEMM kernels use. A block: 8 groups of
// a tile. Moves the quantised bytes in and 2 bytes per element out; bound by memory bandwidth.
template <class Format>
__global__ void __launch_bounds__(256)
    expand_rows(const __grid_constant__ LinearTask task, uint16_t* to, const int first) {
  const int lane = int(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  const int group = int(blockIdx.x) * 8 + (int(threadIdx.x) >> 5), tile = int(blockIdx.y);
  let_next_start();
  typename Format::Source source;
  source.begin(task, first / kTileOut + tile, lane, task.parts.groups);
  typename Format::Group weights;
#pragma unroll
  for (int step = 0; step < 4; ++step) Format::load(source, weights, group, step);
  wait_for_previous();
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const int k = group * kGroup + step * 32 + 8 * t;
    uint32_t a[8];
    Format::operands(weights, step, a);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      uint32_t v[4] = {a[i], a[i + 2], a[i + 4], a[i + 6]};
      exchange(v, t);
      const int row = tile * kTileOut + g + 8 * i;  // of `to`, which holds task.rows of them
      if (k < task.in && row < task.rows)
        *reinterpret_cast<uint4*>(to + size_t(row) * size_t(task.in) + size_t(k)) = make_uint4(v[0], v[1], v[2], v[3]);
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
  by_format(segment,
            [&]<class Format>() { launch(expand_rows<Format>, grid, dim3(256), 0, stream, task, f16, first); });
}

}  // namespace sx::cuda
