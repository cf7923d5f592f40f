// Chunk borders of a growing text against cutting it cell by cell.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "speculative/cache/choice.h"

namespace sx {
namespace {

using Cells = std::vector<int32_t>;

// Cell by cell: a chunk is closed when it is full, or long enough and at the end of a sentence.
Cells naive_borders(int cells, int chunk, bool sentences, const Cells& text, const std::vector<uint8_t>& ends) {
  Cells borders = {0};
  int length = 0;
  for (int cell = 0; cell < cells; ++cell) {
    ++length;
    bool closed = length == chunk;
    if (sentences) {
      const int token = text[size_t(cell)];
      const bool end = token >= 0 && token < int(ends.size()) && ends[size_t(token)];
      closed = length == chunk * 3 / 2 || (2 * length >= chunk - chunk % 2 && end);
    }
    if (closed) borders.push_back(cell + 1), length = 0;
  }
  if (length > 0) borders.push_back(cells);
  return borders;
}

Cells copy(std::span<const int32_t> span) { return {span.begin(), span.end()}; }

TEST(ChunkBorders, GrowingCuttingAndRegrowingAreAsInOneGo) {
  std::mt19937 random(7);
  const auto below = [&](int n) { return int(random() % unsigned(n)); };
  const auto between = [&](int low, int high) { return low + below(high - low + 1); };
  for (int round = 0; round < 300; ++round) {
    const int chunk = between(1, round % 2 ? 6 : 40), tokens = between(1, 30), longest = between(0, 500);
    const bool sentences = below(2);
    std::vector<uint8_t> ends;
    for (int t = 0; t < tokens; ++t) ends.push_back(below(4) == 0);
    Cells text;
    ChunkBorders grown(chunk, sentences);
    EXPECT_EQ(copy(grown.borders()), Cells{0});
    EXPECT_EQ(grown.chunks(), 0);
    for (int step = 0; step < 30; ++step) {
      if (below(4) == 0) {
        const Cells before = copy(grown.borders());
        int to = between(0, int(text.size()));
        if (below(2)) to = before[size_t(below(int(before.size())))];
        text.resize(size_t(to));  // the text may go on differently
        grown.truncate(to);
      } else {
        const size_t to = std::min(size_t(longest), text.size() + size_t(below(70)));
        while (text.size() < to) text.push_back(between(-1, tokens + 1));
        grown.extend(int(text.size()), text, ends);
      }
      const Cells expected = naive_borders(int(text.size()), chunk, sentences, text, ends);
      ASSERT_EQ(copy(grown.borders()), expected) << chunk << " " << sentences << " " << text.size();
      ASSERT_EQ(grown.chunks(), int(expected.size()) - 1);
      ChunkBorders once(chunk, sentences);
      once.extend(int(text.size()), text, ends);
      ASSERT_EQ(copy(once.borders()), expected);
      for (size_t c = 0; sentences && c + 2 < expected.size(); ++c) {
        const int length = expected[c + 1] - expected[c];
        ASSERT_GE(length, std::max(1, chunk / 2));
        ASSERT_LE(length, chunk + chunk / 2);
      }
    }
    grown.clear();
    EXPECT_EQ(copy(grown.borders()), Cells{0});
  }
}

TEST(ChunkBorders, ByHand) {
  ChunkBorders plain(4);
  plain.extend(10, {}, {});
  EXPECT_EQ(copy(plain.borders()), (Cells{0, 4, 8, 10}));
  plain.truncate(20);  // nothing to cut
  EXPECT_EQ(copy(plain.borders()), (Cells{0, 4, 8, 10}));
  plain.truncate(8);
  EXPECT_EQ(copy(plain.borders()), (Cells{0, 4, 8}));
  plain.truncate(5);
  EXPECT_EQ(copy(plain.borders()), (Cells{0, 4, 5}));
  plain.truncate(0);
  EXPECT_EQ(copy(plain.borders()), Cells{0});

  ChunkBorders sentences(4, true);  // 2 to 6 cells
  const Cells text = {1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 0};
  const std::vector<uint8_t> ends = {0, 1};
  sentences.extend(15, text, ends);
  EXPECT_EQ(copy(sentences.borders()), (Cells{0, 3, 9, 12, 14, 15}));
}

TEST(ChunkBorders, ItsOwnMistakesAreErrors) {
  ChunkBorders borders(4, true);
  EXPECT_ANY_THROW(borders.extend(3, Cells{1, 2}, {}));
  borders.extend(2, Cells{1, 2}, {});
  EXPECT_ANY_THROW(borders.extend(1, Cells{1, 2}, {}));
}

}  // namespace
}  // namespace sx
