// The quantised block formats of GGUF files, byte for byte, and their exact conversion to floats. Layouts are facts of
// the format; every struct is pinned by a static_assert on its size.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace sx {

struct BlockQ4_0 {
  uint16_t d;
  uint8_t q[16];
};  // x = d * (q - 8); low nibbles: elements 0..15
struct BlockQ4_1 {
  uint16_t d, m;
  uint8_t q[16];
};  // x = d * q + m
struct BlockQ5_0 {
  uint16_t d;
  uint8_t high[4];
  uint8_t q[16];
};  // x = d * (q - 16), fifth bits in `high`
struct BlockQ5_1 {
  uint16_t d, m;
  uint8_t high[4];
  uint8_t q[16];
};  // x = d * q + m
struct BlockQ8_0 {
  uint16_t d;
  int8_t q[32];
};  // x = d * q
struct BlockQ2_K {
  uint8_t scales[16];
  uint8_t q[64];
  uint16_t d, dmin;
};  // 16 sub-blocks of 16
struct BlockQ3_K {
  uint8_t high[32];
  uint8_t q[64];
  uint8_t scales[12];
  uint16_t d;
};  // 16 sub-blocks of 16
struct BlockQ4_K {
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t q[128];
};  // 8 sub-blocks of 32
struct BlockQ5_K {
  uint16_t d, dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t q[128];
};
struct BlockQ6_K {
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  uint16_t d;
};  // 16 sub-blocks of 16
struct BlockMXFP4 {
  uint8_t e;
  uint8_t q[16];
};  // x = 2^(e - 128) * kMXFP4Table[q]: E8M0 scale, E2M1 values
struct BlockIQ4_NL {
  uint16_t d;
  uint8_t q[16];
};  // x = d * kIQ4Table[q]
struct BlockIQ4_XS {
  uint16_t d, high;
  uint8_t low[4];
  uint8_t q[128];
};  // 8 sub-blocks of 32 as in IQ4_NL, each with a 6-bit scale, 32 more than it means

// Twice the values of E2M1, so that they are whole numbers, and those of IQ4_NL and IQ4_XS.
inline constexpr int8_t kMXFP4Table[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr int8_t kIQ4Table[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22);
static_assert(sizeof(BlockQ5_1) == 24 && sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84);
static_assert(sizeof(BlockQ3_K) == 110 && sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176);
static_assert(sizeof(BlockQ6_K) == 210 && sizeof(BlockMXFP4) == 17 && sizeof(BlockIQ4_NL) == 18);
static_assert(sizeof(BlockIQ4_XS) == 136);

// out[count] = the values of `count` elements (whole blocks) of any of the float or quantised types.
void dequantise(DType type, const void* data, int64_t count, float* out);
// The reverse for F32, F16, BF16, Q8_0, Q4_0, Q4_1, MXFP4, IQ4_NL (round to nearest; deterministic). Others: sx::Error.
void quantise(DType type, const float* values, int64_t count, void* out);

// Every quantised type is affine on runs of 16 or 32 elements ("sub-blocks"): x = scale * q + offset, q a small int.
// Kernels repack from this form. `sub` is 32 (Q4_0 Q4_1 Q5_0 Q5_1 Q8_0 Q4_K Q5_K MXFP4 IQ4_NL
// IQ4_XS) or 16 (Q2_K Q3_K Q6_K).
struct AffineTraits {
  int sub;                        // elements per sub-block
  int bits;                       // q fits in this many bits: 4 -> unsigned 0..15; 8 -> signed int8
  bool has_offset;                // offset can be non-zero
  const int8_t* table = nullptr;  // [16]: q is one of these, and 4 bits are enough to say which
};
AffineTraits affine_traits(DType type);  // quantised types only
// q: count values; scale, offset: count / sub floats each (exact values; offset 0 where the type has none).
// For 4-bit types (Q4_0 Q4_1 Q4_K) q is 0..15 and Q4_0's offset is -8 d; otherwise q is signed.
void unpack_affine(DType type, const void* data, int64_t count, int8_t* q, float* scale, float* offset);

}  // namespace sx
