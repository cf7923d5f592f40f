// Choosing cells allocates nothing once the vectors have room: a counting operator new watches rounds of every choice.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/rng.h"
#include "speculative/cache/choice.h"
#include "support/counting_new.h"

namespace sx {
namespace {

TEST(CacheChoiceAllocation, ChoosingAllocatesNothing) {
  constexpr int kCells = 8192, kBudget = 512;
  std::vector<uint8_t> ends(50);
  for (size_t t = 0; t < ends.size(); t += 7) ends[t] = 1;
  std::vector<int32_t> text;
  for (int i = 0; i < kCells; ++i) text.push_back(int32_t(hash_key(1, 2, uint64_t(i)) % 50));
  for (bool sentences : {false, true}) {
    ChunkBorders borders(16, sentences);
    borders.reserve(kCells);
    std::vector<int32_t> out;
    out.reserve(kBudget);
    std::vector<uint64_t> scratch;
    scratch.reserve(kCells);
    std::vector<float> votes, scores(size_t(kCells) * 2), reduced(kCells);
    votes.reserve(kCells);
    size_t chosen = 0;
    const long before = g_allocations.load();
    for (int round = 0, cells = 0; round < 200; ++round) {
      if (round % 10 == 9) borders.truncate(cells -= cells / 4);
      cells = std::min(kCells, cells + round * 7);
      borders.extend(cells, text, ends);
      const size_t chunks = size_t(borders.chunks());
      random_scores(3, uint64_t(round), std::span(scores).first(2 * chunks));
      const auto one = std::span(reduced).first(chunks);
      reduce_scores(std::span(scores).first(2 * chunks), 2, borders.borders(), HeadReduce::kMean, ChunkReduce::kMean,
                    one);
      choose_chunks(borders.borders(), one, kBudget, 4, 64, out, scratch), chosen += out.size();
      choose_recent(cells, kBudget, 4, out), chosen += out.size();
      random_scores(3, uint64_t(round), reduced);
      const auto single = std::span(reduced).first(size_t(cells));
      smooth(single, 7, votes);
      choose_pruned(single, kBudget, 0.2f, 4, 64, out, scratch), chosen += out.size();
    }
    EXPECT_EQ(g_allocations.load() - before, 0);
    EXPECT_GT(chosen, 200u * kBudget);
    borders.clear();
    borders.extend(kCells, text, ends);
    EXPECT_EQ(g_allocations.load() - before, 0);
  }
}

// The counter counts.
TEST(CacheChoiceAllocation, TheCounterSeesAllocations) {
  const long before = g_allocations.load();
  const auto p = std::make_unique<std::vector<int>>(100);
  EXPECT_GE(g_allocations.load() - before, 2);
  EXPECT_EQ(p->size(), 100u);
}

}  // namespace
}  // namespace sx
