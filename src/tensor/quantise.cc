// Floats to blocks, for the types we ever write: tests, tiny models and quantisation at load time. The scale of a block
// is chosen from its extreme values as GGUF tools do, so that files made by us and by them agree.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/quantise_k.h"
#include "tensor/quantise_table.h"

namespace sx {
namespace {

// Nearest integer in [low, high]; NaN becomes low, so that the conversion is always defined.
int clamp_to_int(double value, int low, int high) {
  if (!(value > low)) return low;
  return value < high ? static_cast<int>(value) : high;
}

BlockQ8_0 block_q8_0(const float* x) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  const float d = largest / 127, inverse = inverse_or_zero(d);
  BlockQ8_0 block;
  block.d = float_to_f16(d);
  for (int i = 0; i < 32; ++i) {
    block.q[i] = static_cast<int8_t>(clamp_to_int(std::round(x[i] * inverse), -127, 127));
  }
  return block;
}

BlockQ4_0 block_q4_0(const float* x) {
  float extreme = x[0];  // signed value of the largest magnitude, the first of equals: it maps to -8 exactly
  for (int i = 1; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float d = extreme / -8, inverse = inverse_or_zero(d);
  BlockQ4_0 block;
  block.d = float_to_f16(d);
  // In double, because in float the result would depend on whether the compiler fuses the product and the sum.
  const auto code = [&](int i) { return clamp_to_int(static_cast<double>(x[i]) * inverse + 8.5, 0, 15); };
  for (int i = 0; i < 16; ++i) block.q[i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
  return block;
}

BlockQ4_1 block_q4_1(const float* x) {
  float low = x[0], high = x[0];
  for (int i = 1; i < 32; ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
  }
  const float d = (high - low) / 15, inverse = inverse_or_zero(d);
  BlockQ4_1 block;
  block.d = float_to_f16(d);
  block.m = float_to_f16(low);
  const auto code = [&](int i) {
    const float steps = (x[i] - low) * inverse;
    return clamp_to_int(steps + 0.5f, 0, 15);
  };
  for (int i = 0; i < 16; ++i) block.q[i] = static_cast<uint8_t>(code(i) | code(i + 16) << 4);
  return block;
}

BlockMXFP4 block_mxfp4(const float* x) {
  float largest = 0;
  for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(x[i]));
  // The largest value gets the largest exponent that E2M1 has, 2; beyond 252 the block's values would be no floats.
  const int e = largest > 0 ? clamp_to_int(std::ilogb(largest) + 125, 0, 252) : 0;
  BlockMXFP4 block{static_cast<uint8_t>(e), {}};
  store_codes(kMXFP4Table, x, std::ldexp(1.0, 128 - e), block.q);
  return block;
}

BlockIQ4_NL block_iq4_nl(const float* x) {
  float extreme = x[0];  // as in Q4_0: it maps to the value of the largest magnitude
  for (int i = 1; i < 32; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float d = extreme / kIQ4Table[0];
  BlockIQ4_NL block{float_to_f16(d), {}};
  store_codes(kIQ4Table, x, static_cast<double>(inverse_or_zero(d)), block.q);
  return block;
}

// Applies `make` to runs of `step` values and stores the results one after another.
template <class Make>
void store_each(const float* values, int64_t count, int step, void* out, Make make) {
  auto* to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; i += step) {
    const auto block = make(values + i);
    std::memcpy(to, &block, sizeof(block));
    to += sizeof(block);
  }
}

}  // namespace

void quantise(DType type, const float* values, int64_t count, void* out) {
  SX_ASSERT(count >= 0 && count % dtype_info(type).block == 0);
  switch (type) {
    case DType::kF32: return store_each(values, count, 1, out, [](const float* x) { return *x; });
    case DType::kF16: return store_each(values, count, 1, out, [](const float* x) { return float_to_f16(*x); });
    case DType::kBF16: return store_each(values, count, 1, out, [](const float* x) { return float_to_bf16(*x); });
    case DType::kQ8_0: return store_each(values, count, 32, out, block_q8_0);
    case DType::kQ4_0: return store_each(values, count, 32, out, block_q4_0);
    case DType::kQ4_1: return store_each(values, count, 32, out, block_q4_1);
    case DType::kMXFP4: return store_each(values, count, 32, out, block_mxfp4);
    case DType::kIQ4_NL: return store_each(values, count, 32, out, block_iq4_nl);
    default:
      fail("quantising to {} is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_1, MXFP4 and IQ4_NL are",
           dtype_name(type));
  }
}

}  // namespace sx
