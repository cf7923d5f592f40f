// distribution() and choose() against the definition of sampling, on every instruction set: the same tokens, the same
// support, the probabilities to eleven digits, and draws that follow them.
#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "backend/cpu/sampling/choose.h"
#include "support/reference_backend.h"
#include "sampling_oracle.h"

namespace sx::cpu::testing {
namespace {

constexpr int kLargest = 49152;

class Distribution : public ::testing::TestWithParam<Isa> {
 protected:
  Distribution() { scratch_.reserve(1, kLargest); }
  std::vector<double> distribution_of(const Case& c) {
    std::vector<double> out(c.logits.size(), -1);
    probabilities({out.data(), c.row(), c.vocab()}, scratch_[0]);
    return out;
  }
  Token choice_of(const Case& c) {
    const ChooseRow row = c.row();
    Token out = -1;
    choose({&out, {&row, 1}, c.vocab()}, pool_, scratch_);
    return out;
  }
  RowScratches scratch_{GetParam()};
  ThreadPool pool_{1};
};

int any_size(int trial, std::mt19937& random) {
  if (trial % 7 == 0) return 1 + static_cast<int>(random() % 40);
  return trial % 100 == 1 ? kLargest : 100 + static_cast<int>(random() % 4000);
}

TEST_P(Distribution, ChoicesAreThoseOfTheDefinition) {
  std::mt19937 random(11);
  for (int trial = 0; trial < 700; ++trial) {
    const Case c = random_case(any_size(trial, random), random);
    const Sampling& s = c.sampling;
    ASSERT_EQ(choice_of(c), chosen(c)) << "vocabulary " << c.vocab() << " temperature " << s.temperature << " top-k "
                                       << s.top_k << " top-p " << s.top_p << " min-p " << s.min_p;
  }
}

TEST_P(Distribution, ProbabilitiesAreThoseOfTheDefinition) {
  std::mt19937 random(12);
  const auto reference = make_reference_backend();
  for (int trial = 0; trial < 700; ++trial) {
    const Case c = random_case(any_size(trial, random), random);
    const std::vector<double> expected = distribution(c), got = distribution_of(c);
    std::vector<double> other(got.size());
    reference->probabilities({other.data(), c.row(), c.vocab()});
    double sum = 0;
    for (size_t t = 0; t < got.size(); ++t) {
      ASSERT_NEAR(got[t], expected[t], 1e-11 * expected[t] + 1e-300) << "token " << t << " of " << c.vocab();
      ASSERT_NEAR(other[t], expected[t], 1e-11 * expected[t] + 1e-300) << "token " << t << " of the reference";
      sum += got[t];
    }
    ASSERT_NEAR(sum, 1, 1e-11);
    ASSERT_GT(got[static_cast<size_t>(choice_of(c))], 0);
    // The likeliest is the greedy choice. (Where a logit is +infinity only greedy choices look at it.)
    const std::vector<float> x = adjusted(c);
    if (x[static_cast<size_t>(greedy(x, c))] < kInfinity) {
      ASSERT_EQ(std::max_element(got.begin(), got.end()) - got.begin(), greedy(x, c));
    }
  }
}

// Borders of top-p that fall exactly on a token, where sums in another order would decide otherwise.
TEST_P(Distribution, EqualProbabilitiesAtTheBorderOfTopP) {
  for (const int vocab : {4, 100, 1000, 5000}) {
    for (const float share : {0.25f, 0.5f, 0.75f}) {
      Case c;
      c.logits.assign(static_cast<size_t>(vocab), 0.75f);
      c.sampling.temperature = 1, c.sampling.top_p = share;
      const std::vector<double> p = distribution_of(c);
      const auto support = std::count_if(p.begin(), p.end(), [](double x) { return x > 0; });
      EXPECT_EQ(support, static_cast<int>(share * float(vocab)));
      EXPECT_EQ(p, distribution(c));
    }
  }
}

TEST_P(Distribution, DrawsFollowTheDistributionAndStayInItsSupport) {
  std::mt19937 random(13);
  int support = 0;
  for (int trial = 0; trial < 12; ++trial) {
    Case c = random_case(12, random);
    for (float& x : c.logits) x = std::isfinite(x) ? std::clamp(x, -2.0f, 2.0f) : 0.5f;
    c.sampling.temperature = 0.7f + 0.1f * static_cast<float>(trial);
    c.sampling.top_k = trial % 3 == 0 ? 7 : 0, c.sampling.top_p = trial % 3 == 1 ? 0.8f : 1.0f;
    c.sampling.min_p = trial % 3 == 2 ? 0.2f : 0.0f;
    const std::vector<double> p = distribution_of(c);
    const int draws = 20000;
    std::vector<int> hits(p.size(), 0);
    for (c.position = 0; c.position < draws; ++c.position) ++hits[static_cast<size_t>(choice_of(c))];
    double chi = 0;
    for (size_t t = 0; t < p.size(); ++t) {
      ASSERT_EQ(hits[t] > 0, p[t] > 0) << "token " << t << " with probability " << p[t];
      if (p[t] > 0) chi += std::pow(hits[t] - draws * p[t], 2) / (draws * p[t]), ++support;
    }
    EXPECT_LT(chi, 35);  // up to 11 degrees of freedom: p = 0.0002
  }
  EXPECT_GT(support, 40);
}

TEST_P(Distribution, GreedyAndHopelessRowsHaveOneToken) {
  Case c;
  c.logits = {1, 3, 3, -2};
  EXPECT_EQ(distribution_of(c), (std::vector<double>{0, 1, 0, 0}));
  c.sampling.temperature = 1;
  for (const float all : {-kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    c.logits.assign(3, all);
    EXPECT_EQ(distribution_of(c), (std::vector<double>{1, 0, 0}));
    EXPECT_EQ(choice_of(c), 0);
  }
  c.logits = {-kInfinity, 0, kInfinity};
  EXPECT_EQ(distribution_of(c), (std::vector<double>{0, 1, 0}));
  c.logits = {-kInfinity, std::numeric_limits<float>::quiet_NaN(), kInfinity};
  EXPECT_EQ(distribution_of(c), (std::vector<double>{0, 0, 1}));
  EXPECT_EQ(choice_of(c), 2);
}

// NaN and +infinity are told of, wherever they are, unless the token may not be chosen anyhow; -infinity is not.
TEST_P(Distribution, BrokenRowsAreMarked) {
  std::mt19937 random(16);
  const auto reference = make_reference_backend();
  int marked = 0;
  for (int trial = 0; trial < 400; ++trial) {
    Case c = random_case(any_size(trial, random), random);
    if (trial % 3 == 0) restrict_tokens(c, random);
    if (trial % 4 == 0)
      c.logits[random() % c.logits.size()] = trial % 8 == 0 ? kInfinity : std::numeric_limits<float>::quiet_NaN();
    uint8_t expected = 0, found[4] = {};
    for (size_t t = 0; t < c.logits.size(); ++t) expected |= c.allows(t) && !(c.logits[t] < kInfinity);
    marked += expected;
    std::vector<double> distribution_out(c.logits.size());
    Token token = 0;
    ChooseRow rows[4] = {c.row(), c.row(), c.row(), c.row()};
    for (int i = 0; i < 4; ++i) rows[i].broken = &found[i];
    choose({&token, {&rows[0], 1}, c.vocab()}, pool_, scratch_);
    probabilities({distribution_out.data(), rows[1], c.vocab()}, scratch_[0]);
    reference->choose({&token, {&rows[2], 1}, c.vocab()});
    reference->probabilities({distribution_out.data(), rows[3], c.vocab()});
    for (const uint8_t one : found) ASSERT_EQ(one, expected) << "vocabulary " << c.vocab() << " trial " << trial;
  }
  EXPECT_GT(marked, 50);
  EXPECT_LT(marked, 350);
}

TEST_P(Distribution, ForbiddenTokensAreAsIfTheyWereNotThere) {
  std::mt19937 random(15);
  const auto reference = make_reference_backend();
  int none = 0, filtered = 0;
  for (int trial = 0; trial < 1500; ++trial) {
    Case c = random_case(any_size(trial, random), random);
    restrict_tokens(c, random);
    const Token expected_choice = chosen(c);
    const ChooseRow row = c.row();
    Token other_choice = 0;
    reference->choose({&other_choice, {&row, 1}, c.vocab()});
    ASSERT_EQ(choice_of(c), expected_choice) << "vocabulary " << c.vocab() << " trial " << trial;
    ASSERT_EQ(other_choice, expected_choice) << "by the reference, vocabulary " << c.vocab() << " trial " << trial;
    const std::vector<double> expected = distribution(c), got = distribution_of(c);
    std::vector<double> other(got.size());
    reference->probabilities({other.data(), row, c.vocab()});
    double sum = 0;
    for (size_t t = 0; t < got.size(); ++t) {
      ASSERT_NEAR(got[t], expected[t], 1e-11 * expected[t] + 1e-300) << "token " << t << " of " << c.vocab();
      ASSERT_NEAR(other[t], expected[t], 1e-11 * expected[t] + 1e-300) << "token " << t << " of the reference";
      if (!c.allows(t)) { ASSERT_EQ(got[t], 0); }
      sum += got[t];
    }
    if (expected_choice == kNoToken) {
      ASSERT_EQ(sum, 0);
      ++none;
      continue;
    }
    ASSERT_NEAR(sum, 1, 1e-11);
    ASSERT_TRUE(c.allows(static_cast<size_t>(expected_choice)));
    filtered += c.sampling.top_k > 0 || c.sampling.top_p < 1 || c.sampling.min_p > 0;
    // A mask that allows everything changes nothing, to the bit.
    c.allowed.assign(c.allowed.size(), ~0u);
    const std::vector<double> with = distribution_of(c);
    const Token chosen_with = choice_of(c);
    c.allowed.clear();
    const std::vector<double> without = distribution_of(c);
    ASSERT_EQ(std::memcmp(with.data(), without.data(), with.size() * sizeof(double)), 0);
    ASSERT_EQ(chosen_with, choice_of(c));
  }
  EXPECT_GT(none, 20);
  EXPECT_GT(filtered, 500);
}

// With forbidden logits of any size, also such as would be infinite or hide all others.
TEST_P(Distribution, LogitsOfForbiddenTokensDoNotMatter) {
  std::mt19937 random(16);
  for (int trial = 0; trial < 200; ++trial) {
    Case c = random_case(any_size(trial, random), random);
    restrict_tokens(c, random);
    const std::vector<double> before = distribution_of(c);
    const Token choice = choice_of(c);
    const float values[] = {1e30f, kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 0};
    for (size_t t = 0; t < c.logits.size(); ++t)
      if (!c.allows(t)) c.logits[t] = values[random() % 5];
    const std::vector<double> after = distribution_of(c);
    ASSERT_EQ(std::memcmp(before.data(), after.data(), before.size() * sizeof(double)), 0) << "trial " << trial;
    ASSERT_EQ(choice_of(c), choice) << "trial " << trial;
  }
}

TEST_P(Distribution, BitsAreThoseOfEveryOtherSet) {
  std::mt19937 random(14);
  RowScratches generic(Isa::kGeneric);
  generic.reserve(1, kLargest);
  for (int trial = 0; trial < 100; ++trial) {
    const Case c = random_case(any_size(trial, random), random);
    const std::vector<double> mine = distribution_of(c);
    std::vector<double> other(mine.size());
    probabilities({other.data(), c.row(), c.vocab()}, generic[0]);
    ASSERT_EQ(std::memcmp(mine.data(), other.data(), mine.size() * sizeof(double)), 0);
  }
}

std::string set_name(const ::testing::TestParamInfo<Isa>& set) {
  std::string name = isa_name(set.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Sets, Distribution, ::testing::ValuesIn(available_isas()), set_name);

}  // namespace
}  // namespace sx::cpu::testing
