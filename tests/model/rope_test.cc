// RoPE frequencies of each scaling at the places where they can be told without computing them the same way.
#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace sx {
namespace {

ModelConfig config(RopeScaling scaling, double factor, int original) {
  ModelConfig c;
  c.head_dim = c.rope.dims = 64;
  c.context = 4096;
  c.rope.scaling = scaling, c.rope.factor = factor, c.rope.original_context = original;
  return c;
}

TEST(Rope, PlainFrequenciesAreAGeometricSeries) {
  const auto r = rope_frequencies(config(RopeScaling::kNone, 1, 0), 4096);
  ASSERT_EQ(r.frequencies.size(), 32u);
  EXPECT_EQ(r.frequencies[0], 1.0);
  for (size_t i = 1; i < 32; ++i)
    EXPECT_NEAR(r.frequencies[i] / r.frequencies[i - 1], std::pow(10000.0, -1.0 / 32), 1e-12);
  EXPECT_EQ(r.factor, 1.0f);
}

TEST(Rope, LinearDividesEveryFrequency) {
  const auto plain = rope_frequencies(config(RopeScaling::kNone, 1, 0), 4096);
  const auto r = rope_frequencies(config(RopeScaling::kLinear, 8, 0), 4096);
  for (size_t i = 0; i < 32; ++i) EXPECT_DOUBLE_EQ(r.frequencies[i] * 8, plain.frequencies[i]);
}

TEST(Rope, DynamicChangesNothingWithinTheTrainedLength) {
  const auto plain = rope_frequencies(config(RopeScaling::kNone, 1, 0), 4096);
  EXPECT_EQ(rope_frequencies(config(RopeScaling::kDynamic, 2, 4096), 4096).frequencies, plain.frequencies);
  const auto longer = rope_frequencies(config(RopeScaling::kDynamic, 2, 4096), 8192);
  EXPECT_EQ(longer.frequencies[0], 1.0);
  EXPECT_LT(longer.frequencies[31], plain.frequencies[31]);
}

TEST(Rope, Llama3KeepsFastAndSlowsLongWavelengths) {
  const auto plain = rope_frequencies(config(RopeScaling::kNone, 1, 0), 4096);
  const auto r = rope_frequencies(config(RopeScaling::kLlama3, 8, 1024), 4096);
  EXPECT_EQ(r.frequencies[0], plain.frequencies[0]);
  EXPECT_DOUBLE_EQ(r.frequencies[31] * 8, plain.frequencies[31]);
  for (size_t i = 1; i < 32; ++i) EXPECT_LT(r.frequencies[i], r.frequencies[i - 1]);
}

TEST(Rope, YarnBlendsAndScalesAttention) {
  const auto plain = rope_frequencies(config(RopeScaling::kNone, 1, 0), 4096);
  const auto r = rope_frequencies(config(RopeScaling::kYarn, 4, 1024), 4096);
  EXPECT_EQ(r.frequencies[0], plain.frequencies[0]);
  EXPECT_NEAR(r.frequencies[31] * 4, plain.frequencies[31], 1e-15);
  EXPECT_NEAR(r.factor, 0.1 * std::log(4.0) + 1, 1e-6);
}

TEST(Rope, ExplicitFactorsDivide) {
  auto c = config(RopeScaling::kNone, 1, 0);
  c.rope.factors.assign(32, 2.0f);
  const auto r = rope_frequencies(c, 4096);
  EXPECT_EQ(r.frequencies[0], 0.5);
}

TEST(Rope, LongestTextIsTheTrainedLengthOrWhatScalingMakesOfIt) {
  EXPECT_EQ(longest_text(config(RopeScaling::kNone, 1, 0)), 4096);
  EXPECT_EQ(longest_text(config(RopeScaling::kLinear, 8, 0)), 32768);
  EXPECT_EQ(longest_text(config(RopeScaling::kYarn, 4, 4096)), 16384);
  EXPECT_EQ(longest_text(config(RopeScaling::kYarn, 4, 512)), 4096);  // the file's length counts where it says more
  EXPECT_EQ(longest_text(config(RopeScaling::kLlama3, 8, 1024)), 8192);
  EXPECT_GE(longest_text(config(RopeScaling::kDynamic, 2, 4096)), 1 << 24);
  EXPECT_GE(longest_text(config(RopeScaling::kLinear, 1e12, 0)), 1 << 24);
}

}  // namespace
}  // namespace sx
