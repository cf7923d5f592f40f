#include "tensor/finite.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tensor/blocks.h"

namespace sx {
namespace {

constexpr int64_t kPiece = 1024;  // looked at together, without branches

// The first of `count` bit patterns, `stride` bytes apart, whose exponent is all ones; -1: none.
template <class Bits, Bits kExponent>
int64_t find(const std::byte* from, size_t stride, int64_t count) {
  const auto bad = [&](int64_t i) {
    Bits bits;
    std::memcpy(&bits, from + size_t(i) * stride, sizeof bits);
    return (bits & kExponent) == kExponent;
  };
  for (int64_t first = 0; first < count; first += kPiece) {
    const int64_t end = std::min(count, first + kPiece);
    bool any = false;
    for (int64_t i = first; i < end; ++i) any |= bad(i);
    for (int64_t i = first; any && i < end; ++i)
      if (bad(i)) return i;
  }
  return -1;
}

constexpr auto kFindHalf = find<uint16_t, 0x7c00>;

// The first element of the first block with such a 16-bit scale at one of two places.
int64_t find_block(const std::byte* from, DType type, int64_t count, size_t d, size_t m) {
  const DTypeInfo& info = dtype_info(type);
  const int64_t blocks = count / info.block, a = kFindHalf(from + d, size_t(info.bytes), blocks);
  const int64_t b = m == d ? -1 : kFindHalf(from + m, size_t(info.bytes), blocks);
  const int64_t block = a < 0 ? b : b < 0 ? a : std::min(a, b);
  return block < 0 ? -1 : block * info.block;
}

// E8M0's only value that is no number.
int64_t find_mxfp4(const std::byte* from, int64_t count) {
  const int64_t block = find<uint8_t, 0xff>(from, sizeof(BlockMXFP4), count / 32);
  return block < 0 ? -1 : block * 32;
}

}  // namespace

int64_t first_not_finite(DType type, const void* data, int64_t count) {
  const auto* from = static_cast<const std::byte*>(data);
  const auto block = [&](size_t d, size_t m) { return find_block(from, type, count, d, m); };
  switch (type) {
    case DType::kF64: return find<uint64_t, 0x7ff0000000000000>(from, sizeof(double), count);
    case DType::kF32: return find<uint32_t, 0x7f800000>(from, sizeof(float), count);
    case DType::kF16: return kFindHalf(from, sizeof(uint16_t), count);
    case DType::kBF16: return find<uint16_t, 0x7f80>(from, sizeof(uint16_t), count);
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS: return block(0, 0);
    case DType::kMXFP4: return find_mxfp4(from, count);
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return block(0, sizeof(uint16_t));
    case DType::kQ2_K: return block(offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin));
    case DType::kQ3_K: return block(offsetof(BlockQ3_K, d), offsetof(BlockQ3_K, d));
    case DType::kQ6_K: return block(offsetof(BlockQ6_K, d), offsetof(BlockQ6_K, d));
    default: return -1;
  }
}

bool is_broken_row(const float* logits, size_t count) {
  bool any = false;
  for (size_t i = 0; i < count; ++i) any |= !(logits[i] <= std::numeric_limits<float>::max());
  return any;
}

}  // namespace sx
