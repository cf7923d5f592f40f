// Split-KV decode on Hopper: the shared memory of a thread block, and its ring of TMA stages for tiles of K and V.
#pragma once
#include "backend/cuda/attention/decode_partition_sm90.cuh"
#include "backend/cuda/runtime/hopper.cuh"

namespace sx::cuda {

inline constexpr int kLineBytes = 128;  // 64 elements; a wider matrix is several panels of 64 columns

// How the cells are split; no bit of a result depends on it.
enum class HopperForm {
  kSingles,  // a thread block is one warpgroup and does one KV split; two fit an SM, one loads while the other computes
  kPairs,  // two warpgroups share the K/V of a sequence (ping-pong); a thread block does runs of KV splits and merges them
};

template <int D, HopperForm form>
struct HopperShape {
  static constexpr int kGroups = form == HopperForm::kPairs ? 2 : 1;  // warpgroups that compute
  static constexpr int kPanels = D / 64;
  static constexpr uint32_t kQ = kPanels * kGroupQueries * kLineBytes;  // bytes: q of a group
  static constexpr uint32_t kHalf = kAttendBlock * kLineBytes, kPanel = kTileBlocks * kHalf, kTile = kPanels * kPanel;
  static constexpr int kStages = (kGroups == 1 ? 64 : 192) * 1024 / int(2 * kTile);
  // q of each group, K of each stage, V of each stage, barriers, of pairs a place for each query. Two of single ones
  // fit 164 KB, which an SM can give without losing much of its L1.
  static constexpr uint32_t kKAt = kGroups * kQ, kVAt = kKAt + kStages * kTile, kBarriersAt = kVAt + kStages * kTile;
  static constexpr uint32_t kPlacesAt = kBarriersAt + 4 * kStages * 8,
                            kBytes = kPlacesAt + (kGroups > 1 ? kGroups * kGroupQueries * sizeof(int4) : 0);
  static_assert(kBytes <= 227 * 1024);
  static constexpr int kThreads = kGroups == 1 ? 128 : 3 * 128, kPerSm = kGroups == 1 ? 2 : 1;
};

#ifdef SX_HOPPER
// Barriers in shared memory, 8 bytes each: a tile of K or V is there (full), or all warps are done with it (empty).
// Tiles are numbered in the order of the thread block's work.
template <int D, HopperForm form>
struct Ring {
  using S = HopperShape<D, form>;
  uint32_t base;  // of the aligned shared memory
  static __device__ __forceinline__ uint32_t stage(int i) { return uint32_t(i % S::kStages); }
  static __device__ __forceinline__ uint32_t parity(int i) { return uint32_t(i / S::kStages % 2); }
  __device__ __forceinline__ uint32_t k(int i) const { return base + S::kKAt + stage(i) * S::kTile; }
  __device__ __forceinline__ uint32_t v(int i) const { return base + S::kVAt + stage(i) * S::kTile; }
  __device__ __forceinline__ uint32_t barrier(int which, int i) const {
    return base + S::kBarriersAt + (uint32_t(which) * S::kStages + stage(i)) * 8;
  }
  __device__ __forceinline__ uint32_t full_k(int i) const { return barrier(0, i); }
  __device__ __forceinline__ uint32_t full_v(int i) const { return barrier(1, i); }
  __device__ __forceinline__ uint32_t empty_k(int i) const { return barrier(2, i); }
  __device__ __forceinline__ uint32_t empty_v(int i) const { return barrier(3, i); }
};

// The producer: one thread copies K and V of the tiles of a warpgroup's work, which are number `first` and following of
// the thread block's, each as soon as its stage is free.
template <int D, HopperForm form>
struct Copies {
  using S = HopperShape<D, form>;
  const Ring<D, form>& ring;
  const CUtensorMap &k_map, &v_map;
  int plane, pitch, begin, tiles, first;  // a head's block 0, and from a block to the next; begin: tile number `first`
  bool half;
  __device__ __forceinline__ void k(int i) const {
    hopper::barrier_wait(ring.empty_k(i), ring.parity(i) ^ 1);
    copy(ring.k(i), k_map, i, ring.full_k(i));
  }
  __device__ __forceinline__ void v(int i) const {
    hopper::barrier_wait(ring.empty_v(i), ring.parity(i) ^ 1);
    copy(ring.v(i), v_map, i, ring.full_v(i));
  }
  __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap& map, int i, uint32_t full) const {
    const int start = plane + (begin + i - first) * kTileBlocks * pitch;
    const int blocks = half && i - first == tiles - 1 ? 1 : kTileBlocks;
    hopper::barrier_arrive_expecting(full, uint32_t(blocks) * (S::kTile / kTileBlocks));
    for (int block = 0; block < blocks; ++block) {
#pragma unroll
      for (int p = 0; p < S::kPanels; ++p) {
        hopper::load_box(to + p * S::kPanel + uint32_t(block) * S::kHalf, map, 64 * p, 0, start + block * pitch, full);
      }
    }
  }
};

// A consumer warp releases tiles [first, end) that only the other warpgroup needs.
template <int D, HopperForm form>
__device__ __forceinline__ void pass(const Ring<D, form>& ring, int first, int end) {
  for (int i = first; i < end; ++i) {
    hopper::barrier_wait(ring.full_k(i), ring.parity(i));
    hopper::barrier_wait(ring.full_v(i), ring.parity(i));
    __syncwarp();  // lanes that still waited could miss a phase
    if (threadIdx.x % 32 != 0) continue;
    hopper::barrier_arrive(ring.empty_k(i));
    hopper::barrier_arrive(ring.empty_v(i));
  }
}
#endif

}  // namespace sx::cuda
