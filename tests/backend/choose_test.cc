// Sampling: greedy and its ties, filters against an independent computation, penalties, and exactness of Gumbel-max.
#include "backend/cpu/sampling/choose.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "base/rng.h"

namespace sx::cpu {
namespace {

class Choose : public ::testing::Test {
 protected:
  Choose() { scratch_.reserve(2, 4096); }
  Token one(const std::vector<float>& logits, const Sampling& s, uint64_t position = 0,
            std::span<const TokenBias> bias = {}, std::span<const TokenCount> counts = {}) {
    const ChooseRow row{logits.data(), position, &s, bias, counts};
    Token out = -1;
    choose({&out, std::span(&row, 1), int(logits.size())}, pool_, scratch_);
    return out;
  }
  ThreadPool pool_{2};
  RowScratches scratch_{default_isa()};
};

TEST_F(Choose, GreedyTakesTheFirstOfTheLargest) {
  std::vector<float> x(1000, 0.f);
  Sampling s;
  EXPECT_EQ(one(x, s), 0);
  x[777] = x[778] = 2;
  EXPECT_EQ(one(x, s), 777);
  x[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(one(x, s), 777);
  for (int n : {1, 2, 15, 16, 17, 33}) {
    std::vector<float> y(static_cast<size_t>(n), -5.f);
    y.back() = -4;
    EXPECT_EQ(one(y, s), n - 1);
  }
  EXPECT_EQ(one(std::vector<float>(10, -std::numeric_limits<float>::infinity()), s), 0);
}

TEST_F(Choose, BiasAndPenaltiesMoveTheChoice) {
  const std::vector<float> x{1.0f, 3.0f, 2.9f, -1.0f};
  Sampling s;
  const TokenBias bias[] = {{3, 10.f}, {99, 1.f}, {-1, 1.f}};
  EXPECT_EQ(one(x, s, 0, bias), 3);
  s.repeat_penalty = 1.5f;
  const TokenCount once[] = {{1, 1}};
  EXPECT_EQ(one(x, s, 0, {}, once), 2);
  s.repeat_penalty = 1;
  s.frequency_penalty = 0.04f;
  const TokenCount often[] = {{1, 3}};
  EXPECT_EQ(one(x, s, 0, {}, once), 1);
  EXPECT_EQ(one(x, s, 0, {}, often), 2);
}

// The race skips candidates that cannot win; it must agree with computing every score.
TEST_F(Choose, RaceEqualsTheFullComputation) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0, 3);
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> x(3000);
    for (auto& v : x) v = normal(random);
    Sampling s;
    s.temperature = 0.2f + float(trial % 10) * 0.3f;
    s.seed = uint64_t(trial);
    Token best = -1;
    double top = -1e300;
    for (size_t t = 0; t < x.size(); ++t) {
      const double score = double(x[t]) * (1.0 / double(s.temperature)) + gumbel(s.seed, 17, t);
      if (score > top) top = score, best = Token(t);
    }
    EXPECT_EQ(one(x, s, 17), best);
  }
}

TEST_F(Choose, SamplesFollowTheDistribution) {
  const std::vector<float> x{0.f, 1.f, 2.f, 0.5f, -1.f};
  Sampling s;
  s.temperature = 0.8f;
  std::vector<double> p;
  double sum = 0;
  for (float v : x) p.push_back(std::exp(double(v) / 0.8)), sum += p.back();
  std::vector<int> hits(x.size(), 0);
  const int n = 40000;
  for (int i = 0; i < n; ++i) ++hits[size_t(one(x, s, uint64_t(i)))];
  double chi = 0;
  for (size_t i = 0; i < x.size(); ++i) chi += std::pow(hits[i] - n * p[i] / sum, 2) / (n * p[i] / sum);
  EXPECT_LT(chi, 18.5);  // 4 degrees of freedom, p = 0.001
}

TEST_F(Choose, FiltersKeepWhatTheyShould) {
  const std::vector<float> x{std::log(0.5f), std::log(0.3f), std::log(0.15f), std::log(0.05f)};
  const auto support = [&](const Sampling& s) {
    unsigned seen = 0;
    for (uint64_t i = 0; i < 3000; ++i) seen |= 1u << one(x, s, i);
    return seen;
  };
  Sampling s;
  s.temperature = 1;
  EXPECT_EQ(support(s), 0b1111u);
  s.top_k = 2;
  EXPECT_EQ(support(s), 0b0011u);
  s.top_k = 0, s.top_p = 0.79f;
  EXPECT_EQ(support(s), 0b0011u);
  s.top_p = 0.81f;
  EXPECT_EQ(support(s), 0b0111u);
  s.top_p = 1, s.min_p = 0.25f;
  EXPECT_EQ(support(s), 0b0111u);
  s.min_p = 1;
  EXPECT_EQ(support(s), 0b0001u);
  s.min_p = 0, s.top_p = 1e-6f;
  EXPECT_EQ(support(s), 0b0001u);
}

TEST_F(Choose, RowsDoNotDependOnCompany) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  const int rows = 9, vocab = 500;
  std::vector<std::vector<float>> logits(rows, std::vector<float>(vocab));
  std::vector<Sampling> s(rows);
  std::vector<ChooseRow> all;
  std::vector<Token> alone, together(rows);
  std::vector<uint32_t> some((vocab + 31) / 32);
  for (auto& bits : some) bits = random() & random();
  for (int r = 0; r < rows; ++r) {
    for (auto& v : logits[size_t(r)]) v = normal(random);
    s[size_t(r)].temperature = float(r % 3) * 0.6f;
    s[size_t(r)].top_k = r % 2 ? 20 : 0;
    s[size_t(r)].top_p = r % 4 ? 0.9f : 1.f;
    all.push_back({logits[size_t(r)].data(), uint64_t(r), &s[size_t(r)], {}, {}});
    if (r % 3 == 1) all.back().allowed = some.data();
    Token out = -1;
    choose({&out, std::span(&all.back(), 1), vocab}, pool_, scratch_);
    alone.push_back(out);
  }
  choose({together.data(), all, vocab}, pool_, scratch_);
  EXPECT_EQ(together, alone);
}

}  // namespace
}  // namespace sx::cpu
