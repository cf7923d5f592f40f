// Block formats against vectors made by another implementation, the affine form against the floats, and quantisation.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "base/error.h"
#include "block_vectors.h"
#include "tensor/blocks.h"
#include "tensor/half.h"
#include "tensor/tensor.h"

namespace sx {
namespace {

struct Vector {
  DType type;
  std::span<const uint8_t> blocks;
  std::span<const uint32_t> values;
};

const Vector kVectors[] = {
    {DType::kQ4_0, vectors::kQ4_0Blocks, vectors::kQ4_0Values},
    {DType::kQ4_1, vectors::kQ4_1Blocks, vectors::kQ4_1Values},
    {DType::kQ5_0, vectors::kQ5_0Blocks, vectors::kQ5_0Values},
    {DType::kQ5_1, vectors::kQ5_1Blocks, vectors::kQ5_1Values},
    {DType::kQ8_0, vectors::kQ8_0Blocks, vectors::kQ8_0Values},
    {DType::kQ2_K, vectors::kQ2_KBlocks, vectors::kQ2_KValues},
    {DType::kQ3_K, vectors::kQ3_KBlocks, vectors::kQ3_KValues},
    {DType::kQ4_K, vectors::kQ4_KBlocks, vectors::kQ4_KValues},
    {DType::kQ5_K, vectors::kQ5_KBlocks, vectors::kQ5_KValues},
    {DType::kQ6_K, vectors::kQ6_KBlocks, vectors::kQ6_KValues},
    {DType::kMXFP4, vectors::kMXFP4Blocks, vectors::kMXFP4Values},
    {DType::kIQ4_NL, vectors::kIQ4_NLBlocks, vectors::kIQ4_NLValues},
    {DType::kIQ4_XS, vectors::kIQ4_XSBlocks, vectors::kIQ4_XSValues},
};

TEST(Blocks, DequantiseEqualsTheVectorsBitForBit) {
  for (const auto& vector : kVectors) {
    const auto count = static_cast<int64_t>(vector.values.size());
    ASSERT_EQ(dtype_bytes(vector.type, count), vector.blocks.size()) << dtype_name(vector.type);
    std::vector<float> values(vector.values.size());
    dequantise(vector.type, vector.blocks.data(), count, values.data());
    for (size_t i = 0; i < values.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(values[i]), vector.values[i]) << dtype_name(vector.type) << " element " << i;
    }
  }
}

TEST(Blocks, DequantiseWorksAtOddAddresses) {
  for (const auto& vector : kVectors) {
    std::vector<uint8_t> shifted(vector.blocks.size() + 1);
    std::memcpy(shifted.data() + 1, vector.blocks.data(), vector.blocks.size());
    std::vector<float> values(vector.values.size());
    dequantise(vector.type, shifted.data() + 1, static_cast<int64_t>(values.size()), values.data());
    EXPECT_EQ(0, std::memcmp(values.data(), vector.values.data(), values.size() * 4)) << dtype_name(vector.type);
  }
}

TEST(Blocks, AffineFormYieldsTheSameValues) {
  for (const auto& vector : kVectors) {
    const AffineTraits traits = affine_traits(vector.type);
    const size_t count = vector.values.size(), subs = count / static_cast<size_t>(traits.sub);
    std::vector<int8_t> q(count);
    std::vector<float> scale(subs), offset(subs);
    unpack_affine(vector.type, vector.blocks.data(), static_cast<int64_t>(count), q.data(), scale.data(),
                  offset.data());
    for (size_t i = 0; i < count; ++i) {
      const size_t sub = i / static_cast<size_t>(traits.sub);
      ASSERT_EQ(scale[sub] * static_cast<float>(q[i]) + offset[sub], std::bit_cast<float>(vector.values[i]))
          << dtype_name(vector.type) << " element " << i;
      if (traits.bits == 4) {
        ASSERT_GE(q[i], 0);
        ASSERT_LE(q[i], 15);
      }
      if (!traits.has_offset) { ASSERT_EQ(offset[sub], 0.0f); }
    }
  }
}

TEST(Blocks, AffineTraitsAreAsDocumented) {
  for (const DType type : {DType::kQ2_K, DType::kQ3_K, DType::kQ6_K}) EXPECT_EQ(affine_traits(type).sub, 16);
  for (const DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ4_K}) EXPECT_EQ(affine_traits(type).bits, 4);
  EXPECT_EQ(affine_traits(DType::kMXFP4).table, kMXFP4Table);
  EXPECT_EQ(affine_traits(DType::kIQ4_XS).table, kIQ4Table);
  EXPECT_THROW(affine_traits(DType::kF32), Error);
  EXPECT_THROW(unpack_affine(DType::kF16, nullptr, 0, nullptr, nullptr, nullptr), Error);
  EXPECT_THROW(dequantise(DType::kI32, nullptr, 0, nullptr), Error);
}

TEST(Blocks, QuantiseEqualsTheVectors) {
  const auto check = [](DType type, std::span<const uint8_t> expected) {
    std::vector<float> source(std::size(vectors::kSource));
    std::memcpy(source.data(), vectors::kSource, sizeof(vectors::kSource));
    std::vector<uint8_t> packed(dtype_bytes(type, static_cast<int64_t>(source.size())));
    quantise(type, source.data(), static_cast<int64_t>(source.size()), packed.data());
    ASSERT_EQ(packed, std::vector<uint8_t>(expected.begin(), expected.end())) << dtype_name(type);
  };
  check(DType::kQ8_0, vectors::kQ8_0Packed);
  check(DType::kQ4_0, vectors::kQ4_0Packed);
  check(DType::kQ4_1, vectors::kQ4_1Packed);
  check(DType::kMXFP4, vectors::kMXFP4Packed);
}

TEST(Blocks, QuantisationErrorIsAtMostHalfAStep) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> values(32 * 64), back(values.size());
  for (float& value : values) value = normal(random);
  // The largest step of a block of ordinary numbers, relative to its largest magnitude, plus the rounding of the scale.
  const std::pair<DType, float> kSteps[] = {{DType::kQ8_0, 0.51f / 127},
                                            {DType::kQ4_0, 1.02f / 8},
                                            {DType::kQ4_1, 1.02f / 15},
                                            {DType::kMXFP4, 2.01f / 8},
                                            {DType::kIQ4_NL, 0.12f}};
  for (const auto& [type, step] : kSteps) {
    std::vector<std::byte> packed(dtype_bytes(type, static_cast<int64_t>(values.size())));
    quantise(type, values.data(), static_cast<int64_t>(values.size()), packed.data());
    dequantise(type, packed.data(), static_cast<int64_t>(values.size()), back.data());
    for (size_t block = 0; block < values.size(); block += 32) {
      float largest = 0;
      for (size_t i = block; i < block + 32; ++i) largest = std::max(largest, std::fabs(values[i]));
      for (size_t i = block; i < block + 32; ++i) {
        ASSERT_LE(std::fabs(values[i] - back[i]), step * largest + 2e-3f) << dtype_name(type) << ' ' << i;
      }
    }
  }
}

TEST(Blocks, QuantiseHandlesZerosTinyAndNan) {
  std::vector<float> values(96, 0.0f);
  for (size_t i = 32; i < 64; ++i) values[i] = 1e-42f;
  for (size_t i = 64; i < 96; ++i) values[i] = std::nanf("");
  for (const DType type :
       {DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kMXFP4, DType::kIQ4_NL}) {
    std::vector<std::byte> packed(dtype_bytes(type, 96));
    quantise(type, values.data(), 96, packed.data());
    std::vector<float> back(96);
    dequantise(type, packed.data(), 96, back.data());
    for (size_t i = 0; i < 64; ++i) EXPECT_EQ(back[i], 0.0f) << dtype_name(type);  // too small for the formats
  }
  EXPECT_THROW(quantise(DType::kQ4_K, values.data(), 0, nullptr), Error);
}

TEST(DType, NamesAndSizes) {
  for (int i = 0; i < static_cast<int>(DType::kCount); ++i) {
    const auto type = static_cast<DType>(i);
    ASSERT_EQ(dtype_from_name(dtype_name(type)), type);
    EXPECT_EQ(dtype_is_quantised(type), dtype_info(type).block > 1);
  }
  EXPECT_EQ(dtype_from_name("q4_1"), DType::kQ4_1);
  EXPECT_EQ(dtype_from_name("bf16"), DType::kBF16);
  EXPECT_FALSE(dtype_from_name("q4"));
  EXPECT_EQ(dtype_bytes(DType::kQ6_K, 512), 420u);
  EXPECT_THROW(dtype_bytes(DType::kQ8_0, 33), InternalError);
}

TEST(Tensor, RowsAndBytes) {
  const Tensor tensor{DType::kQ8_0, 2, {3, 64}, nullptr};
  EXPECT_EQ(tensor.elements(), 192);
  EXPECT_EQ(tensor.rows(), 3);
  EXPECT_EQ(tensor.row_bytes(), 68u);
  EXPECT_EQ(tensor.bytes(), 204u);
}

}  // namespace
}  // namespace sx
