// A cell in the registers of a warp, on its way from one place to another, and the rotation of its key.
#pragma once
#include <type_traits>

#include "backend/cuda/kv/kv.h"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/kv/packed.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostHeadDim = 256;

// What a warp holds of a cell on its way: keys, then values, as words of type Word (16 bytes where head sizes allow),
// and scales.
template <class Word>
struct Cell {
  static constexpr int kHeld = 2 * kMostHeadDim * 2 / int(sizeof(Word)) / 32;
  Word word[kHeld] = {};
  uint16_t scale = 0;

  __device__ void read(const KvView& kv, size_t cell, int lane) {
    const int words = int(cell_bytes(kv) / sizeof(Word)), scales = kv.k_scale ? kv.head_dim / 32 : 0;
    const Word* k = reinterpret_cast<const Word*>(kv.k) + cell * size_t(words);
    const Word* v = reinterpret_cast<const Word*>(kv.v) + cell * size_t(words);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int w = lane + 32 * i;
      if (w < 2 * words) word[i] = w < words ? k[w] : v[w - words];
    }
    if (lane < 2 * scales)
      scale = lane < scales ? kv.k_scale[cell * size_t(scales) + size_t(lane)]
                            : kv.v_scale[cell * size_t(scales) + size_t(lane - scales)];
  }
  // The keys as floats in shared memory. By all lanes of the warp.
  __device__ void widen_keys(const KvView& kv, float* x, int lane) const {
    constexpr int kParts = int(sizeof(Word)) / 4;
    const int words = int(cell_bytes(kv) / sizeof(Word));
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int w = lane + 32 * i;
      uint32_t part[kParts];
      memcpy(part, &word[i], sizeof(Word));
      if (kv.type == DType::kQ8_0) {
        const float d = f16_value(uint16_t(__shfl_sync(kAllLanes, int(scale), w * int(sizeof(Word)) / 32 % 32)));
        float* to = x + w * int(sizeof(Word));
#pragma unroll
        for (int j = 0; j < 4 * kParts; ++j)
          if (w < words) to[j] = __fmul_rn(d, float(int8_t(part[j / 4] >> (8 * (j % 4)))));
        continue;
      }
      float2* to = reinterpret_cast<float2*>(x) + w * kParts;
      if (w >= words) continue;
#pragma unroll
      for (int j = 0; j < kParts; ++j) {
        const uint16_t a = uint16_t(part[j]), b = uint16_t(part[j] >> 16);
        to[j] = kv.type == DType::kBF16 ? make_float2(bf16_value(a), bf16_value(b))
                                        : make_float2(f16_value(a), f16_value(b));
      }
    }
  }
  // `keys`: the keys too; otherwise the values alone.
  __device__ void write(const KvView& kv, size_t cell, int lane, bool keys) const {
    const int words = int(cell_bytes(kv) / sizeof(Word)), scales = kv.k_scale ? kv.head_dim / 32 : 0;
    Word* k = reinterpret_cast<Word*>(kv.k) + cell * size_t(words);
    Word* v = reinterpret_cast<Word*>(kv.v) + cell * size_t(words);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      const int w = lane + 32 * i;
      if (w < words && keys) k[w] = word[i];
      if (w >= words && w < 2 * words) v[w - words] = word[i];
    }
    if (lane < scales && keys) kv.k_scale[cell * size_t(scales) + size_t(lane)] = scale;
    if (lane >= scales && lane < 2 * scales) kv.v_scale[cell * size_t(scales) + size_t(lane - scales)] = scale;
  }
};

// In place of a word: cells of packed stores.
struct Packed {
  uint4 word;
};
template <>
struct Cell<Packed> : PackedCell {};

// table[2 i], table[2 i + 1] = cos, sin of delta * frequency i. The angle is reduced to an eighth of a turn, where
// these few terms of the power series are good to 1.2e-10; sincos() would take ten times as long.
__device__ __forceinline__ void fill_entry(float* table, const Where& w, int delta, int i) {
  const double angle = __dmul_rn(double(delta), w.frequencies[i]), quarters = rint(angle * 0.6366197723675814);
  const double x = fma(-quarters, 6.123233995736766e-17, fma(-quarters, 1.5707963267948966, angle)), y = x * x;
  double s = fma(y, -1.0 / 39916800, 1.0 / 362880), c = fma(y, -1.0 / 3628800, 1.0 / 40320);
  s = fma(y, s, -1.0 / 5040), c = fma(y, c, -1.0 / 720);
  s = fma(y, s, 1.0 / 120), c = fma(y, c, 1.0 / 24);
  s = fma(y, s, -1.0 / 6), c = fma(y, c, -0.5);
  s = fma(y * s, x, x), c = fma(y, c, 1.0);
  const int quarter = int(quarters);  // angles are far below 2^31
  const double cosine = quarter & 1 ? -s : c, sine = quarter & 1 ? c : s;
  table[2 * i] = float(quarter & 2 ? -cosine : cosine);
  table[2 * i + 1] = float(quarter & 2 ? -sine : sine);
}

// table[dims / 2][cos, sin], by threads first, first + step, ...
__device__ void fill_table(float* table, const Where& w, int delta, int first, int step) {
  for (int i = first; i < w.dims / 2; i += step) fill_entry(table, w, delta, i);
}

// Rotates a key in shared memory, by one warp; the caller puts __syncwarp() around.
__device__ void turn_key(float* x, const float* table, const Where& w, int lane) {
  for (int i = lane; i < w.dims / 2; i += 32)
    rotate_pair(x, i, make_float2(table[2 * i], table[2 * i + 1]), w.dims, w.style);
}

template <class Word>
__device__ void store_key(const KvView& kv, size_t cell, const float* x, int lane) {
  if constexpr (std::is_same_v<Word, Packed>) return store_side(keys_of(kv), cell, x, lane);
  uint16_t* scales = kv.k_scale ? kv.k_scale + cell * size_t(kv.head_dim / 32) : nullptr;
  store_head(kv.type, kv.k + cell * cell_bytes(kv), scales, x, kv.head_dim, lane);
}

}  // namespace
}  // namespace sx::cuda
