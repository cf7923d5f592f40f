// A cell of a packed store in the registers of a warp, and the rounding of one head to one side of a cell.
#pragma once
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/kv/nibbles.h"

namespace sx::cuda {
namespace {

// One side of one layer's cells as kernels address it.
struct Side {
  DType type;
  uint32_t* words;   // [cells][side_words]
  uint16_t* scales;  // [cells][side_scales]
  int dim;
  __device__ int words_of() const { return side_words(type, dim); }
  __device__ int scales_of() const { return side_scales(type, dim); }
  __device__ uint32_t* word(size_t cell) const { return words + cell * size_t(words_of()); }
  __device__ uint16_t* scale(size_t cell) const { return scales + cell * size_t(scales_of()); }
};
__device__ __forceinline__ Side keys_of(const KvView& kv) {
  return {kv.type, reinterpret_cast<uint32_t*>(kv.k), kv.k_scale, kv.head_dim};
}
__device__ __forceinline__ Side values_of(const KvView& kv) {
  return {kv.value_type, reinterpret_cast<uint32_t*>(kv.v), kv.v_scale, kv.head_dim};
}

// Rounds one head from shared memory into a cell of one side, by one warp; the caller puts __syncwarp() before.
__device__ __forceinline__ void store_side(const Side& side, size_t cell, const float* x, int lane) {
  if (!is_nibbles(side.type)) {
    store_head(side.type, reinterpret_cast<std::byte*>(side.word(cell)), side.scale(cell), x, side.dim, lane);
    return;
  }
  uint32_t* words = side.word(cell);
  uint16_t* scales = side.scale(cell);
  for (int block = 0; block < side.dim / 32; ++block) {
    const float v = clamp_f16(x[32 * block + lane]);  // what a scale of 16 bits can hold
    NibbleScale s;
    if (side.type == DType::kQ4_0) {
      const float most = warp_max(fabsf(v));
      const unsigned who = __ballot_sync(kAllLanes, fabsf(v) == most);  // the first of equals; none if all are NaN
      s = nibble_scale_q4_0(__shfl_sync(kAllLanes, v, who == 0 ? 0 : __ffs(int(who)) - 1));
    } else {
      const float high = warp_max(v), low = -warp_max(-v);
      s = nibble_scale_q4_1(low, high);
    }
    // Lane 8 i collects the codes of lanes 8 i .. 8 i + 7.
    uint32_t word = nibble_code(side.type, v, s) << (4 * (lane % 8));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) word |= __shfl_xor_sync(kAllLanes, word, step);
    if (lane % 8 == 0) words[4 * block + lane / 8] = word;
    if (lane != 0) continue;
    if (side.type == DType::kQ4_0) {
      scales[block] = f16_bits(s.scale);
    } else {
      scales[2 * block] = f16_bits(s.scale);
      scales[2 * block + 1] = f16_bits(s.least);
    }
  }
}

// What a warp holds of a cell on its way: words of the keys and of the values, and what lies apart from them.
struct PackedCell {
  static constexpr int kHeld = 4;  // words of a lane and a side: 256 elements of 16 bits
  uint32_t k[kHeld] = {}, v[kHeld] = {};
  uint16_t k_scale = 0, v_scale = 0;

  static __device__ __forceinline__ void read_side(const Side& side, size_t cell, int lane, uint32_t (&words)[kHeld],
                                                   uint16_t& scale) {
    const uint32_t* from = side.word(cell);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane + 32 * i < side.words_of()) words[i] = from[lane + 32 * i];
    if (lane < side.scales_of()) scale = side.scale(cell)[lane];
  }
  static __device__ __forceinline__ void write_side(const Side& side, size_t cell, int lane,
                                                    const uint32_t (&words)[kHeld], uint16_t scale) {
    uint32_t* to = side.word(cell);
#pragma unroll
    for (int i = 0; i < kHeld; ++i)
      if (lane + 32 * i < side.words_of()) to[lane + 32 * i] = words[i];
    if (lane < side.scales_of()) side.scale(cell)[lane] = scale;
  }

  __device__ void read(const KvView& kv, size_t cell, int lane) {
    read_side(keys_of(kv), cell, lane, k, k_scale);
    read_side(values_of(kv), cell, lane, v, v_scale);
  }
  // `keys`: the keys too; otherwise the values alone.
  __device__ void write(const KvView& kv, size_t cell, int lane, bool keys) const {
    if (keys) write_side(keys_of(kv), cell, lane, k, k_scale);
    write_side(values_of(kv), cell, lane, v, v_scale);
  }
  // The keys as floats in shared memory. By all lanes of the warp.
  __device__ void widen_keys(const KvView& kv, float* x, int lane) const {
    const int words = side_words(kv.type, kv.head_dim), per = per_word(kv.type);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int w = lane + 32 * i, at = scale_of_word(kv.type, w);  // below 32 for each word that there is
      const float scale = widened_half(uint16_t(__shfl_sync(kAllLanes, int(k_scale), at % 32)));
      const float least = widened_half(uint16_t(__shfl_sync(kAllLanes, int(k_scale), (at + 1) % 32)));
      if (w >= words) continue;
      float out[8];
      widen_word(kv.type, k[i], scale, least, out);
      for (int j = 0; j < per; ++j) x[w * per + j] = out[j];
    }
  }
};

}  // namespace
}  // namespace sx::cuda
