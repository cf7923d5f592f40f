// Search for the best scales of a block. Every candidate is measured by what a reader will decode: scales rounded to 16
// bits first, codes chosen for the rounded scales, squared error summed over the decoded values.
#include "tensor/quantise_search.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"
#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/quantise_k.h"
#include "tensor/quantise_table.h"

namespace sx {
namespace {

constexpr size_t kRun = 32;  // elements that share a scale

float round_to_f16(float x) { return f16_to_float(float_to_f16(x)); }

// What codes in low..high for x = d * code leave: the squared error, and the sums that refit d.
struct Fit {
  double error = 0, xq = 0, qq = 0;
};

float code_of(float x, float inverse, float low, float high) {
  return nearest_small(std::min(std::max(x * inverse, low), high));
}

Fit fit_symmetric(const float* x, float d, float low, float high) {
  const float inverse = inverse_or_zero(d);
  float error[kLanes] = {}, xq[kLanes] = {}, qq[kLanes] = {};
  for (size_t i = 0; i < kRun; i += kLanes) {
    for (size_t k = 0; k < kLanes; ++k) {
      const float value = x[i + k], q = code_of(value, inverse, low, high), miss = value - d * q;
      error[k] += miss * miss;
      xq[k] += value * q;
      qq[k] += q * q;
    }
  }
  return {sum_lanes(error), sum_lanes(xq), sum_lanes(qq)};
}

struct Best {
  double error = std::numeric_limits<double>::infinity();
  float d = 0;
};

// Tries a scale and the least-squares refits of its codes.
void try_scale(const float* x, float d, float low, float high, Best& best) {
  for (int round = 0; round < 3; ++round) {
    d = round_to_f16(d);
    if (!std::isfinite(d)) return;
    const Fit found = fit_symmetric(x, d, low, high);
    if (found.error < best.error) best = {found.error, d};
    if (found.qq == 0) return;
    const auto next = static_cast<float>(found.xq / found.qq);
    if (round_to_f16(next) == d) return;
    d = next;
  }
}

float largest_magnitude(const float* x, int count) {
  float largest = 0;
  for (int i = 0; i < count; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// Squared error of a block as decoded: every candidate is measured by it.
double block_error(DType type, const void* block, const float* x) {
  std::array<float, 256> values;
  const int count = dtype_info(type).block;
  dequantise(type, block, count, values.data());
  double error = 0;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const double miss = static_cast<double>(x[i]) - static_cast<double>(values[i]);
    error += miss * miss;
  }
  return error;
}

void store_nibbles(const int8_t* code, int bias, uint8_t* out) {
  for (size_t i = 0; i < 16; ++i) { out[i] = static_cast<uint8_t>((code[i] + bias) | (code[i + 16] + bias) << 4); }
}

void search_q8_0(const float* x, float largest, void* out) {
  Best best;
  for (const float steps : {127.0f, 126.8f, 126.6f, 126.4f, 126.2f, 126.0f, 125.5f, 125.0f, 124.0f}) {
    try_scale(x, largest / steps, -127, 127, best);
  }
  // Where 16 bits are coarse: the next scale above, too.
  try_scale(x, f16_to_float(static_cast<uint16_t>(float_to_f16(largest / 127) + 1)), -127, 127, best);
  BlockQ8_0 block{float_to_f16(best.d), {}};
  for (size_t i = 0; i < kRun; ++i) block.q[i] = static_cast<int8_t>(code_of(x[i], inverse_or_zero(best.d), -127, 127));
  std::memcpy(out, &block, sizeof(block));
}

void search_q4_0(const float* x, float largest, void* out) {
  Best best;
  // Codes reach from -8 to 7, so the sign of the scale matters; larger divisors clip the extreme value.
  for (const float sign : {-1.0f, 1.0f}) {
    for (int i = -9; i <= 12; ++i) try_scale(x, sign * largest / (8 + 0.15f * static_cast<float>(i)), -8, 7, best);
  }
  BlockQ4_0 block{float_to_f16(best.d), {}};
  std::array<int8_t, kRun> code;
  for (size_t i = 0; i < kRun; ++i) code[i] = static_cast<int8_t>(code_of(x[i], inverse_or_zero(best.d), -8, 7));
  store_nibbles(code.data(), 8, block.q);
  std::memcpy(out, &block, sizeof(block));
}

void search_q4_1(const float* x, float, void* out) {
  const AffineRun run = search_affine(x, false);
  BlockQ4_1 block{float_to_f16(run.scale), float_to_f16(run.offset), {}};
  std::array<int8_t, kRun> code;
  code_affine(x, f16_to_float(block.d), f16_to_float(block.m), code.data());
  store_nibbles(code.data(), 0, block.q);
  std::memcpy(out, &block, sizeof(block));
}

// Runs `search` on each block; zeros stay zeros, and the plain quantiser's block is kept where it is better.
template <class Search>
void each_block(DType type, const float* values, int64_t count, void* out, Search search) {
  const DTypeInfo& info = dtype_info(type);
  const auto bytes = static_cast<size_t>(info.bytes);
  std::array<std::byte, 256> plain;
  auto* to = static_cast<std::byte*>(out);
  for (int64_t i = 0; i < count; i += info.block, to += bytes) {
    const float* x = values + i;
    const float largest = largest_magnitude(x, info.block);
    if (largest == 0) {
      std::memset(to, 0, bytes);
      continue;
    }
    search(x, largest, to);
    if (type == DType::kQ4_K) continue;  // its search starts from the plain choice
    quantise(type, x, info.block, plain.data());
    if (block_error(type, plain.data(), x) < block_error(type, to, x)) std::memcpy(to, plain.data(), bytes);
  }
}

}  // namespace

bool can_quantise_search(DType type) {
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kQ8_0:
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
    case DType::kMXFP4:
    case DType::kIQ4_NL: return true;
    default: return false;
  }
}

void quantise_search(DType type, const float* values, int64_t count, void* out) {
  SX_ASSERT(count >= 0 && count % dtype_info(type).block == 0);
  switch (type) {
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return quantise(type, values, count, out);
    case DType::kQ8_0: return each_block(type, values, count, out, search_q8_0);
    case DType::kQ4_0: return each_block(type, values, count, out, search_q4_0);
    case DType::kQ4_1: return each_block(type, values, count, out, search_q4_1);
    case DType::kQ4_K: return each_block(type, values, count, out, search_q4_k);
    case DType::kMXFP4: return each_block(type, values, count, out, search_mxfp4);
    case DType::kIQ4_NL: return each_block(type, values, count, out, search_iq4_nl);
    default:
      fail("quantising to {} is not supported; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, MXFP4 and IQ4_NL are",
           dtype_name(type));
  }
}

}  // namespace sx
