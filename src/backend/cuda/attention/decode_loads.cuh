// K/V of one block of 64 cells, read from the store straight into the registers that the tensor cores want: no shared
// memory, every byte is read by one lane of one warp of the thread block. With lane = 4 g + c:
//   keys     warp w holds cells 16 w .. 16 w + 15, as column operand of Q K^T: tile n is cell 16 w + 8 n + g. Four
//            lanes read 32 consecutive elements, 8 each; steps 2 i and 2 i + 1 of the product take the first and last
//            4 of each lane's 8.
//   values   warp w holds all 64 cells of its columns, as column operand of P V: in step s cells
//            16 s + 2 c + {0, 1, 8, 9}, columns kColumns g .. + kColumns of the warp's; tile j is column
//            kColumns g + j.
#pragma once
#include <cstring>

#include "backend/cuda/attention/decode_mma.cuh"

namespace sx::cuda {

template <int D>
struct AttendColumns {
  static constexpr int kColumns = D == 64 ? 2 : D == 256 ? 8 : 4;  // per lane
  static constexpr int kWarps = D / (8 * kColumns);                // that hold columns: 4, of 96 columns 3
};

// Loads bypass L1: no byte is read twice here, and cells just written by another kernel are never stale.
template <int kBytes>
__device__ __forceinline__ void load_words(uint32_t* out, const void* from) {
  if constexpr (kBytes == 16) {
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "l"(from));
  } else if constexpr (kBytes == 8) {
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(out[0]), "=r"(out[1]) : "l"(from));
  } else if constexpr (kBytes == 4) {
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(out[0]) : "l"(from));
  } else {
    static_assert(kBytes == 2);
    uint16_t half;
    asm volatile("ld.global.cg.u16 %0, [%1];" : "=h"(half) : "l"(from));
    out[0] = half;
  }
}

// BF16 and F16.
template <int D, bool kBf16>
struct HalfCells {
  static constexpr bool kIsBf16 = kBf16;
  static constexpr int kColumns = AttendColumns<D>::kColumns;
  struct Keys {
    uint32_t x[2][D / 32][4];
  };
  struct Values {
    uint32_t x[16][kColumns / 2];
  };
  const uint16_t *k, *v;

  __device__ HalfCells(const AttendBody& body, int slot, int kv_head) {
    const size_t at = (size_t(slot) * body.slot_cells + size_t(kv_head) * kCellBlock) * D;
    k = reinterpret_cast<const uint16_t*>(body.k) + at;
    v = reinterpret_cast<const uint16_t*>(body.v) + at;
  }

  // `cell(i)`: where cell i of the block lies, see place_of().
  template <class Cell>
  __device__ __forceinline__ void load_keys(Keys& keys, Cell cell, int warp, int g, int c) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const uint16_t* row = k + size_t(cell(16 * warp + 8 * n + g)) * D + 8 * c;
#pragma unroll
      for (int i = 0; i < D / 32; ++i) load_words<16>(keys.x[n][i], row + 32 * i);
    }
  }
  template <class Cell>
  __device__ __forceinline__ void load_values(Values& values, Cell cell, int warp, int g, int c) const {
    const uint16_t* column = v + 8 * kColumns * warp + kColumns * g;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int at = 16 * (i / 4) + 2 * c + (i & 1) + 4 * (i & 2);
      load_words<2 * kColumns>(values.x[i], column + size_t(cell(at)) * D);
    }
  }
  static __device__ __forceinline__ void key_words(uint32_t (&out)[4], const Keys& keys, int n, int i) {
#pragma unroll
    for (int j = 0; j < 4; ++j) out[j] = keys.x[n][i][j];
  }
  static __device__ __forceinline__ void value_words(uint32_t (&out)[kColumns / 2], const Values& values, int i) {
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) out[j] = values.x[i][j];
  }
};

// Four int8 times a scale, as two pairs of f16. 0x6400 + u is 1024 + u for u < 256, so that the subtraction is exact.
__device__ __forceinline__ void expand_bytes(uint32_t& low, uint32_t& high, uint32_t bytes, uint32_t scale) {
  const uint32_t biased = bytes ^ 0x80808080u;
  const __half2 offset = __half2half2(__ushort_as_half(0x6480));
  const __half2 factor = __half2half2(__ushort_as_half(static_cast<unsigned short>(scale)));
  const auto half2 = [](uint32_t bits) {
    __half2 x;
    memcpy(&x, &bits, 4);
    return x;
  };
  const __half2 x = __hmul2(__hsub2(half2(__byte_perm(biased, 0x64646464u, 0x4140)), offset), factor);
  const __half2 y = __hmul2(__hsub2(half2(__byte_perm(biased, 0x64646464u, 0x4342)), offset), factor);
  memcpy(&low, &x, 4);
  memcpy(&high, &y, 4);
}

// Q8_0: int8 and one f16 scale per 32 elements; becomes f16.
template <int D>
struct ByteCells {
  static constexpr bool kIsBf16 = false;
  static constexpr int kColumns = AttendColumns<D>::kColumns;
  static constexpr int kWords = kColumns == 8 ? 2 : 1;
  struct Keys {
    uint32_t x[2][D / 32][2], scale[2][D / 32];
  };
  struct Values {
    uint32_t x[16][kWords], scale[16];
  };
  const int8_t *k, *v;
  const uint16_t *k_scale, *v_scale;

  __device__ ByteCells(const AttendBody& body, int slot, int kv_head) {
    const size_t at = size_t(slot) * body.slot_cells + size_t(kv_head) * kCellBlock;
    k = reinterpret_cast<const int8_t*>(body.k) + at * D;
    v = reinterpret_cast<const int8_t*>(body.v) + at * D;
    k_scale = body.k_scale + at * (D / 32);
    v_scale = body.v_scale + at * (D / 32);
  }

  template <class Cell>
  __device__ __forceinline__ void load_keys(Keys& keys, Cell cell, int warp, int g, int c) const {
#pragma unroll
    for (int n = 0; n < 2; ++n) {
      const size_t at = size_t(cell(16 * warp + 8 * n + g));
#pragma unroll
      for (int i = 0; i < D / 32; ++i) {
        load_words<8>(keys.x[n][i], k + at * D + 8 * c + 32 * i);
        load_words<2>(&keys.scale[n][i], k_scale + at * (D / 32) + i);
      }
    }
  }
  template <class Cell>
  __device__ __forceinline__ void load_values(Values& values, Cell cell, int warp, int g, int c) const {
    const int column = 8 * kColumns * warp + kColumns * g;
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const size_t at = size_t(cell(16 * (i / 4) + 2 * c + (i & 1) + 4 * (i & 2)));
      load_words<kColumns>(values.x[i], v + at * D + column);
      load_words<2>(&values.scale[i], v_scale + at * (D / 32) + column / 32);
    }
  }
  static __device__ __forceinline__ void key_words(uint32_t (&out)[4], const Keys& keys, int n, int i) {
    expand_bytes(out[0], out[1], keys.x[n][i][0], keys.scale[n][i]);
    expand_bytes(out[2], out[3], keys.x[n][i][1], keys.scale[n][i]);
  }
  static __device__ __forceinline__ void value_words(uint32_t (&out)[kColumns / 2], const Values& values, int i) {
    uint32_t words[4];
    expand_bytes(words[0], words[1], values.x[i][0], values.scale[i]);
    if constexpr (kColumns == 8) expand_bytes(words[2], words[3], values.x[i][1], values.scale[i]);
#pragma unroll
    for (int j = 0; j < kColumns / 2; ++j) out[j] = words[j];
  }
};

}  // namespace sx::cuda
