// Mixtures on the CPU: a row's bits alone and among 1 to 70 rows, with any number of threads, on every instruction set;
// the router's choice; and no allocation in a step.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "backend/cpu/linear/expert_rows.h"
#include "backend/registry.h"
#include "base/rng.h"
#include "support/counting_new.h"
#include "tensor/blocks.h"

namespace sx {
namespace {

constexpr int kWidth = 64, kFfn = 96, kExperts = 12, kMostRows = 70;

std::vector<float> noise(size_t count, uint64_t seed, float size) {
  std::vector<float> out(count);
  for (size_t i = 0; i < count; ++i) out[i] = size * float(2 * uniform_from(mix64(seed * 1000003 + i)) - 1);
  return out;
}

// A mixture with random weights on one backend.
struct Mixture {
  std::unique_ptr<Backend> backend;
  std::vector<std::vector<std::byte>> bytes;
  std::unique_ptr<Matrix> gate_up, down;
  std::vector<float> gate_up_bias = noise(kExperts * 2 * kFfn, 1, 0.5f), down_bias = noise(kExperts * kWidth, 2, 0.5f);
  int used;

  Tensor tensor(DType type, int out, int in, uint64_t seed) {
    const std::vector<float> values = noise(size_t(kExperts) * size_t(out) * size_t(in), seed, 0.4f);
    bytes.emplace_back(dtype_bytes(type, int64_t(values.size())));
    quantise(type, values.data(), int64_t(values.size()), bytes.back().data());
    return {.type = type, .rank = 3, .shape = {kExperts, out, in}, .data = bytes.back().data()};
  }
  Mixture(cpu::Isa isa, int threads, DType type, int used_experts) : used(used_experts) {
    backend = make_cpu_backend({.threads = threads, .isa = isa});
    const Tensor gates[] = {tensor(type, kFfn, kWidth, 3), tensor(type, kFfn, kWidth, 4)};
    const Tensor downs[] = {tensor(type, kWidth, kFfn, 5)};
    gate_up = backend->make_experts(gates);
    down = backend->make_experts(downs);
    backend->reserve({.rows = kMostRows, .width = kFfn, .experts = kExperts, .experts_used = used, .expert_ffn = kFfn});
  }
  ExpertsArgs args(float* out, const float* x, const float* logits, int rows) const {
    return {.out = out,
            .x = x,
            .logits = logits,
            .gate_up = gate_up.get(),
            .down = down.get(),
            .gate_up_bias = gate_up_bias.data(),
            .down_bias = down_bias.data(),
            .rows = rows,
            .used = used,
            .limit = 0.7f};
  }
  std::vector<float> run(const float* x, const float* logits, int rows) const {
    std::vector<float> out(size_t(rows) * kWidth);
    backend->experts(args(out.data(), x, logits, rows));
    return out;
  }
};

TEST(Experts, RowsHaveTheSameBitsInAnyBatch) {
  const auto x = noise(kMostRows * kWidth, 7, 3), logits = noise(kMostRows * kExperts, 8, 4);
  for (const cpu::Isa isa : cpu::available_isas())
    for (const DType type : {DType::kBF16, DType::kQ4_0, DType::kQ4_1, DType::kQ8_0, DType::kMXFP4, DType::kIQ4_NL})
      for (const int threads : {1, 3}) {
        const Mixture mixture(isa, threads, type, 4);
        std::vector<float> alone;
        for (int r = 0; r < kMostRows; ++r) {
          const auto row = mixture.run(&x[size_t(r) * kWidth], &logits[size_t(r) * kExperts], 1);
          alone.insert(alone.end(), row.begin(), row.end());
        }
        for (int rows = 1; rows <= kMostRows; ++rows) {
          const size_t from = size_t(kMostRows - rows);  // other rows share the experts each time
          const auto together = mixture.run(&x[from * kWidth], &logits[from * kExperts], rows);
          ASSERT_EQ(0, std::memcmp(together.data(), &alone[from * kWidth], together.size() * sizeof(float)))
              << cpu::isa_name(isa) << ' ' << dtype_name(type) << " rows " << rows << " threads " << threads;
        }
      }
}

TEST(Experts, OneBrokenRowHarmsNoOther) {
  auto x = noise(5 * kWidth, 9, 3), logits = noise(5 * kExperts, 10, 4);
  const Mixture mixture(cpu::available_isas().front(), 2, DType::kMXFP4, 3);
  const auto right = mixture.run(x.data(), logits.data(), 5);
  x[2 * kWidth + 5] = std::numeric_limits<float>::quiet_NaN();
  logits[3 * kExperts + 1] = std::numeric_limits<float>::quiet_NaN();
  const auto broken = mixture.run(x.data(), logits.data(), 5);
  EXPECT_TRUE(std::isnan(broken[2 * kWidth]));
  for (const size_t r : {0, 1, 4})
    EXPECT_EQ(0, std::memcmp(&broken[r * kWidth], &right[r * kWidth], kWidth * sizeof(float))) << r;
}

TEST(Experts, AStepAllocatesNothing) {
  const auto x = noise(kMostRows * kWidth, 11, 3), logits = noise(kMostRows * kExperts, 12, 4);
  const Mixture mixture(cpu::available_isas().front(), 2, DType::kQ4_0, 5);
  std::vector<float> out(kMostRows * kWidth);
  for (const int rows : {1, 2, 9, kMostRows}) {
    const long before = g_allocations.load();
    mixture.backend->experts(mixture.args(out.data(), x.data(), logits.data(), rows));
    EXPECT_EQ(g_allocations.load(), before) << rows;
  }
}

// What the router chooses and how the weights are normalised, on numbers worked out by hand.
TEST(Experts, TheRouterTakesTheLargestAndTheLowerOfEquals) {
  const Mixture mixture(cpu::available_isas().front(), 1, DType::kBF16, 3);
  float logits[kExperts] = {};
  logits[2] = logits[7] = std::log(4.0f);
  logits[9] = std::log(2.0f);
  ExpertsArgs args = mixture.args(nullptr, nullptr, logits, 1);
  int32_t choice[3];
  float weight[3];
  const auto expect = [&](std::initializer_list<int> experts, std::initializer_list<double> weights) {
    cpu::route_row(args, logits, choice, weight);
    EXPECT_EQ(std::vector<int32_t>(choice, choice + 3), std::vector<int32_t>(experts.begin(), experts.end()));
    for (size_t j = 0; j < 3; ++j) EXPECT_NEAR(weight[j], *(weights.begin() + j), 1e-6);
  };
  expect({2, 7, 9}, {0.4, 0.4, 0.2});
  args.renormalise = false;  // 4 + 4 + 2 + nine times 1
  expect({2, 7, 9}, {4.0 / 19, 4.0 / 19, 2.0 / 19});
  args.routing = Routing::kSigmoid;
  expect({2, 7, 9}, {0.8, 0.8, 2.0 / 3});
  args.renormalise = true;
  args.scale = 2;
  float bias[kExperts] = {};
  bias[0] = bias[11] = 1;  // which decides the choice and is no part of the weights
  args.choice_bias = bias;
  expect({0, 11, 2}, {1.0 / 1.8, 1.0 / 1.8, 1.6 / 1.8});
  for (float& logit : logits) logit = 0;
  bias[0] = bias[11] = 0;
  expect({0, 1, 2}, {2.0 / 3, 2.0 / 3, 2.0 / 3});
}

}  // namespace
}  // namespace sx
