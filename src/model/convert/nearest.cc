// Everything is in float, one rounding per operation (the build forbids contraction), as PyTorch does it.
#include "model/convert/nearest.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/quantise_k.h"

namespace sx {
namespace {

// A whole number as an integer within [low, high]; anything odd becomes low.
int clamped(float value, int low, int high) {
  if (!(value > static_cast<float>(low))) return low;
  return value < static_cast<float>(high) ? static_cast<int>(value) : high;
}

BlockQ4_0 nearest_q4_0(const float* x) {
  float extreme = x[0];  // the first of largest magnitude, with its sign
  for (int i = 1; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float step = extreme / -8, inverse = inverse_or_zero(step);
  const auto code = [&](int i) { return clamped(std::floor(x[i] * inverse + 8.5f), 0, 15); };
  BlockQ4_0 block;
  block.d = float_to_f16(step);
  for (int i = 0; i < 16; ++i) block.q[i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
  return block;
}

BlockQ8_0 nearest_q8_0(const float* x) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float step = largest / 127, inverse = inverse_or_zero(step);
  BlockQ8_0 block;
  block.d = float_to_f16(step);
  for (int i = 0; i < 32; ++i) {
    block.q[i] = static_cast<int8_t>(clamped(std::nearbyint(x[i] * inverse), -127, 127));  // ties to even
  }
  return block;
}

template <class Make>
void store_blocks(const float* values, int64_t count, void* out, Make make) {
  auto* to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; i += 32) {
    const auto block = make(values + i);
    std::memcpy(to, &block, sizeof(block));
    to += sizeof(block);
  }
}

}  // namespace

bool can_quantise_nearest(DType type) {
  return type == DType::kF32 || type == DType::kF16 || type == DType::kBF16 || type == DType::kQ8_0 ||
         type == DType::kQ4_0 || type == DType::kQ4_1;
}

void quantise_nearest(DType type, const float* values, int64_t count, void* out) {
  SX_ASSERT(can_quantise_nearest(type) && count % dtype_info(type).block == 0);
  if (type == DType::kQ4_0) store_blocks(values, count, out, nearest_q4_0);
  else if (type == DType::kQ8_0) store_blocks(values, count, out, nearest_q8_0);
  else quantise(type, values, count, out);
}

}  // namespace sx
