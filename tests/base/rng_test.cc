// The random: pure, open-ended, well mixed.
#include "base/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace sx {
namespace {

TEST(Rng, IsAPureFunctionOfItsKey) {
  EXPECT_EQ(hash_key(1, 2, 3), hash_key(1, 2, 3));
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 8; ++seed)
    for (uint64_t position = 0; position < 32; ++position)
      for (uint64_t token = 0; token < 64; ++token) seen.insert(hash_key(seed, position, token));
  EXPECT_EQ(seen.size(), 8u * 32 * 64);
}

TEST(Rng, UniformStaysInsideTheOpenInterval) {
  EXPECT_GT(uniform_from(0), 0.0);
  EXPECT_LT(uniform_from(~0ull), 1.0);
}

// Moments of uniform and Gumbel noise over neighbouring keys, the way sampling uses them.
TEST(Rng, NoiseHasTheRightMoments) {
  double sum = 0, squares = 0, g = 0, product = 0, previous = 0.5;
  const int n = 200000;
  for (int i = 0; i < n; ++i) {
    const double u = uniform_from(hash_key(7, uint64_t(i / 1000), uint64_t(i % 1000)));
    sum += u, squares += u * u, product += u * previous, previous = u;
    g += gumbel(7, uint64_t(i / 1000), uint64_t(i % 1000));
  }
  EXPECT_NEAR(sum / n, 0.5, 0.003);
  EXPECT_NEAR(squares / n, 1.0 / 3, 0.003);
  EXPECT_NEAR(product / n, 0.25, 0.003);    // neighbours are not correlated
  EXPECT_NEAR(g / n, 0.5772156649, 0.012);  // Euler's constant
}

}  // namespace
}  // namespace sx
