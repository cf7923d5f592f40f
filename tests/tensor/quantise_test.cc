// The searching quantisers against the dequantiser: an error bound for every block, never a larger squared error than
// the plain quantiser (for Q4_K: a plain one written here), near the optimum where that can be found by brute force.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "base/error.h"
#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/quantise_search.h"

namespace sx {
namespace {

using Floats = std::vector<float>;

double squared_error(const Floats& x, const Floats& y) {
  double error = 0;
  for (size_t i = 0; i < x.size(); ++i) error += std::pow(double(x[i]) - double(y[i]), 2);
  return error;
}

Floats decode(DType type, const std::vector<std::byte>& bytes, size_t count) {
  Floats out(count);
  dequantise(type, bytes.data(), int64_t(count), out.data());
  return out;
}

Floats searched(DType type, const Floats& x) {
  std::vector<std::byte> bytes(dtype_bytes(type, int64_t(x.size())));
  quantise_search(type, x.data(), int64_t(x.size()), bytes.data());
  return decode(type, bytes, x.size());
}

// Scales and minima of the runs from their extreme values, rounded to 6-bit multiples of the largest.
Floats plain_q4_k(const Floats& x) {
  float scale[8], minimum[8], most_scale = 0, most_minimum = 0;
  for (size_t s = 0; s < 8; ++s) {
    const auto [low, high] = std::minmax_element(x.begin() + long(32 * s), x.begin() + long(32 * s + 32));
    minimum[s] = -std::min(*low, 0.0f), scale[s] = (*high + minimum[s]) / 15;
    most_scale = std::max(most_scale, scale[s]), most_minimum = std::max(most_minimum, minimum[s]);
  }
  const float d = f16_to_float(float_to_f16(most_scale / 63)), dmin = f16_to_float(float_to_f16(most_minimum / 63));
  Floats out;
  for (size_t i = 0; i < 256; ++i) {
    const float step = d > 0 ? d * std::min(63.0f, std::nearbyint(scale[i / 32] / d)) : 0;
    const float from = dmin > 0 ? dmin * std::min(63.0f, std::nearbyint(minimum[i / 32] / dmin)) : 0;
    const float q = step > 0 ? std::clamp(std::nearbyint((x[i] + from) / step), 0.0f, 15.0f) : 0;
    out.push_back(step * q - from);
  }
  return out;
}

Floats plain(DType type, const Floats& x) {
  if (type == DType::kQ4_K) return plain_q4_k(x);
  std::vector<std::byte> bytes(dtype_bytes(type, int64_t(x.size())));
  quantise(type, x.data(), int64_t(x.size()), bytes.data());
  return decode(type, bytes, x.size());
}

// Blocks of many kinds: normal, uniform, one outlier, one sign, few values, tiny, huge, mostly zeros.
Floats random_block(size_t count, int kind, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(-1, 1);
  Floats x(count);
  const float size = std::exp2(float(int(random() % 12) - 8));
  for (float& v : x) {
    switch (kind) {
      case 0: v = normal(random); break;
      case 1: v = uniform(random); break;
      case 2: v = std::fabs(normal(random)); break;
      case 3: v = -1 - std::fabs(uniform(random)); break;
      case 4: v = float(int(random() % 3) - 1); break;
      case 5: v = random() % 10 == 0 ? normal(random) : 0; break;
      case 6: v = std::pow(normal(random), 3); break;
      default: v = 5 + 0.1f * normal(random); break;
    }
    v *= kind == 6 ? 1e-6f : size;
  }
  if (kind == 1) x[random() % count] = 20 * size;
  return x;
}

class QuantiseSearch : public ::testing::TestWithParam<DType> {};

TEST_P(QuantiseSearch, NoBlockIsWorseThanPlainAndOnAverageItIsBetter) {
  const DType type = GetParam();
  const auto block = size_t(dtype_info(type).block);
  std::mt19937 random(7);
  double sum = 0, plain_sum = 0;
  for (int round = 0; round < (block == 256 ? 400 : 2000); ++round) {
    const Floats x = random_block(block, round % 8, random);
    const double error = squared_error(x, searched(type, x)), reference = squared_error(x, plain(type, x));
    ASSERT_LE(error, reference * (1 + 1e-5) + 1e-30) << dtype_name(type) << " kind " << round % 8;
    double power = 0;
    for (const float v : x) power += double(v) * double(v);
    if (power > 0 && round % 8 != 6) sum += error / power, plain_sum += reference / power;
  }
  // Powers of two leave MXFP4 little to search.
  EXPECT_LT(sum, plain_sum * (type == DType::kQ8_0 || type == DType::kMXFP4 ? 0.99 : 0.9)) << dtype_name(type);
  RecordProperty("share_of_plain_error", std::to_string(sum / plain_sum));
}

// Half a step of a range-based quantiser bounds each value's error, so the root of the block's error is bounded too.
TEST_P(QuantiseSearch, ErrorOfEveryBlockIsBounded) {
  const DType type = GetParam();
  const auto block = size_t(dtype_info(type).block);
  std::mt19937 random(8);
  for (int round = 0; round < 400; ++round) {
    const Floats x = random_block(block, round % 8, random);
    if (round % 8 == 6) continue;  // so small that 16-bit scales have few bits left
    const auto [low, high] = std::minmax_element(x.begin(), x.end());
    const float range = std::max(*high, 0.0f) - std::min(*low, 0.0f),
                largest = std::max(std::fabs(*low), std::fabs(*high));
    // Q4_0's codes are lopsided: the far end of the other sign may miss by a whole step. Q4_K rounds scales to 6 bits.
    const float step = type == DType::kQ8_0     ? largest / 127 / 2
                       : type == DType::kQ4_1   ? range / 15 / 2
                       : type == DType::kQ4_0   ? largest / 8
                       : type == DType::kMXFP4  ? largest / 4  // seven eighths of a power of two become six
                       : type == DType::kIQ4_NL ? largest / 8
                                                : range / 15;
    const double most = double(block) * std::pow(double(step) * 1.02 + 6e-8, 2);
    ASSERT_LE(squared_error(x, searched(type, x)), most) << dtype_name(type) << " kind " << round % 8;
  }
}

TEST_P(QuantiseSearch, ZerosAndRepresentableValuesAreExact) {
  const DType type = GetParam();
  const auto block = size_t(dtype_info(type).block);
  const Floats zeros(block, 0.0f);
  EXPECT_EQ(searched(type, zeros), zeros);
  std::vector<std::byte> bytes(dtype_bytes(type, int64_t(block)), std::byte{1});
  quantise_search(type, zeros.data(), int64_t(block), bytes.data());
  for (const std::byte b : bytes) EXPECT_EQ(b, std::byte{0});
  Floats x(block);
  const int8_t* table = affine_traits(type).table;
  for (size_t i = 0; i < block; ++i) x[i] = 0.25f * float(table ? table[i % 16] : int(i % 16) - 8);
  EXPECT_LE(squared_error(x, searched(type, x)), type == DType::kQ4_K ? 0.01 : type == DType::kQ8_0 ? 1e-3 : 1e-12);
}

TEST_P(QuantiseSearch, SmallestAndLargestNumbersStayFinite) {
  const DType type = GetParam();
  const auto block = size_t(dtype_info(type).block);
  std::mt19937 random(9);
  for (const float size : {1e-45f, 1e-38f, 1e-20f, 1e-8f, 6e4f}) {
    Floats x(block);
    for (float& v : x) v = size * (float(random() % 2001) / 1000 - 1);
    double power = 0;
    for (const float v : x) power += double(v) * double(v);
    const Floats y = searched(type, x);
    for (const float v : y) ASSERT_TRUE(std::isfinite(v)) << size;
    EXPECT_LE(squared_error(x, y), power * (1 + 1e-6)) << size;  // never worse than writing zeros
  }
}

INSTANTIATE_TEST_SUITE_P(Types, QuantiseSearch,
                         ::testing::Values(DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ4_K, DType::kMXFP4,
                                           DType::kIQ4_NL),
                         [](const auto& row) { return std::string(dtype_name(row.param)); });

// All 65536 scales of Q4_0 by brute force: the search must come close to the true optimum.
TEST(QuantiseSearchOptimum, Q4_0IsNearTheBestOfAllScales) {
  std::mt19937 random(10);
  double found = 0, optimum = 0;
  for (int round = 0; round < 12; ++round) {
    Floats x = random_block(32, 0, random);
    double best = 1e300;
    for (uint32_t bits = 0; bits < 0x7c00; bits += 1) {
      for (const float sign : {1.0f, -1.0f}) {
        const float d = sign * f16_to_float(uint16_t(bits));
        if (d == 0 || std::fabs(d) > 1 << 5) continue;
        double error = 0;
        for (const float v : x) {
          const float q = std::clamp(std::nearbyint(v / d), -8.0f, 7.0f);
          error += std::pow(double(v) - double(d * q), 2);
        }
        best = std::min(best, error);
      }
    }
    double power = 0;
    for (const float v : x) power += double(v) * double(v);
    found += squared_error(x, searched(DType::kQ4_0, x)) / power, optimum += best / power;
  }
  EXPECT_GE(found, optimum * (1 - 1e-6));
  EXPECT_LE(found, optimum * 1.05);
}

TEST(QuantiseSearchTypes, OthersAreRefused) {
  Floats x(256, 1.0f);
  std::vector<std::byte> bytes(1024);
  for (const DType type : {DType::kQ5_0, DType::kQ6_K, DType::kI8}) {
    EXPECT_FALSE(can_quantise_search(type));
    EXPECT_THROW(quantise_search(type, x.data(), 256, bytes.data()), Error);
  }
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_TRUE(can_quantise_search(type));
    EXPECT_EQ(searched(type, x), x);
  }
}

}  // namespace
}  // namespace sx
