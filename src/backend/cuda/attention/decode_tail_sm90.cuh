// Split-KV decode on Hopper: the tail of a row, its last 65 to 128 indices, gathered in index order into two blocks of
// 64 cells and folded as in decode_mma.cuh. The combine kernel does it while the split kernel still runs.
#pragma once
#include "backend/cuda/attention/decode_body.cuh"
#include "backend/cuda/attention/decode_partition_sm90.cuh"

namespace sx::cuda {

// The form of the combine; it affects speed only.
enum class FinishForm {
  kHead,  // a thread block is one head
  kFew,   // the heads of a kv head, for few rows: many loads on their way
  kMany,  // likewise, for many rows or merged states: (m, l) first, then only the states that are there
};

inline constexpr int kTailHeads = 8;  // at a time

template <int D>
struct FinishShared {
  static constexpr int kPitch = kAttendBlock + 8;  // so that no two lanes want the same bank
  uint32_t cells[kTailBlocks * kAttendBlock];      // where they lie, see place_of()
  float most[kTailBlocks][kAttendThreads / 32][kTailHeads],
      sum[kTailBlocks][kAttendThreads / 32][kTailHeads];  // of 16 cells
  alignas(4) uint16_t weights[kTailBlocks][kTailHeads][kPitch];
  alignas(16) float tail_o[16][D];
  float2 tail_ml[16];
};

// q of up to 8 heads from `first_head` on, times scale, as MMA operand: lane 4 g + c holds elements 32 i + 8 c .. + 8
// of head g. Loaded long before it is packed.
template <int D>
struct TailQuery {
  float4 q[D / 32][2];
  uint32_t x[D / 32][4];
  __device__ __forceinline__ void load(const AttendBody& body, int row, int first_head, int heads) {
    const int g = int(threadIdx.x) % 32 / 4, c = int(threadIdx.x) % 4;
    const float* from =
        body.q + size_t(row) * size_t(body.q_stride) + size_t(first_head + min(g, heads - 1)) * D + size_t(8 * c);
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) q[i][j] = __ldcg(reinterpret_cast<const float4*>(from + 32 * i + 4 * j));
    }
  }
  template <bool bf16>
  __device__ __forceinline__ void pack(float scale, int heads) {
    const bool used = int(threadIdx.x) % 32 / 4 < heads;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const float4 y = q[i][j];
        const uint32_t low = pack2<bf16>(__fmul_rn(y.x, scale), __fmul_rn(y.y, scale));
        const uint32_t high = pack2<bf16>(__fmul_rn(y.z, scale), __fmul_rn(y.w, scale));
        x[i][2 * j] = used ? low : 0, x[i][2 * j + 1] = used ? high : 0;
      }
    }
  }
};

// Where the cells of the row's last two blocks lie, in index order. Behind its end the row's own cell stands in.
template <int D>
__device__ __forceinline__ void find_cells(FinishShared<D>& memory, const RowInfo& info,
                                           const uint64_t (&ancestors)[kAncestorWords], uint32_t block_cells) {
  const int thread = int(threadIdx.x), first = body_end(info.index);
  if (first + thread < info.history || first + thread > info.index) {
    memory.cells[thread] = place_of(first + thread < info.history ? first + thread : info.cell, block_cells);
  }
  int before = 0;
#pragma unroll
  for (int word = 0; word < kAncestorWords; ++word) {
    const uint64_t bits = ancestors[word];
    if (bits == 0) continue;
    if (thread < 64 && (bits >> thread & 1) != 0) {
      const int at = info.history - first + before + __popcll(bits & ((uint64_t(1) << thread) - 1));
      if (at < kTailBlocks * kAttendBlock) memory.cells[at] = place_of(info.history + 64 * word + thread, block_cells);
    }
    before += __popcll(bits);
  }
}

// The largest or the sum of all lanes with the same lane % 4; all get the same bits.
__device__ __forceinline__ float column_max(float x) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}
__device__ __forceinline__ float column_sum(float x) {
#pragma unroll
  for (int d = 4; d < 32; d *= 2) x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, d));
  return x;
}

// The tail of one row for up to 8 heads of one kv head: the states of two blocks of 64 cells and the fold of both.
// Cells, later columns of V, are the large side of the MMAs and heads the small one. A warp has the scores of 16 cells
// of either block and later half the columns of the outputs of one; weights and what is known of 16 cells go through
// shared memory between. A lane has heads 2 c and 2 c + 1. State i is that of head first_head + i. A row's own cell
// stands in for cells that it does not have, so that no load is in a branch. Where there are many thread blocks, values
// are loaded into the registers that the keys leave.
template <int D, bool bf16, FinishForm form>
__device__ __forceinline__ void fold_tail(const AttendBody& body, FinishShared<D>& memory, const RowInfo& info,
                                          const TailQuery<D>& query, int kv_head, int first_state, int heads) {
  constexpr int kColumns = D / 16, kTiles = kColumns / 2;  // of a lane
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const int first = body_end(info.index), low = first_seen(info.index, body.window);
  const HalfCells<D, bf16> store(body, info.slot, body.first_kv_head + kv_head);
  const int mine = warp / 2, column = warp % 2 * (D / 2) + kColumns * g;  // of the outputs
  uint32_t keys[kTailBlocks][2][D / 32][4], values[16][kTiles];
  const auto load_values = [&] {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const uint32_t cell = memory.cells[mine * kAttendBlock + 16 * (i / 4) + 2 * c + (i & 1) + 4 * (i & 2)];
      load_words<2 * kColumns>(values[i], store.v + size_t(cell) * D + column);
    }
  };
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint16_t* from = store.k + size_t(memory.cells[block * kAttendBlock + 16 * warp + 8 * n + g]) * D + 8 * c;
#pragma unroll
      for (int i = 0; i < D / 32; ++i) load_words<16>(keys[block][n][i], from + 32 * i);
    }
  }
  if constexpr (form != FinishForm::kMany) load_values();
  float s[kTailBlocks][4] = {};  // of cell g, head 2 c and 2 c + 1; of cell g + 8 likewise
#pragma unroll
  for (int i = 0; i < D / 32; ++i) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int block = 0; block < kTailBlocks; ++block) {
        const uint32_t(&k)[2][D / 32][4] = keys[block];
        multiply<bf16>(s[block], make_uint4(k[0][i][2 * h], k[1][i][2 * h], k[0][i][2 * h + 1], k[1][i][2 * h + 1]),
                       query.x[i][2 * h], query.x[i][2 * h + 1]);
      }
    }
  }
  if constexpr (form == FinishForm::kMany) load_values();
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int index = first + block * kAttendBlock + 16 * warp + g + i / 2 * 8;
      if (index > info.index || index < low) s[block][i] = minus_infinity();
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float most = column_max(fmaxf(s[block][e], s[block][2 + e]));
      if (g == 0) memory.most[block][warp][2 * c + e] = most;
    }
  }
  __syncthreads();
  float m[kTailBlocks][2];
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
    float p[4];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      m[block][e] = memory.most[block][0][2 * c + e];
#pragma unroll
      for (int i = 1; i < 4; ++i) m[block][e] = fmaxf(m[block][e], memory.most[block][i][2 * c + e]);
      const float base = m[block][e] == minus_infinity() ? 0.f : m[block][e];
      p[e] = exp2_fast(__fsub_rn(s[block][e], base));
      p[2 + e] = exp2_fast(__fsub_rn(s[block][2 + e], base));
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint32_t both = pack2_weights<bf16>(p[2 * n], p[2 * n + 1]);
      const int cell = 16 * warp + g + 8 * n;
      memory.weights[block][2 * c][cell] = uint16_t(both);
      memory.weights[block][2 * c + 1][cell] = uint16_t(both >> 16);
    }
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const float sum = column_sum(__fadd_rn(p[e], p[2 + e]));
      if (g == 0) memory.sum[block][warp][2 * c + e] = sum;
    }
  }
  __syncthreads();
  float o[kTiles][4] = {};  // of columns `column` + 2 t and the next, of head 2 c and 2 c + 1 each
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint16_t* weights = &memory.weights[mine][g][16 * step + 2 * c];
    const uint32_t low_cells = *reinterpret_cast<const uint32_t*>(weights),
                   high_cells = *reinterpret_cast<const uint32_t*>(weights + 8);
    const uint32_t(*v)[kTiles] = values + 4 * step;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      multiply<bf16>(o[t],
                     make_uint4(__byte_perm(v[0][t], v[1][t], 0x5410), __byte_perm(v[0][t], v[1][t], 0x7632),
                                __byte_perm(v[2][t], v[3][t], 0x5410), __byte_perm(v[2][t], v[3][t], 0x7632)),
                     low_cells, high_cells);
    }
  }
  const auto place = [&](int head, int t) {
    return reinterpret_cast<float2*>(&memory.tail_o[first_state + head][column + 2 * t]);
  };
#pragma unroll
  for (int e = 0; mine == 0 && e < 2; ++e) {
    if (2 * c + e >= heads) continue;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) *place(2 * c + e, t) = make_float2(o[t][e], o[t][2 + e]);
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; mine == 1 && e < 2; ++e) {
    const int head = 2 * c + e;
    float l[kTailBlocks];
#pragma unroll
    for (int block = 0; block < kTailBlocks; ++block) {
      const float(*sum)[kTailHeads] = memory.sum[block];
      l[block] = __fadd_rn(__fadd_rn(sum[0][head], sum[1][head]), __fadd_rn(sum[2][head], sum[3][head]));
    }
    const MergeScales scales = merge_states(m[0][e], l[0], m[1][e], l[1]);
    if (head >= heads) continue;
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const float2 older = *place(head, t);
      *place(head, t) = make_float2(merge_values(older.x, o[t][e], scales), merge_values(older.y, o[t][2 + e], scales));
    }
    if (warp == 2 && g == 0) memory.tail_ml[first_state + head] = make_float2(m[0][e], l[0]);
  }
}

}  // namespace sx::cuda
