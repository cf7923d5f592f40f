// top_k() against a full sort and a logarithm of sums in double precision; its bits in any batch; and the pieces that
// choose() uses too.
#include "backend/cpu/sampling/top_k.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "sampling_oracle.h"

namespace sx::cpu::testing {
namespace {

constexpr int kLargest = 49152;

// All tokens, best first; what is not finite last.
std::vector<Candidate> sorted(const std::vector<float>& row) {
  std::vector<Candidate> all;
  double sum = 0;
  float top = -kInfinity;
  for (const float x : row)
    if (std::isfinite(x)) top = std::max(top, x);
  for (size_t t = 0; t < row.size(); ++t) {
    all.push_back({static_cast<Token>(t), std::isfinite(row[t]) ? row[t] : -kInfinity});
    if (std::isfinite(row[t])) sum += std::exp(double(row[t]) - double(top));
  }
  std::sort(all.begin(), all.end(), [](const Candidate& a, const Candidate& b) {
    return a.logp != b.logp ? a.logp > b.logp : a.token < b.token;
  });
  for (Candidate& c : all)
    if (std::isfinite(c.logp)) c.logp = static_cast<float>(double(c.logp) - double(top) - std::log(sum));
  return all;
}

class TopK : public ::testing::TestWithParam<Isa> {
 protected:
  TopK() { scratch_.reserve(1, kLargest); }
  void check(const std::vector<float>& row, int k) {
    const std::vector<Candidate> expected = sorted(row);
    std::vector<Candidate> got(static_cast<size_t>(k) + 1, {-7, 7});
    top_k({got.data(), row.data(), 1, static_cast<int>(row.size()), k}, pool_, scratch_);
    for (size_t i = 0; i < static_cast<size_t>(k); ++i) {
      ASSERT_EQ(got[i].token, expected[i].token) << "place " << i << " of " << k << " in " << row.size();
      if (expected[i].logp == -kInfinity) {
        ASSERT_EQ(got[i].logp, -kInfinity);
      } else {
        ASSERT_NEAR(got[i].logp, expected[i].logp, 1e-5 * std::max(1.0, std::fabs(double(expected[i].logp)) / 10));
        ASSERT_LE(got[i].logp, 0);
      }
    }
    ASSERT_EQ(got.back().token, -7) << "wrote beyond its place";
  }
  RowScratches scratch_{GetParam()};
  ThreadPool pool_{1};
};

TEST_P(TopK, EqualsSorting) {
  std::mt19937 random(21);
  for (const int vocab : {1, 2, 15, 16, 17, 31, 300, 1023, 1024, 1025, 1040, 2047, 5000, 20001}) {
    for (int trial = 0; trial < 12; ++trial) {
      const std::vector<float> row = random_logits(vocab, random);
      for (const int k : {1, 2, 10, 64, 1 + static_cast<int>(random() % static_cast<unsigned>(vocab))})
        if (k <= vocab) check(row, k);
    }
    check(random_logits(vocab, random), vocab);
  }
  for (const int k : {1, 10, 64, 3000}) check(random_logits(kLargest, random), k);
}

TEST_P(TopK, OrdersThatDefeatGuesses) {
  std::vector<float> row(5000);
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<float>(i) / 100;  // ascending: one slab has it all
  check(row, 64);
  std::reverse(row.begin(), row.end());
  check(row, 64);
  for (size_t i = 0; i < row.size(); ++i) row[i] = i % 16 == 3 ? 9 - static_cast<float>(i) / 5000 : 0;  // one group
  check(row, 64);
  row.assign(5000, 2.5f);
  check(row, 64);
  check(row, 5000);
  row.back() = 2.75f;
  check(row, 3);
}

// Logits far from 0, peaks that leave nothing to others, and flat rows, whose sum has the most terms of one size.
TEST_P(TopK, LogProbabilitiesAtAnySize) {
  std::mt19937 random(22);
  std::normal_distribution<float> normal(0, 2);
  for (const float offset : {-1e4f, -300.0f, 0.0f, 88.0f, 5000.0f}) {
    std::vector<float> row(kLargest);
    for (float& x : row) x = normal(random) + offset;
    check(row, 20);
    row[777] = offset + 60;
    check(row, 20);
    row.assign(row.size(), offset + 0.37f);
    check(row, 20);
    for (size_t i = 0; i < row.size(); ++i) row[i] = offset - (i == 5 ? 0.0f : 11.3f);
    check(row, 20);
  }
}

TEST_P(TopK, BitsDependOnTheRowOnly) {
  std::mt19937 random(23);
  const int vocab = 3333, k = 10, rows = 9;
  std::vector<float> logits;
  std::vector<Candidate> alone;
  for (int r = 0; r < rows; ++r) {
    const std::vector<float> row = random_logits(vocab, random);
    logits.insert(logits.end(), row.begin(), row.end());
    alone.resize(alone.size() + k);
    top_k({alone.data() + r * k, row.data(), 1, vocab, k}, pool_, scratch_);
  }
  for (int threads = 1; threads <= 4; ++threads) {
    ThreadPool pool(threads);
    RowScratches scratch(GetParam());
    scratch.reserve(threads, vocab);
    for (int from = 0; from < rows; from += 3) {
      for (int count = 1; from + count <= rows; ++count) {
        std::vector<Candidate> got(static_cast<size_t>(count * k));
        top_k({got.data(), logits.data() + from * vocab, count, vocab, k}, pool, scratch);
        ASSERT_EQ(std::memcmp(got.data(), alone.data() + from * k, got.size() * sizeof(Candidate)), 0)
            << threads << " threads, " << count << " rows from " << from;
      }
    }
  }
}

TEST_P(TopK, FirstOfTheLargest) {
  std::mt19937 random(24);
  for (int trial = 0; trial < 300; ++trial) {
    const std::vector<float> row = random_logits(1 + static_cast<int>(random() % 4000), random);
    const int vocab = static_cast<int>(row.size());
    const float largest = find_maxima(row.data(), vocab, scratch_[0]);
    ASSERT_EQ(first_with(largest, row.data(), vocab, scratch_[0]), greedy(row));
  }
}

std::string set_name(const ::testing::TestParamInfo<Isa>& set) {
  std::string name = isa_name(set.param);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}
INSTANTIATE_TEST_SUITE_P(Sets, TopK, ::testing::ValuesIn(available_isas()), set_name);

}  // namespace
}  // namespace sx::cpu::testing
