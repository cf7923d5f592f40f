// Portable split-KV decode: the kernel that folds blocks of cells into partial softmax states, on tensor cores
// (mma.sync). See decode_mma.cuh for the order of reduction.
#pragma once
#include "backend/cuda/attention/decode_loads.cuh"
#include "backend/cuda/attention/decode_mma.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {

inline constexpr int kAttendThreads = 128;
inline constexpr int kScorePitch = kAttendBlock + 8;  // f32; pairs of lanes (g, c) then hit different banks

// kTiles tiles of 16 query rows.
template <int D, int kTiles>
struct AttendShared {
  static constexpr int kRows = 16 * kTiles;
  uint4 q[kTiles][D / 16][32];  // MMA operands, per lane
  float scores[kTiles == 1 ? 2 : 1][kRows][kScorePitch];
  uint4 p[kTiles == 1 ? 1 : kTiles][4][32];  // likewise; unused with one tile
  MergeScales block_scales[kRows], span_scales[kRows];
  const float* query[kRows];                   // null: no such row
  int target[kRows];                           // place in a slot of the partial states; -1: no such row
  int limit[kRows], low[kRows];                // seen: low <= index < limit
  uint32_t cells[kTailBlocks * kAttendBlock];  // of the tail: where they lie
};

template <bool kBf16>
__device__ __forceinline__ void multiply(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if constexpr (kBf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
  }
}

// x in the low half.
template <bool kBf16>
__device__ __forceinline__ uint32_t pack(float x, float y) {
  uint32_t bits;
  if constexpr (kBf16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
    memcpy(&bits, &pair, 4);
  } else {
    const __half2 pair = __floats2half2_rn(x, y);
    memcpy(&bits, &pair, 4);
  }
  return bits;
}

// Cells of a block of the body, and of the tail.
struct BodyCells {
  uint32_t pitch;  // from a block to the next
  __device__ int index(int block) const { return block * kAttendBlock; }
  __device__ auto cells(int block) const {
    return [first = uint32_t(block) * pitch](int i) { return first + uint32_t(i); };
  }
};
struct TailCells {
  const uint32_t* list;
  int first;
  __device__ int index(int block) const { return first + block * kAttendBlock; }
  __device__ auto cells(int block) const {
    return [at = list + block * kAttendBlock](int i) { return at[i]; };
  }
};

// Rows of q, times scale, to 16 bits: element 8 c + 4 h + {0, 1, 2, 3} of 32 i .. 32 i + 31 goes to step 2 i + h, as
// in decode_loads.cuh.
template <int D, int kTiles, bool kBf16>
__device__ __forceinline__ void load_queries(AttendShared<D, kTiles>& shared, int active, float scale) {
  for (int item = int(threadIdx.x); item < active * (D / 16) * 32; item += kAttendThreads) {
    const int lane = item % 32, step = item / 32 % (D / 16), tile = item / 32 / (D / 16);
    const int element = 32 * (step / 2) + 8 * (lane % 4) + 4 * (step % 2);
    uint32_t words[2][2] = {};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float* row = shared.query[16 * tile + lane / 4 + 8 * r];
      if (row == nullptr) continue;
      const float4 raw = __ldcg(reinterpret_cast<const float4*>(row + element));
      float x[4] = {__fmul_rn(raw.x, scale), __fmul_rn(raw.y, scale), __fmul_rn(raw.z, scale), __fmul_rn(raw.w, scale)};
      if constexpr (!kBf16) {
#pragma unroll
        for (int i = 0; i < 4; ++i) x[i] = fminf(fmaxf(x[i], -65504.0f), 65504.0f);
      }
      words[r][0] = pack<kBf16>(x[0], x[1]);
      words[r][1] = pack<kBf16>(x[2], x[3]);
    }
    shared.q[tile][step][lane] = make_uint4(words[0][0], words[1][0], words[0][1], words[1][1]);
  }
}

struct BlockRange {
  int begin, end;
  bool alone;     // the one block is left as it is, not merged into a span
  int all_limit;  // all rows see all indices in [all_low, all_limit)
  int all_low;
};

// Folds blocks [begin, end) for `active` tiles of query rows and writes the states to `slot`. On entry keys and values
// of block `begin` are on their way, and shared.q and the rows are complete. The four warps share the scores of a
// block by cells and its outputs by columns; between the two, scores and probabilities go through shared memory.
// kEarlyValues: the next block's values are loaded before this one's are used, which takes registers.
template <class Store, int D, int kTiles, bool kSections, bool kEarlyValues = kTiles == 1 && D <= 128, class Where>
__device__ __forceinline__ void fold_blocks(const Store& store, const Where& where, const BlockRange& range, int active,
                                            typename Store::Keys& keys, typename Store::Values& values,
                                            AttendShared<D, kTiles>& shared, const AttendBody& body, size_t slot) {
  constexpr int kColumns = Store::kColumns;
  constexpr bool kBf16 = Store::kIsBf16;
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32, g = lane / 4, c = lane % 4;
  const bool has_columns = warp < AttendColumns<D>::kWarps;
  const int mine = kTiles == 1 ? 0 : warp;  // the tile whose softmax this warp does; a single one is done by all
  float o[kTiles][kColumns][4] = {};
  float section_o[kSections ? kTiles : 1][kColumns][4] = {};
  float m[2] = {minus_infinity(), minus_infinity()}, l[2] = {0, 0};
  float section_m[2] = {minus_infinity(), minus_infinity()}, section_l[2] = {0, 0};

  for (int block = range.begin; block < range.end; ++block) {
    const bool last = block + 1 == range.end;
    const bool span_ends = kSections && (last || (block + 1) % kSpanBlocks == 0);
    float s[kTiles][2][4] = {};
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      uint32_t k[2][4];
      Store::key_words(k[0], keys, 0, i);
      Store::key_words(k[1], keys, 1, i);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          if (kTiles > 1 && t >= active) continue;
          const uint4 q = shared.q[t][2 * i + h][lane];
          multiply<kBf16>(s[t][0], q, k[0][2 * h], k[0][2 * h + 1]);
          multiply<kBf16>(s[t][1], q, k[1][2 * h], k[1][2 * h + 1]);
        }
      }
    }
    if (!last) store.load_keys(keys, where.cells(block + 1), warp, g, c);
    // With one tile a fast warp may write the next scores while a slow one reads these, hence two buffers.
    float(*scores)[kScorePitch] = shared.scores[kTiles == 1 ? block & 1 : 0];
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      if (kTiles > 1 && t >= active) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int column = 16 * warp + 8 * n + 2 * c;
        *reinterpret_cast<float2*>(&scores[16 * t + g][column]) = make_float2(s[t][n][0], s[t][n][1]);
        *reinterpret_cast<float2*>(&scores[16 * t + g + 8][column]) = make_float2(s[t][n][2], s[t][n][3]);
      }
    }
    __syncthreads();

    uint4 p[4];
    MergeScales block_scales[2], span_scales[2] = {};
    if (kTiles == 1 || mine < active) {
      const int first = where.index(block);
      const bool masked = first + kAttendBlock > range.all_limit || first < range.all_low;
      float x[2][16];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = 16 * mine + g + 8 * r;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const float2 pair = *reinterpret_cast<const float2*>(&scores[row][8 * n + 2 * c]);
          x[r][2 * n] = pair.x;
          x[r][2 * n + 1] = pair.y;
        }
        if (body.soft_cap > 0) cap_scores(x[r], body.soft_cap);
        if (masked) {
          const int limit = shared.limit[row] - first, low = shared.low[row] - first;
#pragma unroll
          for (int i = 0; i < 16; ++i) {
            const int at = 8 * (i / 2) + 2 * c + i % 2;
            if (at >= limit || at < low) x[r][i] = minus_infinity();
          }
        }
        float top = x[r][0];
#pragma unroll
        for (int i = 1; i < 16; ++i) top = fmaxf(top, x[r][i]);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
        const float shift = top == minus_infinity() ? 0.0f : top;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 16; ++i) {
          x[r][i] = exp2_fast(__fsub_rn(x[r][i], shift));
          sum = __fadd_rn(sum, x[r][i]);
        }
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 1));
        sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, 2));
        block_scales[r] = merge_states(m[r], l[r], top, sum);
        if (span_ends) {
          span_scales[r] = merge_states(section_m[r], section_l[r], m[r], l[r]);
          m[r] = minus_infinity();
          l[r] = 0;
        }
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        p[i] = make_uint4(pack<kBf16>(x[0][4 * i], x[0][4 * i + 1]), pack<kBf16>(x[1][4 * i], x[1][4 * i + 1]),
                          pack<kBf16>(x[0][4 * i + 2], x[0][4 * i + 3]), pack<kBf16>(x[1][4 * i + 2], x[1][4 * i + 3]));
        if constexpr (kTiles > 1) shared.p[mine][i][lane] = p[i];
      }
      if constexpr (kTiles > 1) {
        if (c == 0) {
#pragma unroll
          for (int r = 0; r < 2; ++r) {
            shared.block_scales[16 * mine + g + 8 * r] = block_scales[r];
            if (span_ends) shared.span_scales[16 * mine + g + 8 * r] = span_scales[r];
          }
        }
      }
    }
    if constexpr (kTiles > 1) __syncthreads();

    if (has_columns) {
      uint32_t v[4][kColumns][2];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        uint32_t words[4][kColumns / 2];
#pragma unroll
        for (int j = 0; j < 4; ++j) Store::value_words(words[j], values, 4 * i + j);
#pragma unroll
        for (int j = 0; j < kColumns / 2; ++j) {
#pragma unroll
          for (int pair = 0; pair < 2; ++pair) {
            v[i][2 * j][pair] = __byte_perm(words[2 * pair][j], words[2 * pair + 1][j], 0x5410);
            v[i][2 * j + 1][pair] = __byte_perm(words[2 * pair][j], words[2 * pair + 1][j], 0x7632);
          }
        }
      }
      if (kEarlyValues && !last) store.load_values(values, where.cells(block + 1), warp, g, c);
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        if (kTiles > 1 && t >= active) continue;
        float block_o[kColumns][4] = {};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint4 a = kTiles == 1 ? p[i] : shared.p[t][i][lane];
#pragma unroll
          for (int j = 0; j < kColumns; ++j) multiply<kBf16>(block_o[j], a, v[i][j][0], v[i][j][1]);
        }
        MergeScales scales[2];
#pragma unroll
        for (int r = 0; r < 2; ++r) scales[r] = kTiles == 1 ? block_scales[r] : shared.block_scales[16 * t + g + 8 * r];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            o[t][j][e] = range.alone ? block_o[j][e] : merge_values(o[t][j][e], block_o[j][e], scales[e / 2]);
          }
        }
        if constexpr (kSections) {
          if (span_ends) {
#pragma unroll
            for (int r = 0; r < 2; ++r) {
              scales[r] = kTiles == 1 ? span_scales[r] : shared.span_scales[16 * t + g + 8 * r];
            }
#pragma unroll
            for (int j = 0; j < kColumns; ++j) {
#pragma unroll
              for (int e = 0; e < 4; ++e) {
                section_o[t][j][e] = merge_values(section_o[t][j][e], o[t][j][e], scales[e / 2]);
                o[t][j][e] = 0;
              }
            }
          }
        }
      }
      if (!kEarlyValues && !last) store.load_values(values, where.cells(block + 1), warp, g, c);
    }
  }

  // Lane (g, c) holds columns 2 kColumns c .. + 2 kColumns of its warp's, of rows g and g + 8.
#pragma unroll
  for (int t = 0; t < kTiles; ++t) {
    if (kTiles > 1 && t >= active) continue;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int target = shared.target[16 * t + g + 8 * r];
      if (target < 0) continue;
      const size_t at = slot + size_t(target);
      if (has_columns) {
        float row[2 * kColumns];
#pragma unroll
        for (int j = 0; j < kColumns; ++j) {
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            if constexpr (kSections) row[e * kColumns + j] = section_o[t][j][2 * r + e];
            else row[e * kColumns + j] = o[t][j][2 * r + e];
          }
        }
        float* out = body.state_o + at * D + 8 * kColumns * warp + 2 * kColumns * c;
#pragma unroll
        for (int j = 0; j < 2 * kColumns; j += 4) {
          *reinterpret_cast<float4*>(out + j) = make_float4(row[j], row[j + 1], row[j + 2], row[j + 3]);
        }
      }
      if (c == 0 && warp == (kTiles == 1 ? 0 : t)) {
        body.state_ml[at] = kSections ? make_float2(section_m[r], section_l[r]) : make_float2(m[r], l[r]);
      }
    }
  }
}

// Tail of one row for the heads of one kv head: at most 128 cells.
template <class Store, int D>
__device__ __forceinline__ void attend_tail(const AttendBody& body, AttendShared<D, 1>& shared, int row, int kv_head) {
  const int thread = int(threadIdx.x), warp = thread / 32, g = thread % 32 / 4, c = thread % 4;
  const RowInfo info = body.rows[row];
  if (info.slot < 0) return wait_for_previous();
  const int first = body_end(info.index), count = info.index - first + 1;
  // Behind the end the row's own cell stands in; its probability is 0.
  shared.cells[thread] = place_of(first + thread < info.history ? first + thread : info.cell, body.block_cells);
  if (thread < 16) {
    const bool used = thread < body.group;
    const int head = kv_head * body.group + thread;  // of the launch
    shared.query[thread] =
        used ? body.q + size_t(row) * size_t(body.q_stride) + size_t(body.first_kv_head * body.group + head) * D
             : nullptr;
    shared.target[thread] = used ? row * body.range_heads + head : -1;
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
      if (at < kTailBlocks * kAttendBlock)
        shared.cells[at] = place_of(info.history + 64 * word + thread, body.block_cells);
    }
    before += __popcll(bits);
  }
  wait_for_previous();
  load_queries<D, 1, Store::kIsBf16>(shared, 1, body.scale_log2);
  __syncthreads();
  const Store store(body, info.slot, body.first_kv_head + kv_head);
  const TailCells where{shared.cells, first};
  typename Store::Keys keys;
  typename Store::Values values;
  store.load_keys(keys, where.cells(0), warp, g, c);
  if (warp < AttendColumns<D>::kWarps) store.load_values(values, where.cells(0), warp, g, c);
  const int blocks = (count + kAttendBlock - 1) / kAttendBlock;
  const BlockRange range{0, blocks, false, info.index + 1, first_seen(info.index, body.window)};
  const size_t slot = size_t(body.units) * size_t(body.row_count) * size_t(body.range_heads);
  fold_blocks<Store, D, 1, false>(store, where, range, 1, keys, values, shared, body, slot);
}

// Blocks x < row_count: the tail of row x for kv head y. Others: one KV split (unit) for up to 16 kTiles query rows
// (rows of one tile times heads of kv head y). A split's K/V are read once, 2 * 64 * D elements per block of cells,
// straight to registers, the next block while one is computed; several thread blocks per SM keep enough bytes in
// flight. Bound: memory for a few rows (what is written is below 1/16 of it), tensor cores from about 32 rows per
// sequence on.
template <class Store, int D, int kTiles, bool kSections>
__global__ void __launch_bounds__(kAttendThreads, kTiles == 1 && D <= 128 ? 3 : 2) attend_body(const AttendBody body) {
  using Shared = AttendShared<D, kTiles>;
  static_assert(sizeof(AttendShared<D, 1>) <= sizeof(Shared) && sizeof(Shared) <= 48 * 1024);
  __shared__ __align__(16) unsigned char memory[sizeof(Shared)];
  let_next_start();
  const int kv_head = int(blockIdx.y);  // of the launch
  if (int(blockIdx.x) < body.row_count) {
    return attend_tail<Store, D>(body, *reinterpret_cast<AttendShared<D, 1>*>(memory), int(blockIdx.x), kv_head);
  }
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int thread = int(threadIdx.x), warp = thread / 32, lane = thread % 32, g = lane / 4, c = lane % 4;
  const int work = int(blockIdx.x) - body.row_count, tile_parts = body.tile_count * body.parts;
  const int unit = work / tile_parts, tile_index = work % tile_parts / body.parts, part = work % body.parts;
  const RowTile tile = body.tiles[tile_index];
  const int first_query = part * Shared::kRows, queries = tile.rows * body.group;
  // No row of the tile sees a block below `begin`, nor one from `most` on; all between are committed, so they may be
  // read at once: the kernels before this one that are still running write other cells.
  const int begin = max(unit * body.unit_blocks, first_seen(tile.history, body.window) / kAttendBlock);
  const int most = min((unit + 1) * body.unit_blocks, body_end(tile.history + kMaxDepth) / kAttendBlock);
  if (first_query >= queries || begin >= most) return wait_for_previous();
  const Store store(body, tile.slot, body.first_kv_head + kv_head);
  const BodyCells where{body.block_cells};
  typename Store::Keys keys;
  typename Store::Values values;
  store.load_keys(keys, where.cells(begin), warp, g, c);
  if (warp < AttendColumns<D>::kWarps) store.load_values(values, where.cells(begin), warp, g, c);

  if (thread < Shared::kRows) {
    const int query = first_query + thread;
    const bool used = query < queries;  // other threads take the first row's mask, and their results are never read
    const int row = tile.first_row + (used ? query / body.group : 0);
    const int head = kv_head * body.group + (used ? query % body.group : 0);
    const int index = body.rows[row].index;
    shared.query[thread] =
        used ? body.q + size_t(row) * size_t(body.q_stride) + size_t(body.first_kv_head * body.group + head) * D
             : nullptr;
    shared.target[thread] = used ? row * body.range_heads + head : -1;
    shared.limit[thread] = body_end(index);
    shared.low[thread] = first_seen(index, body.window);
  }
  __syncthreads();
  const int active = min(kTiles, (queries - first_query + 15) / 16);
  int limit = 0, all_limit = INT32_MAX, all_low = 0;
  for (int i = lane; i < 16 * active; i += 32) {
    limit = max(limit, shared.limit[i]);
    all_limit = min(all_limit, shared.limit[i]);
    all_low = max(all_low, shared.low[i]);
  }
  limit = __reduce_max_sync(0xffffffffu, limit);
  all_limit = __reduce_min_sync(0xffffffffu, all_limit);
  all_low = __reduce_max_sync(0xffffffffu, all_low);
  wait_for_previous();
  const int end = min(most, limit / kAttendBlock);
  if (begin >= end) return;
  load_queries<D, kTiles, Store::kIsBf16>(shared, active, body.scale_log2);
  __syncthreads();
  const BlockRange range{begin, end, body.unit_blocks == 1, all_limit, all_low};
  const size_t slot = size_t(unit) * size_t(body.row_count) * size_t(body.range_heads);
  fold_blocks<Store, D, kTiles, kSections>(store, where, range, active, keys, values, shared, body, slot);
}

template <class Store, int D, int kTiles, bool kSections>
void launch_attend_body(const AttendBody& body, const AttendSplit& split, cudaStream_t stream) {
  const unsigned blocks = unsigned(body.row_count + body.units * body.tile_count * body.parts);
  const dim3 grid(blocks, unsigned(split.range_kv_heads));
  launch(attend_body<Store, D, kTiles, kSections>, grid, dim3(kAttendThreads), 0, stream, body);
}

// The variants that plan_split (decode_mma.cu) chooses from.
template <template <int> class Store>
void launch_attend_body(const AttendBody& body, const AttendSplit& split, cudaStream_t stream) {
  const bool sections = body.unit_blocks == kSectionBlocks;
  const auto pick = [&]<int D>() {
    constexpr int kMany = D == 256 ? 2 : 4;
    if (split.tiles == 1 && !sections) return launch_attend_body<Store<D>, D, 1, false>(body, split, stream);
    if (!sections) return launch_attend_body<Store<D>, D, kMany, false>(body, split, stream);
    return launch_attend_body < Store<D>, D, D == 256 ? 1 : 4, true > (body, split, stream);
  };
  switch (split.head_dim) {
    case 64: return pick.template operator()<64>();
    case 96: return pick.template operator()<96>();
    case 128: return pick.template operator()<128>();
    default: return pick.template operator()<256>();
  }
}

}  // namespace sx::cuda
