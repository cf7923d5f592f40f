// Attention of decode and verification on Hopper: the kernel that folds the tail and the partial states. The canonical
// order of attend_rows.cuh with units and sections of its own (see unit_begin): the tiles of a unit are folded one after
// the other (online softmax, wgmma) instead of merging the states of blocks. The tail is folded as there.
#pragma once
#include "backend/cuda/attend_body.cuh"
#include "backend/cuda/attend_shares_sm90.cuh"

namespace sx::cuda {

struct HopperFinish {
  AttendBody body;
  float* out;
  void* out16;
  Half half;
  int width;         // of a row of out
  int block_heads;   // heads of a thread block: 1 or the group
  bool after_body;   // the kernel before this one is the body
  bool late;         // it fills the device: nothing of this one runs meanwhile
};

// For speed only.
enum class FinishForm {
  kHead,  // a thread block is one head
  kFew,   // the heads of a kv head, for few rows: many loads on their way
  kMany,  // likewise, for many rows or merged states: (m, l) first, then only the states that are there
};

// n consecutive floats.
template <int n>
__device__ __forceinline__ void read_columns(float (&o)[n], const float* from) {
  if constexpr (n == 4) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    o[0] = x.x, o[1] = x.y, o[2] = x.z, o[3] = x.w;
  } else if constexpr (n == 2) {
    const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
    o[0] = x.x, o[1] = x.y;
  } else {
    static_assert(n == 1);
    o[0] = __ldcg(from);
  }
}

// n columns of a state. The empty one has o = -0, which added to anything leaves its bits: the fold of one state is that
// state, so that a state may stand for the beginning of a fold.
template <int n>
struct ColumnState {
  float m = minus_infinity(), l = 0, o[n];
  __device__ __forceinline__ ColumnState() {
#pragma unroll
    for (int i = 0; i < n; ++i) o[i] = -0.f;
  }
  __device__ __forceinline__ void merge(float newer_m, float newer_l, const float (&newer)[n]) {
    const MergeScales scales = merge_states(m, l, newer_m, newer_l);
#pragma unroll
    for (int i = 0; i < n; ++i) o[i] = merge_values(o[i], newer[i], scales);
  }
};

inline constexpr int kEarlyStates = 12;  // of a head, on their way while the tail is folded

template <int D, FinishForm form>
struct FinishShared {
  AttendShared<D, 1> fold;
  alignas(16) float tail_o[16][D];
  float2 tail_ml[16];
  static constexpr bool kEarly = form == FinishForm::kMany;
  alignas(16) float early[kEarly ? kAttendThreads / 32 : 1][kEarly ? kEarlyStates : 1][D];
};

// The tail of one row, at most 128 cells, for some heads of one kv head: state i is that of head first_head + i.
// `meanwhile` is called while its first cells are on their way.
template <class Store, int D, FinishForm form, class Meanwhile>
__device__ __forceinline__ void fold_tail(const HopperFinish& call, FinishShared<D, form>& memory, const RowInfo& info,
                                          const uint64_t (&ancestors)[kAncestorWords], int row, int kv_head,
                                          int first_head, const Meanwhile& meanwhile) {
  AttendShared<D, 1>& shared = memory.fold;
  AttendBody body = call.body;
  body.state_o = &memory.tail_o[0][0];
  body.state_ml = memory.tail_ml;
  const int thread = int(threadIdx.x), warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
  const int first = body_end(info.index), count = info.index - first + 1;
  // Behind the end the row's own cell stands in; its probability is 0.
  shared.cells[thread] = first + thread < info.history ? first + thread : info.cell;
  if (thread < 16) {
    const bool used = thread < call.block_heads;
    const int head = (body.first_kv_head + kv_head) * body.group + first_head + thread;
    shared.query[thread] = used ? body.q + size_t(row) * size_t(body.q_stride) + size_t(head) * D : nullptr;
    shared.target[thread] = used ? thread : -1;
    shared.limit[thread] = info.index + 1;
    shared.low[thread] = first_seen(info.index, body.window);
  }
  __syncthreads();
  int before = 0;
#pragma unroll
  for (int word = 0; word < kAncestorWords; ++word) {
    const uint64_t bits = ancestors[word];
    if (thread < 64 && (bits >> thread & 1) != 0) {
      const int at = info.history - first + before + __popcll(bits & ((uint64_t(1) << thread) - 1));
      if (at < kTailBlocks * kAttendBlock) shared.cells[at] = info.history + 64 * word + thread;
    }
    before += __popcll(bits);
  }
  __syncthreads();
  const Store store(body, info.slot, body.first_kv_head + kv_head);
  const TailCells where{shared.cells, first};
  typename Store::Keys keys;
  typename Store::Values values;
  store.load_keys(keys, where.cells(0), warp, g, c);
  store.load_values(values, where.cells(0), warp, g, c);
  meanwhile();
  load_queries<D, 1, Store::kIsBf16>(shared, 1, body.scale_log2);
  __syncthreads();
  const int blocks = (count + kAttendBlock - 1) / kAttendBlock;
  const BlockRange range{0, blocks, false, info.index + 1, first_seen(info.index, body.window)};
  fold_blocks<Store, D, 1, false, form != FinishForm::kMany>(store, where, range, 1, keys, values, shared, body, 0);
}

// The fold of units [first, end) of one head, kBatch of which are on their way at a time. Whole warps call it.
template <int D, int kColumns, int kBatch>
__device__ __forceinline__ ColumnState<kColumns> fold_all(const AttendBody& body, int first, int end, size_t state,
                                                          int column) {
  static_assert(kBatch % 32 == 0 && 32 % kSectionUnits == 0);
  constexpr int kSome = 8;  // merged without asking whether they are there: an empty state changes nothing
  const int lane = int(threadIdx.x) % 32;
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  ColumnState<kColumns> total;
  for (int base = first / kSectionUnits * kSectionUnits; base < end; base += kBatch) {
    float2 ml[kBatch / 32];  // of unit base + lane and every 32nd
#pragma unroll
    for (int i = 0; i < kBatch / 32; ++i) {
      const int unit = base + 32 * i + lane;
      ml[i] = make_float2(minus_infinity(), 0.f);
      if (unit >= first && unit < end) ml[i] = __ldcg(body.state_ml + size_t(unit) * unit_states + state);
    }
    float o[kBatch][kColumns] = {};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (base + i < end) read_columns(o[i], body.state_o + (size_t(base + i) * unit_states + state) * D + column);
    }
#pragma unroll
    for (int some = 0; some < kBatch; some += kSome) {
      if (base + some >= end) break;
#pragma unroll
      for (int begin = some; begin < some + kSome; begin += kSectionUnits) {
        ColumnState<kColumns> section;
#pragma unroll
        for (int i = begin; i < begin + kSectionUnits; ++i) {
          section.merge(__shfl_sync(0xffffffffu, ml[i / 32].x, i % 32), __shfl_sync(0xffffffffu, ml[i / 32].y, i % 32),
                        o[i]);
        }
        total.merge(section.m, section.l, section.o);
      }
    }
  }
  return total;
}

// The same, of the states that are not empty. The first of them may be on their way to shared memory already.
template <int D, int kColumns, int kBatch>
struct PresentStates {
  const AttendBody& body;
  int first, end, column;
  size_t state, unit_states;
  float2 ml;                    // of unit first + lane
  int early = 0;                // so many are on their way
  const float* kept = nullptr;  // to here, D floats each

  __device__ __forceinline__ PresentStates(const AttendBody& body, int first, int end, size_t state, int column)
      : body(body), first(first), end(end), column(column), state(state) {
    unit_states = size_t(body.row_count) * size_t(body.range_heads);
    ml = read_ml(first);
  }
  __device__ __forceinline__ float2 read_ml(int base) const {
    const int unit = base + int(threadIdx.x) % 32;
    return unit < end ? __ldcg(body.state_ml + size_t(unit) * unit_states + state) : make_float2(minus_infinity(), 0.f);
  }
  __device__ __forceinline__ const float* place(int unit) const {
    return body.state_o + (size_t(unit) * unit_states + state) * D + column;
  }
  // A thread reads what it has copied itself. Only pieces of 16 bytes can pass the first-level cache by.
  __device__ __forceinline__ void start(float* to) {
    if constexpr (kColumns != 4) return;
    kept = to + column;
    uint32_t present = __ballot_sync(0xffffffffu, ml.x != minus_infinity());
    for (; present != 0 && early < kEarlyStates; present &= present - 1, ++early) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::
                   "r"(uint32_t(__cvta_generic_to_shared(kept + early * D))),
                   "l"(place(first + __ffs(int(present)) - 1)) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
  }
  __device__ __forceinline__ ColumnState<kColumns> fold() {
    if (early > 0) asm volatile("cp.async.wait_all;" ::: "memory");
    ColumnState<kColumns> total, section;
    int number = -1, at = 0;  // of the section, of the state
    for (int base = first; base < end; base += 32) {
      const float2 here = ml;  // of unit base + lane
      ml = read_ml(base + 32);
      uint32_t present = __ballot_sync(0xffffffffu, here.x != minus_infinity());
      while (present != 0) {
        int units[kBatch];  // less base; -1: none
        float o[kBatch][kColumns] = {};
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          units[i] = __ffs(int(present)) - 1;
          present &= present - 1;
          if (units[i] < 0) continue;
          if (at < early) {
#pragma unroll
            for (int j = 0; j < kColumns; ++j) o[i][j] = kept[at * D + j];
          } else {
            read_columns(o[i], place(base + units[i]));
          }
          ++at;
        }
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (units[i] < 0) break;
          if ((base + units[i]) / kSectionUnits != number) {
            number = (base + units[i]) / kSectionUnits;
            total.merge(section.m, section.l, section.o);
            section = ColumnState<kColumns>();
          }
          section.merge(__shfl_sync(0xffffffffu, here.x, units[i]), __shfl_sync(0xffffffffu, here.y, units[i]), o[i]);
        }
      }
    }
    total.merge(section.m, section.l, section.o);
    return total;
  }
};

// Merges the tail, divides and writes.
template <int D, int kColumns, FinishForm form>
__device__ __forceinline__ void finish_head(const HopperFinish& call, const FinishShared<D, form>& memory,
                                            ColumnState<kColumns>& total, int row, int first_head, int head,
                                            int column) {
  float tail[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) tail[j] = memory.tail_o[head][column + j];
  total.merge(memory.tail_ml[head].x, memory.tail_ml[head].y, tail);
  const size_t at = size_t(row) * size_t(call.width) + size_t(first_head + head) * D + size_t(column);
#pragma unroll
  for (int j = 0; j < kColumns; ++j) total.o[j] = __fdiv_rn(total.o[j], total.l);
  if constexpr (kColumns == 4) {
    *reinterpret_cast<float4*>(call.out + at) = make_float4(total.o[0], total.o[1], total.o[2], total.o[3]);
  } else if constexpr (kColumns == 2) {
    *reinterpret_cast<float2*>(call.out + at) = make_float2(total.o[0], total.o[1]);
  } else {
    call.out[at] = total.o[0];
  }
  if (call.out16 == nullptr) return;
  if constexpr (kColumns == 1) {
    store_half(call.out16, call.half, at, total.o[0]);
  } else {
    uint32_t* out16 = static_cast<uint32_t*>(call.out16) + at / 2;
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      const float x = total.o[j], y = total.o[j + 1];
      out16[j / 2] = call.half == Half::kBF16 ? pack2<true>(x, y) : pack2<false>(x, y);
    }
  }
}

// One block: one row and one head or the heads of one kv head. First the tail: 4 * 128 * D bytes of K/V at most, from
// the second-level cache, while the body still runs (it lets this kernel start only when what came before it is
// complete). Then the partial states, 4 (D + 2) bytes per unit or section and head, folded in order by one warp per
// head; of a single head by all warps, a column per thread. The tail comes last. Bound by latency for a few rows, by
// the second-level cache for many: four thread blocks per SM, so that 64 rows of 8 kv heads run at once.
template <int D, bool bf16, FinishForm form>
__global__ void __launch_bounds__(kAttendThreads, form == FinishForm::kMany ? 4 : 3)
    attend_rows_wgmma_finish(const HopperFinish call) {
  static_assert(AttendColumns<D>::kWarps == kAttendThreads / 32);
  extern __shared__ __align__(16) std::byte dynamic[];
  FinishShared<D, form>& memory = *reinterpret_cast<FinishShared<D, form>*>(dynamic);
  let_next_start();
  const AttendBody& body = call.body;
  const int row = int(blockIdx.x), thread = int(threadIdx.x);
  const int heads = form == FinishForm::kHead ? 1 : body.group, blocks_per_group = body.group / heads;
  const int kv_head = int(blockIdx.y) / blocks_per_group, first_head = int(blockIdx.y) % blocks_per_group;
  const RowInfo info = body.rows[row];
  uint64_t ancestors[kAncestorWords];  // on their way together
#pragma unroll
  for (int word = 0; word < kAncestorWords; ++word) {
    ancestors[word] = body.ancestors[size_t(row) * kAncestorWords + size_t(word)];
  }
  if (info.slot < 0) return wait_for_previous();
  // States begin where any row of the sequence sees something: what a row does not see is empty.
  const int low = first_seen(info.index, body.window), limit = body_end(info.index);
  const int first = unit_of(first_tile(info.history, body.window));
  const int end = low < limit ? unit_of((limit - 1) / kTileCells) + 1 : first;
  const int head_of_range = kv_head * body.group + first_head;
  const int head_of_all = body.first_kv_head * body.group + head_of_range;
  const size_t state = size_t(row) * size_t(body.range_heads) + size_t(head_of_range);
  if (!call.after_body || call.late) wait_for_previous();
  if constexpr (form != FinishForm::kMany) {
    fold_tail<HalfCells<D, bf16>, D, form>(call, memory, info, ancestors, row, kv_head, first_head, [] {});
    __syncthreads();
    wait_for_previous();
    if constexpr (form == FinishForm::kHead) {
      if (thread >= D) return;
      ColumnState<1> total = fold_all<D, 1, 64>(body, first, end, state, thread);
      return finish_head<D, 1, form>(call, memory, total, row, head_of_all, 0, thread);
    }
  }
  if constexpr (form != FinishForm::kHead) {
    constexpr int kColumns = D / 32;
    const int warp = thread / 32, column = thread % 32 * kColumns;
    using States = PresentStates<D, kColumns, 12>;
    if constexpr (form == FinishForm::kMany) {
      States states(body, first, call.late && warp < heads ? end : first, state + size_t(warp), column);
      fold_tail<HalfCells<D, bf16>, D, form>(call, memory, info, ancestors, row, kv_head, first_head,
                                       [&] { states.start(&memory.early[warp][0][0]); });
      __syncthreads();
      wait_for_previous();
      if (call.late && warp < heads) {
        ColumnState<kColumns> total = states.fold();
        finish_head<D, kColumns, form>(call, memory, total, row, head_of_all, warp, column);
      }
    }
    for (int head = warp + (form == FinishForm::kMany && call.late ? 4 : 0); head < heads; head += kAttendThreads / 32) {
      ColumnState<kColumns> total;
      if constexpr (form == FinishForm::kFew) {
        total = fold_all<D, kColumns, 32>(body, first, end, state + size_t(head), column);
      } else {
        total = States(body, first, end, state + size_t(head), column).fold();
      }
      finish_head<D, kColumns, form>(call, memory, total, row, head_of_all, head, column);
    }
  }
}

}  // namespace sx::cuda
