// kv_read and kv_write: cells as bytes between a store and mapped pinned host memory.
#include "backend/cuda/kv/kv.h"
#include "backend/cuda/kv/packed.h"
#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {
namespace {

constexpr int kThreads = 256;

// One block: one cell of one layer, all its heads: 4 head_dim bytes per head in 16-bit types, once over the bus. Bound:
// the bus. Packed: [cells][layers][heads][K, V][head_dim], behind which each cell of Q8_0 has its scales,
// [layers][heads][K, V][head_dim / 32].
template <bool write>
__global__ void __launch_bounds__(kThreads) copy(const __grid_constant__ CellsCall c, size_t bytes) {
  const KvView& kv = c.kv;
  const int cell = int(blockIdx.x), layer = int(blockIdx.y);
  const int words = int(cell_bytes(kv) / 4), scales = kv.k_scale ? kv.head_dim / 32 : 0;  // of a key or a value
  std::byte* mine = c.packed + size_t(cell) * bytes;
  let_next_start();
  wait_for_previous();
  const auto one = [](auto* stored, auto* packed) {
    if (write) *stored = *packed;
    else *packed = *stored;
  };
  uint32_t* packed = reinterpret_cast<uint32_t*>(mine) + size_t(layer) * size_t(kv.kv_heads) * size_t(2 * words);
  for (int i = int(threadIdx.x); i < kv.kv_heads * 2 * words; i += kThreads) {
    const int w = i % (2 * words);
    const size_t at = cell_index(kv, layer, c.slot, i / (2 * words), c.first + cell) * size_t(words);
    uint32_t* stored =
        w < words ? reinterpret_cast<uint32_t*>(kv.k) + at + w : reinterpret_cast<uint32_t*>(kv.v) + at + (w - words);
    one(stored, packed + i);
  }
  if (scales == 0) return;
  uint16_t* behind = reinterpret_cast<uint16_t*>(mine + size_t(kv.layers) * size_t(kv.kv_heads) * size_t(8 * words)) +
                     size_t(layer) * size_t(kv.kv_heads) * size_t(2 * scales);
  for (int i = int(threadIdx.x); i < kv.kv_heads * 2 * scales; i += kThreads) {
    const int s = i % (2 * scales);
    const size_t at = cell_index(kv, layer, c.slot, i / (2 * scales), c.first + cell) * size_t(scales);
    one(s < scales ? kv.k_scale + at + s : kv.v_scale + at + (s - scales), behind + i);
  }
}

}  // namespace

size_t packed_cell_bytes(const KvView& kv) {
  if (kv.packed) return packed_store_cell_bytes(kv);
  const size_t scales = kv.k_scale ? size_t(kv.head_dim / 32) * sizeof(uint16_t) : 0;
  return size_t(kv.layers) * size_t(kv.kv_heads) * 2 * (cell_bytes(kv) + scales);
}

void copy_cells(const CellsCall& call, bool write, cudaStream_t stream) {
  if (call.count <= 0) return;
  if (call.kv.packed) return copy_packed_cells(call, write, stream);
  const dim3 grid(unsigned(call.count), unsigned(call.kv.layers));
  launch(write ? copy<true> : copy<false>, grid, kThreads, 0, stream, call, packed_cell_bytes(call.kv));
}

}  // namespace sx::cuda
