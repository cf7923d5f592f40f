// Test data from a counter and a mixer, and random blocks of every quantised type with sane scales.
#include "random_data.h"

#include <cstring>

#include "base/rng.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace sx::parity {
namespace {

// Random bytes everywhere except the block's float scales, which get values that keep the weights of order 1.
template <class Block, class Fill>
void fill_blocks(Random& random, std::vector<std::byte>& bytes, Fill fill) {
  for (size_t at = 0; at < bytes.size(); at += sizeof(Block)) {
    Block block;
    std::memcpy(&block, bytes.data() + at, sizeof(Block));
    fill(block, [&](double size) { return float_to_f16(static_cast<float>(size * (0.5 + random.uniform()))); });
    std::memcpy(bytes.data() + at, &block, sizeof(Block));
  }
}

void set_scales(Random& random, DType type, std::vector<std::byte>& bytes) {
  switch (type) {
    case DType::kQ5_0: return fill_blocks<BlockQ5_0>(random, bytes, [](auto& b, auto near) { b.d = near(0.1); });
    case DType::kQ5_1:
      return fill_blocks<BlockQ5_1>(random, bytes, [](auto& b, auto near) { b.d = near(0.1), b.m = near(-1.6); });
    case DType::kQ2_K:
      return fill_blocks<BlockQ2_K>(random, bytes, [](auto& b, auto near) { b.d = near(0.1), b.dmin = near(0.15); });
    case DType::kQ3_K: return fill_blocks<BlockQ3_K>(random, bytes, [](auto& b, auto near) { b.d = near(0.03); });
    case DType::kQ4_K:
      return fill_blocks<BlockQ4_K>(random, bytes, [](auto& b, auto near) { b.d = near(0.005), b.dmin = near(0.03); });
    case DType::kQ5_K:
      return fill_blocks<BlockQ5_K>(random, bytes, [](auto& b, auto near) { b.d = near(0.003), b.dmin = near(0.04); });
    case DType::kQ6_K: return fill_blocks<BlockQ6_K>(random, bytes, [](auto& b, auto near) { b.d = near(0.0007); });
    case DType::kMXFP4:
      return fill_blocks<BlockMXFP4>(random, bytes, [&](auto& b, auto) { b.e = uint8_t(126 + random.below(2)); });
    case DType::kIQ4_NL: return fill_blocks<BlockIQ4_NL>(random, bytes, [](auto& b, auto near) { b.d = near(0.015); });
    case DType::kIQ4_XS: return fill_blocks<BlockIQ4_XS>(random, bytes, [](auto& b, auto near) { b.d = near(0.0009); });
    default: return;
  }
}

}  // namespace

Random::Random(std::string_view seed) : state_(seed.size()) {
  for (const char c : seed) state_ = mix64(state_ * 257 + static_cast<unsigned char>(c));
}

uint64_t Random::bits() { return mix64(state_ += 0x9e3779b97f4a7c15ull); }
double Random::uniform() { return uniform_from(bits()); }
int Random::below(int n) { return static_cast<int>(bits() % static_cast<uint64_t>(n)); }

// Four uniform 16-bit numbers: their sum is close enough to normal and much cheaper than logarithms.
float Random::normal() {
  const uint64_t b = bits();
  const auto sum = static_cast<double>((b & 0xffff) + (b >> 16 & 0xffff) + (b >> 32 & 0xffff) + (b >> 48));
  return static_cast<float>((sum - 2 * 65535.0) / 37837.2);
}

std::vector<float> Random::normals(size_t count, float deviation) {
  std::vector<float> out(count);
  for (float& x : out) x = normal() * deviation;
  return out;
}

std::vector<std::byte> random_weights(Random& random, DType type, int64_t count) {
  std::vector<std::byte> bytes(dtype_bytes(type, count));
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
      quantise(type, random.normals(static_cast<size_t>(count)).data(), count, bytes.data());
      return bytes;
    default:
      for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits());
      set_scales(random, type, bytes);
      return bytes;
  }
}

}  // namespace sx::parity
