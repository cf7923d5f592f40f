// The loops over one row (norms, activations, soft caps): every instruction set has the bits of the generic one, at
// every width and for every value, and activations are what double precision says.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "backend/cpu/rows_kernels.h"
#include "base/rng.h"

namespace sx::cpu {
namespace {

constexpr Activation kKinds[] = {Activation::kSilu, Activation::kGeluTanh, Activation::kGelu, Activation::kRelu2};

// Ordinary values, and some at which exponentials overflow or are no normal numbers.
std::vector<float> values(int count, uint64_t seed) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float odd[] = {0, -0.0f, 87, -87, 88, -88, 1e-40f, -1e-40f, 300, -300, 1e30f, -1e30f, kInfinity, -kInfinity};
  std::vector<float> x(static_cast<size_t>(count));
  for (auto& v : x) {
    const double u = uniform_from(mix64(++seed));
    v = u < 0.1 ? odd[mix64(seed * 3) % std::size(odd)] : static_cast<float>((u - 0.55) * 30);
  }
  return x;
}

// Equal bits; a NaN is equal to any other.
bool same(const std::vector<float>& a, const std::vector<float>& b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (std::memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

class RowLoopsTest : public ::testing::TestWithParam<Isa> {
 protected:
  // out = what a set makes of (x, y).
  template <class Body>
  void check(int width, Body body) {
    const auto n = static_cast<size_t>(width);
    std::vector<float> a(n), b(n);
    body(row_loops(GetParam()), a.data());
    body(row_loops(available_isas().back()), b.data());
    EXPECT_TRUE(same(a, b)) << "width " << width;
  }
};

TEST_P(RowLoopsTest, HaveTheBitsOfTheLastSet) {
  for (int width : {1, 7, 15, 16, 17, 33, 64, 100, 576, 1536}) {
    const auto x = values(width, 1), y = values(width, 1000), weight = values(width, 2000);
    for (const Activation kind : kKinds)
      for (const bool gated : {false, true})
        check(width, [&](const RowLoops& loops, float* out) {
          loops.activate(kind, x.data(), gated ? y.data() : nullptr, out, width);
        });
    check(width, [&](const RowLoops& loops, float* out) {
      std::copy(x.begin(), x.end(), out);
      loops.cap(out, width, 30.0f);
    });
    std::vector<float> finite = x;
    for (auto& v : finite) v = std::clamp(v, -100.0f, 100.0f);
    for (const bool centred : {false, true})
      check(width, [&](const RowLoops& loops, float* out) {
        const NormArgs args = {.out = out,
                               .x = finite.data(),
                               .weight = weight.data(),
                               .rows = 1,
                               .width = width,
                               .eps = 1e-5f,
                               .centred = centred,
                               .bias = centred ? y.data() : nullptr};
        loops.norm(args, finite.data(), out);
      });
  }
}

TEST_P(RowLoopsTest, ActivateAsDoublePrecisionDoes) {
  constexpr int kWidth = 4001;
  std::vector<float> x(kWidth), out(kWidth);
  for (int i = 0; i < kWidth; ++i) x[static_cast<size_t>(i)] = static_cast<float>(i - 2000) * 0.01f;
  for (const Activation kind : kKinds) {
    row_loops(GetParam()).activate(kind, x.data(), nullptr, out.data(), kWidth);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], cubed = 0.7978845608028654 * v * (1 + 0.044715 * v * v);
      const double expected = kind == Activation::kSilu       ? v / (1 + std::exp(-v))
                              : kind == Activation::kGeluTanh ? 0.5 * v * (1 + std::tanh(cubed))
                              : kind == Activation::kGelu     ? 0.5 * v * (1 + std::erf(v * 0.7071067811865476))
                                                              : std::max(v, 0.0) * std::max(v, 0.0);
      EXPECT_NEAR(out[i], expected, 2e-6 * std::max(1.0, std::fabs(expected))) << "x " << v;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, RowLoopsTest, ::testing::ValuesIn(available_isas()), [](const auto& param) {
  std::string name = isa_name(param.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace sx::cpu
