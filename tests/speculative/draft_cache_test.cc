// What a draft cache holds, at which positions, when it is refreshed, and what it forgets.
#include "speculative/cache/draft_cache.h"

#include <limits>

#include "speculative/draft_cache_bench.h"

namespace sx {
namespace {

using testing::CacheBench;
using testing::Cells;
using testing::config_of;
using testing::kDim;
using testing::kHeads;
using testing::target_choice;

// --- What is gathered, and where RoPE sees it.

TEST(DraftCache, KeysAreThoseOfTheirPlaces) {
  for (const CachePositions positions : {CachePositions::kCompact, CachePositions::kOriginal})
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved})
      for (const std::string_view kind : {"streaming", "retrieval", "random"})
        for (const int trained : {2048, 340}) {  // 340: with 288 kept for new cells, the oldest of 64 share a position
          CacheConfig c = config_of(kind);
          c.positions = positions;
          CacheBench b(c, trained, style);
          b.prompt(0, 190, 1);
          b.prompt(1, 90, 2);
          for (unsigned round = 0; round < 9; ++round)
            b.round(0, 1 + int(round % 4), 10 + round), b.round(1, 2, 40 + round);
          b.expect_keys(0, 1e-4);
          b.expect_keys(1, 1e-4);
          EXPECT_EQ(b.cache->refreshes(0), 3);
        }
}

TEST(DraftCache, PositionsStayWithinTheTrainedLength) {
  for (const std::string_view kind : {"full", "streaming", "random"})
    for (const int trained : {320, 400, 700}) {
      CacheConfig c = config_of(kind);
      c.interval = 1 << 20, c.budget = kind == "full" ? c.budget : 300;
      CacheBench b(c, trained);
      b.prompt(0, 330, 1);
      for (int round = 0; round < 160; ++round) {
        b.round(0, 1 + round % 6, unsigned(round));
        // New cells follow one another, and there is room for a tree of 32 levels.
        for (int ahead = -4; ahead < 32; ++ahead) {
          EXPECT_LT(b.cache->position(0, ahead), trained);
          EXPECT_EQ(b.cache->position(0, ahead), b.cache->position(0, ahead - 1) + 1) << round << " " << ahead;
        }
        EXPECT_EQ(b.cache->position(0, 500), trained - 1) << "deeper levels share the last position";
        if (kind == "full") { EXPECT_EQ(b.cache->work(0), b.cache->length(0)); }
      }
      b.expect_keys(0, 1e-4);
      EXPECT_GT(b.cache->length(0), 800);
    }
}

// --- When it is refreshed.

TEST(DraftCache, NoTokenIsLostAtABorder) {
  for (int step = 2; step <= 9; ++step) {
    CacheConfig c = config_of("retrieval");
    c.interval = 1 << 20;
    CacheBench b(c);
    b.prompt(0, 203, 1);
    b.note_target(0, 4);
    for (unsigned round = 0; round < 20; ++round) {
      const Cells before = b.cells(0);
      const int from = b.cache->length(0);
      b.round(0, step, round);
      const Cells now = b.cells(0);
      if (round == 0) continue;  // the first choice
      for (const int32_t cell : before)
        EXPECT_TRUE(std::binary_search(now.begin(), now.end(), cell)) << step << " " << cell;
      for (int cell = from; cell < from + step; ++cell) EXPECT_TRUE(std::binary_search(now.begin(), now.end(), cell));
    }
    EXPECT_EQ(b.cache->refreshes(0), 1);
  }
}

TEST(DraftCache, RefreshesFollowTheInterval) {
  for (const int interval : {1, 2, 5}) {
    CacheConfig c = config_of("streaming");
    c.interval = interval;
    CacheBench b(c);
    b.prompt(0, 150, 1);
    b.add_text(0, 1, 1);
    b.prepare(0);
    b.run(0);
    EXPECT_EQ(b.cache->refreshes(0), 1);
    for (int round = 1; round <= 20; ++round) {
      b.round(0, 2, unsigned(round));
      EXPECT_EQ(b.cache->refreshes(0), 1 + round / interval) << interval;
    }
  }
}

TEST(DraftCache, RefreshesComeBeforeTheCellsAreRun) {
  CacheConfig c = config_of("retrieval");
  c.interval = 1;
  CacheBench b(c);
  b.prompt(0, 150, 1);
  b.note_target(0, 1);
  b.add_text(0, 1, 1);
  b.prepare(0);
  EXPECT_EQ(b.cells(0), target_choice(b, 0, c, 150)) << "the first choice";
  b.run(0);
  EXPECT_EQ(b.cache->refreshes(0), 1);
  b.add_text(0, 2, 2);
  b.note_target(0, 3);
  b.cache->observe(0);
  b.prepare(0);
  EXPECT_EQ(b.cache->refreshes(0), 2);
  b.run(0);
  EXPECT_EQ(b.cache->refreshes(0), 2);
  Cells right = target_choice(b, 0, c, 151);
  right.push_back(151), right.push_back(152);
  EXPECT_EQ(b.cells(0), right);
}

// --- What is forgotten.

TEST(DraftCache, NothingSurvivesItsText) {
  for (const std::string_view kind : {"full", "window", "streaming", "retrieval", "prune", "random"}) {
    CacheConfig c = config_of(kind);
    CacheBench used(c, 340), fresh(c, 340);
    used.prompt(0, 400, 1);
    if (used.cache->reads_target()) used.note_target(0, 9);
    for (unsigned round = 0; round < 11; ++round) used.round(0, 1 + int(round) % 5, round);
    used.cache->truncate(0, 0, 0);
    used.texts[0].clear();
    EXPECT_EQ(used.cache->length(0), 0);
    EXPECT_EQ(used.cache->refreshes(0), 0);
    EXPECT_TRUE(used.cells(0).empty());
    for (CacheBench* b : {&used, &fresh}) {
      b->prompt(0, 130, 2);
      if (kind == "retrieval") b->note_target(0, 3);
    }
    for (unsigned round = 0; round < 30; ++round) {
      for (CacheBench* b : {&used, &fresh}) b->round(0, round < 15 ? 4 : 1, 50 + round);
      EXPECT_EQ(used.cells(0), fresh.cells(0)) << round;
      EXPECT_EQ(used.cache->refreshes(0), fresh.cache->refreshes(0)) << round;
      EXPECT_EQ(used.cache->position(0, 0), fresh.cache->position(0, 0)) << round;
    }
    used.expect_keys(0, 1e-4);
  }
}

// A cut that takes the query's token takes the query: the target has to show it again. One that does not, does not.
TEST(DraftCache, QueriesGoWithTheirTokens) {
  CacheBench b(config_of("retrieval"));
  b.cache->truncate(0, 0, 0);
  EXPECT_GE(b.cache->covered(0), 0);
  b.prompt(0, 150, 1);
  b.note_target(0, 1);
  EXPECT_GE(b.cache->covered(0), 150);
  b.cache->truncate(0, 150, 150);
  EXPECT_GE(b.cache->covered(0), 150);
  b.cache->truncate(0, 140, 140);
  EXPECT_EQ(b.cache->covered(0), 139);
  b.texts[0].resize(140);
  b.note_target(0, 2);
  EXPECT_GE(b.cache->covered(0), 140);
  b.cache->truncate(0, 145, 145);  // five tokens were decoded plainly
  EXPECT_EQ(b.cache->covered(0), 144);

  // Its own queries come from running cells: those are given back.
  for (const std::string_view kind : {"once", "quest", "snap"}) {
    const CacheConfig c = config_of(kind);
    CacheBench own(c);
    own.prompt(0, 150, 1);
    const std::vector<float> q(size_t(kHeads * kDim), 0.1f);
    const std::vector<const float*> pointers = {q.data(), q.data()};
    own.cache->note_own(0, pointers, 0, 1, 149, 149);
    own.cache->truncate(0, 150, 150);
    EXPECT_EQ(own.cache->length(0), 150);
    own.cache->truncate(0, 140, 140);
    EXPECT_EQ(own.cache->length(0), 140 - (kind == "snap" ? 32 : 1));
    EXPECT_EQ(own.cache->covered(0), std::numeric_limits<int>::max()) << "the target has nothing to show";
  }
}

// A choice made once stands, also when what was generated since is cut; a cut into what it was made from takes it.
TEST(DraftCache, ChoicesMadeOnceStand) {
  CacheConfig c = config_of("once");
  CacheBench b(c);
  b.prompt(0, 300, 1);
  std::vector<float> q;
  for (int i = 0; i < kHeads * kDim; ++i) q.push_back(float(CacheBench::noise(5, 5, uint64_t(i))));
  const std::vector<const float*> pointers = {q.data(), q.data()};
  b.cache->note_own(0, pointers, 0, 1, 299, 299);
  b.add_text(0, 1, 2);
  b.prepare(0);
  const Cells chosen = b.cells(0);
  b.run(0);
  b.cache->note_own(0, pointers, 0, 1, b.cache->position(0, -1), 300);
  const auto expect_chosen = [&](int first_new, int end) {
    Cells right = chosen;
    for (int cell = first_new; cell < end; ++cell) right.push_back(cell);
    EXPECT_EQ(b.cells(0), right);
  };
  for (unsigned round = 0; round < 5; ++round) b.round(0, 3, round);
  expect_chosen(300, 316);
  b.cache->note_own(0, pointers, 0, 1, b.cache->position(0, -1), 315);
  b.cache->truncate(0, 310, 310);  // into what was generated
  b.texts[0].resize(310);
  b.add_text(0, 1, 3);
  b.prepare(0);
  b.run(0);
  expect_chosen(300, 311);
  EXPECT_NE(chosen[c.sink + 4], 300 - c.budget + c.sink + 4) << "the most recent ones were chosen anyway";
  for (unsigned round = 0; round < 50; ++round) b.round(0, 5, round);  // and when there is no room left
  EXPECT_GT(b.cache->refreshes(0), 2);
  EXPECT_TRUE(std::equal(chosen.begin(), chosen.end(), b.cells(0).begin()));
  EXPECT_EQ(b.cells(0).back(), b.cache->length(0) - 1);
}

}  // namespace
}  // namespace sx
