#include "backend/cuda/linear/experts.h"

#include <specextend/error.h>

#include <algorithm>

#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "backend/cuda/linear/expert_glu.cuh"
#include "backend/cuda/linear/expert_lists.cuh"
#include "backend/cuda/linear/experts_few.h"
#include "backend/cuda/linear/router.cuh"
#include "backend/cuda/linear/skinny_mma.cuh"
#include "backend/cuda/linear/skinny_packed.cuh"

namespace sx::cuda {
namespace {

__global__ void __launch_bounds__(kMostExperts) list_all_entries(const __grid_constant__ ExpertLists lists) {
  __shared__ int32_t sums[2][kMostExperts];
  let_next_start();
  wait_for_previous();
  list_entries(lists, sums);
}

// A product of all experts: LinearTask of expert 0 and entry 0, and how far apart the others are. Blocks (tile, slots,
// part): the active experts in slots y, y + gridDim.y, ..., and one or two parts of equal shape behind each other.
struct ExpertsTask {
  LinearTask task;
  const int4* active;  // see ExpertLists
  int slots;
  size_t expert_bytes, part_bytes;
  int bias_stride, input_bytes;
};

// The block's task for one slot; false: there is nothing to do, nor in the slots behind.
__device__ __forceinline__ bool own_task(const ExpertsTask& all, int slot, LinearTask& task) {
  if (slot >= all.slots) return false;
  const int4 active = all.active[slot];
  const int expert = active.x, from = active.y, part = int(blockIdx.z);
  if (expert < 0) return false;
  task = all.task;
  task.rows = active.z;
  task.data = static_cast<const char*>(task.data) + size_t(expert) * all.expert_bytes + size_t(part) * all.part_bytes;
  task.x = static_cast<const char*>(task.x) + size_t(from) * size_t(task.in) * size_t(all.input_bytes);
  task.result += size_t(from) * size_t(task.out_stride) + size_t(part) * size_t(task.out);
  if (task.bias) task.bias += size_t(expert) * size_t(all.bias_stride) + size_t(part) * size_t(task.out);
  return true;
}

// A block computes 16 outputs of one expert for all of its rows, 8 * kTokenTiles at a time: the weights come from
// memory once, then from L2. Same order of summation as packed_few and few_rows, whose code it runs.
template <class Format, int kTokenTiles>
__global__ void __launch_bounds__(256, kTokenTiles == 1 ? 4 : 2)
    expert_packed(const __grid_constant__ ExpertsTask all) {
  extern __shared__ __align__(128) unsigned char shared[];
  let_next_start();
  wait_for_previous();
  LinearTask task;
  for (int slot = int(blockIdx.y); own_task(all, slot, task); slot += int(gridDim.y)) {
    for (int block = 0; block * 8 * kTokenTiles < task.rows; ++block) {
      packed_few_block<Format, 1, kTokenTiles, kTokenTiles == 1 ? 1 : Format::kAhead, 2>(task, int(blockIdx.x),
                                                                                         int(gridDim.x), block, shared);
      __syncthreads();
    }
  }
}

template <Half kHalf>
__global__ void __launch_bounds__(256, 2) expert_half(const __grid_constant__ ExpertsTask all) {
  let_next_start();
  wait_for_previous();
  LinearTask task;
  for (int slot = int(blockIdx.y); own_task(all, slot, task); slot += int(gridDim.y)) {
    for (int block = 0; block * 8 < task.rows; ++block) {
      few_rows_block<HalfFormat<kHalf>, 1, 1, 1>(task, int(blockIdx.x), block);
      __syncthreads();
    }
  }
}

// f32 weights: a warp has one output at a time of 16, for all rows of the expert; lane l sums k = l, l + 32, ...
__global__ void __launch_bounds__(256) expert_f32(const __grid_constant__ ExpertsTask all) {
  let_next_start();
  wait_for_previous();
  LinearTask task;
  const int lane = int(threadIdx.x) & 31;
  for (int slot = int(blockIdx.y); own_task(all, slot, task); slot += int(gridDim.y)) {
    for (int o = int(threadIdx.x) >> 5; o < kTileOut; o += 8) {
      const int out = int(blockIdx.x) * kTileOut + o;
      if (out >= task.out) break;
      const float* weights = static_cast<const float*>(task.data) + size_t(out) * size_t(task.in);
      for (int row = 0; row < task.rows; ++row) {
        const float* x = static_cast<const float*>(task.x) + size_t(row) * size_t(task.in);
        float sum = 0;
        for (int k = lane; k < task.in; k += 32) sum = __fmaf_rn(weights[k], x[k], sum);
        sum = warp_sum(sum);
        if (lane == 0) store_result(task, row, out, sum);
      }
    }
  }
}

struct Inputs {  // of a product, as it wants them; null where it does not
  uint16_t* x16;
  float* x;
  Half half;
};
__device__ __forceinline__ void store_input(const Inputs& to, size_t at, float value) {
  if (to.x16) to.x16[at] = half_bits(to.half, value);
  if (to.x) to.x[at] = value;
}

// The rows of all entries. A block has kPiece columns of one.
constexpr int kPiece = 1024;
__global__ void __launch_bounds__(256) gather_entries(ExpertLists lists, const float* x, int width, Inputs to) {
  let_next_start();
  wait_for_previous();
  const int entry = int(blockIdx.x), first = int(blockIdx.y) * kPiece + int(threadIdx.x);
  if (entry >= lists.first[lists.experts]) return;
  const float* from = x + size_t(lists.row_of[entry]) * size_t(width);
  float v[kPiece / 256];
#pragma unroll
  for (int i = 0; i < kPiece / 256; ++i) v[i] = first + 256 * i < width ? from[first + 256 * i] : 0;
#pragma unroll
  for (int i = 0; i < kPiece / 256; ++i)
    if (first + 256 * i < width) store_input(to, size_t(entry) * size_t(width) + size_t(first + 256 * i), v[i]);
}

__global__ void __launch_bounds__(256)
    expert_glu(ExpertLists lists, const float* gate_up, int ffn, float limit, float alpha, Inputs to, int to_stride) {
  let_next_start();
  wait_for_previous();
  const int entry = int(blockIdx.x);
  if (entry >= lists.first[lists.experts]) return;
  const float *gates = gate_up + size_t(entry) * size_t(2 * ffn), *ups = gates + ffn;
  const int i = int(blockIdx.y) * 256 + int(threadIdx.x);
  if (i >= ffn) return;
  store_input(to, size_t(entry) * size_t(to_stride) + size_t(i), activate_expert(gates[i], ups[i], limit, alpha));
}

// out (+)= w0 y0 + w1 y1 + ..., in the order of choice. A block has 256 columns of one row; eight terms are loaded at
// once.
__global__ void __launch_bounds__(256)
    combine_entries(ExpertLists lists, const float* y, int width, float* out, int stride, bool accumulate) {
  let_next_start();
  wait_for_previous();
  const size_t row = blockIdx.x, at = row * size_t(lists.used);
  if (lists.choice[at] < 0) return;
  const int i = int(blockIdx.y) * 256 + int(threadIdx.x);
  if (i >= width) return;
  float sum = 0;
  for (int first = 0; first < lists.used; first += 8) {
    float weight[8], v[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const size_t k = at + size_t(min(first + j, lists.used - 1));
      weight[j] = lists.weight[k];
      v[j] = y[size_t(lists.place[k]) * size_t(width) + size_t(i)];
    }
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      if (first + j >= lists.used) break;
      const float term = __fmul_rn(weight[j], v[j]);
      sum = first + j == 0 ? term : __fadd_rn(sum, term);
    }
  }
  float& to = out[row * size_t(stride) + size_t(i)];
  to = accumulate ? __fadd_rn(to, sum) : sum;
}

template <class Format, int kTokenTiles>
void launch_packed(const ExpertsTask& task, dim3 grid, cudaStream_t stream) {
  constexpr int kShared = kPackedFewShared<1, kTokenTiles, 2>;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(expert_packed<Format, kTokenTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  check(allowed, "shared memory");
  launch(expert_packed<Format, kTokenTiles>, grid, dim3(256), kShared, stream, task);
}

void multiply(const WeightSegment& segment, const ExpertsTask& task, dim3 grid, bool many, cudaStream_t stream) {
  using Format = WeightSegment::Format;
  switch (segment.format) {
    case Format::kF32: return launch(expert_f32, grid, dim3(256), 0, stream, task);
    case Format::kBF16: return launch(expert_half<Half::kBF16>, grid, dim3(256), 0, stream, task);
    case Format::kF16: return launch(expert_half<Half::kF16>, grid, dim3(256), 0, stream, task);
    default: break;
  }
  by_format(segment, [&]<class Packed>() {
    many ? launch_packed<Packed, 2>(task, grid, stream) : launch_packed<Packed, 1>(task, grid, stream);
  });
}

// Bytes of `rows` outputs of a segment; quantised ones lie in tiles.
size_t row_bytes(const WeightSegment& segment, int in, size_t rows) {
  if (!segment.quantised()) return rows * size_t(in) * (segment.format == WeightSegment::Format::kF32 ? 4 : 2);
  size_t group = 0;
  by_format(segment, [&]<class Packed>() { group = size_t(Packed::kGroupBytes); });
  return rows / kTileOut * size_t(parts_of(in).groups) * group;
}

// Blocks for slots: with more, those without an expert would take longer to start and end than the others to go on.
constexpr int kSlotBlocks = 32;

// result[entry] = W x[entry] + bias of all experts.
void multiply_experts(const CudaExperts& matrix, const ExpertLists& lists, const Inputs& inputs, const float* bias,
                      float* result, cudaStream_t stream) {
  const auto parts = matrix.parts();
  for (size_t i = 0; i < parts.size();) {
    const CudaExperts::Part& part = parts[i];
    const WeightSegment& segment = matrix.segments()[size_t(part.segment)];
    const bool f32 = segment.format == WeightSegment::Format::kF32;
    const bool pair = i + 1 < parts.size() && parts[i + 1].segment == part.segment && parts[i + 1].out == part.out;
    ExpertsTask all{};
    all.active = lists.active;
    all.slots = lists.slots;
    all.expert_bytes = row_bytes(segment, matrix.in(), size_t(part.out));
    if (pair) all.part_bytes = row_bytes(segment, matrix.in(), size_t(parts[i + 1].first_row - part.first_row));
    all.bias_stride = matrix.out();
    all.input_bytes = f32 ? 4 : 2;
    LinearTask& task = all.task;
    task.data = static_cast<const char*>(segment.data) + row_bytes(segment, matrix.in(), size_t(part.first_row));
    task.x = f32 ? static_cast<const void*>(inputs.x) : inputs.x16;
    task.bias = bias ? bias + part.first_out : nullptr;
    task.result = result + part.first_out;
    task.in = matrix.in();
    task.out = part.out;
    task.out_stride = matrix.out();
    task.parts = parts_of(matrix.in());
    const unsigned slots = unsigned(std::min(lists.slots, kSlotBlocks));
    const dim3 grid(unsigned((part.out + kTileOut - 1) / kTileOut), slots, pair ? 2 : 1);
    multiply(segment, all, grid, lists.rows * lists.used > 4 * lists.experts, stream);
    i += pair ? 2 : 1;
  }
}

// Who goes where: one kernel for few rows, else two. few: nobody reads the lists.
template <int kPerLane>
void route_by(const RouteCall& call, bool few, cudaStream_t stream) {
  const ExpertLists& lists = call.lists;
  if (!few && lists.rows <= kRouteThreads / 32 && lists.experts <= kRouteThreads)
    return launch(route_and_list<kPerLane>, dim3(1), dim3(kRouteThreads), 0, stream, call);
  launch(route_rows<kPerLane>, dim3(unsigned(divide_up(lists.rows, 4))), dim3(128), 0, stream, call);
  if (!few) launch(list_all_entries, dim3(1), dim3(unsigned(divide_up(lists.experts, 32) * 32)), 0, stream, lists);
}

std::vector<Tensor> stacked(std::span<const Tensor> parts) {
  std::vector<Tensor> out;
  for (const Tensor& part : parts) {
    if (part.rank != 3 || part.shape[0] != parts[0].shape[0])
      throw Error("CUDA: the parts of experts must be [experts, outputs, inputs]");
    out.push_back({part.type, 2, {part.shape[0] * part.shape[1], part.shape[2]}, part.data});
  }
  return out;
}

// Pieces of the scratch, each at a multiple of 256 bytes.
struct Pieces {
  char* base;
  size_t used = 0;
  template <class T>
  T* take(size_t count) {
    T* at = reinterpret_cast<T*>(base + used);
    used += (count * sizeof(T) + 255) / 256 * 256;
    return at;
  }
};

struct Buffers {
  ExpertLists lists;
  Inputs x, inner;
  float *gate_up, *y;
};

Buffers buffers_of(Pieces& pieces, int most_rows, int experts, int used, int width, int ffn) {
  const size_t rows = size_t(std::min(most_rows, kExpertRows)), entries = rows * size_t(used);
  Buffers b{};
  b.lists.choice = pieces.take<int32_t>(entries);
  b.lists.weight = pieces.take<float>(entries);
  b.lists.place = pieces.take<int32_t>(entries);
  b.lists.row_of = pieces.take<int32_t>(entries);
  b.lists.first = pieces.take<int32_t>(size_t(experts) + 1);
  b.lists.active = pieces.take<int4>(size_t(experts));
  b.x = {pieces.take<uint16_t>(entries * size_t(width)), pieces.take<float>(entries * size_t(width)), Half::kF16};
  b.inner = {pieces.take<uint16_t>(entries * size_t(ffn)), pieces.take<float>(entries * size_t(ffn)), Half::kF16};
  b.gate_up = pieces.take<float>(entries * 2 * size_t(ffn));
  b.y = pieces.take<float>(entries * size_t(width));
  return b;
}

Inputs wanted_by(const CudaMatrix& matrix, const Inputs& all) {
  return {matrix.wants_half() ? all.x16 : nullptr, matrix.wants_f32() ? all.x : nullptr, matrix.half()};
}

}  // namespace

CudaExperts::CudaExperts(std::span<const Tensor> parts, DeviceMemory& memory) : CudaMatrix(stacked(parts), memory) {
  experts_ = int(parts[0].shape[0]);
  out_ = 0;
  int row = 0;  // of all segments, which follow each other
  for (const Tensor& part : parts) {
    const int out = int(part.shape[1]);
    size_t s = 0;
    while (row >= segments()[s].first_out + segments()[s].out) ++s;
    const WeightSegment& segment = segments()[s];
    if (segment.quantised() && out % kTileOut != 0)
      throw Error("CUDA: experts with " + std::to_string(out) + " outputs: quantised ones need a multiple of " +
                  std::to_string(kTileOut));
    if (segment.format != WeightSegment::Format::kF32 && in_ % 8 != 0)
      throw Error("CUDA: experts with " + std::to_string(in_) + " inputs: a multiple of 8 is needed");
    parts_.push_back({int(s), row - segment.first_out, out_, out});
    row += experts_ * out;
    out_ += out;
  }
}

size_t experts_scratch_bytes(int rows, int experts, int used, int width, int ffn) {
  Pieces pieces{nullptr};
  buffers_of(pieces, rows, experts, used, width, ffn);
  return pieces.used;
}

void experts_rows(const ExpertsCall& call, void* scratch, cudaStream_t stream) {
  const ExpertsArgs& a = call.args;
  const CudaExperts &gate_up = *call.gate_up, &down = *call.down;
  const int width = gate_up.in(), ffn = down.in(), experts = gate_up.experts();
  // Of ranks by columns this one's; else all.
  const int own_ffn = gate_up.out() / 2, own_width = down.out();
  if (!a.part && (own_ffn != ffn || own_width != width))
    throw Error("CUDA: experts of some columns without their ranks");
  Pieces pieces{static_cast<char*>(scratch)};
  Buffers b = buffers_of(pieces, a.rows, experts, a.used, width, ffn);
  const Inputs x = wanted_by(gate_up, b.x), inner = wanted_by(down, b.inner);
  const bool few = few_experts_serve(gate_up, down, a);
  for (int first = 0; first < a.rows; first += kExpertRows) {
    ExpertLists& lists = b.lists;
    lists.rows = std::min(kExpertRows, a.rows - first);
    lists.used = a.used;
    lists.experts = experts;
    lists.slots = std::min(experts, lists.rows * a.used);
    const unsigned entries = unsigned(lists.rows * a.used);
    const size_t at = size_t(first) * size_t(width);
    const RouteCall route{lists,         a.logits + size_t(first) * size_t(experts),
                          a.choice_bias, call.row_info ? call.row_info + first : nullptr,
                          a.routing,     a.renormalise,
                          a.scale};
    if (few && call.router) route_normed({route, call.norm, call.router, call.router_bias}, stream);
    else experts <= 128 ? route_by<4>(route, few, stream) : route_by<kMostExperts / 32>(route, few, stream);
    if (few) {
      return few_experts({.gate_up = &gate_up,
                          .down = &down,
                          .args = a,
                          .choice = lists.choice,
                          .weight = lists.weight,
                          .x16 = static_cast<const uint16_t*>(call.x16),
                          .inner16 = inner.x16},
                         stream);
    }
    launch(gather_entries, dim3(entries, unsigned(divide_up(width, kPiece))), dim3(256), 0, stream, lists, a.x + at,
           width, x);
    multiply_experts(gate_up, lists, x, a.gate_up_bias, b.gate_up, stream);
    // Columns that other ranks need go as f32, and are rounded once all are there.
    const Inputs activated = a.part ? Inputs{nullptr, b.inner.x + a.part->first_inner, inner.half} : inner;
    launch(expert_glu, dim3(entries, unsigned(divide_up(own_ffn, 256))), dim3(256), 0, stream, lists, b.gate_up,
           own_ffn, a.limit, a.alpha, activated, ffn);
    if (a.part) {
      a.part->gather(nullptr, b.inner.x, int(entries), true);
      if (inner.x16) to_half(inner.x16, inner.half, b.inner.x, size_t(entries) * size_t(ffn), stream);
    }
    multiply_experts(down, lists, inner, a.down_bias, b.y, stream);
    launch(combine_entries, dim3(unsigned(lists.rows), unsigned(divide_up(own_width, 256))), dim3(256), 0, stream,
           lists, b.y, own_width, a.out + at + (a.part ? a.part->first_out : 0), width, a.accumulate);
  }
}

}  // namespace sx::cuda
