#include "backend/cpu/kv/records.h"

#include <algorithm>
#include <cstring>
#if defined(__aarch64__)
#include <arm_neon.h>
#endif

#include "base/error.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::cpu {
namespace {

constexpr int kGroup = 32;
constexpr int kMostElements = (kMaxHeadDim + kGroup - 1) / kGroup * kGroup;

int groups_of(int dim) { return (dim + kGroup - 1) / kGroup; }

// A group of 32 elements, each one of 16 numbers: scale * code + least, rounded to bf16. The codes of elements 0..15
// are the low halves of q, those of 16..31 the high.
#if defined(__aarch64__)
float widen(uint16_t half) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0); }

struct Numbers {
  uint16x8_t part[4];
};
inline Numbers unpack_group(float scale, float least, const std::byte* q) {
  alignas(16) static constexpr float kCodes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  uint16x4_t numbers[4];
  for (int i = 0; i < 4; ++i) {
    const float32x4_t x = vaddq_f32(vmulq_n_f32(vld1q_f32(kCodes + 4 * i), scale), vdupq_n_f32(least));
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    numbers[i] = vshrn_n_u32(vaddq_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff)), 16);
  }
  const uint8x16_t first = vreinterpretq_u8_u16(vcombine_u16(numbers[0], numbers[1]));
  const uint8x16_t second = vreinterpretq_u8_u16(vcombine_u16(numbers[2], numbers[3]));
  const uint8x16_t low = vuzp1q_u8(first, second), high = vuzp2q_u8(first, second);
  const uint8x16_t codes = vld1q_u8(reinterpret_cast<const uint8_t*>(q));
  const uint8x16_t a = vandq_u8(codes, vdupq_n_u8(15)), b = vshrq_n_u8(codes, 4);
  const uint8x16_t a0 = vqtbl1q_u8(low, a), a1 = vqtbl1q_u8(high, a), b0 = vqtbl1q_u8(low, b), b1 = vqtbl1q_u8(high, b);
  return {{vreinterpretq_u16_u8(vzip1q_u8(a0, a1)), vreinterpretq_u16_u8(vzip2q_u8(a0, a1)),
           vreinterpretq_u16_u8(vzip1q_u8(b0, b1)), vreinterpretq_u16_u8(vzip2q_u8(b0, b1))}};
}

// Group g of a record.
inline Numbers unpack_group(const KvLayout& l, const std::byte* record, int g) {
  const bool offset = l.type == DType::kQ4_1;
  const size_t head = offset ? 4 : 2;
  record += static_cast<size_t>(g) * (head + kGroup / 2);
  uint16_t bits[2] = {};
  std::memcpy(bits, record, head);
  const float scale = widen(bits[0]);
  return unpack_group(scale, offset ? widen(bits[1]) : -8 * scale, record + head);
}

void unpack_group(float scale, float least, const std::byte* q, uint16_t* out) {
  const Numbers numbers = unpack_group(scale, least, q);
  for (int i = 0; i < 4; ++i) vst1q_u16(out + 8 * i, numbers.part[i]);
}

// The matrix family exists on this architecture only. K: [pos/16][d/4][pos%16][d%4].
void unpack_matrix_keys(const KvLayout& l, const std::byte* block, int padded, uint16_t* out) {
  for (int p = 0; p < kBlock; ++p)
    for (int d = 0; d < padded; d += kGroup) {
      const Numbers numbers = unpack_group(l, block + static_cast<size_t>(p) * l.record, d / kGroup);
      uint16_t* at = out + p / 16 * 16 * padded + d * 16 + p % 16 * 4;
      for (int i = 0; i < 4 && d + 8 * i < padded; ++i, at += 128) {
        vst1_u16(at, vget_low_u16(numbers.part[i]));
        vst1_u16(at + 64, vget_high_u16(numbers.part[i]));
      }
    }
}

// V: [c/16][pos/4][c%16][pos%4].
void unpack_matrix_values(const KvLayout& l, const std::byte* block, int padded, uint16_t* out) {
  for (int p = 0; p < kBlock; p += 4)
    for (int group = 0; group < padded; group += kGroup) {
      Numbers n[4];
      for (int i = 0; i < 4; ++i) n[i] = unpack_group(l, block + static_cast<size_t>(p + i) * l.record, group / kGroup);
      for (int i = 0; i < 4 && group + 8 * i < padded; ++i) {
        const int c = group + 8 * i;
        auto* at = reinterpret_cast<uint32_t*>(out + c / 16 * 16 * kBlock + p * 16 + c % 16 * 4);
        const auto pair = [](uint16x8_t x) { return vreinterpretq_u32_u16(x); };
        const uint32x4_t a = pair(vzip1q_u16(n[0].part[i], n[1].part[i])),
                         b = pair(vzip1q_u16(n[2].part[i], n[3].part[i]));
        const uint32x4_t e = pair(vzip2q_u16(n[0].part[i], n[1].part[i])),
                         f = pair(vzip2q_u16(n[2].part[i], n[3].part[i]));
        vst1q_u32(at, vzip1q_u32(a, b));
        vst1q_u32(at + 4, vzip2q_u32(a, b));
        vst1q_u32(at + 8, vzip1q_u32(e, f));
        vst1q_u32(at + 12, vzip2q_u32(e, f));
      }
    }
}
#else
float widen(uint16_t half) { return f16_to_float(half); }

void unpack_group(float scale, float least, const std::byte* q, uint16_t* out) {
  uint16_t numbers[16];
  for (int i = 0; i < 16; ++i) numbers[i] = float_to_bf16(scale * static_cast<float>(i) + least);
  for (size_t i = 0; i < kGroup / 2; ++i) {
    out[i] = numbers[std::to_integer<unsigned>(q[i]) & 15];
    out[i + kGroup / 2] = numbers[std::to_integer<unsigned>(q[i]) >> 4];
  }
}

void unpack_matrix_keys(const KvLayout&, const std::byte*, int, uint16_t*) { SX_ASSERT(false); }
void unpack_matrix_values(const KvLayout&, const std::byte*, int, uint16_t*) { SX_ASSERT(false); }
#endif

// A record as bf16, whole groups.
void unpack(const KvLayout& l, const std::byte* record, uint16_t* out) {
  const bool offset = l.type == DType::kQ4_1;
  const size_t head = offset ? 4 : 2;
  for (int g = 0; g < groups_of(l.dim); ++g, out += kGroup, record += head + kGroup / 2) {
    uint16_t bits[2] = {};
    std::memcpy(bits, record, head);
    const float scale = widen(bits[0]);
    unpack_group(scale, offset ? widen(bits[1]) : -8 * scale, record + head, out);
  }
}

}  // namespace

size_t record_bytes(DType type, int dim) {
  return static_cast<size_t>(groups_of(dim)) * static_cast<size_t>(dtype_info(type).bytes);
}

void write_record(const KvLayout& l, std::byte* record, const float* x) {
  float all[kMostElements] = {};
  for (int i = 0; i < l.dim; ++i) all[i] = std::clamp(x[i], -65504.0f, 65504.0f);
  quantise(l.type, all, groups_of(l.dim) * kGroup, record);
}

void read_record(const KvLayout& l, const std::byte* record, float* x) {
  uint16_t all[kMostElements];
  unpack(l, record, all);
  for (int i = 0; i < l.dim; ++i) x[i] = bf16_to_float(all[i]);
}

KvLayout tile_layout(const KvLayout& l, const KvLayout& other, Isa isa) {
  return l.record ? make_layout(DType::kBF16, other.type, l.dim, isa) : l;
}

// Lanes: K [pos/16][d][pos%16], V [pos][c].
void unpack_keys(const KvLayout& l, const std::byte* block, const KvLayout& tile, std::byte* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  if (tile.matrix) return unpack_matrix_keys(l, block, tile.padded, to);
  uint16_t row[kMostElements];
  for (int p = 0; p < kBlock; ++p) {
    unpack(l, block + static_cast<size_t>(p) * l.record, row);
    uint16_t* at = to + p / 16 * 16 * tile.padded + p % 16;
    for (int d = 0; d < tile.padded; ++d) at[16 * d] = row[d];
  }
}

void unpack_values(const KvLayout& l, const std::byte* block, const KvLayout& tile, std::byte* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  if (tile.matrix) return unpack_matrix_values(l, block, tile.padded, to);
  uint16_t row[kMostElements];
  for (int p = 0; p < kBlock; ++p, to += tile.padded) {
    unpack(l, block + static_cast<size_t>(p) * l.record, row);
    std::copy_n(row, tile.padded, to);
  }
}

}  // namespace sx::cpu
