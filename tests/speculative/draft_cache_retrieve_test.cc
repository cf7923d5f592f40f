// Retrieval as one op (kv_retrieve) against the same steps one by one: the same cells, the same bytes in the working
// cache and the same positions, whatever happens between refreshes; and the device is not asked which cells they are
// before the host wants to know.
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

}  // namespace
}  // namespace sx
