// Split-KV decode on Hopper: the combine kernel, which folds the tail and the partial states. The order is that of
// decode_mma.cuh with KV splits (units) and split groups (sections) of its own (see unit_begin): the tiles of a split
// are folded one after the other (online softmax, wgmma) instead of merging the states of blocks. The tail is folded as
// there.
#pragma once
#include "backend/cuda/attention/decode_tail_sm90.cuh"

namespace sx::cuda {

struct HopperFinish {
  AttendBody body;
  float* out;
  void* out16;
  Half half;
  int width;           // of a row of out
  const float* sinks;  // of all heads, or null
  bool after_body;     // the kernel before this one is the body
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

// n columns of a state. The empty one has o = -0, which added to anything leaves its bits: the fold of one state is
// that state, so that a state may stand for the beginning of a fold.
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

// The factors that the merges of 32 KV splits multiply outputs with: those of split `lane`, and of split group lane %
// kSections. All follow from the maxima alone, so that a warp computes them at once instead of merge by merge; the
// operations are those of merge_states. newer < 0: the state is empty and nothing changes.
struct FoldScales {
  static constexpr int kSections = 32 / kSectionUnits;
  float older, newer, section_older, section_newer;
  // ml: the state of split `lane`. (m, l) of the groups before becomes that of all.
  __device__ __forceinline__ FoldScales(float2 ml, float& m, float& l) {
    const int lane = int(threadIdx.x) % 32, unit = lane % kSectionUnits, section = lane % kSections;
    const bool empty = ml.x == minus_infinity();
    float most = ml.x;
#pragma unroll
    for (int d = 1; d < kSectionUnits; d *= 2) {
      const float before = __shfl_up_sync(0xffffffffu, most, d, kSectionUnits);
      if (unit >= d) most = fmaxf(before, most);
    }
    float before = __shfl_up_sync(0xffffffffu, most, 1, kSectionUnits);
    if (unit == 0) before = minus_infinity();
    older = exp2_fast(__fsub_rn(before, most));
    newer = empty ? -1.f : exp2_fast(__fsub_rn(ml.x, most));
    float sum = 0.f;  // of the group up to this split
#pragma unroll
    for (int i = 0; i < kSectionUnits; ++i) {
      float sum_before = __shfl_up_sync(0xffffffffu, sum, 1, kSectionUnits);
      if (i == 0) sum_before = 0.f;
      if (unit == i) sum = empty ? sum_before : __fmaf_rn(sum_before, older, __fmul_rn(ml.y, newer));
    }
    const int last = section * kSectionUnits + kSectionUnits - 1;
    const float section_m = __shfl_sync(0xffffffffu, most, last), section_l = __shfl_sync(0xffffffffu, sum, last);
    most = section == 0 ? fmaxf(m, section_m) : section_m;
#pragma unroll
    for (int d = 1; d < kSections; d *= 2) {
      const float earlier = __shfl_up_sync(0xffffffffu, most, d, kSections);
      if (section >= d) most = fmaxf(earlier, most);
    }
    before = __shfl_up_sync(0xffffffffu, most, 1, kSections);
    if (section == 0) before = m;
    section_older = exp2_fast(__fsub_rn(before, most));
    section_newer = section_m == minus_infinity() ? -1.f : exp2_fast(__fsub_rn(section_m, most));
#pragma unroll
    for (int i = 0; i < kSections; ++i) {
      const float a = __shfl_sync(0xffffffffu, section_older, i), b = __shfl_sync(0xffffffffu, section_newer, i);
      const float newer_l = __shfl_sync(0xffffffffu, section_l, i);
      if (b >= 0.f) l = __fmaf_rn(l, a, __fmul_rn(newer_l, b));
    }
    m = __shfl_sync(0xffffffffu, most, kSections - 1);
  }
  // Merges the outputs of split i of the 32 into those of its group, and of group i into the whole.
  template <int n>
  __device__ __forceinline__ void merge_unit(float (&o)[n], const float (&unit)[n], int i) const {
    merge(o, unit, __shfl_sync(0xffffffffu, older, i), __shfl_sync(0xffffffffu, newer, i));
  }
  template <int n>
  __device__ __forceinline__ void merge_section(float (&o)[n], const float (&section)[n], int i) const {
    merge(o, section, __shfl_sync(0xffffffffu, section_older, i), __shfl_sync(0xffffffffu, section_newer, i));
  }
  template <int n>
  static __device__ __forceinline__ void merge(float (&o)[n], const float (&x)[n], float a, float b) {
#pragma unroll
    for (int i = 0; i < n; ++i) o[i] = b < 0.f ? o[i] : __fmaf_rn(o[i], a, __fmul_rn(x[i], b));
  }
};

template <int n>
__device__ __forceinline__ void make_empty(float (&o)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) o[i] = -0.f;
}

// Whether the weights of all these states, one per lane, and of the fold so far are relative to the same base
// (UnitSoftmax: the base is 0 as a rule). Then states merge by adding: merge_states multiplies by 2^0. m becomes the
// base. `present`: the lanes with states that are not empty.
__device__ __forceinline__ bool find_common_base(float& m, float lane_m, uint32_t present) {
  if (present == 0) return true;
  const float base = __shfl_sync(0xffffffffu, lane_m, __ffs(int(present)) - 1);
  if (!__all_sync(0xffffffffu, lane_m == base || lane_m == minus_infinity()) || (m != base && m != minus_infinity()))
    return false;
  m = base;
  return true;
}

template <int n>
__device__ __forceinline__ void add_columns(float (&o)[n], const float (&x)[n]) {
#pragma unroll
  for (int i = 0; i < n; ++i) o[i] = __fadd_rn(o[i], x[i]);
}

// The fold of KV splits [first, end) of one head; kChunks times kBatch loads are in flight at a time. Whole warps call
// it.
template <int D, int kColumns, int kBatch, int kChunks>
__device__ __forceinline__ ColumnState<kColumns> fold_all(const AttendBody& body, int first, int end, size_t state,
                                                          int column) {
  static_assert(kBatch % kSectionUnits == 0 && kBatch <= 32);
  const int lane = int(threadIdx.x) % 32;
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  ColumnState<kColumns> total;
  for (int base = first / kSectionUnits * kSectionUnits; base < end; base += kBatch * kChunks) {
    float2 ml[kChunks];
    float o[kChunks][kBatch][kColumns] = {};
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int from = base + chunk * kBatch;
      ml[chunk] = make_float2(minus_infinity(), 0.f);
      if (from >= end) continue;
      if (lane < kBatch && from + lane >= first && from + lane < end) {
        ml[chunk] = __ldcg(body.state_ml + size_t(from + lane) * unit_states + state);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (from + i < end)
          read_columns(o[chunk][i], body.state_o + (size_t(from + i) * unit_states + state) * D + column);
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int from = base + chunk * kBatch;
      if (from >= end) break;
      const uint32_t present = __ballot_sync(0xffffffffu, ml[chunk].x != minus_infinity());
      if (find_common_base(total.m, ml[chunk].x, present)) {
#pragma unroll
        for (int begin = 0; begin < kBatch; begin += kSectionUnits) {
          if ((present >> begin & ((1u << kSectionUnits) - 1)) == 0) continue;
          float section[kColumns], sum = 0.f;
          make_empty(section);
#pragma unroll
          for (int i = begin; i < begin + kSectionUnits; ++i) {
            if ((present >> i & 1) == 0) continue;
            add_columns(section, o[chunk][i]);
            sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, ml[chunk].y, i));
          }
          add_columns(total.o, section);
          total.l = __fadd_rn(total.l, sum);
        }
        continue;
      }
      const FoldScales scales(ml[chunk], total.m, total.l);
#pragma unroll
      for (int begin = 0; begin < kBatch; begin += kSectionUnits) {
        if (from + begin >= end) break;
        float section[kColumns];
        make_empty(section);
#pragma unroll
        for (int i = begin; i < begin + kSectionUnits; ++i) scales.merge_unit(section, o[chunk][i], i);
        scales.merge_section(total.o, section, begin / kSectionUnits);
      }
    }
  }
  return total;
}

// The fold of KV splits [first, end) of one head that reads only states which are not empty: (m, l) first, then their
// outputs.
template <int D, int kColumns, int kBatch>
__device__ __forceinline__ ColumnState<kColumns> fold_present(const AttendBody& body, int first, int end, size_t state,
                                                              int column) {
  const int lane = int(threadIdx.x) % 32;
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  const auto read_ml = [&](int unit) {
    const bool there = unit >= first && unit < end;
    return there ? __ldcg(body.state_ml + size_t(unit) * unit_states + state) : make_float2(minus_infinity(), 0.f);
  };
  ColumnState<kColumns> total;
  const int begin = first / kSectionUnits * kSectionUnits;
  float2 next = read_ml(begin + lane);
  for (int base = begin; base < end; base += 32) {
    const float2 ml = next;  // of unit base + lane
    next = read_ml(base + 32 + lane);
    uint32_t present = __ballot_sync(0xffffffffu, ml.x != minus_infinity());
    const FoldScales scales(ml, total.m, total.l);
    float section[kColumns];
    make_empty(section);
    int number = 0;  // of the split group, among these 32 splits
    while (present != 0) {
      int units[kBatch];  // less base; -1: none
      float o[kBatch][kColumns] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        units[i] = __ffs(int(present)) - 1;
        present &= present - 1;
        if (units[i] >= 0)
          read_columns(o[i], body.state_o + (size_t(base + units[i]) * unit_states + state) * D + column);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (units[i] < 0) break;
        if (units[i] / kSectionUnits != number) {
          scales.merge_section(total.o, section, number);
          number = units[i] / kSectionUnits;
          make_empty(section);
        }
        scales.merge_unit(section, o[i], units[i]);
      }
    }
    scales.merge_section(total.o, section, number);
  }
  return total;
}

// The fold of KV splits [first, end) of one head whose states have a common base; false if they have none, and then
// `total` is meaningless. All loads of a batch are in flight as soon as it is known which states are not empty.
template <int D, int kColumns, int kBatch>
__device__ __forceinline__ bool fold_common(ColumnState<kColumns>& total, const AttendBody& body, int first, int end,
                                            size_t state, int column) {
  const int lane = int(threadIdx.x) % 32;
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  float section[kColumns], sum = 0.f;
  make_empty(section);
  int number = -1;  // of the split group
  for (int base = first / kSectionUnits * kSectionUnits; base < end; base += 64) {
    float2 ml[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int unit = base + 32 * half + lane;
      const bool there = unit >= first && unit < end;
      ml[half] =
          there ? __ldcg(body.state_ml + size_t(unit) * unit_states + state) : make_float2(minus_infinity(), 0.f);
    }
    uint64_t present = 0;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t some = __ballot_sync(0xffffffffu, ml[half].x != minus_infinity());
      if (!find_common_base(total.m, ml[half].x, some)) return false;
      present |= uint64_t(some) << (32 * half);
    }
    while (present != 0) {
      int units[kBatch];  // less base; -1: none
      float o[kBatch][kColumns] = {};
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        units[i] = __ffsll(int64_t(present)) - 1;
        present &= present - 1;
        if (units[i] >= 0)
          read_columns(o[i], body.state_o + (size_t(base + units[i]) * unit_states + state) * D + column);
      }
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        if (units[i] < 0) break;
        if ((base + units[i]) / kSectionUnits != number) {
          if (number >= 0) {
            add_columns(total.o, section);
            total.l = __fadd_rn(total.l, sum);
          }
          number = (base + units[i]) / kSectionUnits;
          make_empty(section);
          sum = 0.f;
        }
        add_columns(section, o[i]);
        sum = __fadd_rn(sum, __shfl_sync(0xffffffffu, units[i] < 32 ? ml[0].y : ml[1].y, units[i] % 32));
      }
    }
  }
  if (number < 0) return true;
  add_columns(total.o, section);
  total.l = __fadd_rn(total.l, sum);
  return true;
}

// Merges the tail, divides and writes.
template <int D, int kColumns>
__device__ __forceinline__ void finish_head(const HopperFinish& call, const FinishShared<D>& memory,
                                            ColumnState<kColumns>& total, int row, int first_head, int head,
                                            int column) {
  float tail[kColumns];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) tail[j] = memory.tail_o[head][column + j];
  total.merge(memory.tail_ml[head].x, memory.tail_ml[head].y, tail);
  if (call.sinks != nullptr) {
    const float factor = add_sink(total.m, total.l, call.sinks[first_head + head]);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) total.o[j] = __fmul_rn(total.o[j], factor);
  }
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

// One block: one row and one head or the heads of one kv head. First it computes the tail: 4 * 128 * D bytes of K/V at
// most, from L2, while the split kernel still runs (which lets this kernel start only when everything before it is
// complete). Then it folds the partial states, 4 (D + 2) bytes per split or group and head, in order, by one warp per
// head; of a single head by all warps, a column per thread. The tail is merged last. Bound by latency for a few rows,
// by L2 for many: four thread blocks per SM, so that 64 rows of 8 kv heads run at once.
template <int D, bool bf16, FinishForm form>
__global__ void __launch_bounds__(kAttendThreads, form == FinishForm::kMany ? 4 : 3)
    attend_rows_wgmma_finish(const HopperFinish call) {
  static_assert(kAttendThreads == 128);
  __shared__ FinishShared<D> memory;
  let_next_start();
  const AttendBody& body = call.body;
  const int row = int(blockIdx.x), thread = int(threadIdx.x);
  const int heads = form == FinishForm::kHead ? 1 : body.group;
  const auto [kv_head, first_head] =
      form == FinishForm::kHead ? divide(int(blockIdx.y), body.group) : Divided{int(blockIdx.y), 0};
  const RowInfo info = body.rows[row];
  uint64_t ancestors[kAncestorWords];  // on their way together
#pragma unroll
  for (int word = 0; word < kAncestorWords; ++word) {
    ancestors[word] = body.ancestors[size_t(row) * kAncestorWords + size_t(word)];
  }
  const int head_of_range = kv_head * body.group + first_head;
  const int head_of_all = body.first_kv_head * body.group + head_of_range;
  if (!call.after_body) wait_for_previous();
  TailQuery<D> query;
  query.load(body, row, head_of_all, min(heads, kTailHeads));
  if (info.slot < 0) return wait_for_previous();
  // States begin where any row of the sequence sees something: what a row does not see is empty.
  const int low = first_seen(info.index, body.window), limit = body_end(info.index);
  const int first = unit_of(first_tile(info.history, body.window));
  const int end = low < limit ? unit_of((limit - 1) / kTileCells) + 1 : first;
  const size_t state = size_t(row) * size_t(body.range_heads) + size_t(head_of_range);
  find_cells(memory, info, ancestors, body.block_cells);
#pragma unroll 1
  for (int at = 0;;) {
    const int some = min(heads - at, kTailHeads);
    query.template pack<bf16>(body.scale_log2, some);
    if (at == 0) __syncthreads();
    fold_tail<D, bf16, form>(body, memory, info, query, kv_head, at, some);
    if ((at += kTailHeads) >= heads) break;
    query.load(body, row, head_of_all + at, min(heads - at, kTailHeads));
  }
  __syncthreads();
  wait_for_previous();

  if constexpr (form == FinishForm::kHead) {
    if (thread >= D) return;
    ColumnState<1> total = fold_all<D, 1, 32, 2>(body, first, end, state, thread);
    finish_head<D, 1>(call, memory, total, row, head_of_all, 0, thread);
  } else {
    constexpr int kColumns = D / 32;
    const int column = thread % 32 * kColumns;
    for (int head = thread / 32; head < heads; head += kAttendThreads / 32) {
      ColumnState<kColumns> total;
      if constexpr (form == FinishForm::kFew) {
        total = fold_all<D, kColumns, 24, 1>(body, first, end, state + size_t(head), column);
      } else {
        constexpr int kBatch = 12;
        const bool all = end <= first / kSectionUnits * kSectionUnits + kBatch;  // one round either way
        if (all) {
          total = fold_all<D, kColumns, kBatch, 1>(body, first, end, state + size_t(head), column);
        } else if (!fold_common<D, kColumns, kBatch>(total, body, first, end, state + size_t(head), column)) {
          total = fold_present<D, kColumns, kBatch>(body, first, end, state + size_t(head), column);
        }
      }
      finish_head<D, kColumns>(call, memory, total, row, head_of_all, head, column);
    }
  }
}

}  // namespace sx::cuda
