// Split-KV decode (decode and verification): what its kernels share. In the code a KV split is a `unit`, a split group
// a `section`. The canonical order of a row's reduction, which depends on the row's index only:
//   block    64 cells at an absolute multiple: one softmax state (maximum m, sum l, output o), on tensor cores
//   span     the left fold of its 8 blocks         section   the left fold of its 4 spans: a split group
//   body     indices [0, body_end(index)), always history: the left fold of its sections
//   tail     the last 65..128 indices, gathered in index order into two blocks, the left fold of both
//   result   body merged with tail, o / l
// Every fold starts from the empty state (m = -inf, l = 0, o = 0); merging an empty newer state changes nothing. A
// kernel may stop at any level and leave the rest of the fold to the combine, so the grid may depend on the number of
// rows while the bits do not.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "backend/cuda/attention/attention.h"
#include "backend/cuda/attention/softmax.cuh"

namespace sx::cuda {

inline constexpr int kAttendBlock = 64;
static_assert(kAttendBlock == kCellBlock);
inline constexpr int kSpanBlocks = 8;
inline constexpr int kSectionBlocks = 32;
inline constexpr int kTailBlocks = 2;
inline constexpr int kTileCells = 128;  // of decode_sm90.cu, which has an order of its own
inline constexpr int kTileBlocks = kTileCells / kAttendBlock;

// Arguments of the kernels that make partial states. Slot u of the partial states is that of unit u; slot `units` is
// the tail.
struct AttendBody {
  const std::byte *k, *v;  // of the layer
  const uint16_t *k_scale, *v_scale;
  uint32_t block_cells;  // from a block of a head to the next
  size_t slot_cells;
  const float* q;
  int q_stride;
  const RowInfo* rows;
  const uint64_t* ancestors;
  const RowTile* tiles;
  int row_count, tile_count;
  int parts;                       // thread blocks that share the query rows of a tile
  int units, unit_blocks;          // a unit: 1 block, a span or a section (not on Hopper: see unit_begin)
  int group;                       // query heads per kv head
  int first_kv_head, range_heads;  // query heads of this launch
  float scale_log2;
  int window;
  float soft_cap;    // 0: none (always on Hopper)
  float* state_o;    // [units + 1][row_count][range_heads][head_dim]
  float2* state_ml;  // [units + 1][row_count][range_heads]: m, l
};

// How the work is split; no bit of the result depends on it.
struct AttendSplit {
  int head_dim;
  int tiles;  // of 16 query rows per thread block
  int range_kv_heads;
};

void attend_body_bf16(const AttendBody& body, const AttendSplit& split, cudaStream_t stream);
void attend_body_f16(const AttendBody& body, const AttendSplit& split, cudaStream_t stream);
void attend_body_q8(const AttendBody& body, const AttendSplit& split, cudaStream_t stream);
// decode_sm90.cu serves Hopper, BF16 and F16, head_dim 64 and 128, no soft cap. The choice depends on model and device
// only, because the bits of the two orders differ.
bool serves_hopper(const AttendCall& call);
enum class HopperKernels { kBoth, kBody, kFinish };  // split kernel, combine kernel; one of them alone: to measure
void attend_rows_hopper(const AttendCall& call, void* scratch, cudaStream_t stream,
                        HopperKernels kernels = HopperKernels::kBoth);
struct HopperPlan {
  bool pairs;  // of warpgroups that share K/V; otherwise a thread block is one warpgroup
  bool few;    // thread blocks of the combine
  int units, pieces, range_kv_heads, block_heads;
};
HopperPlan hopper_plan(const AttendCall& call);

// On Hopper the body is the left fold of split groups (sections), a group the left fold of four consecutive KV splits
// (units), a split some tiles of 128 cells folded one after the other (online softmax). Splits grow with their place:
// small ones spread short histories over many SMs, large ones leave few states of long histories. A thread block that
// has the beginning of a group merges its splits as it goes and leaves one state; of other splits it leaves the single
// states.
inline constexpr int kSectionUnits = 4;
__host__ __device__ constexpr int unit_begin(int unit) {  // in tiles
  if (unit < 16) return unit * 2;                         // 256 cells each up to 4,096
  if (unit < 40) return 32 + (unit - 16) * 4;             // 512 up to 16,384
  if (unit < 88) return 128 + (unit - 40) * 8;            // 1,024 up to 65,536
  return 512 + (unit - 88) * 16;                          // 2,048
}
__host__ __device__ inline int unit_of(int tile) {
  if (tile < 32) return tile / 2;
  if (tile < 128) return 16 + (tile - 32) / 4;
  if (tile < 512) return 40 + (tile - 128) / 8;
  return 88 + (tile - 512) / 16;
}
__host__ __device__ constexpr int unit_tiles(int unit) {  // unit_begin(unit + 1) - unit_begin(unit), in fewer steps
  return 2 << (int(unit >= 16) + int(unit >= 40) + int(unit >= 88));
}
static_assert([] {
  for (int unit = 0; unit < 200; ++unit) {
    if (unit_begin(unit) + unit_tiles(unit) != unit_begin(unit + 1)) return false;
  }
  return true;
}());
__host__ __device__ inline int units_of_blocks(int blocks) {  // of 64 cells
  return blocks > 0 ? unit_of((blocks - 1) / kTileBlocks) + 1 : 0;
}
// Any head_dim up to 256, without tensor cores: slow.
void attend_any(const AttendCall& call, cudaStream_t stream);

// All indices below are history, since a row is at most kMaxDepth below its history.
__host__ __device__ inline int body_end(int index) {
  const int block = index / kAttendBlock - 1;
  return block > 0 ? block * kAttendBlock : 0;
}

// The smallest index a row sees.
__host__ __device__ inline int first_seen(int index, int window) {
  return window > 0 && index - window + 1 > 0 ? index - window + 1 : 0;
}

// What the outputs of two states are multiplied with when they merge; older < 0: the newer one is empty, nothing
// changes.
struct MergeScales {
  float older, newer;
};

// (m, l) of the older state becomes that of both.
__device__ __forceinline__ MergeScales merge_states(float& m, float& l, float newer_m, float newer_l) {
  if (newer_m == minus_infinity()) return {-1.0f, 0.0f};
  const float top = fmaxf(m, newer_m);
  const MergeScales scales{exp2_fast(__fsub_rn(m, top)), exp2_fast(__fsub_rn(newer_m, top))};
  l = __fmaf_rn(l, scales.older, __fmul_rn(newer_l, scales.newer));
  m = top;
  return scales;
}

__device__ __forceinline__ float merge_values(float older, float newer, MergeScales scales) {
  return scales.older < 0 ? older : __fmaf_rn(older, scales.older, __fmul_rn(newer, scales.newer));
}

__device__ __forceinline__ void store_half(void* out16, Half half, size_t at, float x) {
  if (half == Half::kBF16) {
    static_cast<__nv_bfloat16*>(out16)[at] = __float2bfloat16_rn(x);
  } else {
    static_cast<__half*>(out16)[at] = __float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f));
  }
}

}  // namespace sx::cuda
