// Every choice of cells against a naive one, cell by cell, on random and on awkward cases.
#include "speculative/cache/choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

namespace sx {
namespace {

using Cells = std::vector<int32_t>;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

struct RandomSource {
  std::mt19937 random{7};
  int below(int n) { return int(random() % unsigned(n)); }
  int between(int low, int high) { return low + below(high - low + 1); }
  // Few different values, so that there are ties; sometimes both zeros and infinities.
  std::vector<float> scores(int n) {
    std::vector<float> all;
    const int values = below(2) ? 4 : 100000;
    const bool odd = below(8) == 0;
    for (int i = 0; i < n; ++i) {
      all.push_back(float(below(values)) / float(values) - 0.5f);
      if (odd && below(4) == 0) all.back() = std::vector{0.0f, -0.0f, kInfinity, -kInfinity}[size_t(below(4))];
    }
    return all;
  }
};

Cells all_cells(int n) {
  Cells all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

void expect_sound(const Cells& cells, int count, int budget) {
  ASSERT_LE(int(cells.size()), std::max(0, budget));
  for (size_t i = 0; i < cells.size(); ++i) {
    ASSERT_TRUE(cells[i] >= 0 && cells[i] < count);
    ASSERT_TRUE(i == 0 || cells[i - 1] < cells[i]);
  }
}

Cells first_and_last(int cells, int first, int last) {
  Cells all;
  for (int i = 0; i < cells; ++i)
    if (i < first || i >= cells - last) all.push_back(i);
  return all;
}

// As many of the first cells as leave the last ones at least `recent` or half.
Cells naive_ends(int cells, int budget, int sink, int recent) {
  int first = 0;
  while (first < sink && budget - (first + 1) >= std::min(recent, (budget + 1) / 2)) ++first;
  return first_and_last(cells, first, budget - first);
}

// Places from best to worst.
std::vector<int> ranking(const std::vector<float>& scores) {
  std::vector<int> order(scores.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    const float x = scores[size_t(a)], y = scores[size_t(b)];
    return x == y ? a > b : x > y;
  });
  return order;
}

Cells naive_chunks(const Cells& borders, const std::vector<float>& scores, int budget, int sink, int recent) {
  const int cells = borders.back();
  if (budget <= 0) return {};
  if (cells <= budget) return all_cells(cells);
  std::vector<bool> sure(scores.size()), taken(scores.size());
  int left = budget;
  for (size_t c = 0; c < scores.size(); ++c) {
    for (int cell = borders[c]; cell < borders[c + 1]; ++cell)
      if (cell < sink || cell >= cells - recent) sure[c] = true;
    if (sure[c]) taken[c] = true, left -= borders[c + 1] - borders[c];
  }
  if (left < 0) return naive_ends(cells, budget, sink, recent);
  for (int place : ranking(scores)) {
    const size_t c = size_t(place);
    const int length = borders[c + 1] - borders[c];
    if (!sure[c] && length <= left) taken[c] = true, left -= length;
  }
  if (left == budget) return naive_ends(cells, budget, sink, recent);
  Cells out;
  for (size_t c = 0; c < scores.size(); ++c)
    for (int cell = borders[c]; taken[c] && cell < borders[c + 1]; ++cell) out.push_back(cell);
  return out;
}

Cells chunks_of(const Cells& borders, const std::vector<float>& scores, int budget, int sink, int recent) {
  Cells out = {-5, 99};  // what was there before does not matter
  std::vector<uint64_t> scratch = {1, 2, 3};
  choose_chunks(borders, scores, budget, sink, recent, out, scratch);
  return out;
}

Cells pruned_of(const std::vector<float>& scores, int budget, float uniform, int sink, int recent) {
  Cells out = {-5, 99};
  std::vector<uint64_t> scratch = {1, 2, 3};
  choose_pruned(scores, budget, uniform, sink, recent, out, scratch);
  return out;
}

Cells recent_of(int cells, int budget, int sink) {
  Cells out = {-5, 99};
  choose_recent(cells, budget, sink, out);
  return out;
}

Cells even_borders(int cells, int chunk) {
  Cells borders = {0};
  while (borders.back() < cells) borders.push_back(std::min(cells, borders.back() + chunk));
  return borders;
}

TEST(MeanOfRows, EqualsTheNaiveMean) {
  RandomSource random;
  for (int round = 0; round < 300; ++round) {
    const int count = random.between(1, 9), cells = random.below(200), chunk = random.between(1, 40);
    const Cells borders = even_borders(cells, chunk);
    const size_t n = borders.size() - 1;
    std::vector<float> scores;
    for (size_t i = 0; i < size_t(count) * n; ++i)
      scores.push_back(float(random.below(1000)) / 64 - 4);  // sums are exact
    std::vector<float> out(n, -77.0f);
    mean_of_rows(scores, count, out);
    for (const bool per_cell : {false, true}) {
      if (per_cell) divide_by_length(borders, out);
      for (size_t c = 0; c < n; ++c) {
        float sum = 0;
        for (size_t row = 0; row < size_t(count); ++row) sum += scores[row * n + c];
        const float mean = sum / float(count);
        ASSERT_EQ(out[c], per_cell ? mean / float(borders[c + 1] - borders[c]) : mean);
      }
    }
  }
}

TEST(Smooth, IsTheMeanOverNeighbours) {
  RandomSource random;
  std::vector<float> scratch;
  for (int round = 0; round < 200; ++round) {
    const int n = random.below(60), pool = random.between(0, 12);
    std::vector<float> scores;
    for (int i = 0; i < n; ++i) scores.push_back(float(random.below(1000)) / 64);  // sums are exact
    std::vector<float> smoothed = scores;
    smooth(smoothed, pool, scratch);
    for (int i = 0; i < n; ++i) {
      std::vector<float> near;
      for (int j = 0; j < n; ++j)
        if (2 * std::abs(i - j) <= pool) near.push_back(scores[size_t(j)]);
      ASSERT_EQ(smoothed[size_t(i)], std::accumulate(near.begin(), near.end(), 0.0f) / float(near.size()));
    }
  }
  std::vector<float> scores = {9, 0, 3, 6};
  smooth(scores, 3, scratch);
  EXPECT_EQ(scores, (std::vector<float>{4.5f, 4, 3, 4.5f}));
  smooth(scores, 1, scratch);
  EXPECT_EQ(scores, (std::vector<float>{4.5f, 4, 3, 4.5f}));
}

TEST(RandomScores, DependOnSeedRoundAndChunkOnly) {
  const auto scores = [](uint64_t seed, uint64_t round, size_t n) {
    std::vector<float> out(n, -1);
    random_scores(seed, round, out);
    return out;
  };
  std::set<std::vector<float>> all;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    for (uint64_t round = 0; round < 8; ++round) {
      const auto s = scores(seed, round, 1000);
      EXPECT_EQ(s, scores(seed, round, 1000));
      EXPECT_EQ(std::vector<float>(s.begin(), s.begin() + 10), scores(seed, round, 10));
      EXPECT_GE(*std::min_element(s.begin(), s.end()), 0.0f);
      EXPECT_LE(*std::max_element(s.begin(), s.end()), 1.0f);
      EXPECT_NEAR(std::accumulate(s.begin(), s.end(), 0.0) / 1000, 0.5, 0.05);
      EXPECT_GT(std::set<float>(s.begin(), s.end()).size(), 990u);
      all.insert(s);
    }
  }
  EXPECT_EQ(all.size(), 64u);
  std::set<Cells> choices;  // and so do the chunks chosen by them
  for (uint64_t round = 0; round < 8; ++round)
    choices.insert(chunks_of(even_borders(1000, 10), scores(1, round, 100), 200, 0, 0));
  EXPECT_EQ(choices.size(), 8u);
}

TEST(ChooseRecent, IsTheFirstAndTheLast) {
  for (int cells = 0; cells <= 24; ++cells) {
    for (int budget = -1; budget <= 26; ++budget) {
      for (int sink = 0; sink <= 27; ++sink) {
        const Cells out = recent_of(cells, budget, sink);
        expect_sound(out, cells, budget);
        ASSERT_EQ(int(out.size()), std::max(0, std::min(cells, budget)));
        if (cells <= budget || budget <= 0) continue;
        const int first = sink < budget ? sink : budget / 2;
        ASSERT_EQ(out, first_and_last(cells, first, budget - first)) << cells << " " << budget << " " << sink;
      }
    }
  }
  EXPECT_EQ(recent_of(10, 5, 2), (Cells{0, 1, 7, 8, 9}));
  EXPECT_EQ(recent_of(10, 5, 5), (Cells{0, 1, 7, 8, 9}));
  EXPECT_EQ(recent_of(10, 1, 4), (Cells{9}));
}

TEST(ChooseChunks, EqualsTheNaiveChoice) {
  RandomSource random;
  int by_score = 0, ends_only = 0;
  for (int round = 0; round < 20000; ++round) {
    const int cells = random.below(round % 2 ? 40 : 400), chunk = random.between(1, 24);
    const int budget = random.between(-1, cells + 2);
    const int sink = random.below(4) ? random.below(6) : random.below(cells + 3);
    const int recent = random.below(4) ? random.below(12) : random.below(cells + 3);
    Cells borders = even_borders(cells, chunk);
    if (random.below(2)) {  // lengths of all kinds, one cell among them
      borders = {0};
      while (borders.back() < cells) borders.push_back(std::min(cells, borders.back() + random.between(1, chunk)));
    }
    const auto scores = random.scores(int(borders.size()) - 1);
    const Cells out = chunks_of(borders, scores, budget, sink, recent);
    expect_sound(out, cells, budget);
    ASSERT_EQ(out, naive_chunks(borders, scores, budget, sink, recent))
        << round << ": " << cells << " " << chunk << " " << budget << " " << sink << " " << recent;
    ASSERT_EQ(out, chunks_of(borders, scores, budget, sink, recent));
    ASSERT_EQ(out.empty(), cells == 0 || budget <= 0);
    if (cells <= budget) { ASSERT_EQ(out, all_cells(cells)); }
    if (sink + recent <= budget) {
      for (int cell : first_and_last(cells, sink, recent))
        ASSERT_TRUE(std::binary_search(out.begin(), out.end(), cell));
    }
    if (cells <= budget || budget <= 0) continue;
    (out == naive_ends(cells, budget, sink, recent) ? ends_only : by_score) += 1;
  }
  EXPECT_GT(by_score, 2000);  // both happen
  EXPECT_GT(ends_only, 2000);
}

TEST(ChooseChunks, ByHand) {
  const Cells borders = {0, 4, 8, 12, 16, 18};
  const auto whole = [&](std::vector<int> chunks) {
    Cells cells;
    for (int c : chunks)
      for (int i = borders[size_t(c)]; i < borders[size_t(c) + 1]; ++i) cells.push_back(i);
    return cells;
  };
  const std::vector<float> scores = {1, 5, 3, 4, 2}, ties(5, 1.0f);
  EXPECT_EQ(chunks_of(borders, scores, 8, 0, 0), whole({1, 3}));
  EXPECT_EQ(chunks_of(borders, scores, 11, 0, 0), whole({1, 3, 4}));  // chunk 2 does not fit, 4 does
  EXPECT_EQ(chunks_of(borders, scores, 11, 1, 0), whole({0, 1, 4}));  // the sink first
  EXPECT_EQ(chunks_of(borders, scores, 10, 1, 1), whole({0, 1, 4}));  // and the last
  EXPECT_EQ(chunks_of(borders, scores, 10, 0, 3), whole({1, 3, 4}));  // three cells touch two chunks
  EXPECT_EQ(chunks_of(borders, ties, 8, 0, 0), whole({3, 4}));        // ties: the later ones
  EXPECT_EQ(chunks_of(borders, ties, 8, 4, 0), whole({0, 4}));
  EXPECT_EQ(chunks_of(borders, scores, 9, 2, 3), (Cells{0, 1, 11, 12, 13, 14, 15, 16, 17}));  // 10 cells for sure
  EXPECT_EQ(chunks_of(borders, scores, 3, 2, 9), (Cells{0, 16, 17}));
  EXPECT_EQ(chunks_of({0, 9}, {1}, 3, 0, 0), (Cells{6, 7, 8}));  // a chunk longer than the budget
  EXPECT_EQ(chunks_of(borders, scores, 18, 0, 0), all_cells(18));
  EXPECT_EQ(chunks_of(borders, scores, 0, 2, 2), Cells{});
  EXPECT_EQ(chunks_of({0}, {}, 5, 2, 2), Cells{});
  constexpr int kHuge = std::numeric_limits<int>::max();
  EXPECT_EQ(chunks_of(borders, scores, kHuge, kHuge, kHuge), all_cells(18));
  EXPECT_EQ(chunks_of(borders, scores, 5, kHuge, kHuge), (Cells{0, 1, 15, 16, 17}));
}

// Heads that choose for themselves share one working cache: their choices are of one size.
TEST(ChooseChunks, EqualLengthsGiveEqualSizes) {
  RandomSource random;
  for (int round = 0; round < 500; ++round) {
    const int cells = random.between(1, 400), budget = random.between(1, 200);
    const Cells borders = even_borders(cells, random.between(1, 40));
    std::set<size_t> sizes;
    const int sink = random.below(5), recent = random.between(1, 9);
    for (int head = 0; head < 5; ++head)
      sizes.insert(chunks_of(borders, random.scores(int(borders.size()) - 1), budget, sink, recent).size());
    ASSERT_EQ(sizes.size(), 1u);
  }
}

TEST(ChooseChunks, NaNIsTheWorstScore) {
  EXPECT_EQ(chunks_of(all_cells(6), {kNaN, -kInfinity, -kNaN, 3, kNaN}, 2, 0, 0), (Cells{1, 3}));
  EXPECT_EQ(pruned_of({kNaN, -kInfinity, -kNaN, 3, kNaN}, 2, 0, 0, 0), (Cells{1, 3}));
}

TEST(ChooseChunks, ScoresAndChunksMustFit) { EXPECT_ANY_THROW(chunks_of({0, 4, 8}, {1}, 4, 0, 0)); }

TEST(ChoosePruned, EqualsTheNaiveChoice) {
  RandomSource random;
  int spreads = 0;
  for (int round = 0; round < 20000; ++round) {
    const int cells = random.below(round % 2 ? 30 : 300), budget = random.between(-1, cells + 2);
    const int sink = random.below(4) ? random.below(6) : random.below(cells + 3);
    const int recent = random.below(4) ? random.below(12) : random.below(cells + 3);
    const float uniform = float(random.below(9)) / 8;
    const auto scores = random.scores(cells);
    const Cells out = pruned_of(scores, budget, uniform, sink, recent);
    expect_sound(out, cells, budget);
    ASSERT_EQ(int(out.size()), std::max(0, std::min(cells, budget)));
    ASSERT_EQ(out, pruned_of(scores, budget, uniform, sink, recent));
    if (cells <= budget || budget <= 0) continue;
    if (sink + recent > budget) {
      ASSERT_EQ(out, naive_ends(cells, budget, sink, recent));
      continue;
    }
    std::set<int> expected;
    for (int cell : first_and_last(cells, sink, recent)) expected.insert(cell);
    const int top = budget - int(uniform * float(budget));
    for (int cell : ranking(scores))
      if (int(expected.size()) < top) expected.insert(cell);
    std::vector<int> ranks;  // of the cells that are there without being sure or best, among all such
    int others = 0;
    for (int cell = 0; cell < cells; ++cell) {
      const bool there = std::binary_search(out.begin(), out.end(), cell);
      if (expected.count(cell)) ASSERT_TRUE(there) << round << " " << cell;
      else if (++others && there) ranks.push_back(others - 1);
    }
    ASSERT_EQ(int(ranks.size() + expected.size()), budget);
    const int spread = int(ranks.size());
    for (int j = 0; j < spread; ++j) {  // in the middle of stretch j of `spread`: [j, j + 1) * others / spread
      const double middle = (j + 0.5) * others / spread;
      ASSERT_TRUE(ranks[size_t(j)] <= middle + 1e-9 && ranks[size_t(j)] > middle - 1 - 1e-9) << round << " " << j;
    }
    spreads += spread > 1;
    if (uniform == 0) { ASSERT_EQ(spread, 0); }
    if (uniform == 0 || sink + recent == budget) {  // nothing spread: the same as chunks of one cell
      ASSERT_EQ(out, chunks_of(all_cells(cells + 1), scores, budget, sink, recent));
    }
  }
  EXPECT_GT(spreads, 5000);
}

TEST(ChoosePruned, ByHand) {
  const std::vector<float> scores = {0, 9, 0, 0, 8, 0, 0, 7, 0, 0};
  EXPECT_EQ(pruned_of(scores, 3, 0, 0, 0), (Cells{1, 4, 7}));
  EXPECT_EQ(pruned_of(scores, 4, 0.5f, 0, 0), (Cells{1, 3, 4, 8}));  // left are 0 2 3 5 and 6 7 8 9
  EXPECT_EQ(pruned_of(scores, 3, 0, 1, 1), (Cells{0, 1, 9}));
  EXPECT_EQ(pruned_of(scores, 5, 1, 0, 0), (Cells{1, 3, 5, 7, 9}));
  EXPECT_EQ(pruned_of(scores, 3, 1, 1, 1), (Cells{0, 5, 9}));
  EXPECT_EQ(pruned_of(std::vector<float>(10, 1.0f), 3, 0, 0, 0), (Cells{7, 8, 9}));
}

TEST(ChoosePruned, LongTexts) {
  const int cells = 131072;
  std::vector<float> scores(static_cast<size_t>(cells));
  random_scores(1, 2, scores);
  const Cells out = pruned_of(scores, 1024, 0.2f, 4, 64);
  expect_sound(out, cells, 1024);
  EXPECT_EQ(out.size(), 1024u);
  const auto order = ranking(scores);
  for (size_t i = 0; i < 1024 - 204 - 68; ++i) ASSERT_TRUE(std::binary_search(out.begin(), out.end(), order[i]));
}

}  // namespace
}  // namespace sx
