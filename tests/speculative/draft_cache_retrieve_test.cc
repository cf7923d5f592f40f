// Retrieval as one op (kv_retrieve) against the same steps one by one: the same cells, the same bytes in the working
// cache and the same positions, whatever happens between refreshes; and the device is not asked which cells they are
// before the host wants to know.
#include <cstring>
#include <random>
#include <sstream>

#include "speculative/draft_cache_bench.h"
#include "support/forwarding_backend.h"

namespace sx {
namespace {

using testing::CacheBench;
using testing::Cells;
using testing::config_of;
using testing::ForwardingBackend;

struct Asked {
  int retrievals = 0, lists = 0, moves = 0;
};

// Counts.
class Listener final : public ForwardingBackend {
 public:
  explicit Listener(Asked& asked) : ForwardingBackend(make_reference_backend()), asked_(asked) {}
  std::unique_ptr<KvChoice> make_choice(int most_cells) override {
    return std::make_unique<Choice>(right_->make_choice(most_cells), asked_);
  }
  void kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) override {
    ++asked_.retrievals;
    EXPECT_EQ(args.plan.count, int(plan_even_chunks(args.score.borders, args.budget, args.sink, args.recent)->count));
    right_->kv_retrieve(args, *static_cast<Choice&>(choice).right);
    asked_.moves += int(args.moves->size());
  }

 private:
  struct Choice final : KvChoice {
    Choice(std::unique_ptr<KvChoice> of, Asked& by) : right(std::move(of)), asked(by) {}
    std::span<const int32_t> cells() override { return ++asked.lists, right->cells(); }
    std::unique_ptr<KvChoice> right;
    Asked& asked;
  };
  Asked& asked_;
};

// The same policy without the op.
CacheConfig in_steps(CacheConfig c) {
  static const CachePolicy policy = [] {
    CachePolicy copy = cache_policy("retrieval");
    copy.on_backend = nullptr;
    return copy;
  }();
  c.policy = &policy;
  return c;
}

struct Pair {
  Asked asked;
  CacheBench op, steps;
  Pair(const CacheConfig& c, int trained, RopeStyle style)
      : op(c, trained, style, DType::kBF16, std::make_unique<Listener>(asked)),
        steps(in_steps(c), trained, style, DType::kBF16) {}

  template <class Body>
  void both(Body body) {
    body(op), body(steps);
  }
  static std::vector<std::byte> bytes(CacheBench& b, SeqId seq) {
    const int cells = b.cache->work(seq);
    std::vector<std::byte> out(size_t(cells) * b.backend->kv_cell_bytes(*b.work));
    if (cells > 0) b.backend->kv_read(*b.work, {seq, 0, cells}, out.data());
    return out;
  }
  void expect_same(SeqId seq, const char* when) {
    EXPECT_EQ(op.cache->work(seq), steps.cache->work(seq)) << when;
    EXPECT_EQ(op.cache->position(seq, 0), steps.cache->position(seq, 0)) << when;
    EXPECT_EQ(op.cache->refreshes(seq), steps.cache->refreshes(seq)) << when;
    EXPECT_EQ(bytes(op, seq), bytes(steps, seq)) << when;
  }
};

TEST(DraftCacheRetrieve, GivesWhatItsStepsGive) {
  for (int variant = 0; variant < 12; ++variant) {
    CacheConfig c = config_of("retrieval");
    c.chunk = std::vector<int>{8, 16, 5, 1}[size_t(variant % 4)], c.interval = 1 + variant % 3;
    if (variant % 5 == 1) c.positions = CachePositions::kOriginal;
    if (variant % 5 == 2) c.budget = 215;  // more than the text at first
    if (variant % 5 == 3) c.sink = 0, c.recent = 1;
    if (variant % 5 == 4) c.budget = 20;  // the guaranteed chunks do not fit
    if (variant == 5) c.layers = {0};
    if (variant == 7) c.all_layers = true;
    if (variant == 11) c.chunk = 8, c.budget = 24, c.sink = 4, c.recent = 12, c.interval = 1;  // they fit now and then
    Pair p(c, variant % 3 == 0 ? 340 : 2048, variant % 2 ? RopeStyle::kInterleaved : RopeStyle::kHalves);
    SCOPED_TRACE(variant);
    p.both([](CacheBench& b) { b.prompt(0, 190, 1), b.prompt(1, 90, 2); });
    for (unsigned round = 0; round < 24; ++round) {
      p.both([&](CacheBench& b) { b.round(0, 1 + int(round % 4), 10 + round), b.round(1, 2, 40 + round); });
      p.expect_same(0, "rounds"), p.expect_same(1, "rounds");
      if (round % 5 == 4) { EXPECT_EQ(p.op.cells(0), p.steps.cells(0)) << round; }
      if (round == 11) {  // a text that ends earlier, and with another end
        p.both([](CacheBench& b) {
          b.cache->truncate(0, 170, 170);
          b.texts[0].resize(170);
          b.prompt(0, 25, 77);
        });
      }
      if (round == 17) {
        p.both([](CacheBench& b) {
          std::stringstream saved;
          b.cache->save(0, saved);
          const int cells = b.cache->length(0), tokens = int(b.texts[0].size());
          b.cache->truncate(0, 0, 0);
          b.cache->restore(0, saved, cells, tokens);
        });
      }
      if (round == 20) {  // the second sequence becomes the beginning of the first
        p.both([](CacheBench& b) {
          b.cache->truncate(1, 0, 0);
          b.texts[1].assign(b.texts[0].begin(), b.texts[0].begin() + 150);
          std::vector<int32_t> positions(150);
          std::iota(positions.begin(), positions.end(), 0);
          b.store(*b.target_kv, true, 1, 0, positions, 0);
          b.cache->copy(0, 1, 150, 150);
        });
      }
    }
    for (const SeqId seq : {0, 1}) EXPECT_EQ(p.op.cells(seq), p.steps.cells(seq));
    p.op.expect_keys(0, 0.05);
    EXPECT_EQ(p.asked.retrievals > 0, variant % 5 != 4) << p.asked.retrievals;
    if (variant == 11) {
      EXPECT_LT(p.asked.retrievals, 40) << "of 48 refreshes: both ways in turns";
      continue;
    }
    EXPECT_LE(p.asked.lists, 12) << "the list is read where it is asked for, once";
  }
}

// Cells that are there already are not moved again, and in rounds nobody asks for them.
TEST(DraftCacheRetrieve, NothingIsAskedAndLittleIsMoved) {
  CacheConfig c = config_of("retrieval");
  c.interval = 1;
  Asked asked;
  CacheBench b(c, 2048, RopeStyle::kHalves, DType::kF32, std::make_unique<Listener>(asked));
  b.prompt(0, 400, 1);
  for (unsigned round = 0; round < 20; ++round) {
    b.add_text(0, 1, round);
    b.note_target(0, 3);  // the same query
    b.cache->observe(0);
    b.prepare(0);
    b.run(0);
  }
  EXPECT_EQ(asked.retrievals, 20);
  EXPECT_EQ(asked.lists, 0);
  EXPECT_LT(asked.moves, 20 * c.budget / 2);
  EXPECT_GE(asked.moves, c.budget - c.chunk);
  EXPECT_EQ(b.cells(0).size(), size_t(b.cache->work(0)));
  EXPECT_EQ(asked.lists, 1);
  EXPECT_EQ(b.cells(0).back(), 419);
  EXPECT_EQ(asked.lists, 1);
  b.expect_keys(0, 1e-4);
}

// The target on its own cells: what lies in the working cache is, head by head, what the scores of that head's queries
// choose, and behind it what the target has written since.
TEST(DraftCacheRetrieve, EachHeadChoosesForItself) {
  CacheBench b(config_of("retrieval"));
  b.add_text(0, 400, 1);
  CacheConfig c = config_of("verified");
  c.positions = CachePositions::kOriginal, c.budget = 48, c.share = 0.3f, c.chunk = 8, c.sink = 4, c.recent = 10;
  c.interval = 1000;
  const auto work = b.backend->make_kv({b.target.layers, testing::kKvHeads, testing::kDim, 1,
                                        DraftCache::work_cells(c, testing::kContext), DType::kF32});
  DraftCacheParts parts;
  parts.backend = b.backend.get(), parts.draft = parts.target = &b.target, parts.frequencies = b.frequencies;
  parts.work = work.get(), parts.full = b.target_kv.get(), parts.target_kv = b.target_kv.get(),
  parts.writes_full = false;
  parts.context = testing::kContext;
  DraftCache cache(c, parts);
  constexpr size_t kWidth = size_t(testing::kHeads * testing::kDim);
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> queries(size_t(b.target.layers) * kWidth);
  std::vector<const float*> rows;
  for (float& x : queries) x = normal(random);
  for (size_t layer = 0; layer < size_t(b.target.layers); ++layer) rows.push_back(queries.data() + layer * kWidth);
  cache.note_target(0, rows, 0, 400);
  std::vector<Token> text = b.texts[0];
  text.push_back(7);  // pending
  cache.follow(0, text);
  const int chosen = cache.work(0);
  EXPECT_LE(chosen, 120);  // a share of 400
  EXPECT_GT(chosen, 120 - 8);

  std::vector<int32_t> borders;
  for (int i = 0; i <= 400; i += 8) borders.push_back(i);
  const size_t chunks = borders.size() - 1, all = b.backend->kv_cell_bytes(*work),
               each = all / size_t(b.target.layers * testing::kKvHeads);
  std::vector<std::byte> there(all * size_t(chosen)), written(all * 400);
  b.backend->kv_read(*work, {0, 0, chosen}, there.data());
  b.backend->kv_read(*b.target_kv, {0, 0, 400}, written.data());
  std::vector<Cells> lists;
  for (int layer = 0; layer < b.target.layers; ++layer) {
    std::vector<float> scores(testing::kHeads * chunks);
    KvScoreArgs args{};
    args.out = scores.data(), args.q = rows[size_t(layer)], args.heads = testing::kHeads;
    args.kv_heads = testing::kKvHeads, args.head_dim = testing::kDim, args.scale = 0.25f;
    args.kv = b.target_kv.get(), args.layer = layer, args.borders = borders;
    b.backend->kv_score(args);
    for (int head = 0; head < testing::kKvHeads; ++head) {
      std::vector<float> mean(chunks);
      for (size_t i = 0; i < chunks; ++i)
        mean[i] = (scores[size_t(2 * head) * chunks + i] + scores[size_t(2 * head + 1) * chunks + i]) / 2 / 8;
      Cells cells;
      std::vector<uint64_t> scratch;
      choose_chunks(borders, mean, 120, 4, 10, cells, scratch);
      ASSERT_EQ(int(cells.size()), chosen);
      const size_t part = size_t(layer * testing::kKvHeads + head) * each;
      for (size_t i = 0; i < cells.size(); ++i)
        ASSERT_EQ(0, std::memcmp(there.data() + i * all + part, written.data() + size_t(cells[i]) * all + part, each))
            << "layer " << layer << ", head " << head << ", place " << i;
      lists.push_back(cells);
    }
  }
  EXPECT_NE(lists[0], lists[1]);
  EXPECT_EQ(lists[0], Cells(cache.cells(0).begin(), cache.cells(0).end()));

  cache.appended(0, 1);  // the drafter's own cell of the pending token, which does not stay
  b.add_text(0, 3, 9);
  text = b.texts[0];
  text.push_back(8);
  cache.follow(0, text);
  EXPECT_EQ(cache.work(0), chosen + 3);
  EXPECT_EQ(cache.length(0), 403);
  std::vector<std::byte> last(all * 3), last_written(all * 3);
  b.backend->kv_read(*work, {0, chosen, 3}, last.data());
  b.backend->kv_read(*b.target_kv, {0, 400, 3}, last_written.data());
  EXPECT_EQ(last, last_written);
}

}  // namespace
}  // namespace sx
