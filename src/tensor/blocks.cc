// Exact conversion of GGUF blocks to floats and to the affine form (q, scale, offset). One unpacker per type yields the
// affine form; floats follow from it by one product, which is exact or rounded once as the format defines, and one sum.
#include "tensor/blocks.h"

#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "tensor/half.h"

namespace sx {
namespace {

constexpr int kSuper = 256;  // elements of a K block

// One block of any type in affine form; a K block has at most 16 sub-blocks.
struct Affine {
  std::array<int8_t, kSuper> q;
  std::array<float, 16> scale, offset;
};

// Blocks in a file may start at any even address; a copy makes the access legal whatever the alignment.
template <class Block>
Block load(const void* data) {
  Block block;
  std::memcpy(&block, data, sizeof(Block));
  return block;
}

void unpack_q4_0(const void* data, Affine& out) {
  const auto block = load<BlockQ4_0>(data);
  for (size_t i = 0; i < 16; ++i) {
    out.q[i] = static_cast<int8_t>(block.q[i] & 15);
    out.q[i + 16] = static_cast<int8_t>(block.q[i] >> 4);
  }
  out.scale[0] = f16_to_float(block.d);
  out.offset[0] = -8.0f * out.scale[0];
}

void unpack_q4_1(const void* data, Affine& out) {
  const auto block = load<BlockQ4_1>(data);
  for (size_t i = 0; i < 16; ++i) {
    out.q[i] = static_cast<int8_t>(block.q[i] & 15);
    out.q[i + 16] = static_cast<int8_t>(block.q[i] >> 4);
  }
  out.scale[0] = f16_to_float(block.d);
  out.offset[0] = f16_to_float(block.m);
}

// The fifth bit of element i is bit i of the 32-bit word `high` (little endian: bit i % 8 of byte i / 8).
void unpack_five_bits(const uint8_t* high, const uint8_t* low, int subtract, Affine& out) {
  for (size_t i = 0; i < 32; ++i) {
    const int nibble = i < 16 ? low[i] & 15 : low[i - 16] >> 4;
    const int bit = (high[i / 8] >> (i % 8)) & 1;
    out.q[i] = static_cast<int8_t>((nibble | bit << 4) - subtract);
  }
}

void unpack_q5_0(const void* data, Affine& out) {
  const auto block = load<BlockQ5_0>(data);
  unpack_five_bits(block.high, block.q, 16, out);
  out.scale[0] = f16_to_float(block.d);
  out.offset[0] = 0;
}

void unpack_q5_1(const void* data, Affine& out) {
  const auto block = load<BlockQ5_1>(data);
  unpack_five_bits(block.high, block.q, 0, out);
  out.scale[0] = f16_to_float(block.d);
  out.offset[0] = f16_to_float(block.m);
}

void unpack_q8_0(const void* data, Affine& out) {
  const auto block = load<BlockQ8_0>(data);
  std::memcpy(out.q.data(), block.q, sizeof(block.q));
  out.scale[0] = f16_to_float(block.d);
  out.offset[0] = 0;
}

// Two bits per element: each half of 128 elements takes 32 bytes; its run j of 32 elements sits at bits 2j of them.
inline int two_bits(const uint8_t* q, size_t i) { return (q[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4))) & 3; }

void unpack_q2_k(const void* data, Affine& out) {
  const auto block = load<BlockQ2_K>(data);
  const float d = f16_to_float(block.d), dmin = f16_to_float(block.dmin);
  for (size_t s = 0; s < 16; ++s) {
    out.scale[s] = d * static_cast<float>(block.scales[s] & 15);
    out.offset[s] = -(dmin * static_cast<float>(block.scales[s] >> 4));
  }
  for (size_t i = 0; i < kSuper; ++i) out.q[i] = static_cast<int8_t>(two_bits(block.q, i));
}

void unpack_q3_k(const void* data, Affine& out) {
  const auto block = load<BlockQ3_K>(data);
  const float d = f16_to_float(block.d);
  for (size_t s = 0; s < 16; ++s) {
    // Scale s: four low bits in the nibbles of bytes 0..7, two high bits in byte 8 + s % 4; stored with a bias of 32.
    const int low = s < 8 ? block.scales[s] & 15 : block.scales[s - 8] >> 4;
    const int high = (block.scales[8 + s % 4] >> (2 * (s / 4))) & 3;
    out.scale[s] = d * static_cast<float>((low | high << 4) - 32);
    out.offset[s] = 0;
  }
  for (size_t i = 0; i < kSuper; ++i) {
    const int bit = (block.high[i % 32] >> (i / 32)) & 1;  // set: no subtraction
    out.q[i] = static_cast<int8_t>(two_bits(block.q, i) - (bit ? 0 : 4));
  }
}

// Eight 6-bit scales and eight 6-bit minima in 12 bytes: pairs 0..3 in the low six bits of bytes 0..3 and 4..7; pairs
// 4..7 with low nibbles in bytes 8..11 (scale low, minimum high) and their top two bits on top of bytes 0..7.
void unpack_six_bit_pairs(const uint8_t* packed, float d, float dmin, Affine& out) {
  for (size_t s = 0; s < 8; ++s) {
    int scale, minimum;
    if (s < 4) {
      scale = packed[s] & 63;
      minimum = packed[s + 4] & 63;
    } else {
      scale = (packed[s + 4] & 15) | (packed[s - 4] >> 6) << 4;
      minimum = (packed[s + 4] >> 4) | (packed[s] >> 6) << 4;
    }
    out.scale[s] = d * static_cast<float>(scale);
    out.offset[s] = -(dmin * static_cast<float>(minimum));
  }
}

// Runs of 64 elements take 32 bytes: low nibbles are the first 32 elements, high nibbles the other 32.
inline int nibble_of_64(const uint8_t* q, size_t i) {
  const int byte = q[i / 64 * 32 + i % 32];
  return i % 64 < 32 ? byte & 15 : byte >> 4;
}

void unpack_q4_k(const void* data, Affine& out) {
  const auto block = load<BlockQ4_K>(data);
  unpack_six_bit_pairs(block.scales, f16_to_float(block.d), f16_to_float(block.dmin), out);
  for (size_t i = 0; i < kSuper; ++i) out.q[i] = static_cast<int8_t>(nibble_of_64(block.q, i));
}

void unpack_q5_k(const void* data, Affine& out) {
  const auto block = load<BlockQ5_K>(data);
  unpack_six_bit_pairs(block.scales, f16_to_float(block.d), f16_to_float(block.dmin), out);
  for (size_t i = 0; i < kSuper; ++i) {
    const int bit = (block.high[i % 32] >> (i / 32)) & 1;
    out.q[i] = static_cast<int8_t>(nibble_of_64(block.q, i) | bit << 4);
  }
}

void unpack_q6_k(const void* data, Affine& out) {
  const auto block = load<BlockQ6_K>(data);
  const float d = f16_to_float(block.d);
  for (size_t s = 0; s < 16; ++s) {
    out.scale[s] = d * static_cast<float>(block.scales[s]);
    out.offset[s] = 0;
  }
  for (size_t i = 0; i < kSuper; ++i) {
    const size_t half = i / 128, within = i % 128;  // each half: 64 bytes of nibbles, 32 bytes of bit pairs
    const int byte = block.low[half * 64 + within % 64];
    const int low = within < 64 ? byte & 15 : byte >> 4;
    const int high = (block.high[half * 32 + within % 32] >> (2 * (within / 32))) & 3;
    out.q[i] = static_cast<int8_t>((low | high << 4) - 32);
  }
}

void unpack_table(const int8_t* table, const uint8_t* codes, int8_t* q) {  // 32 elements: low nibbles, high nibbles
  for (size_t i = 0; i < 16; ++i) {
    q[i] = table[codes[i] & 15];
    q[i + 16] = table[codes[i] >> 4];
  }
}

// 2^(e - 128): the exponent's bits, or a number too small for them.
float mxfp4_scale(uint8_t e) { return std::bit_cast<float>(e < 2 ? 0x00200000u << e : uint32_t(e - 1) << 23); }

void unpack_mxfp4(const void* data, Affine& out) {
  const auto block = load<BlockMXFP4>(data);
  unpack_table(kMXFP4Table, block.q, out.q.data());
  out.scale[0] = mxfp4_scale(block.e);
  out.offset[0] = 0;
}

void unpack_iq4_nl(const void* data, Affine& out) {
  const auto block = load<BlockIQ4_NL>(data);
  unpack_table(kIQ4Table, block.q, out.q.data());
  out.scale[0] = f16_to_float(block.d);
  out.offset[0] = 0;
}

void unpack_iq4_xs(const void* data, Affine& out) {
  const auto block = load<BlockIQ4_XS>(data);
  const float d = f16_to_float(block.d);
  for (size_t s = 0; s < 8; ++s) {
    unpack_table(kIQ4Table, block.q + 16 * s, out.q.data() + 32 * s);
    const int low = (block.low[s / 2] >> (4 * (s % 2))) & 15, high = (block.high >> (2 * s)) & 3;
    out.scale[s] = d * static_cast<float>((low | high << 4) - 32);
    out.offset[s] = 0;
  }
}

using Unpack = void (*)(const void*, Affine&);

Unpack unpacker(DType type) {
  switch (type) {
    case DType::kQ4_0: return unpack_q4_0;
    case DType::kQ4_1: return unpack_q4_1;
    case DType::kQ5_0: return unpack_q5_0;
    case DType::kQ5_1: return unpack_q5_1;
    case DType::kQ8_0: return unpack_q8_0;
    case DType::kQ2_K: return unpack_q2_k;
    case DType::kQ3_K: return unpack_q3_k;
    case DType::kQ4_K: return unpack_q4_k;
    case DType::kQ5_K: return unpack_q5_k;
    case DType::kQ6_K: return unpack_q6_k;
    case DType::kMXFP4: return unpack_mxfp4;
    case DType::kIQ4_NL: return unpack_iq4_nl;
    case DType::kIQ4_XS: return unpack_iq4_xs;
    default: fail("type {} is not a quantised type", dtype_name(type));
  }
}

void floats_of_block(DType type, const AffineTraits& traits, const Affine& block, int count, float* out) {
  for (int i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(i), sub = static_cast<size_t>(i / traits.sub);
    const auto q = static_cast<float>(block.q[at]);
    if (type == DType::kQ4_0) {
      out[i] = block.scale[sub] * (q - 8.0f);
    } else {
      const float product = block.scale[sub] * q;
      out[i] = traits.has_offset ? product + block.offset[sub] : product;
    }
  }
}

template <class Stored, class Convert>
void convert_each(const void* data, int64_t count, float* out, Convert convert) {
  const auto* from = static_cast<const std::byte*>(data);
  for (int64_t i = 0; i < count; ++i) out[i] = convert(load<Stored>(from + static_cast<size_t>(i) * sizeof(Stored)));
}

}  // namespace

AffineTraits affine_traits(DType type) {
  switch (type) {
    case DType::kQ4_0: return {32, 4, true};
    case DType::kQ4_1: return {32, 4, true};
    case DType::kQ4_K: return {32, 4, true};
    case DType::kQ5_0: return {32, 8, false};
    case DType::kQ5_1: return {32, 8, true};
    case DType::kQ5_K: return {32, 8, true};
    case DType::kQ8_0: return {32, 8, false};
    case DType::kQ2_K: return {16, 8, true};
    case DType::kQ3_K: return {16, 8, false};
    case DType::kQ6_K: return {16, 8, false};
    case DType::kMXFP4: return {32, 8, false, kMXFP4Table};
    case DType::kIQ4_NL:
    case DType::kIQ4_XS: return {32, 8, false, kIQ4Table};
    default: fail("type {} has no affine form", dtype_name(type));
  }
}

void unpack_affine(DType type, const void* data, int64_t count, int8_t* q, float* scale, float* offset) {
  const Unpack unpack = unpacker(type);
  const DTypeInfo& info = dtype_info(type);
  SX_ASSERT(count >= 0 && count % info.block == 0);
  const auto elements = static_cast<size_t>(info.block), subs = elements / static_cast<size_t>(affine_traits(type).sub);
  const auto* from = static_cast<const std::byte*>(data);
  Affine block;
  for (int64_t done = 0; done < count; done += info.block) {
    unpack(from, block);
    std::memcpy(q, block.q.data(), elements);
    std::memcpy(scale, block.scale.data(), subs * sizeof(float));
    std::memcpy(offset, block.offset.data(), subs * sizeof(float));
    from += info.bytes;
    q += elements;
    scale += subs;
    offset += subs;
  }
}

void dequantise(DType type, const void* data, int64_t count, float* out) {
  SX_ASSERT(count >= 0);
  switch (type) {
    case DType::kF32:
      if (count > 0) std::memcpy(out, data, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::kF16: return convert_each<uint16_t>(data, count, out, f16_to_float);
    case DType::kBF16: return convert_each<uint16_t>(data, count, out, bf16_to_float);
    default: break;
  }
  const Unpack unpack = unpacker(type);
  const DTypeInfo& info = dtype_info(type);
  SX_ASSERT(count % info.block == 0);
  const AffineTraits traits = affine_traits(type);
  const auto* from = static_cast<const std::byte*>(data);
  Affine block;
  for (int64_t done = 0; done < count; done += info.block) {
    unpack(from, block);
    floats_of_block(type, traits, block, info.block, out + done);
    from += info.bytes;
  }
}

}  // namespace sx
