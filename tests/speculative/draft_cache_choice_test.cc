// Which cells a draft cache chooses by scores: those that a second computation of the scores, in double precision,
// chooses.
#include <map>

#include "speculative/draft_cache_bench.h"

namespace sx {
namespace {

using testing::CacheBench;
using testing::Cells;
using testing::choose_naively;
using testing::chunks_of;
using testing::config_of;
using testing::dots;
using testing::kDim;
using testing::kHeads;
using testing::kKvHeads;
using testing::softmax;
using testing::target_choice;

TEST(DraftCache, ChoosesWhatTheTargetAttendsTo) {
  std::map<Cells, int> different;
  int cases = 0;
  for (const std::string_view kind : {"retrieval", "prune"})
    for (int variant = 0; variant < 10; ++variant) {
      CacheConfig c = config_of(kind);
      if (variant == 4) c.layers = {0};
      if (variant == 5) c.layers = {-1, 1, 2};
      if (variant == 6) c.all_layers = true;
      if (variant == 7) c.sink = 0, c.recent = 20;
      if (variant == 8) c.chunk = 1;
      if (variant == 9) c.budget = 67, c.chunk = 13, c.sink = 20;
      for (const int length : {65, 200, 333}) {
        CacheBench b(c);
        b.prompt(1, length, unsigned(length));
        b.note_target(1, unsigned(variant));
        b.add_text(1, 1, 3);
        b.prepare(1);
        const Cells right = target_choice(b, 1, c, length);
        EXPECT_EQ(b.cells(1), right) << "variant " << variant << ", " << length << " cells";
        ++different[right], ++cases;
        if (variant % 4 == 0) b.expect_keys(1, 1e-4);
      }
    }
  EXPECT_GT(int(different.size()), cases * 3 / 4) << "the variants choose almost the same";
}

// The draft's own queries are given as they were run, at compact positions, and count as if run at their place in the
// text.
TEST(DraftCache, ChoosesByItsOwnQueries) {
  for (const std::string_view kind : {"once", "quest", "snap"})
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved})
      for (const int length : {70, 240})
        for (const int behind : {0, 17}) {
          const CacheConfig c = config_of(kind);
          CacheBench b(c, 2048, style);
          b.prompt(0, length, 5);
          const int rows = kind == "snap" ? 35 : 2, most = kind == "snap" ? 32 : 1;
          std::vector<std::vector<float>> tapped(2);
          std::vector<const float*> pointers;
          const auto raw = [&](int layer, int row, int head) {
            std::vector<double> q(kDim);
            for (int d = 0; d < kDim; ++d)
              q[size_t(d)] = 2 * CacheBench::noise(uint64_t(700 + layer), uint64_t(row), uint64_t(head * kDim + d));
            return q;
          };
          for (int layer = 0; layer < 2; ++layer) {
            for (int r = 0; r < rows; ++r)
              for (int h = 0; h < kHeads; ++h)
                for (const double x : b.rotated(raw(layer, r, h), length - rows + r - behind))
                  tapped[size_t(layer)].push_back(float(x));
            pointers.push_back(tapped[size_t(layer)].data());
          }
          // In two calls, so that those noted before count as well.
          b.cache->note_own(0, pointers, 0, 1, length - rows - behind, length - rows);
          b.cache->note_own(0, pointers, 1, rows - 1, length - 1 - behind, length - 1);
          b.add_text(0, 1, 6);
          b.prepare(0);
          std::vector<Cells> right;
          for (int layer = 0; layer < 2; ++layer)
            for (int g = 0; g < kKvHeads; ++g) {
              const auto chunks = chunks_of(length, kind == "snap" ? 1 : c.chunk);
              std::vector<double> score(chunks.size());
              for (int h = 2 * g; h < 2 * g + 2; ++h)
                for (int r = rows - most; r < rows; ++r) {
                  const auto q = b.rotated(raw(layer, r, h), length - rows + r);
                  auto logits = dots(b, false, 0, layer, h, q, length);
                  if (kind == "snap") logits = softmax(logits);
                  for (size_t i = 0; i < chunks.size(); ++i) {
                    const auto [from, to] = chunks[i];
                    double one = std::accumulate(logits.begin() + from, logits.begin() + to, 0.0) / double(to - from);
                    if (kind == "quest") {
                      one = 0;
                      for (size_t d = 0; d < kDim; ++d) {
                        double least = 1e9, greatest = -1e9;
                        for (int cell = from; cell < to; ++cell) {
                          const double k = b.rotated(b.raw_key(false, 0, layer, g, cell), cell)[d];
                          least = std::min(least, k), greatest = std::max(greatest, k);
                        }
                        one += std::max(q[d] * least, q[d] * greatest);
                      }
                    }
                    score[i] += one;
                  }
                }
              if (kind == "snap") {
                const auto votes = score;
                for (int i = 0; i < length; ++i) {
                  const int from = std::max(0, i - 3), to = std::min(length, i + 4);
                  score[size_t(i)] = std::accumulate(votes.begin() + from, votes.begin() + to, 0.0) / (to - from);
                }
              }
              right.push_back(choose_naively(chunks, score, c, std::max(c.recent, kind == "snap" ? 32 : 1)));
            }
          EXPECT_EQ(b.cells(0), right[0]);
          b.expect_keys(0, 1e-4, right);  // of every head
          EXPECT_NE(right[0], right[3]) << "heads that choose alike show nothing";
        }
}

}  // namespace
}  // namespace sx
