// Chunk borders of a text that grows and is cut, against borders made in one go.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "speculative/cache/choice.h"

namespace sx {
namespace {

using Cells = std::vector<int32_t>;

Cells naive_borders(int cells, int chunk) {
  Cells borders = {0};
  for (int cell = 1; cell <= cells; ++cell)
    if (cell % chunk == 0 || cell == cells) borders.push_back(cell);
  return borders;
}

Cells copy(std::span<const int32_t> span) { return {span.begin(), span.end()}; }

TEST(ChunkBorders, GrowingCuttingAndRegrowingAreAsInOneGo) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  for (int round = 0; round < 300; ++round) {
    const int chunk = 1 + below(round % 2 ? 6 : 40), longest = below(500);
    ChunkBorders grown(chunk);
    EXPECT_EQ(copy(grown.borders()), Cells{0});
    EXPECT_EQ(grown.chunks(), 0);
    for (int step = 0, cells = 0; step < 30; ++step) {
      if (below(4) == 0) cells = below(2) ? below(cells + 1) : cells / chunk * chunk;
      else cells = std::min(longest, cells + below(70));
      grown.resize(cells);
      const Cells expected = naive_borders(cells, chunk);
      ASSERT_EQ(copy(grown.borders()), expected) << chunk << " " << cells;
      ASSERT_EQ(grown.chunks(), int(expected.size()) - 1);
    }
  }
}

TEST(ChunkBorders, ByHand) {
  ChunkBorders plain(4);
  for (const auto& [cells, borders] : {std::pair<int, Cells>{10, {0, 4, 8, 10}},
                                       {8, {0, 4, 8}},
                                       {5, {0, 4, 5}},
                                       {7, {0, 4, 7}},
                                       {9, {0, 4, 8, 9}},
                                       {3, {0, 3}},
                                       {0, {0}}}) {
    plain.resize(cells);
    EXPECT_EQ(copy(plain.borders()), borders);
  }
}

TEST(ChunkBorders, ItsOwnMistakesAreErrors) {
  ChunkBorders borders(4);
  EXPECT_ANY_THROW(borders.resize(-1));
}

}  // namespace
}  // namespace sx
