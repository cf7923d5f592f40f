// Attention of decode and verification on Hopper: the kernel that folds the tail and the partial states. The canonical
// order of attend_rows.cuh with other spans and sections: a span is 4 tiles of 128 cells, folded one after the other
// (online softmax, wgmma) instead of merging the states of blocks; a section is 2 spans. The tail is folded as there.
#pragma once
#include "backend/cuda/attend_body.cuh"

namespace sx::cuda {

inline constexpr int kHopperSectionSpans = kHopperSectionBlocks / kHopperSpanBlocks;
inline constexpr int kFinishNodes = 32;  // states folded per round of the finish

struct HopperFinish {
  AttendBody body;   // units: spans or sections
  float* out;
  void* out16;
  Half half;
  int width;         // of a row of out
  int block_heads;   // heads of a thread block: 1 or the group
  bool after_body;   // the kernel before this one is the body
};

// n columns of a state.
template <int n>
struct ColumnState {
  float m = minus_infinity(), l = 0, o[n] = {};
  __device__ __forceinline__ void merge(const ColumnState& newer) {
    const MergeScales scales = merge_states(m, l, newer.m, newer.l);
#pragma unroll
    for (int i = 0; i < n; ++i) o[i] = merge_values(o[i], newer.o[i], scales);
  }
  __device__ __forceinline__ void read(const float* from) {
    if constexpr (n == 4) {
      const float4 x = *reinterpret_cast<const float4*>(from);
      o[0] = x.x, o[1] = x.y, o[2] = x.z, o[3] = x.w;
    } else {
      static_assert(n == 2);
      const float2 x = *reinterpret_cast<const float2*>(from);
      o[0] = x.x, o[1] = x.y;
    }
  }
  __device__ __forceinline__ void write(float* to) const {
    if constexpr (n == 4) *reinterpret_cast<float4*>(to) = make_float4(o[0], o[1], o[2], o[3]);
    else *reinterpret_cast<float2*>(to) = make_float2(o[0], o[1]);
  }
  // From another kernel, past the first-level cache.
  __device__ __forceinline__ void load(const float* from, const float2* from_ml) {
    const float2 ml = __ldcg(from_ml);
    m = ml.x, l = ml.y;
    if constexpr (n == 4) {
      const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
      o[0] = x.x, o[1] = x.y, o[2] = x.z, o[3] = x.w;
    } else {
      const float2 x = __ldcg(reinterpret_cast<const float2*>(from));
      o[0] = x.x, o[1] = x.y;
    }
  }
};

template <int D>
struct FinishShared {
  struct Nodes { float o[kFinishNodes][D]; float2 ml[kFinishNodes]; };
  static constexpr size_t kScratch = sizeof(Nodes) > sizeof(AttendShared<D, 1>) ? sizeof(Nodes)
                                                                                : sizeof(AttendShared<D, 1>);
  alignas(16) unsigned char scratch[kScratch];  // the fold of the tail, then nodes
  alignas(16) float tail_o[16][D];
  float2 tail_ml[16];
};

// The tail of one row, at most 128 cells, for some heads of one kv head: state i is that of head first_head + i.
template <class Store, int D>
__device__ __forceinline__ void fold_tail(const HopperFinish& call, FinishShared<D>& memory, const RowInfo& info,
                                          int row, int kv_head, int first_head) {
  AttendShared<D, 1>& shared = *reinterpret_cast<AttendShared<D, 1>*>(memory.scratch);
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
  const uint64_t* ancestors = body.ancestors + size_t(row) * kAncestorWords;
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
  load_queries<D, 1, Store::kIsBf16>(shared, 1, body.scale_log2);
  __syncthreads();
  const Store store(body, info.slot, body.first_kv_head + kv_head);
  const TailCells where{shared.cells, first};
  typename Store::Keys keys;
  typename Store::Values values;
  store.load_keys(keys, where.cells(0), warp, g, c);
  store.load_values(values, where.cells(0), warp, g, c);
  const int blocks = (count + kAttendBlock - 1) / kAttendBlock;
  const BlockRange range{0, blocks, false, info.index + 1, first_seen(info.index, body.window)};
  fold_blocks<Store, D, 1, false, false>(store, where, range, 1, keys, values, shared, body, 0);
}

// Nodes base .. base + count - 1, each the fold of its kFan units in [first, end), of `heads` heads. Warps take them in
// turn, several at a time, so that many loads are in flight.
template <int D, int kFan>
__device__ __forceinline__ void fold_nodes(const AttendBody& body, typename FinishShared<D>::Nodes& nodes, int base,
                                           int count, int heads, int first, int end, size_t first_state) {
  constexpr int kWarps = kAttendThreads / 32, kColumns = D / 32, kBatch = 8 / kFan;
  const int warp = int(threadIdx.x) / 32, column = int(threadIdx.x) % 32 * kColumns, items = count * heads;
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  for (int start = warp; start < items; start += kBatch * kWarps) {
    ColumnState<kColumns> units[kBatch][kFan];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int item = start + b * kWarps, node = base + item / heads, head = item % heads;
#pragma unroll
      for (int i = 0; i < kFan; ++i) {
        const int unit = node * kFan + i;
        const size_t at = size_t(unit) * unit_states + first_state + size_t(head);
        if (item < items && unit >= first && unit < end) {
          units[b][i].load(body.state_o + at * D + column, body.state_ml + at);
        }
      }
    }
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int item = start + b * kWarps;
      if (item >= items) continue;
      ColumnState<kColumns> node;
#pragma unroll
      for (int i = 0; i < kFan; ++i) node.merge(units[b][i]);
      node.write(&nodes.o[item][column]);
      if (column == 0) nodes.ml[item] = make_float2(node.m, node.l);
    }
  }
}

// The fold of all units in [first, end) of one head, by a warp that reads them itself, the next few while it folds some.
template <int D, int kFan>
__device__ __forceinline__ ColumnState<D / 32> fold_units(const AttendBody& body, int first, int end, size_t state,
                                                          int column) {
  constexpr int kBatch = 6;
  static_assert(kBatch % kFan == 0);
  const size_t unit_states = size_t(body.row_count) * size_t(body.range_heads);
  ColumnState<D / 32> total, section, units[kBatch], next[kBatch];
  const auto load = [&](int base) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      next[i] = ColumnState<D / 32>();
      const size_t at = size_t(base + i) * unit_states + state;
      if (base + i >= first && base + i < end) next[i].load(body.state_o + at * D + column, body.state_ml + at);
    }
  };
  const int begin = first / kFan * kFan;
  load(begin);
  for (int base = begin; base < end; base += kBatch) {
#pragma unroll
    for (int i = 0; i < kBatch; ++i) units[i] = next[i];
    load(base + kBatch);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if constexpr (kFan == 1) {
        total.merge(units[i]);
      } else {
        section.merge(units[i]);
        if (i % kFan != kFan - 1) continue;
        total.merge(section);
        section = ColumnState<D / 32>();
      }
    }
  }
  return total;
}

// One block: one row and one head or the heads of one kv head. First the tail: 4 * 128 * D bytes of K/V at most, from
// the second-level cache, while the body still runs (it lets this kernel start only when what came before it is
// complete). Then the partial states, 4 (D + 2) bytes per unit and head: one warp per head folds them in order; of one
// or two heads, all warps fold spans to sections side by side before. The tail comes last. Bound by latency for a few
// rows, by the second-level cache for many: four thread blocks per SM, so that 64 rows of 8 kv heads run at once.
template <int D, bool bf16>
__global__ void __launch_bounds__(kAttendThreads, 4) attend_rows_wgmma_finish(const HopperFinish call) {
  static_assert(AttendColumns<D>::kWarps == kAttendThreads / 32);
  constexpr int kWarps = kAttendThreads / 32, kColumns = D / 32;
  __shared__ FinishShared<D> memory;
  let_next_start();
  const AttendBody& body = call.body;
  const int row = int(blockIdx.x), warp = int(threadIdx.x) / 32, column = int(threadIdx.x) % 32 * kColumns;
  const int heads = call.block_heads, blocks_per_group = body.group / heads;
  const int kv_head = int(blockIdx.y) / blocks_per_group, first_head = int(blockIdx.y) % blocks_per_group;
  const RowInfo info = body.rows[row];
  if (info.slot < 0) return wait_for_previous();
  if (!call.after_body) wait_for_previous();
  fold_tail<HalfCells<D, bf16>, D>(call, memory, info, row, kv_head, first_head);
  __syncthreads();
  wait_for_previous();

  const int unit_cells = body.unit_blocks * kAttendBlock;
  const int low = first_seen(info.index, body.window), limit = body_end(info.index);
  const int first = low / unit_cells, end = low < limit ? (limit + unit_cells - 1) / unit_cells : first;
  const bool spans = body.unit_blocks == kHopperSpanBlocks, side_by_side = heads <= kWarps / 2;
  const size_t first_state = size_t(row) * size_t(body.range_heads) + size_t(kv_head * body.group + first_head);
  ColumnState<kColumns> total;
  if (side_by_side) {
    const int fan = spans ? kHopperSectionSpans : 1, round = kFinishNodes / heads;
    const int first_node = first / fan, end_node = (end + fan - 1) / fan;
    auto& nodes = *reinterpret_cast<typename FinishShared<D>::Nodes*>(memory.scratch);
    for (int base = first_node; base < end_node; base += round) {
      const int here = min(round, end_node - base);
      if (spans) fold_nodes<D, kHopperSectionSpans>(body, nodes, base, here, heads, first, end, first_state);
      else fold_nodes<D, 1>(body, nodes, base, here, heads, first, end, first_state);
      __syncthreads();
      for (int node = 0; warp < heads && node < here; ++node) {
        ColumnState<kColumns> state;
        const int item = node * heads + warp;
        state.read(&nodes.o[item][column]);
        state.m = nodes.ml[item].x;
        state.l = nodes.ml[item].y;
        total.merge(state);
      }
      __syncthreads();
    }
  }
  for (int head = warp; head < heads; head += kWarps) {
    const size_t state = first_state + size_t(head);
    if (!side_by_side) {
      total = spans ? fold_units<D, kHopperSectionSpans>(body, first, end, state, column)
                    : fold_units<D, 1>(body, first, end, state, column);
    }
    ColumnState<kColumns> tail;
    tail.read(&memory.tail_o[head][column]);
    tail.m = memory.tail_ml[head].x;
    tail.l = memory.tail_ml[head].y;
    total.merge(tail);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) total.o[j] = __fdiv_rn(total.o[j], total.l);
    const size_t head_of_all = size_t((body.first_kv_head + kv_head) * body.group + first_head + head);
    const size_t at = size_t(row) * size_t(call.width) + head_of_all * D + size_t(column);
    total.write(call.out + at);
    if (call.out16 == nullptr) continue;
    uint32_t* out16 = static_cast<uint32_t*>(call.out16) + at / 2;
#pragma unroll
    for (int j = 0; j < kColumns; j += 2) {
      const float x = total.o[j], y = total.o[j + 1];
      out16[j / 2] = call.half == Half::kBF16 ? pack2<true>(x, y) : pack2<false>(x, y);
    }
  }
}

}  // namespace sx::cuda
