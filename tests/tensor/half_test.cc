// The 16-bit conversions: every half, and the machine's instruction against the portable code.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "tensor/half.h"

namespace sx {
namespace {

TEST(Half, EveryF16SurvivesTheRoundTrip) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const auto half = static_cast<uint16_t>(h);
    const float value = portable::f16_to_float(half);
    ASSERT_EQ(std::bit_cast<uint32_t>(value), std::bit_cast<uint32_t>(f16_to_float(half))) << h;
    const bool nan = (h & 0x7c00) == 0x7c00 && (h & 0x3ff) != 0;
    ASSERT_EQ(std::isnan(value), nan);
    const uint16_t expected = nan ? static_cast<uint16_t>(half | 0x200) : half;  // a NaN comes back quiet
    ASSERT_EQ(portable::float_to_f16(value), expected) << h;
    ASSERT_EQ(float_to_f16(value), expected) << h;
  }
}

TEST(Half, KnownValues) {
  EXPECT_EQ(f16_to_float(0x3c00), 1.0f);
  EXPECT_EQ(f16_to_float(0xc000), -2.0f);
  EXPECT_EQ(f16_to_float(0x7bff), 65504.0f);
  EXPECT_EQ(f16_to_float(0x0001), 0x1p-24f);
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(1.0f + 0x1p-11f), 0x3c00);  // a tie goes to even
  EXPECT_EQ(float_to_f16(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(float_to_bf16(1.0f + 0x1p-8f), 0x3f80);
  EXPECT_EQ(float_to_bf16(1.0f + 3 * 0x1p-8f), 0x3f82);
  EXPECT_EQ(bf16_to_float(0x4049), 3.140625f);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(std::bit_cast<float>(0x7f800001u)))));
}

TEST(Half, PortableAndMachineRoundAlike) {
  std::mt19937 random(5);
  for (int i = 0; i < 2'000'000; ++i) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    ASSERT_EQ(portable::float_to_f16(value), float_to_f16(value)) << std::bit_cast<uint32_t>(value);
  }
}

}  // namespace
}  // namespace sx
