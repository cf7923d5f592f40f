// Packed stores: the kernels that widen the cells of a layer before attention reads them, and cells as bytes.
#include "backend/cuda/kv/packed.h"

#include <algorithm>

#include "backend/cuda/attention/decode_mma.cuh"
#include "backend/cuda/kv/packed.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kMostNodes = kAncestorWords * 64;  // cells behind a history
constexpr int kAlign = kTileCells;               // kernels may begin to read at multiples of this

// Which cells of which slots: those that the rows of a step see, or a range.
struct Widening {
  KvView from, to;  // `to` has one layer
  int layer;
  StepView step;  // tiles > 0
  int tiles, window;
  int slot, first, end;  // tiles == 0
};

struct CellRange {
  int slot, first, end;
};

// What the sequence of tile `index` sees, for the first of its tiles; nothing for its other ones. By whole warps.
__device__ CellRange seen_by(const Widening& c, int index) {
  static_assert(kTileRows <= 32);
  const int lane = int(threadIdx.x) % 32;
  const RowTile tile = c.step.tiles[index];
  if (tile.rows <= 0) return {0, 0, 0};
  for (int i = 0; i < index; ++i)
    if (c.step.tiles[i].rows > 0 && c.step.tiles[i].slot == tile.slot) return {0, 0, 0};
  int first = INT32_MAX, end = 0;
  for (int i = index; i < c.tiles; ++i) {
    const RowTile other = c.step.tiles[i];
    if (other.rows <= 0 || other.slot != tile.slot) continue;
    if (lane >= other.rows) continue;
    const RowInfo info = c.step.rows[other.first_row + lane];
    if (info.slot < 0) continue;
    // The ancestors of a row lie below its own cell; the tail of a row is read whole, however small the window.
    end = max(end, max(info.history, info.cell + 1));
    first = min(first, min(first_seen(info.index, c.window), body_end(info.index)));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    end = max(end, __shfl_xor_sync(kAllLanes, end, step));
    first = min(first, __shfl_xor_sync(kAllLanes, first, step));
  }
  return {tile.slot, min(first, end) / kAlign * kAlign, min(end, c.from.capacity)};
}

// Two neighbours as 16 bits.
__device__ __forceinline__ uint32_t narrow(DType type, float x, float y) {
  return half_pair(type == DType::kBF16 ? Half::kBF16 : Half::kF16, x, y);
}

// Word `w` of a cell's side becomes 2, 4 or 8 elements of the tile.
__device__ __forceinline__ void widen_to(const Side& from, size_t cell, const Side& to, size_t place, int w) {
  float scale = 0, least = 0, x[8];
  if (from.scales_of() > 0) {
    const uint16_t* scales = from.scale(cell) + scale_of_word(from.type, w);
    scale = f16_value(scales[0]);
    if (from.type == DType::kQ4_1) least = f16_value(scales[1]);
  }
  const int per = per_word(from.type);
  widen_word(from.type, from.word(cell)[w], scale, least, x);
  uint32_t* out = to.word(place) + size_t(w) * size_t(per / 2);
  if (per == 8) {
    *reinterpret_cast<uint4*>(out) = make_uint4(narrow(to.type, x[0], x[1]), narrow(to.type, x[2], x[3]),
                                                narrow(to.type, x[4], x[5]), narrow(to.type, x[6], x[7]));
  } else if (per == 4) {
    *reinterpret_cast<uint2*>(out) = make_uint2(narrow(to.type, x[0], x[1]), narrow(to.type, x[2], x[3]));
  } else {
    *out = narrow(to.type, x[0], x[1]);
  }
}

// A block takes every gridDim.x-th kThreads words of one KV head (y) of a sequence (z): 0.56 to 2 bytes read and 2
// written per element. Bound: memory.
__global__ void __launch_bounds__(kThreads) widen_kernel(const __grid_constant__ Widening c) {
  let_next_start();
  wait_for_previous();
  const CellRange range = c.tiles > 0 ? seen_by(c, int(blockIdx.z)) : CellRange{c.slot, c.first, c.end};
  const int head = int(blockIdx.y), count = range.end - range.first;
  if (count <= 0) return;
  const Side keys = keys_of(c.from), values = values_of(c.from), new_keys = keys_of(c.to), new_values = values_of(c.to);
  const size_t from = cell_index(c.from, c.layer, range.slot, head, 0), to = cell_index(c.to, 0, range.slot, head, 0);
  const uint32_t from_pitch = uint32_t(c.from.block_cells()), to_pitch = uint32_t(c.to.block_cells());
  const int k_words = keys.words_of(), words = k_words + values.words_of();
  const int64_t items = int64_t(count) * words;
  for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < items; i += int64_t(gridDim.x) * kThreads) {
    const int cell = range.first + int(i / words), w = int(i % words);
    const size_t here = from + place_of(cell, from_pitch), there = to + place_of(cell, to_pitch);
    if (w < k_words) widen_to(keys, here, new_keys, there, w);
    else widen_to(values, here, new_values, there, w - k_words);
  }
}

// Attention reads cells of the history before it waits for the kernel in front of it, since that one never writes them;
// here it does. So something stands between the two: it ends when the tile is written, and as it does not let the next
// kernel start early, that one begins behind it.
__global__ void barrier_kernel() { wait_for_previous(); }

void widen(const Widening& c, int cells, cudaStream_t stream) {
  constexpr int kMostBlocks = 1056;  // eight for each of the 132 SMs of an H200
  const int sequences = std::max(c.tiles, 1), columns = sequences * c.from.kv_heads;
  const int words = side_words(c.from.type, c.from.head_dim) + side_words(c.from.value_type, c.from.head_dim);
  const int64_t wanted = (int64_t(cells) * words + kThreads - 1) / kThreads;
  const auto blocks = std::clamp<int64_t>(wanted, 1, std::max(1, kMostBlocks / columns));
  launch(widen_kernel, dim3(unsigned(blocks), unsigned(c.from.kv_heads), unsigned(sequences)), kThreads, 0, stream, c);
  launch(barrier_kernel, 1, 32, 0, stream);
}

// One block: one cell of one layer. Packed: [cells][layers][heads], each the words of K, those of V, and what lies
// apart from them, K's first, filled up to whole words. Bound: the bus.
template <bool write>
__global__ void __launch_bounds__(kThreads) copy(const __grid_constant__ CellsCall c, int record, size_t bytes) {
  const KvView& kv = c.kv;
  const int cell = int(blockIdx.x), layer = int(blockIdx.y);
  let_next_start();
  wait_for_previous();
  const Side keys = keys_of(kv), values = values_of(kv);
  const int k_words = keys.words_of(), v_words = values.words_of(), k_scales = keys.scales_of(),
            v_scales = values.scales_of();
  auto* packed = reinterpret_cast<uint32_t*>(c.packed + size_t(cell) * bytes) +
                 size_t(layer) * size_t(kv.kv_heads) * size_t(record);
  for (int i = int(threadIdx.x); i < kv.kv_heads * record; i += kThreads) {
    const int head = i / record, w = i % record;
    const size_t at = cell_index(kv, layer, c.slot, head, c.first + cell);
    if (w < k_words + v_words) {
      uint32_t* stored = w < k_words ? keys.word(at) + w : values.word(at) + (w - k_words);
      if (write) *stored = packed[i];
      else packed[i] = *stored;
      continue;
    }
    uint32_t word = write ? packed[i] : 0;
    for (int half = 0; half < 2; ++half) {
      const int s = 2 * (w - k_words - v_words) + half;
      if (s >= k_scales + v_scales) continue;
      uint16_t* stored = s < k_scales ? keys.scale(at) + s : values.scale(at) + (s - k_scales);
      if (write) *stored = uint16_t(word >> (16 * half));
      else word |= uint32_t(*stored) << (16 * half);
    }
    if (!write) packed[i] = word;
  }
}

int record_words(const KvView& kv) {
  const int scales = side_scales(kv.type, kv.head_dim) + side_scales(kv.value_type, kv.head_dim);
  return side_words(kv.type, kv.head_dim) + side_words(kv.value_type, kv.head_dim) + (scales + 1) / 2;
}

}  // namespace

AttendCall on_tile(AttendCall call, const CudaKv& kv, cudaStream_t stream) {
  if (!call.kv.packed || call.rows == 0) return call;
  Widening c{};
  c.from = call.kv, c.to = kv.tile(), c.layer = call.layer;
  c.step = call.step, c.tiles = call.tiles, c.window = call.window;
  if (c.tiles > 0) widen(c, std::min(call.kv.capacity, call.history + kMostNodes), stream);
  call.kv = kv.tile(), call.layer = 0;
  return call;
}

PromptAttendCall on_tile(PromptAttendCall call, const CudaKv& kv, cudaStream_t stream) {
  if (!call.kv.packed || call.rows == 0) return call;
  Widening c{};
  c.from = call.kv, c.to = kv.tile(), c.layer = call.layer, c.slot = call.slot;
  c.first = call.window > 0 ? std::max(0, call.history - call.window + 1) / kAlign * kAlign : 0;
  c.end = call.history + call.rows;
  widen(c, c.end - c.first, stream);
  call.kv = kv.tile(), call.layer = 0;
  return call;
}

size_t packed_store_cell_bytes(const KvView& kv) {
  return size_t(kv.layers) * size_t(kv.kv_heads) * size_t(record_words(kv)) * 4;
}

void copy_packed_cells(const CellsCall& call, bool write, cudaStream_t stream) {
  if (call.count <= 0) return;
  const dim3 grid(unsigned(call.count), unsigned(call.kv.layers));
  launch(write ? copy<true> : copy<false>, grid, kThreads, 0, stream, call, record_words(call.kv),
         packed_store_cell_bytes(call.kv));
}

}  // namespace sx::cuda
