// Attention of decode and verification on Hopper: the kernel that turns units of cells into partial softmax states. K
// and V stream through a ring in shared memory (TMA), warpgroups of 64 query rows compute (wgmma). The fold is the same
// for any number of rows: at a single row the unused rows of the tensor cores cost less than the bytes take to arrive.
// Needs code for sm_90a; code for another architecture traps.
#pragma once
#include "backend/cuda/attend_finish_sm90.cuh"
#include "backend/cuda/hopper.cuh"
#include "backend/cuda/launch.cuh"

namespace sx::cuda {

inline constexpr int kGroupQueries = 64;  // query rows of a warpgroup
inline constexpr int kLineBytes = 128;    // 64 elements; a wider matrix is several panels of 64 columns

// How the cells are split; no bit of a result depends on it.
enum class HopperForm {
  kSpans,      // a unit is a span; a small ring: two thread blocks and one of the finish fit an SM
  kSpansDeep,  // for grids of at most one thread block per SM: a ring that holds a span
  kSections,   // a unit is a section
  kPairs,      // likewise, with two warpgroups that share the K/V of a sequence
};

template <int D, HopperForm form>
struct HopperShape {
  static constexpr int kGroups = form == HopperForm::kPairs ? 2 : 1;  // warpgroups that compute
  static constexpr bool kSections = form == HopperForm::kSections || form == HopperForm::kPairs;
  static constexpr int kPanels = D / 64;
  static constexpr uint32_t kPanel = 64 * kLineBytes, kTile = kPanels * kPanel;  // bytes; of q, of K and of V
  static constexpr int kStages = (form == HopperForm::kSpans ? 64 : 128) * 1024 / int(2 * kTile);
  // q of each group, K of each stage, V of each stage, barriers; 1024 to align the beginning.
  static constexpr uint32_t kKAt = kGroups * kTile, kVAt = kKAt + kStages * kTile, kBarriersAt = kVAt + kStages * kTile;
  static constexpr uint32_t kBytes = kBarriersAt + 4 * kStages * 8 + 1024;
  static constexpr int kThreads = kGroups == 1 ? 128 : 3 * 128;
  static constexpr int kPerSm = form == HopperForm::kSpans ? 2 : 1;
};

#ifdef SX_HOPPER
// What a warpgroup has to do: up to 64 query rows (row and head of the group) of a tile, over some blocks of its unit.
struct GroupWork {
  RowTile tile;
  int first_query, begin, blocks;  // blocks == 0: nothing
};

__device__ __forceinline__ GroupWork find_work(const AttendBody& body, int piece, int unit) {
  GroupWork work{};
  const int tile = piece / body.parts;
  if (tile >= body.tile_count) return work;
  work.tile = body.tiles[tile];
  work.first_query = piece % body.parts * kGroupQueries;
  if (work.first_query >= work.tile.rows * body.group) return work;
  // No row of the tile sees a block below `begin`, nor one from `end` on; all between are committed.
  work.begin = max(unit * body.unit_blocks, first_seen(work.tile.history, body.window) / kAttendBlock);
  const int end = min((unit + 1) * body.unit_blocks, body_end(work.tile.history + kMaxDepth) / kAttendBlock);
  work.blocks = max(end - work.begin, 0);
  return work;
}

// Barriers in shared memory, 8 bytes each: a block of K or V is there (full), or all warps are done with it (empty).
// Blocks are numbered in the order of the thread block's work.
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

// How one thread brings K and V of the blocks of a warpgroup's work, which are number `first` and following of the
// thread block's, each as soon as its stage is free.
template <int D, HopperForm form>
struct Copies {
  using S = HopperShape<D, form>;
  const Ring<D, form>& ring;
  const CUtensorMap &k_map, &v_map;
  int plane, begin, first;  // begin: the block of cells that is number `first`
  __device__ __forceinline__ void k(int i) const {
    hopper::barrier_wait(ring.empty_k(i), ring.parity(i) ^ 1);
    copy(ring.k(i), k_map, i, ring.full_k(i));
  }
  __device__ __forceinline__ void v(int i) const {
    hopper::barrier_wait(ring.empty_v(i), ring.parity(i) ^ 1);
    copy(ring.v(i), v_map, i, ring.full_v(i));
  }
  __device__ __forceinline__ void copy(uint32_t to, const CUtensorMap& map, int i, uint32_t full) const {
    hopper::barrier_arrive_expecting(full, S::kTile);
#pragma unroll
    for (int p = 0; p < S::kPanels; ++p) {
      hopper::load_box(to + p * S::kPanel, map, 64 * p, (begin + i - first) * kAttendBlock, plane, full);
    }
  }
};

// A warp lets blocks [first, end) pass that concern the other warpgroup only.
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

// The query rows of a warpgroup, scaled, as 16-bit values in swizzled panels. Those that do not exist are 0.
template <int D, bool bf16>
__device__ __forceinline__ void stage_queries(std::byte* to, const AttendBody& body, const GroupWork& work,
                                              int kv_head) {
  constexpr int kUnits = D / 8;  // 16-byte units of a row
  const int thread = int(threadIdx.x % 128), queries = work.tile.rows * body.group;
  const float scale = body.scale_log2;
#pragma unroll
  for (int i = 0; i < kGroupQueries * kUnits / 128; ++i) {
    const int at = thread + i * 128, line = at / kUnits, unit = at % kUnits, query = work.first_query + line;
    uint4 packed = make_uint4(0, 0, 0, 0);
    if (query < queries) {
      const int row = work.tile.first_row + query / body.group;
      const int head = (body.first_kv_head + kv_head) * body.group + query % body.group;
      const float* from = body.q + size_t(row) * size_t(body.q_stride) + size_t(head) * D + size_t(unit) * 8;
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
      const float4 y = __ldcg(reinterpret_cast<const float4*>(from + 4));
      packed = make_uint4(pack2<bf16>(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale)),
                          pack2<bf16>(__fmul_rn(x.z, scale), __fmul_rn(x.w, scale)),
                          pack2<bf16>(__fmul_rn(y.x, scale), __fmul_rn(y.y, scale)),
                          pack2<bf16>(__fmul_rn(y.z, scale), __fmul_rn(y.w, scale)));
    }
    *reinterpret_cast<uint4*>(to + unit / 8 * (64 * kLineBytes) + line * kLineBytes + (unit % 8 ^ line % 8) * 16) =
        packed;
  }
}

// Issues s = q K^T for a block.
template <int D, bool bf16>
__device__ __forceinline__ void issue_scores(float (&s)[kAttendBlock / 2], uint32_t q, uint32_t k) {
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint32_t at = uint32_t(step / 4 * (64 * kLineBytes) + step % 4 * 32);
    hopper::product_shared<bf16>(s, hopper::descriptor(q + at, 16), hopper::descriptor(k + at, 16), step > 0);
  }
  hopper::products_commit();
}

// Issues o += weights V for a block.
template <int D, bool bf16>
__device__ __forceinline__ void issue_output(float (&o)[D / 2], const uint32_t (&weights)[kAttendBlock / 4],
                                             uint32_t v) {
#pragma unroll
  for (int step = 0; step < kAttendBlock / 16; ++step) {
    const uint64_t b = hopper::descriptor(v + uint32_t(step * 16 * kLineBytes), 64 * kLineBytes);
    hopper::product_registers<bf16>(o, weights + 4 * step, b);
  }
  hopper::products_commit();
}

template <bool bf16>
__device__ __forceinline__ void pack_weights(uint32_t (&weights)[kAttendBlock / 4],
                                             const float (&s)[kAttendBlock / 2]) {
#pragma unroll
  for (int i = 0; i < kAttendBlock / 4; ++i) weights[i] = pack2_weights<bf16>(s[2 * i], s[2 * i + 1]);
}

// A warpgroup: its query rows over the blocks of `work`, which are number `first` and following of the thread block's.
// A thread holds query rows warp * 16 + lane / 4 and the one 8 further; r counts these two.
template <int D, bool bf16, HopperForm form>
__device__ __forceinline__ void consume(const Ring<D, form>& ring, std::byte* shared, const AttendBody& body,
                                        const Copies<D, form>& copies, const GroupWork& work, int group,
                                        int kv_head, int unit, int first) {
  using S = HopperShape<D, form>;
  constexpr bool kSections = S::kSections, kCopies = S::kGroups == 1;
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x % 128 / 32);
  // Query rows that do not exist see everything, and nobody reads what they compute.
  int target[2], limit[2], low[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = work.first_query + warp * 16 + lane / 4 + 8 * r;
    const bool used = query < work.tile.rows * body.group;
    const int row = work.tile.first_row + (used ? query / body.group : 0);
    const int index = body.rows[row].index;
    target[r] = used ? row * body.range_heads + kv_head * body.group + query % body.group : -1;
    limit[r] = used ? body_end(index) : INT32_MAX;
    low[r] = used ? first_seen(index, body.window) : 0;
  }
  const int all_limit = __reduce_min_sync(0xffffffffu, min(limit[0], limit[1]));
  const int all_low = __reduce_max_sync(0xffffffffu, max(low[0], low[1]));
  const uint32_t q = ring.base + uint32_t(group) * S::kTile;
  stage_queries<D, bf16>(shared + size_t(group) * S::kTile, body, work, kv_head);
  hopper::fence_async_shared();
  hopper::named_sync(1 + group, 128);

  float o[D / 2], s[kAttendBlock / 2];
  float most[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.f, 0.f}, factor[2];
  uint32_t weights[kAttendBlock / 4];
  float section_o[kSections ? D / 2 : 1];  // the spans before this one
  float section_m[2] = {minus_infinity(), minus_infinity()}, section_l[2] = {0.f, 0.f};
#pragma unroll
  for (int j = 0; j < D / 2; ++j) o[j] = 0.f;
  if constexpr (kSections) {
#pragma unroll
    for (int j = 0; j < D / 2; ++j) section_o[j] = 0.f;
  }
  // Turns scores into weights. A block that a row does not see leaves its state as it is: factor 1 (or 0 times 0 before
  // its first visible cell), weights 0.
  const auto softmax = [&](int block) {
    const int cell = block * kAttendBlock;
    if (cell + kAttendBlock > all_limit || cell < all_low) {
#pragma unroll
      for (int i = 0; i < kAttendBlock / 2; ++i) {
        const int at = cell + i / 4 * 8 + lane % 4 * 2 + i % 2;
        if (at >= limit[i % 4 / 2] || at < low[i % 4 / 2]) s[i] = minus_infinity();
      }
    }
    softmax_step(s, most, sum, factor);
  };
  // The state (m, l, o) of a complete span, l in parts, joins the section as it does in the finish.
  const auto close_span = [&](const float (&m)[2], const float (&parts)[2]) {
    if constexpr (kSections) {
      MergeScales scales[2];
#pragma unroll
      for (int r = 0; r < 2; ++r) scales[r] = merge_states(section_m[r], section_l[r], m[r], quad_sum(parts[r]));
#pragma unroll
      for (int j = 0; j < D / 2; ++j) section_o[j] = merge_values(section_o[j], o[j], scales[j % 4 / 2]);
    }
  };
  // Every warp says so itself: a warp's wait covers only its own part of a product.
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) hopper::barrier_arrive(barrier);
  };
  // A lone warpgroup copies for itself: K into the stage of block `block`, V into that of the one before.
  const auto refill = [&](int block) {
    if (!kCopies || threadIdx.x != 0) return;
    if (block + S::kStages < work.blocks) copies.k(block + S::kStages);
    if (block > 0 && block - 1 + S::kStages < work.blocks) copies.v(block - 1 + S::kStages);
  };

  hopper::barrier_wait(ring.full_k(first), ring.parity(first));
  __syncwarp();
  hopper::products_begin();
  issue_scores<D, bf16>(s, q, ring.k(first));
  hopper::products_wait<0>();
  hopper::hold(s);
  release(ring.empty_k(first));
  softmax(work.begin);
  refill(0);
  pack_weights<bf16>(weights, s);
  for (int block = 1; block < work.blocks; ++block) {
    const int i = first + block;
    hopper::barrier_wait(ring.full_k(i), ring.parity(i));
    hopper::barrier_wait(ring.full_v(i - 1), ring.parity(i - 1));
    __syncwarp();
    hopper::products_begin();
    issue_scores<D, bf16>(s, q, ring.k(i));
    issue_output<D, bf16>(o, weights, ring.v(i - 1));
    hopper::products_wait<1>();
    hopper::hold(s);
    release(ring.empty_k(i));
    const bool new_span = kSections && (work.begin + block) % kHopperSpanBlocks == 0;
    const float span_m[2] = {most[0], most[1]}, span_l[2] = {sum[0], sum[1]};
    if (new_span) {
      most[0] = most[1] = minus_infinity();
      sum[0] = sum[1] = 0.f;
    }
    softmax(work.begin + block);
    // The exponentials come before the wait, under the running products; see attend_prompt_sm90.cu.
    __syncwarp(sum[0] + sum[1] < 0.f ? 1u : 0xffffffffu);
    hopper::products_wait<0>();
    hopper::hold(o);
    release(ring.empty_v(i - 1));
    if (new_span) close_span(span_m, span_l);
#pragma unroll
    for (int j = 0; j < D / 2; ++j) o[j] = __fmul_rn(o[j], factor[j % 4 / 2]);  // the factor at a new span is 0
    pack_weights<bf16>(weights, s);
    refill(block);
  }
  const int last = first + work.blocks - 1;
  hopper::barrier_wait(ring.full_v(last), ring.parity(last));
  __syncwarp();
  hopper::products_begin();
  issue_output<D, bf16>(o, weights, ring.v(last));
  hopper::products_wait<0>();
  hopper::hold(o);
  release(ring.empty_v(last));
  close_span(most, sum);

  const size_t unit_at = size_t(unit) * size_t(body.row_count) * size_t(body.range_heads);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float l = kSections ? section_l[r] : quad_sum(sum[r]);
    if (target[r] < 0) continue;
    const size_t at = unit_at + size_t(target[r]);
    float* to = body.state_o + at * D + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < D / 8; ++j) {
      float x, y;
      if constexpr (kSections) x = section_o[4 * j + 2 * r], y = section_o[4 * j + 2 * r + 1];
      else x = o[4 * j + 2 * r], y = o[4 * j + 2 * r + 1];
      *reinterpret_cast<float2*>(to + 8 * j) = make_float2(x, y);
    }
    if (lane % 4 == 0) body.state_ml[at] = make_float2(kSections ? section_m[r] : most[r], l);
  }
}
#endif

// One block: one unit (z) of cells of kv head y for kGroups pieces of 64 query rows, from piece kGroups x on. It must
// read 4 D bytes per cell, once per block: neighbours in x read the same, at the same time. Bound by memory for few
// rows (at 64 query rows the tensor cores need a third of the time that a block of cells takes to arrive), by the
// tensor cores for many. Pieces of different sequences are worked on one after the other.
template <int D, bool bf16, HopperForm form>
__global__ void __launch_bounds__(HopperShape<D, form>::kThreads, HopperShape<D, form>::kPerSm)
    attend_rows_wgmma_kernel(const AttendBody body, const __grid_constant__ CUtensorMap k_map,
                             const __grid_constant__ CUtensorMap v_map) {
#ifdef SX_HOPPER
  using S = HopperShape<D, form>;
  constexpr int kGroups = S::kGroups;
  extern __shared__ std::byte unaligned[];
  std::byte* const shared = unaligned + (1024 - hopper::shared_address(unaligned) % 1024) % 1024;
  const Ring<D, form> ring{hopper::shared_address(shared)};
  const int group = int(threadIdx.x / 128), kv_head = int(blockIdx.y), unit = int(blockIdx.z);
  const bool copying = int(threadIdx.x) == (kGroups == 1 ? 0 : 128 * kGroups);
  if (copying) {
    hopper::prefetch_map(k_map);
    hopper::prefetch_map(v_map);
    for (int stage = 0; stage < S::kStages; ++stage) {
      hopper::barrier_init(ring.full_k(stage), 1);
      hopper::barrier_init(ring.full_v(stage), 1);
      hopper::barrier_init(ring.empty_k(stage), kGroups * 4);
      hopper::barrier_init(ring.empty_v(stage), kGroups * 4);
    }
    hopper::barrier_init_done();
  }
  const GroupWork left = find_work(body, int(blockIdx.x) * kGroups, unit);
  GroupWork right{}, mine = left;
  // The order of all blocks: those of the left warpgroup, then those of the right one unless they are the same.
  int right_first = 0, all = left.blocks;
  bool together = true;
  if constexpr (kGroups == 2) {
    right = find_work(body, int(blockIdx.x) * kGroups + 1, unit);
    if (group == 1) mine = right;
    together = left.blocks > 0 && right.blocks > 0 && left.tile.slot == right.tile.slot &&
               left.tile.history == right.tile.history;
    if (!together) {
      right_first = left.blocks;
      all = left.blocks + right.blocks;
    }
  }
  if (all == 0) return wait_for_previous();
  __syncthreads();

  // Copies start at once: no kernel that is still running writes cells of the body. The fence, since K and V were
  // written by ordinary stores.
  const int plane = body.first_kv_head + kv_head;
  const Copies<D, form> left_copies{ring, k_map, v_map, left.tile.slot * body.kv_heads + plane, left.begin, 0};
  if constexpr (kGroups == 1) {
    if (copying) {
      hopper::fence_async_global();
      for (int i = 0; i < min(S::kStages, all); ++i) {
        left_copies.k(i);
        left_copies.v(i);
      }
    }
    __syncwarp();
    wait_for_previous();
    // Only now: the finish relies on it that all before this kernel is complete when it starts.
    let_next_start();
    consume<D, bf16, form>(ring, shared, body, left_copies, left, 0, kv_head, unit, 0);
  } else if (group == kGroups) {
    hopper::give_registers<24>();
    if (copying) {
      hopper::fence_async_global();
      for (int i = 0; i < left.blocks; ++i) {
        left_copies.k(i);
        left_copies.v(i);
      }
      const int right_plane = right.tile.slot * body.kv_heads + plane;
      const Copies<D, form> right_copies{ring, k_map, v_map, right_plane, right.begin, right_first};
      for (int i = left.blocks; i < all; ++i) {
        right_copies.k(i);
        right_copies.v(i);
      }
    }
  } else {
    hopper::take_registers<240>();
    wait_for_previous();
    let_next_start();  // only now, as above
    const int first = group == 0 ? 0 : right_first;
    if (mine.blocks == 0) {
      pass<D, form>(ring, 0, all);
    } else {
      pass<D, form>(ring, 0, first);
      consume<D, bf16, form>(ring, shared, body, left_copies, mine, group, kv_head, unit, first);
      pass<D, form>(ring, first + mine.blocks, all);
    }
  }
#else
  __trap();
#endif
}

}  // namespace sx::cuda
