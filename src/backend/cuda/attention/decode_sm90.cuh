// Split-KV decode on Hopper: the split kernel, which folds KV splits (units) into partial softmax states. A producer
// streams K and V through a ring in shared memory (TMA); consumer warpgroups of 64 query rows compute (wgmma), 128
// cells at a time. The fold is the same for any number of rows: at a single row the unused rows of the tensor cores
// cost less than the bytes take to arrive. Many rows: two consumer warpgroups share K/V in a ping-pong schedule, so
// that the softmax of one runs under the MMAs of the other. The kernel needs code for sm_90a; code for another
// architecture traps.
#pragma once
#include "backend/cuda/attention/decode_step_sm90.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {

#ifdef SX_HOPPER
// Stages Q of a warpgroup (scaled, 16-bit, swizzled) into shared memory; out-of-range rows are zero. Under PDL the
// kernel that writes Q may still run: this function computes addresses, waits (griddepcontrol.wait), then issues all
// loads back to back, none of them in a branch; `meanwhile`, which may write, runs while they are in flight. The
// combine relies on everything before this kernel being complete when it starts, hence let_next_start() here.
template <int D, bool bf16, HopperForm form, class Meanwhile>
__device__ __forceinline__ void stage_queries(std::byte* to, const AttendBody& body, const GroupWork& work, int kv_head,
                                              const Meanwhile& meanwhile) {
  constexpr int kUnits = D / 8, kRounds = kGroupQueries * kUnits / 128;  // 16-byte units of a row
  const int thread = int(threadIdx.x % 128), unit = thread % kUnits, queries = work.rows.rows * body.group;
  const float scale = body.scale_log2;
  const float* from[kRounds];
  float4 x[kRounds], y[kRounds];
  const float per_group = 1.0f / float(body.group);
  uintptr_t all = 0;
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int query = min(work.first_query + thread / kUnits + i * (128 / kUnits), queries - 1);
    const int row_of_tile = int((float(query) + 0.5f) * per_group);  // query / group, in few instructions
    const int row = work.rows.first_row + row_of_tile;
    const int head = (body.first_kv_head + kv_head - row_of_tile) * body.group + query;
    from[i] = body.q + size_t(row) * size_t(body.q_stride) + size_t(head) * D + size_t(unit) * 8;
    all |= reinterpret_cast<uintptr_t>(from[i]);
  }
  // The trap is never reached. Without it the compiler computes the addresses after the wait (with it, pairs would
  // spill).
  if (form == HopperForm::kSingles && all == 0) __trap();
  wait_for_previous();
  let_next_start();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    x[i] = __ldcg(reinterpret_cast<const float4*>(from[i]));
    y[i] = __ldcg(reinterpret_cast<const float4*>(from[i] + 4));
  }
  meanwhile();
#pragma unroll
  for (int i = 0; i < kRounds; ++i) {
    const int line = thread / kUnits + i * (128 / kUnits);
    uint4 packed = make_uint4(pack2<bf16>(__fmul_rn(x[i].x, scale), __fmul_rn(x[i].y, scale)),
                              pack2<bf16>(__fmul_rn(x[i].z, scale), __fmul_rn(x[i].w, scale)),
                              pack2<bf16>(__fmul_rn(y[i].x, scale), __fmul_rn(y[i].y, scale)),
                              pack2<bf16>(__fmul_rn(y[i].z, scale), __fmul_rn(y[i].w, scale)));
    if (work.first_query + line >= queries) packed = make_uint4(0, 0, 0, 0);
    *reinterpret_cast<uint4*>(to + unit / 8 * (64 * kLineBytes) + line * kLineBytes + (unit % 8 ^ line % 8) * 16) =
        packed;
  }
}

// The combine starts when this kernel ends, and first reads the last cells of every history: this prefetches them into
// L2. All but a few are contiguous; cells of the step itself are in L2 already.
template <int D>
__device__ __forceinline__ void prefetch_tails(const AttendBody& body, int thread, int threads) {
  constexpr int kBlockLines = kAttendBlock * D * 2 / 128, kLines = kTailBlocks * kBlockLines;  // of K or V
  const int kv_heads = body.range_heads / body.group;
  for (int item = int(blockIdx.x); item < body.tile_count * kv_heads; item += int(gridDim.x)) {
    const RowTile rows = body.tiles[item / kv_heads];
    const int first = body_end(rows.history);
    if (rows.rows == 0 || (item >= kv_heads && body.tiles[item / kv_heads - 1].slot == rows.slot)) continue;
    const size_t head = size_t(rows.slot) * body.slot_cells + size_t(body.first_kv_head + item % kv_heads) * kCellBlock;
    const size_t at = (head + place_of(first, body.block_cells)) * (D * 2), next = size_t(body.block_cells) * (D * 2);
    const int lines = min((rows.history - first) * (D * 2) / 128, kLines);
    for (int line = thread; line < lines; line += threads) {
      const size_t here = at + size_t(line / kBlockLines) * next + size_t(line % kBlockLines) * 128;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(body.k + here));
      asm volatile("prefetch.global.L2 [%0];" ::"l"(body.v + here));
    }
  }
}

// A consumer warpgroup: its query rows over the tiles of `work`, which are number `first` and following of the thread
// block's. A thread holds query rows warp * 16 + lane / 4 and the one 8 further; r counts these two. `turns`: the other
// group does the same tiles, so the two ping-pong. Named barrier 1 + group: this group may issue; 3 + group: within the
// group.
template <int D, bool bf16, HopperForm form>
__device__ __forceinline__ void consume(const Ring<D, form>& ring, std::byte* shared, const AttendBody& body,
                                        const Copies<D, form>& copies, const GroupWork& work, int group, int kv_head,
                                        int first, bool turns) {
  using S = HopperShape<D, form>;
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x % 128 / 32);
  int target[2], index[2];  // index: on its way until the queries are
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int query = work.first_query + warp * 16 + lane / 4 + 8 * r;
    const bool used = query < work.rows.rows * body.group;
    const Divided place = divide(used ? query : 0, body.group);
    const int row = work.rows.first_row + place.quotient;
    index[r] = body.rows[row].index;
    target[r] = used ? row * body.range_heads + kv_head * body.group + place.remainder : -1;
  }
  // Every KV split gets (m, l); a split that joins the splits before it gets an empty state.
  UnitWalk walk(work, body.window);
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  const auto write_ml = [&](int unit, int to, float m, float l) {
    if (lane % 4 == 0 && to >= 0) body.state_ml[size_t(unit) * unit_states + size_t(to)] = make_float2(m, l);
  };
  const auto write_joined = [&] {
    if constexpr (S::kGroups > 1) {  // else there is a single unit
#pragma unroll 1
      for (UnitWalk ahead = walk; ahead.border < work.begin + work.tiles;) {
        ahead.advance();
        if (ahead.opens()) continue;
#pragma unroll
        for (int r = 0; r < 2; ++r) write_ml(ahead.unit, target[r], minus_infinity(), 0.f);
      }
    }
  };
  const uint32_t q = ring.base + uint32_t(group) * S::kQ;
  if (S::kGroups > 1) hopper::named_sync(3 + group, 128);  // the group is done with the q before
  stage_queries<D, bf16, form>(shared + size_t(group) * S::kQ, body, work, kv_head, write_joined);
  // What a row sees, and where its states go: seldom needed, so pairs do not keep it in registers. Query rows that do
  // not exist see everything, and their results are never read.
  struct alignas(16) Place {
    int limit, low, target;
  };
  Place* const places = reinterpret_cast<Place*>(shared + S::kPlacesAt) + group * kGroupQueries + warp * 16 + lane / 4;
  Place known[2];
  const auto place_of = [&](int r) { return S::kGroups > 1 ? places[8 * r] : known[r]; };
  int all_limit = INT32_MAX, all_low = 0;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    known[r] = {target[r] >= 0 ? body_end(index[r]) : INT32_MAX, target[r] >= 0 ? first_seen(index[r], body.window) : 0,
                target[r]};
    all_limit = min(all_limit, known[r].limit);
    all_low = max(all_low, known[r].low);
    if (S::kGroups > 1 && lane % 4 == 0) places[8 * r] = known[r];
  }
  hopper::fence_async_shared();
  hopper::named_sync(3 + group, 128);
  all_limit = __reduce_min_sync(0xffffffffu, all_limit);
  all_low = __reduce_max_sync(0xffffffffu, all_low);

  float o[D / 2], s[kTileBlocks][kAttendBlock / 2];  // scores of the halves of a tile
  uint32_t weights[kTileBlocks][kAttendBlock / 4];
  UnitSoftmax<bf16> unit;
  unit.begin();
  // The missing half of a tile is beyond the limit of every row.
  const auto hide = [&](int tile, int half) {
    const int cell = tile * kTileCells + half * kAttendBlock;
    if (cell + kAttendBlock <= all_limit && cell >= all_low) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int limit = place_of(r).limit, low = place_of(r).low;
#pragma unroll
      for (int i = 0; i < kAttendBlock / 4; ++i) {
        const int at = cell + i / 2 * 8 + lane % 4 * 2 + i % 2;
        if (at >= limit || at < low) s[half][i / 2 * 4 + 2 * r + i % 2] = minus_infinity();
      }
    }
  };
  const auto store = [&](const float(&from)[D / 2], const float(&m)[2], const float(&l)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int place = place_of(r).target;
      write_ml(walk.slot, place, m[r], l[r]);
      if (place < 0) continue;
      float* const to = body.state_o + (size_t(walk.slot) * unit_states + size_t(place)) * D + lane % 4 * 2;
#pragma unroll
      for (int j = 0; j < D / 8; ++j) {
        *reinterpret_cast<float2*>(to + 8 * j) = make_float2(from[4 * j + 2 * r], from[4 * j + 2 * r + 1]);
      }
    }
  };
  // Every warp arrives for itself: a warp's wait covers only its own part of a wgmma.
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) hopper::barrier_arrive(barrier);
  };
  if constexpr (S::kGroups == 1) {
    // Loading takes longer than computing and another thread block computes meanwhile: nothing overlaps here, and every
    // stage is filled again, by this warpgroup itself, as soon as it can be. The operations are those below.
    float(&whole)[kTileCells / 2] = reinterpret_cast<float(&)[kTileCells / 2]>(s);
    for (int tile = 0; tile < work.tiles; ++tile) {
      const bool more = threadIdx.x == 0 && tile + S::kStages < work.tiles;
      hopper::barrier_wait(ring.full_k(tile), ring.parity(tile));
      __syncwarp();
      hopper::products_begin();
      issue_scores<D, bf16>(whole, q, ring.k(tile));
      hopper::products_wait<0>();
      hopper::hold(whole);
      release(ring.empty_k(tile));
      if (more) copies.k(tile + S::kStages);
      hide(work.begin + tile, 0);
      hide(work.begin + tile, 1);
      unit.template step<0>(weights, s[0], o, tile == 0);
      unit.template step<1>(weights, s[1], o, false);
      hopper::barrier_wait(ring.full_v(tile), ring.parity(tile));
      __syncwarp();
      if (work.half && tile == work.tiles - 1) {
        hopper::products_begin();
        issue_output<D, bf16>(o, weights[0], ring.v(tile), tile > 0);
      } else {
        hopper::products_begin();
        issue_output<D, bf16>(o, weights[0], ring.v(tile), tile > 0);
        issue_output<D, bf16>(o, weights[1], ring.v(tile) + kHalfTileBytes, true);
      }
      hopper::products_wait<0>();
      hopper::hold(o);
      release(ring.empty_v(tile));
      if (more) copies.v(tile + S::kStages);
    }
    const float m[2] = {unit.m(0), unit.m(1)}, l[2] = {quad_sum(unit.sum[0]), quad_sum(unit.sum[1])};
    store(o, m, l);
  } else {
    float section[D / 2], section_m[2], section_l[2];  // the KV splits of the group so far
    const auto open_section = [&] {
#pragma unroll
      for (int j = 0; j < D / 2; ++j) section[j] = -0.f;
      section_m[0] = section_m[1] = minus_infinity();
      section_l[0] = section_l[1] = 0.f;
    };
    const auto end_unit = [&](bool last) {
      bool sums = true;  // nothing is multiplied
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float m = unit.m(r);
        sums = sums && m != minus_infinity() && (section_m[r] == m || section_m[r] == minus_infinity());
      }
      if (__all_sync(0xffffffffu, sums)) {  // the same in fewer steps: -0 + o is o
#pragma unroll
        for (int j = 0; j < D / 2; ++j) section[j] = __fadd_rn(section[j], o[j]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          section_m[r] = unit.m(r);
          section_l[r] = __fadd_rn(section_l[r], quad_sum(unit.sum[r]));
        }
      } else {
        MergeScales scales[2];
#pragma unroll
        for (int r = 0; r < 2; ++r)
          scales[r] = merge_states(section_m[r], section_l[r], unit.m(r), quad_sum(unit.sum[r]));
#pragma unroll
        for (int j = 0; j < D / 2; ++j) section[j] = merge_values(section[j], o[j], scales[j % 4 / 2]);
      }
      unit.begin();
      if (!walk.closes(last)) return;
      store(section, section_m, section_l);
      open_section();
    };
    // Ping-pong: the outputs of one tile and the scores of the next are computed while the other warpgroup has its
    // softmax, which takes longest. There are no registers for the weights of one tile and all scores of the next at
    // once, since the output of the split group stays in registers too: the second half waits until the outputs are
    // done.
    open_section();
    if (turns && group == 1) hopper::named_arrive(1, 256);      // group 0 issues first
    bool begun = false;                                         // some of the unit is in o
    const int tiles = __shfl_sync(0xffffffffu, work.tiles, 0);  // so that the compiler sees it is uniform
#pragma unroll 1
    for (int tile = 0; tile < tiles; ++tile) {
      const int i = first + tile;
      if (turns) hopper::named_sync(1 + group, 256);
      if (tile > 0) {
        hopper::barrier_wait(ring.full_v(i - 1), ring.parity(i - 1));
        __syncwarp();
        hopper::products_begin();
        issue_output<D, bf16>(o, weights[0], ring.v(i - 1), begun);
        issue_output<D, bf16>(o, weights[1], ring.v(i - 1) + kHalfTileBytes, true);
        begun = true;
        hopper::barrier_wait(ring.full_k(i), ring.parity(i));
        __syncwarp();
        hopper::products_begin();
        issue_scores<D, bf16>(s[0], q, ring.k(i));
        hopper::products_wait<1>();
        hopper::hold(o);
        release(ring.empty_v(i - 1));
        hopper::products_begin();
        issue_scores<D, bf16>(s[1], q, ring.k(i) + kHalfTileBytes);
      } else {
        hopper::barrier_wait(ring.full_k(i), ring.parity(i));
        __syncwarp();
        hopper::products_begin();
        issue_scores<D, bf16>(s[0], q, ring.k(i));
        issue_scores<D, bf16>(s[1], q, ring.k(i) + kHalfTileBytes);
      }
      if (turns) hopper::named_arrive(2 - group, 256);  // the other group may issue
      if (work.begin + tile == walk.border) {
        end_unit(false);
        walk.advance();
        begun = false;
      }
      hopper::products_wait<1>();
      hopper::hold(s[0]);
      hide(work.begin + tile, 0);
      unit.template step<0>(weights, s[0], o, !begun);
      hopper::products_wait<0>();
      hopper::hold(s[1]);
      release(ring.empty_k(i));
      hide(work.begin + tile, 1);
      unit.template step<1>(weights, s[1], o, false);
    }
    const int i = first + tiles - 1;
    if (turns) hopper::named_sync(1 + group, 256);
    hopper::barrier_wait(ring.full_v(i), ring.parity(i));
    __syncwarp();
    hopper::products_begin();
    issue_output<D, bf16>(o, weights[0], ring.v(i), begun);
    // Half a tile has weights of 0 in the other half, but no V there.
    issue_output<D, bf16>(o, weights[1], ring.v(i) + (work.half ? 0 : kHalfTileBytes), true);
    if (turns && group == 0) hopper::named_arrive(2, 256);
    hopper::products_wait<0>();
    hopper::hold(o);
    release(ring.empty_v(i));
    end_unit(true);
  }
}
#endif

// One block: one KV split of one kv head for 64 query rows, the last splits, which are the longest, first; or its part
// of the splits of all kv heads, for pairs of 64 query rows. A block must read 4 D bytes per cell, once per 64 query
// rows or pair; neighbouring blocks read the same bytes at the same time. Bound by memory for few rows (at 64 query
// rows the tensor cores need a third of the time that a tile of cells takes to arrive), by the tensor cores for many.
// Pieces of different sequences are worked on one after the other.
template <int D, bool bf16, HopperForm form>
__global__ void __launch_bounds__(HopperShape<D, form>::kThreads, HopperShape<D, form>::kPerSm)
    attend_rows_wgmma_kernel(const AttendBody body, const __grid_constant__ CUtensorMap k_map,
                             const __grid_constant__ CUtensorMap v_map) {
#ifdef SX_HOPPER
  using S = HopperShape<D, form>;
  constexpr int kGroups = S::kGroups;
  extern __shared__ __align__(1024) std::byte shared[];
  const Ring<D, form> ring{hopper::shared_address(shared)};
  const int group = __shfl_sync(0xffffffffu, int(threadIdx.x / 128), 0);  // so that the compiler sees it is uniform
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
  __syncthreads();

  // Copies start at once: no kernel that is still running writes cells of the body. The fence, since K and V were
  // written by ordinary stores.
  const auto copies_of = [&](int kv_head, const GroupWork& work, int first) {
    const int pitch = int(body.block_cells / kAttendBlock);
    const int plane = work.rows.slot * int(body.slot_cells / kAttendBlock) + body.first_kv_head + kv_head;
    return Copies<D, form>{ring, k_map, v_map, plane, pitch, work.begin, work.tiles, first, work.half};
  };
  if constexpr (kGroups == 1) {
    const int pieces = body.tile_count * body.parts, kv_heads = body.range_heads / body.group;
    const int piece = int(blockIdx.x) % pieces, kv_head = int(blockIdx.x) / pieces % kv_heads;
    const int unit = body.units - 1 - int(blockIdx.x) / pieces / kv_heads;
    const GroupWork work = find_work(body, piece, unit, unit + 1);
    if (work.tiles == 0) return wait_for_previous();
    const Copies<D, form> copies = copies_of(kv_head, work, 0);
    if (copying) {
      hopper::fence_async_global();
      for (int i = 0; i < min(S::kStages, work.tiles); ++i) {
        copies.k(i);
        copies.v(i);
      }
    }
    __syncwarp();
    consume<D, bf16, form>(ring, shared, body, copies, work, 0, kv_head, 0, false);
  } else if (group == kGroups) {
    hopper::give_registers<24>();
    Share share(body, int(blockIdx.x), int(gridDim.x));
    if (threadIdx.x >= kGroups * 128 + 32) prefetch_tails<D>(body, int(threadIdx.x) - kGroups * 128 - 32, 96);
    if (copying) {
      hopper::fence_async_global();
      for (int number = 0, item, first_unit, end_unit; share.next(item, first_unit, end_unit);) {
        const auto [kv_head, pair] = divide(item, count_pairs(body));
        GroupWork before{};
#pragma unroll 1
        for (int side = 0; side < 2; ++side) {  // not find_pair: few registers
          const GroupWork work = find_work(body, 2 * pair + side, first_unit, end_unit);
          if (side == 1 && go_together(before, work)) break;
          const Copies<D, form> copies = copies_of(kv_head, work, number);
          for (const int end = number + work.tiles; number < end; ++number) {
            copies.k(number);
            copies.v(number);
          }
          before = work;
        }
      }
    }
  } else {
    hopper::take_registers<240>();
    Share share(body, int(blockIdx.x), int(gridDim.x));
    for (int number = 0, item, first_unit, end_unit; share.next(item, first_unit, end_unit);) {
      const PairWork work = find_pair(body, item, first_unit, end_unit);
      GroupWork mine = work.left;
      if (group == 1) mine = work.right;
      const int end = number + work.all, first = mine.tiles == 0 ? end : number + (group == 0 ? 0 : work.right_first);
      pass<D, form>(ring, number, first);
      if (mine.tiles > 0) {
        consume<D, bf16, form>(ring, shared, body, copies_of(work.kv_head, mine, first), mine, group, work.kv_head,
                               first, work.together);
        pass<D, form>(ring, first + mine.tiles, end);
      }
      number = end;
    }
    wait_for_previous();  // also where there was nothing to do: the combine must not start before
  }
#else
  __trap();
#endif
}

}  // namespace sx::cuda
