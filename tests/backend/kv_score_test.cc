// kv_score() against a naive computation in double over the stored keys: every kind, type, layout and instruction set,
// ragged chunks, groups of query heads, extreme logits; and the same bits from any number of threads.
#include <gtest/gtest.h>

#include <algorithm>

#include "attention_fixture.h"
#include "backend/cpu/kv/score.h"
#include "support/reference_backend.h"
#include "base/error.h"

namespace sx::cpu::testing {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16, DType::kQ8_0, DType::kQ4_0, DType::kQ4_1};
constexpr ScoreKind kKinds[] = {ScoreKind::kMass, ScoreKind::kPeak, ScoreKind::kLogit, ScoreKind::kBound};
const char* name_of(ScoreKind kind) {
  constexpr const char* kNames[] = {"mass", "peak", "logit", "bound"};
  return kNames[static_cast<int>(kind)];
}

// One query over a store; cells of slot 1 and layer 1, where nothing else lies.
struct Problem {
  Shape shape;
  float scale;
  std::unique_ptr<CpuKvStore> store;
  std::vector<float> q;

  Problem(const Shape& s, int cells, float stretch = 1)
      : shape(s), scale(stretch / std::sqrt(static_cast<float>(s.dim))) {
    store = std::make_unique<CpuKvStore>(KvGeometry{2, s.kv_heads, s.dim, 2, cells, s.type}, s.isa);
    const Shape cell{s.isa, s.type, 1, s.kv_heads, s.dim};
    const int room = store->geometry().capacity;
    for (int c = 0; c < room; ++c) {
      // Cells behind the history hold what must not matter.
      auto x = token_vector(cell, c);
      if (c >= cells) std::fill(x.begin(), x.end(), s.type == DType::kQ8_0 ? 1e30f : NAN);
      for (int h = 0; h < s.kv_heads; ++h)
        store_key(store->key_layout(), store->keys(1, 1, h, c / kBlock), c % kBlock, x.data() + (1 + h) * s.dim);
    }
    const auto x = token_vector(s, -5);
    q.assign(x.begin(), x.begin() + s.heads * s.dim);
  }

  KvScoreArgs args(std::vector<float>& out, const std::vector<int32_t>& borders, ScoreKind kind) const {
    out.assign(static_cast<size_t>(shape.heads) * (borders.size() - 1), 1e9f);
    return {out.data(), q.data(), shape.heads, shape.kv_heads, shape.dim, scale, store.get(), 1, 1, borders, kind};
  }

  std::vector<float> run(const std::vector<int32_t>& borders, ScoreKind kind, int threads) const {
    ThreadPool pool(threads);
    ScoreScratch scratch;
    scratch.reserve({1, 0, shape.heads, shape.kv_heads, shape.dim, store->geometry().capacity, 0});
    std::vector<float> out;
    kv_score(args(out, borders, kind), shape.isa, pool, scratch);
    return out;
  }

  // How far a logit may be off: the matrix kernels round the query to about 16 bits, f32 sums to a few units.
  double slack(int head, int cell) const {
    std::vector<float> k(static_cast<size_t>(shape.dim));
    store->load_key(1, 1, head / (shape.heads / shape.kv_heads), cell, k.data());
    double top = 0, sum = 0;
    for (int d = 0; d < shape.dim; ++d) {
      top = std::max(top, std::fabs(double(q[static_cast<size_t>(head * shape.dim + d)])));
      sum += std::fabs(double(k[static_cast<size_t>(d)]));
    }
    return top * sum * std::fabs(double(scale)) * (store->key_layout().matrix ? 2e-5 : 2e-6);
  }

  void check(const std::vector<int32_t>& borders, ScoreKind kind, int threads = 1) const {
    const auto have = run(borders, kind, threads);
    const size_t chunks = borders.size() - 1;
    const int begin = borders.front(), end = borders.back(), group = shape.heads / shape.kv_heads;
    std::vector<float> k(static_cast<size_t>(shape.dim));
    for (int h = 0; h < shape.heads; ++h) {
      std::vector<double> logit;
      double largest = -HUGE_VAL, total = 0, off = 0;
      std::vector<std::vector<double>> products;
      for (int c = begin; c < end; ++c) {
        store->load_key(1, 1, h / group, c, k.data());
        double sum = 0;
        std::vector<double> product;
        for (int d = 0; d < shape.dim; ++d)
          product.push_back(double(q[static_cast<size_t>(h * shape.dim + d)]) * double(scale) *
                            double(k[static_cast<size_t>(d)]));
        for (double x : product) sum += x;
        products.push_back(product);
        logit.push_back(sum);
        largest = std::max(largest, sum);
        off = std::max(off, slack(h, c));
      }
      for (double x : logit) total += std::exp(x - largest);
      for (size_t i = 0; i < chunks; ++i) {
        const auto from = static_cast<size_t>(borders[i] - begin), to = static_cast<size_t>(borders[i + 1] - begin);
        double mass = 0, peak = 0, mean = 0, bound = 0;
        for (size_t c = from; c < to; ++c) {
          const double w = std::exp(logit[c] - largest) / total;
          mass += w, peak = std::max(peak, w), mean += logit[c] / static_cast<double>(to - from);
        }
        for (int d = 0; d < shape.dim; ++d) {
          double most = -HUGE_VAL;
          for (size_t c = from; c < to; ++c) most = std::max(most, products[c][static_cast<size_t>(d)]);
          bound += most;
        }
        const double want[] = {mass, peak, mean, bound};
        const double expected = want[static_cast<int>(kind)];
        const bool share = kind == ScoreKind::kMass || kind == ScoreKind::kPeak;
        const double allowed = share ? expected * (std::expm1(2 * off) + 1e-5) + 1e-30 : off + 1e-6;
        ASSERT_NEAR(have[static_cast<size_t>(h) * chunks + i], expected, allowed)
            << shape.name() << " " << name_of(kind) << " head " << h << " chunk " << borders[i] << ".."
            << borders[i + 1] << " largest logit " << largest;
      }
    }
  }
};

std::vector<int32_t> even_borders(int from, int to, int chunk) {
  std::vector<int32_t> borders;
  for (int c = from; c < to; c += chunk) borders.push_back(c);
  borders.push_back(to);
  return borders;
}

std::vector<int32_t> ragged_borders(int from, int to, uint64_t seed) {
  std::vector<int32_t> borders{from};
  while (borders.back() < to) {
    const int most = random_below(seed, 4) == 0 ? 200 : 40;
    borders.push_back(std::min(to, borders.back() + 1 + random_below(seed, most)));
  }
  return borders;
}

TEST(KvScore, AgreesWithTheDefinition) {
  for (Isa isa : available_isas())
    for (DType type : kTypes)
      for (int dim : {64, 96, 128})
        for (int group : {1, 3, 4, 8}) {
          if (dim != 64 && group != 3) continue;
          const Problem p({isa, type, 2 * group, 2, dim}, 700);
          for (ScoreKind kind : kKinds) {
            p.check(even_borders(0, 700, 32), kind);
            p.check(ragged_borders(5, 691, static_cast<uint64_t>(dim + group)), kind);
          }
        }
}

TEST(KvScore, TakesOddHeadsChunksOfOneCellAndOneChunkOfAll) {
  for (Isa isa : available_isas())
    for (DType type : kTypes) {
      const Problem p({isa, type, 2, 1, 10}, 150);
      for (ScoreKind kind : kKinds) {
        p.check(even_borders(0, 150, 1), kind);
        p.check({0, 150}, kind);
        p.check({63, 64, 65, 128, 129}, kind);
        p.check({149, 150}, kind);
      }
    }
}

TEST(KvScore, StandsLongHistories) {
  for (DType type : {DType::kF32, DType::kBF16}) {
    const Problem p({default_isa(), type, 3, 1, 64}, 6000);
    for (ScoreKind kind : kKinds) {
      p.check(even_borders(0, 6000, 32), kind, 2);
      p.check({3, 2500, 2501, 5990}, kind, 2);  // chunks longer than a span of work
    }
  }
}

TEST(KvScore, StandsExtremeLogits) {
  for (Isa isa : available_isas())
    for (DType type : kTypes)
      for (float stretch : {1e-6f, 30.0f, -30.0f, 1000.0f}) {
        const Problem p({isa, type, 3, 1, 64}, 200, stretch);
        for (ScoreKind kind : kKinds) p.check(even_borders(0, 200, 16), kind);
        // Whatever the logits, all mass is somewhere.
        for (ScoreKind kind : {ScoreKind::kMass, ScoreKind::kPeak}) {
          const auto x = p.run(even_borders(0, 200, 1), kind, 1);
          for (size_t h = 0; h < 3; ++h) {
            double sum = 0;
            for (size_t c = 0; c < 200; ++c) sum += x[h * 200 + c];
            EXPECT_NEAR(sum, 1, 1e-5) << p.shape.name() << " stretch " << stretch;
          }
        }
      }
}

TEST(KvScore, SameBitsOnAnyNumberOfThreads) {
  for (DType type : kTypes)
    for (ScoreKind kind : kKinds) {
      const Problem p({default_isa(), type, 9, 3, 64}, 3000);
      for (const auto& borders : {even_borders(0, 3000, 32), ragged_borders(1, 2999, 7), even_borders(0, 3000, 1)}) {
        const auto one = p.run(borders, kind, 1);
        for (int threads : {2, 3})
          EXPECT_TRUE(one == p.run(borders, kind, threads)) << dtype_name(type) << " " << name_of(kind);
      }
    }
}

TEST(KvScore, AChunkDoesNotDependOnTheOthers) {  // but for the total, which kLogit and kBound do not have
  for (ScoreKind kind : {ScoreKind::kLogit, ScoreKind::kBound}) {
    const Problem p({default_isa(), DType::kBF16, 4, 2, 64}, 1000);
    const auto all = p.run({0, 100, 333, 900, 1000}, kind, 2);
    for (size_t h = 0; h < 4; ++h) EXPECT_EQ(all[h * 4 + 2], p.run({333, 900}, kind, 1)[h]) << name_of(kind);
  }
}

TEST(KvScore, ReferenceAgreesToo) {
  const Shape s{default_isa(), DType::kF32, 6, 2, 64};
  const auto reference = make_reference_backend();
  const auto kv = reference->make_kv({2, 2, 64, 2, 256, DType::kF32});
  Problem p(s, 256);
  std::vector<float> qkv(static_cast<size_t>(256 * 10 * 64)), table(static_cast<size_t>(256 * 64));
  for (size_t i = 0; i < table.size(); i += 2) table[i] = 1;  // no rotation
  for (int c = 0; c < 256; ++c)
    for (int h = 0; h < 2; ++h) p.store->load_key(1, 1, h, c, qkv.data() + (c * 10 + 6 + h) * 64);
  const SeqRows rows{.first_row = 0, .rows = 256, .slot = 1};
  RopeStoreArgs store{};
  store.qkv = qkv.data(), store.table = table.data(), store.shape = {6, 2, 64};
  store.dims = 64, store.style = RopeStyle::kHalves, store.kv = kv.get(), store.layer = 1, store.seqs = {&rows, 1};
  reference->rope_store(store);
  const auto borders = ragged_borders(2, 250, 3);
  for (ScoreKind kind : kKinds) {
    const auto have = p.run(borders, kind, 2);
    std::vector<float> want;
    KvScoreArgs a = p.args(want, borders, kind);
    a.kv = kv.get();
    reference->kv_score(a);
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(have[i], want[i], 2e-5 * (1 + std::fabs(want[i]))) << name_of(kind);
  }
}

}  // namespace
}  // namespace sx::cpu::testing
