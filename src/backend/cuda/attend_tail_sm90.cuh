// Attention of decode and verification on Hopper: the tail of a row, its last 65 to 128 indices, which are gathered in their order into
// two blocks of 64 cells and folded as in attend_rows.cuh.
#pragma once
#include "backend/cuda/attend_body.cuh"
#include "backend/cuda/attend_shares_sm90.cuh"

namespace sx::cuda {

// For speed only.
enum class FinishForm {
  kHead,  // a thread block is one head
  kFew,   // the heads of a kv head, for few rows: many loads on their way
  kMany,  // likewise, for many rows or merged states: (m, l) first, then only the states that are there
};

inline constexpr int kTailHeads = 8;  // at a time

template <int D>
struct FinishShared {
  int cells[kTailBlocks * kAttendBlock];
  float most[kTailBlocks][kAttendThreads / 32][kTailHeads], sum[kTailBlocks][kAttendThreads / 32][kTailHeads];  // of 16 cells
  uint2 weights[kTailBlocks][kAttendThreads / 32][32];  // of 16 cells, as operand of the product, per lane
  alignas(16) float tail_o[16][D];
  float2 tail_ml[16];
};

// q of up to 8 heads from `first_head` on, times scale, as operand of the product: lane 4 g + c holds elements 32 i + 8 c .. + 8
// of head g. Loaded long before it is packed.
template <int D>
struct TailQuery {
  float4 q[D / 32][2];
  uint32_t x[D / 32][4];
  __device__ __forceinline__ void load(const AttendBody& body, int row, int first_head, int heads) {
    const int g = int(threadIdx.x) % 32 / 4, c = int(threadIdx.x) % 4;
    const float* from = body.q + size_t(row) * size_t(body.q_stride) + size_t(first_head + min(g, heads - 1)) * D + size_t(8 * c);
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
                                           const uint64_t (&ancestors)[kAncestorWords]) {
  const int thread = int(threadIdx.x), first = body_end(info.index);
  if (first + thread < info.history || first + thread > info.index) {
    memory.cells[thread] = first + thread < info.history ? first + thread : info.cell;
  }
  int before = 0;
#pragma unroll
  for (int word = 0; word < kAncestorWords; ++word) {
    const uint64_t bits = ancestors[word];
    if (bits == 0) continue;
    if (thread < 64 && (bits >> thread & 1) != 0) {
      const int at = info.history - first + before + __popcll(bits & ((uint64_t(1) << thread) - 1));
      if (at < kTailBlocks * kAttendBlock) memory.cells[at] = info.history + 64 * word + thread;
    }
    before += __popcll(bits);
  }
}

// multiply() for queries of which rows 8 .. 15 are 0: d has those of row lane / 4 only.
template <bool bf16>
__device__ __forceinline__ void multiply_upper(float (&d)[2], uint32_t a0, uint32_t a2, uint32_t b0, uint32_t b1) {
  float none[2];
#define SX_PRODUCT(type)                                                                                                     \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %5}, {%7, %8}, "  \
               "{%0, %1, %9, %9};"                                                                                           \
               : "+f"(d[0]), "+f"(d[1]), "=f"(none[0]), "=f"(none[1])                                                        \
               : "r"(a0), "r"(0), "r"(a2), "r"(b0), "r"(b1), "f"(0.f))
  if constexpr (bf16) {
    SX_PRODUCT("bf16");
  } else {
    SX_PRODUCT("f16");
  }
#undef SX_PRODUCT
}

// The tail of one row for up to 8 heads of one kv head: the states of two blocks of 64 cells and the fold of both. A warp
// has the scores of 16 cells of either block and later the outputs of D / 4 columns; weights and what is known of 16
// cells go through shared memory between. Rows 8 .. 15 of the products are 0. State i is that of head first_head + i.
// The less thread blocks, the more of a tail is on its way at once, for which each needs registers.
template <int D, bool bf16, FinishForm form>
__device__ __forceinline__ void fold_tail(const AttendBody& body, FinishShared<D>& memory, const RowInfo& info,
                                          const TailQuery<D>& query, int kv_head, int first_state, int heads) {
  constexpr int kColumns = AttendColumns<D>::kColumns;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const int first = body_end(info.index), low = first_seen(info.index, body.window);
  const HalfCells<D, bf16> store(body, info.slot, body.first_kv_head + kv_head);
  // Whether the row has any of these 16 cells.
  const auto has = [&](int block, int step) { return first + block * kAttendBlock + 16 * step <= info.index; };
  constexpr bool kAllKeys = form == FinishForm::kHead, kAllValues = form != FinishForm::kMany;
  uint32_t keys[kAllKeys ? kTailBlocks : 1][2][D / 32][4], values[kAllValues ? kTailBlocks : 1][16][kColumns / 2];
  const auto load_keys = [&](int block) {  // of all blocks, there is the row's own cell where it has none
    if (!kAllKeys && !has(block, warp)) return;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint16_t* from = store.k + size_t(memory.cells[block * kAttendBlock + 16 * warp + 8 * n + g]) * D + 8 * c;
#pragma unroll
      for (int i = 0; i < D / 32; ++i) load_words<16>(keys[kAllKeys ? block : 0][n][i], from + 32 * i);
    }
  };
  const auto load_values = [&](int block) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      if (!has(block, i / 4)) continue;
      const int cell = memory.cells[block * kAttendBlock + 16 * (i / 4) + 2 * c + (i & 1) + 4 * (i & 2)];
      load_words<2 * kColumns>(values[kAllValues ? block : 0][i], store.v + size_t(cell) * D + 8 * kColumns * warp + kColumns * g);
    }
  };
  load_keys(0);
  if constexpr (kAllKeys) load_keys(1);
  float s[kTailBlocks][4];  // of head g, cells 2 c, 2 c + 1, 2 c + 8, 2 c + 9 of the warp's
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
    float product[2][2] = {};
    if (has(block, warp)) {
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            const uint32_t(&key)[4] = keys[kAllKeys ? block : 0][n][i];
            multiply_upper<bf16>(product[n], query.x[i][2 * h], query.x[i][2 * h + 1], key[2 * h], key[2 * h + 1]);
          }
        }
      }
    }
    if (!kAllKeys && block + 1 < kTailBlocks) load_keys(block + 1);
    if constexpr (kAllValues) load_values(block);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int index = first + block * kAttendBlock + 16 * warp + 8 * (i / 2) + 2 * c + i % 2;
      s[block][i] = index <= info.index && index >= low ? product[i / 2][i % 2] : minus_infinity();
    }
  }
  if constexpr (!kAllValues) load_values(0);
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
    const float most = quad_max(fmaxf(fmaxf(s[block][0], s[block][1]), fmaxf(s[block][2], s[block][3])));
    if (c == 0) memory.most[block][warp][g] = most;
  }
  __syncthreads();
  float m[kTailBlocks];
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
    m[block] = memory.most[block][0][g];
#pragma unroll
    for (int i = 1; i < 4; ++i) m[block] = fmaxf(m[block], memory.most[block][i][g]);
    const float base = m[block] == minus_infinity() ? 0.f : m[block];
    float p[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) p[i] = exp2_fast(__fsub_rn(s[block][i], base));
    memory.weights[block][warp][lane] = make_uint2(pack2_weights<bf16>(p[0], p[1]), pack2_weights<bf16>(p[2], p[3]));
    const float sum = quad_sum(__fadd_rn(__fadd_rn(p[0], p[1]), __fadd_rn(p[2], p[3])));
    if (c == 0) memory.sum[block][warp][g] = sum;
  }
  __syncthreads();
  float l[kTailBlocks], o[kTailBlocks][kColumns][2] = {};
#pragma unroll
  for (int block = 0; block < kTailBlocks; ++block) {
    const float(*sum)[kTailHeads] = memory.sum[block];
    l[block] = __fadd_rn(__fadd_rn(sum[0][g], sum[1][g]), __fadd_rn(sum[2][g], sum[3][g]));
    if (!kAllValues && block > 0) load_values(block);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (!has(block, step)) continue;
      const uint2 weights = memory.weights[block][step][lane];
      const uint32_t(*v)[kColumns / 2] = values[kAllValues ? block : 0] + 4 * step;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        const uint32_t which = j % 2 == 0 ? 0x5410 : 0x7632;
        multiply_upper<bf16>(o[block][j], weights.x, weights.y, __byte_perm(v[0][j / 2], v[1][j / 2], which),
                             __byte_perm(v[2][j / 2], v[3][j / 2], which));
      }
    }
  }
  const MergeScales scales = merge_states(m[0], l[0], m[1], l[1]);
  if (g >= heads) return;
  // Columns 2 kColumns c .. + 2 kColumns of the warp's.
  float* to = &memory.tail_o[first_state + g][8 * kColumns * warp + 2 * kColumns * c];
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) to[e * kColumns + j] = merge_values(o[0][j][e], o[1][j][e], scales);
  }
  if (warp == 0 && c == 0) memory.tail_ml[first_state + g] = make_float2(m[0], l[0]);
}

}  // namespace sx::cuda
