// Queries times keys on tensor cores, for chunk scores: the logits, or the softmax statistics of each 16 of them.
#pragma once
#include <algorithm>
#include <type_traits>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/kv/nibbles.h"

namespace sx::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTile = 128;  // cells that a block does at once, at absolute multiples: 8 warps of 16
constexpr int kPiece = 16;  // cells of one warp in a tile
constexpr int kLot = 8;     // query heads of one MMA: 16 rows, for each head its upper and its lower bits
// About so many blocks: four of logits for each of the 132 SMs of an H200, or eight of pieces.
template <bool pieces>
constexpr int kBlocks = pieces ? 1056 : 528;

// A pair is a layer and a query head, in the order of the result.
struct Scratch {
  float* logits;           // [pairs][pitch]
  float2* pieces;          // [pairs][pitch / kPiece]: largest logit, sum of e^(logit - largest)
  float2* states;          // [pairs][spans]: the same
  int pitch, spans, base;  // base: first cell of the first tile
  int tiles, tiles_per_span;
};

__device__ __forceinline__ int layer_of(const ScoreCall& c, int i) { return i == 0 ? c.layer : c.others[i - 1]; }

// The part of a key that a lane reads at once, 8 numbers. `whole`: keys are whole multiples of that; otherwise they end
// at `bytes`, a multiple of 4. Zeros behind the end. Keys are read once, with a streaming load, so that they do not
// push the logits out of the cache.
template <DType type>
using KeyWord = std::conditional_t<type == DType::kQ8_0, uint2, uint4>;
template <DType type>
__device__ __forceinline__ KeyWord<type> load_word(const std::byte* key, int word, int bytes, bool whole) {
  using Word = KeyWord<type>;
  constexpr int size = sizeof(Word), parts = size / 4;
  if (whole) return word * size < bytes ? __ldcs(reinterpret_cast<const Word*>(key + word * size)) : Word{};
  uint32_t part[parts];
#pragma unroll
  for (int i = 0; i < parts; ++i) {
    const int at = word * size + 4 * i;
    part[i] = at < bytes ? *reinterpret_cast<const uint32_t*>(key + at) : 0;
  }
  Word result;
  memcpy(&result, part, size);
  return result;
}

// The same of keys of 4 bits, as f16; `bytes` is what a key would have in 16 bits, a multiple of 64.
template <DType type>
__device__ __forceinline__ uint4 load_nibbles(const KvView& kv, size_t cell, int word, int bytes) {
  if (word * int(sizeof(uint4)) >= bytes) return make_uint4(0, 0, 0, 0);
  const uint32_t codes = __ldcs(reinterpret_cast<const uint32_t*>(kv.k) + cell * size_t(bytes / 16) + size_t(word));
  constexpr int numbers = type == DType::kQ4_1 ? 2 : 1;
  const uint16_t* scales = kv.k_scale + (cell * size_t(bytes / 64) + size_t(word / 4)) * numbers;
  const float scale = f16_value(scales[0]), least = type == DType::kQ4_1 ? f16_value(scales[numbers - 1]) : 0.0f;
  uint32_t pairs[4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = half_pair(Half::kF16, nibble_value(type, codes >> (8 * i) & 15u, scale, least),
                         nibble_value(type, codes >> (8 * i + 4) & 15u, scale, least));
  return make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
}

// d += a b, of 16 bits.
template <bool bf16>
__device__ __forceinline__ void multiply(float (&d)[4], const uint4& a, uint32_t b0, uint32_t b1) {
  if constexpr (bf16) {
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

// Four int8 as two pairs of f16. 0x6400 + u is 1024 + u for u < 256, so that the subtraction is exact.
__device__ __forceinline__ void widen_bytes(uint32_t& low, uint32_t& high, uint32_t bytes) {
  const uint32_t biased = bytes ^ 0x80808080u;
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));
  const auto pair = [&](uint32_t bits) {
    __half2 x;
    memcpy(&x, &bits, 4);
    x = __hsub2(x, offset);
    memcpy(&bits, &x, 4);
    return bits;
  };
  low = pair(__byte_perm(biased, 0x64646464u, 0x4140));
  high = pair(__byte_perm(biased, 0x64646464u, 0x4342));
}

// (largest, sum) of two sets of logits joined; empty: (-infinity, 0).
__device__ __forceinline__ float2 join_states(float2 a, float2 b) {
  const float most = fmaxf(a.x, b.x), shift = most == -INFINITY ? 0.0f : most;
  return make_float2(
      most, __fadd_rn(__fmul_rn(a.y, __expf(__fsub_rn(a.x, shift))), __fmul_rn(b.y, __expf(__fsub_rn(b.x, shift)))));
}

// One block: the logits of one span of tiles for all `group` query heads of one key head of one layer: per tile 128
// keys read once (32 KB in 16 bits of 128), group x 128 floats written. Bound: memory. Keys go from memory straight
// into the registers that the tensor cores want, those of the next tile while this one's logits are dealt with. With
// lane = 4 g + c, a warp's 16 keys are column g of two MMAs: cells 4 (g / 2) + g % 2 and that + 2, so that a lane
// gets the logits of four neighbours, 4 c .. 4 c + 3. Of 32 consecutive numbers, lane c reads 8; the two steps of the
// product take the first and the last four. Rows g and g + 8 are the upper and the lower bits of query head g: 16 bits
// of q for keys in bf16, 22 for others. A logit depends on its key and query alone. `full`: head_dim == 32 * words.
// `pieces`: instead of logits, what a softmax needs of each 16 of them is written, an eighth of the bytes.
template <DType type, int words, bool full, bool pieces>
__global__ void __launch_bounds__(kThreads, words <= 4 && type != DType::kQ8_0 ? 4 : 2)
    logits_kernel(const __grid_constant__ ScoreCall c, Scratch s, bool whole) {
  constexpr bool bf16 = type == DType::kBF16, bytewise = type == DType::kQ8_0;
  extern __shared__ uint4 shared[];
  const int group = c.heads / c.kv_heads, lots = (group + kLot - 1) / kLot;
  uint4* q = shared;                                                           // [lots][2 words][32]
  float2* states = reinterpret_cast<float2*>(shared + lots * 2 * words * 32);  // [lots][kThreads], own entries
  float2* merged = states + lots * kThreads;                                   // [kWarps][lots * kLot]
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, part = lane % 4;
  constexpr int full_bytes = words * 4 * int(sizeof(KeyWord<type>));
  const int kv_head = blockIdx.y, bytes = full ? full_bytes : int(cell_bytes(c.kv)), blocks = bytes / 32;
  const int first_tile = int(blockIdx.x) * s.tiles_per_span, last_tile = min(first_tile + s.tiles_per_span, s.tiles);
  const size_t keys = cell_index(c.kv, layer_of(c, int(blockIdx.z)), c.slot, kv_head, 0);  // of cell 0
  const size_t first_pair = size_t(blockIdx.z) * size_t(c.heads) + size_t(kv_head) * size_t(group);
  let_next_start();
  wait_for_previous();

  const uint32_t pitch = uint32_t(c.kv.block_cells());
  KeyWord<type> raw[2][words];
  uint16_t scale[2][2][bytewise ? words : 1];  // of the keys whose logits this lane gets
  const auto load = [&](int tile) {
    const int start = s.base + tile * kTile + warp * 16;
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const int cell = start + 4 * (g / 2) + g % 2 + 2 * n;
      const bool in = cell >= c.first && cell < c.end;
      const size_t place = keys + place_of(in ? cell : c.first, pitch);
      const std::byte* key = c.kv.k + place * size_t(bytes);
#pragma unroll
      for (int i = 0; i < words; ++i) {
        if constexpr (is_nibbles(type)) raw[n][i] = load_nibbles<type>(c.kv, place, part + 4 * i, bytes);
        else raw[n][i] = load_word<type>(key, part + 4 * i, bytes, full || whole);
      }
      if constexpr (bytewise) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int other = start + 4 * part + 2 * n + e;
          const bool there = other >= c.first && other < c.end;
          const uint16_t* from = c.kv.k_scale + (keys + place_of(there ? other : c.first, pitch)) * size_t(blocks);
#pragma unroll
          for (int i = 0; i < words; ++i) scale[n][e][i] = full || i < blocks ? from[i] : uint16_t(0);
        }
      }
    }
  };
  load(first_tile);
  for (int item = threadIdx.x; item < lots * 2 * words * 32; item += kThreads) {
    const int step = item / 32 % (2 * words), head = item / 32 / (2 * words) * kLot + g;
    const int element = 32 * (step / 2) + 8 * part + 4 * (step % 2);  // kThreads is a multiple of 32: lane and g hold
    const float* row = c.q + (first_pair + size_t(head)) * size_t(c.head_dim);
    uint32_t upper[4], lower[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = head < group && element + i < c.head_dim ? row[element + i] : 0.0f;
      upper[i] = bf16 ? bf16_bits(x) : f16_bits(x);
      const float rest = __fsub_rn(x, bf16 ? bf16_value(uint16_t(upper[i])) : f16_value(uint16_t(upper[i])));
      lower[i] = bf16 ? bf16_bits(rest) : f16_bits(rest);
    }
    q[item] = make_uint4(upper[0] | upper[1] << 16, lower[0] | lower[1] << 16, upper[2] | upper[3] << 16,
                         lower[2] | lower[3] << 16);
  }
  for (int l = 0; l < lots; ++l) states[l * kThreads + int(threadIdx.x)] = make_float2(-INFINITY, 0);
  __syncthreads();

  for (int tile = first_tile; tile < last_tile; ++tile) {
    const int place = tile * kTile + warp * 16 + 4 * part, cell = s.base + place;
    for (int l = 0; l < lots; ++l) {
      const uint4* rows = q + l * 2 * words * 32 + lane;
      float x[4] = {}, d[2][4] = {};
#pragma unroll
      for (int i = 0; i < words; ++i) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const uint4 a = rows[(2 * i + h) * 32];
#pragma unroll
          for (int n = 0; n < 2; ++n) {
            uint32_t b0, b1;
            if constexpr (bytewise) widen_bytes(b0, b1, h == 0 ? raw[n][i].x : raw[n][i].y);
            else b0 = h == 0 ? raw[n][i].x : raw[n][i].z, b1 = h == 0 ? raw[n][i].y : raw[n][i].w;
            multiply<bf16>(d[n], a, b0, b1);
          }
        }
        if constexpr (bytewise) {  // 32 numbers have one scale
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            x[e] = fmaf(f16_value(scale[e / 2][e % 2][i]), __fadd_rn(d[e / 2][e % 2], d[e / 2][e % 2 + 2]), x[e]);
            d[e / 2][e % 2] = d[e / 2][e % 2 + 2] = 0;
          }
        }
      }
      if (l + 1 == lots && tile + 1 < last_tile) load(tile + 1);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if constexpr (!bytewise) x[e] = __fadd_rn(d[e / 2][e % 2], d[e / 2][e % 2 + 2]);
        x[e] = cell + e >= c.first && cell + e < c.end ? __fmul_rn(x[e], c.scale) : -INFINITY;
      }
      float2& state = states[l * kThreads + int(threadIdx.x)];
      if constexpr (pieces) {  // the four lanes of a head agree, also on the bits
        float most = fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]));
#pragma unroll
        for (int step = 1; step < 4; step *= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
        const float shift = most == -INFINITY ? 0.0f : most;
        float sum = __expf(__fsub_rn(x[0], shift));
#pragma unroll
        for (int e = 1; e < 4; ++e) sum = __fadd_rn(sum, __expf(__fsub_rn(x[e], shift)));
#pragma unroll
        for (int step = 1; step < 4; step *= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, step));
        const float2 piece = make_float2(most, sum);
        if (part == 0 && l * kLot + g < group)
          s.pieces[(first_pair + size_t(l * kLot + g)) * size_t(s.pitch / kPiece) + size_t(tile * kWarps + warp)] =
              piece;
        state = join_states(state, piece);
        continue;
      }
      if (l * kLot + g < group) {
        const size_t pair = first_pair + size_t(l * kLot + g);
        *reinterpret_cast<float4*>(s.logits + pair * size_t(s.pitch) + size_t(place)) =
            make_float4(x[0], x[1], x[2], x[3]);
      }
      if (c.kind == ScoreKind::kLogit) continue;
      const float2 old = state;
      const float most = fmaxf(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])), old.x);
      const float shift = most == -INFINITY ? 0.0f : most;
      float sum = __fmul_rn(old.y, __expf(__fsub_rn(old.x, shift)));
#pragma unroll
      for (int e = 0; e < 4; ++e) sum = __fadd_rn(sum, __expf(__fsub_rn(x[e], shift)));
      state = make_float2(most, sum);
    }
  }
  if (c.kind == ScoreKind::kLogit) return;
  for (int l = 0; l < lots; ++l) {
    float2 state = states[l * kThreads + int(threadIdx.x)];
#pragma unroll
    for (int step = 1; step < 4 && !pieces; step *= 2) {
      const float2 other =
          make_float2(__shfl_xor_sync(kAllLanes, state.x, step), __shfl_xor_sync(kAllLanes, state.y, step));
      state = join_states(state, other);
    }
    if (part == 0) merged[warp * lots * kLot + l * kLot + g] = state;
  }
  __syncthreads();
  for (int h = threadIdx.x; h < group; h += kThreads) {
    float2 state = merged[h];
    for (int w = 1; w < kWarps; ++w) state = join_states(state, merged[w * lots * kLot + h]);
    s.states[(first_pair + size_t(h)) * size_t(s.spans) + blockIdx.x] = state;
  }
}

template <bool pieces, DType type, int words>
void launch_logits(const ScoreCall& c, const Scratch& s, bool whole, cudaStream_t stream) {
  const int lots = (c.heads / c.kv_heads + kLot - 1) / kLot;
  const size_t shared = size_t(lots) * (2 * words * 32 * sizeof(uint4) + (kThreads + kWarps * kLot) * sizeof(float2));
  const auto kernel =
      c.head_dim == 32 * words ? logits_kernel<type, words, true, pieces> : logits_kernel<type, words, false, pieces>;
  if (shared > 48 * 1024)
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)), "scores");
  launch(kernel, dim3(unsigned(s.spans), unsigned(c.kv_heads), unsigned(c.layers)), kThreads, shared, stream, c, s,
         whole);
}

template <bool pieces, DType type>
void score_logits(const ScoreCall& c, const Scratch& s, bool whole, cudaStream_t stream) {
  if (c.head_dim <= 64) launch_logits<pieces, type, 2>(c, s, whole, stream);
  else if (c.head_dim <= 128) launch_logits<pieces, type, 4>(c, s, whole, stream);
  else launch_logits<pieces, type, 8>(c, s, whole, stream);
}

// A tile may begin before the first cell and end behind the last.
inline int tiles_for(int context) { return (context + kTile - 1) / kTile + 1; }

// Queries times keys: logits, or pieces, and states, all in `scratch`.
template <bool pieces>
Scratch score_keys(const ScoreCall& c, void* scratch, cudaStream_t stream) {
  const bool whole = cell_bytes(c.kv) % (c.kv.type == DType::kQ8_0 ? 8 : 16) == 0;
  const size_t pairs = size_t(c.layers) * size_t(c.heads);
  Scratch s{};
  s.base = c.first / kTile * kTile;
  s.tiles = (c.end - s.base + kTile - 1) / kTile;
  s.pitch = s.tiles * kTile;
  const int most = std::max(1, kBlocks<pieces> / (c.kv_heads * c.layers));
  s.tiles_per_span = (s.tiles + most - 1) / most;
  s.spans = (s.tiles + s.tiles_per_span - 1) / s.tiles_per_span;
  if constexpr (pieces) {
    s.pieces = static_cast<float2*>(scratch);
    s.states = s.pieces + pairs * size_t(s.pitch / kPiece);
  } else {
    s.logits = static_cast<float*>(scratch);
    s.states = reinterpret_cast<float2*>(s.logits + pairs * size_t(s.pitch));
  }
  if (c.kv.type == DType::kBF16) score_logits<pieces, DType::kBF16>(c, s, whole, stream);
  else if (c.kv.type == DType::kF16) score_logits<pieces, DType::kF16>(c, s, whole, stream);
  else if (c.kv.type == DType::kQ4_0) score_logits<pieces, DType::kQ4_0>(c, s, whole, stream);
  else if (c.kv.type == DType::kQ4_1) score_logits<pieces, DType::kQ4_1>(c, s, whole, stream);
  else score_logits<pieces, DType::kQ8_0>(c, s, whole, stream);
  return s;
}

}  // namespace
}  // namespace sx::cuda
