// Batch invariance of attention, as equality of bits: a row alone, in any batch, chunk, tree, thread count, window. And
// the values, against double precision.
#include <gtest/gtest.h>

#include <numeric>

#include "attention_fixture.h"
#include "backend/cpu/attention/attention_kernels.h"

namespace sx::cpu::testing {
namespace {

constexpr KvTypes kTypes[] = {DType::kF32,
                              DType::kF16,
                              DType::kBF16,
                              DType::kQ8_0,
                              DType::kQ4_1,
                              KvTypes(DType::kQ8_0, DType::kQ4_0),
                              KvTypes(DType::kBF16, DType::kQ8_0)};

// Every instruction set of this machine x every type, with one head shape.
std::vector<Shape> kinds(int heads, int kv_heads, int dim) {
  std::vector<Shape> all;
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes) all.push_back({isa, type, heads, kv_heads, dim});
  return all;
}

std::vector<Shape> kinds_and_more_pairs(int heads, int kv_heads, int dim) {
  std::vector<Shape> all = kinds(heads, kv_heads, dim);
  for (Isa isa : available_isas())
    for (const KvTypes& type :
         {KvTypes(DType::kQ4_0), KvTypes(DType::kF32, DType::kF16), KvTypes(DType::kF16, DType::kQ8_0),
          KvTypes(DType::kQ8_0, DType::kF32), KvTypes(DType::kQ4_1, DType::kBF16), KvTypes(DType::kBF16, DType::kQ4_0),
          KvTypes(DType::kQ4_0, DType::kQ4_1), KvTypes(DType::kF32, DType::kQ4_0)})
      all.push_back({isa, type, heads, kv_heads, dim});
  return all;
}

std::vector<int> range(int first, int count) {
  std::vector<int> v(static_cast<size_t>(count));
  std::iota(v.begin(), v.end(), first);
  return v;
}

bool same(const float* a, const float* b, size_t n) { return n == 0 || std::memcmp(a, b, n * sizeof(float)) == 0; }

// Tokens first .. first + n - 1, each decoded alone: [n][heads * dim].
std::vector<float> decode(World& w, int slot, int history, const std::vector<int>& tokens, int window = 0) {
  std::vector<float> all;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto one = w.step({{slot, history + static_cast<int>(i), {tokens[i]}, {}, 0}}, 1, window);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(Attention, ValuesAgreeWithDoublePrecision) {
  struct {
    int heads, kv_heads, dim;
  } shapes[] = {{6, 2, 64}, {3, 3, 128}, {8, 1, 80}, {4, 2, 96}, {2, 1, 256}, {4, 2, 32},
                {4, 1, 48}, {2, 2, 16},  {2, 1, 8},  {3, 1, 40}, {2, 1, 10}};
  for (const auto& h : shapes)
    for (const Shape& s : kinds_and_more_pairs(h.heads, h.kv_heads, h.dim)) {
      World w(s, 1, 640);
      const int history = 571;
      w.fill(0, history, 0);
      const auto out = w.step({{0, history, {history, history + 1}, {}, 0}}, 2);
      const auto one = w.step({{0, 0, {0}, {}, 0}});
      for (int i = 0; i < 2; ++i)
        EXPECT_LT(relative_error(out.data() + static_cast<size_t>(i) * w.out_width(),
                                 naive(s, history + i, range(0, history + 1 + i))),
                  tolerance(s.type))
            << s.name();
      EXPECT_LT(relative_error(one.data(), naive(s, 0, {0})), tolerance(s.type)) << s.name();
    }
}

TEST(Attention, ChunksThreadsAndCompanyChangeNoBit) {
  struct {
    int heads, kv_heads, dim;
  } shapes[] = {{3, 1, 64}, {2, 2, 128}, {8, 1, 16}, {4, 1, 80}, {4, 1, 256}};
  uint64_t random = 1;
  for (const auto& h : shapes)
    for (const Shape& s : kinds(h.heads, h.kv_heads, h.dim)) {
      World w(s, 3, 1280);
      const int base = 450 + random_below(random, 40), n = 150;  // crosses block and span borders
      w.fill(0, base, 0);
      const auto alone = decode(w, 0, base, range(base, n));
      for (int trial = 0; trial < 3; ++trial) {
        const int threads = 1 + random_below(random, 4), other = 1 + random_below(random, 600);
        w.fill(2, other, 5000);
        for (int at = 0; at < n;) {
          const int rows = std::min(n - at, 1 + random_below(random, trial == 0 ? 8 : 100));
          // The sequence, with a stranger before it and a tree behind it.
          Rows mine{0, base + at, range(base + at, rows), {}, 0};
          Rows stranger{2, other, range(7000, 1 + random_below(random, 5)), {}, 0};
          Rows tree{1, 3, range(8000, 9), random_tree(9, 1, random, 4), 1};
          const auto out = w.step({stranger, mine, tree}, threads);
          EXPECT_TRUE(same(out.data() + stranger.tokens.size() * w.out_width(),
                           alone.data() + static_cast<size_t>(at) * w.out_width(),
                           static_cast<size_t>(rows) * w.out_width()))
              << s.name() << " row " << at << " of " << rows << " threads " << threads;
          at += rows;
        }
      }
    }
}

// Every row of a tree against its path decoded cell by cell in another slot.
void check_tree(World& w, int history, int rows, uint64_t& random, int bushy, int window, int threads) {
  const int words = (rows + 63) / 64;
  std::vector<int> parents;
  Rows tree{0, history, range(3000, rows), random_tree(rows, words, random, bushy, &parents), words};
  const auto out = w.step({tree}, threads, window);
  std::vector<int> deepest(static_cast<size_t>(rows), 1);
  for (int i = 0; i < rows; ++i)
    if (parents[static_cast<size_t>(i)] >= 0) deepest[static_cast<size_t>(parents[static_cast<size_t>(i)])] = 0;
  std::vector<int> done(static_cast<size_t>(rows), 0);
  for (int leaf = 0; leaf < rows; ++leaf) {
    if (!deepest[static_cast<size_t>(leaf)]) continue;
    std::vector<int> path;
    for (int i = leaf; i >= 0; i = parents[static_cast<size_t>(i)]) path.insert(path.begin(), i);
    for (size_t d = 0; d < path.size(); ++d) {
      const int node = path[d];
      const Rows plain{1, history + static_cast<int>(d), {3000 + node}, {}, 0};
      if (done[static_cast<size_t>(node)]) {
        w.write_only(plain);
        continue;
      }
      done[static_cast<size_t>(node)] = 1;
      const auto one = w.step({plain}, 1, window);
      ASSERT_TRUE(same(one.data(), out.data() + static_cast<size_t>(node) * w.out_width(), w.out_width()))
          << w.shape.name() << " history " << history << " node " << node << " depth " << d << " window " << window;
    }
  }
}

TEST(Attention, TreeRowsEqualTheirPathDecodedPlainly) {
  struct {
    int heads, kv_heads, dim;
  } shapes[] = {{3, 1, 64}, {2, 2, 32}, {8, 1, 128}, {4, 2, 80}, {4, 1, 256}, {2, 2, 192}};
  uint64_t random = 2;
  for (const auto& h : shapes)
    for (const Shape& s : kinds(h.heads, h.kv_heads, h.dim)) {
      World w(s, 2, 1408);
      const int histories[] = {0, 1, 60, 64, 127, 500, kSpan - 1, kSpan};
      const int history = histories[random_below(random, 8)];
      w.fill(0, history, 0);
      w.fill(1, history, 0);
      for (int bushy : {0, 2, 8})
        check_tree(w, history, 1 + random_below(random, 40), random, bushy, 0, 1 + random_below(random, 3));
      check_tree(w, history, 20, random, 1, 33, 2);
    }
}

TEST(Attention, LargeTreesCrossBlocksAndSpans) {
  uint64_t random = 3;
  const Isa best = available_isas().front();
  for (DType type : {DType::kBF16, DType::kF32}) {
    World w({best, type, 3, 1, 64}, 2, 1408);
    const int history = kSpan - 90;
    w.fill(0, history, 0);
    w.fill(1, history, 0);
    check_tree(w, history, 300, random, 0, 0, 2);
    check_tree(w, history, 512, random, 1, 0, 3);
    check_tree(w, history, 200, random, 0, 150, 2);
  }
}

// Soft caps and sinks, together and alone: the values, and rows of chunks and trees bit for bit.
TEST(Attention, SoftCapsAndSinks) {
  uint64_t random = 7;
  for (const int dim : {64, 256})
    for (const Shape& s : kinds(4, 2, dim))
      for (int turn = 0; turn < 3; ++turn) {
        World w(s, 2, 640);
        if (turn != 1) w.soft_cap = 2.5f;
        if (turn != 0) w.sinks = {-50.0f, 4.5f, 60.0f, 0.0f};  // no weight at all, some, all, next to none
        const int history = 300 + random_below(random, 60);
        for (int slot : {0, 1}) w.fill(slot, history, 0);
        const auto alone = decode(w, 0, history, range(history, 20));
        for (int i : {0, 19}) {
          const auto expected = naive(s, history + i, range(0, history + 1 + i), double(w.soft_cap), w.sinks);
          EXPECT_LT(relative_error(alone.data() + static_cast<size_t>(i) * w.out_width(), expected), tolerance(s.type))
              << s.name() << " turn " << turn;
        }
        const auto chunk = w.step({{1, history, range(history, 20), {}, 0}}, 2);
        EXPECT_TRUE(same(chunk.data(), alone.data(), alone.size())) << s.name() << " turn " << turn;
        check_tree(w, history, 30, random, 3, turn == 2 ? 77 : 0, 2);
      }
}

// A tree of one sequence that is written in several steps.
struct Grown {
  int slot, history, first_token;
  std::vector<int> parents;
  std::vector<uint64_t> bits;  // [nodes][words]
  int words;
  int width = 0;  // of a level, if nodes are numbered level by level
  int done = 0;   // nodes that are written

  int nodes() const { return static_cast<int>(parents.size()); }
  // How many nodes come next: a level, or any number.
  int portion(uint64_t& random) const {
    const int any = random_below(random, random_below(random, 4) ? 12 : 200);
    return std::min(nodes() - done, width == 0 ? any : done == 0 ? 1 : random_below(random, 5) ? width : 0);
  }
  // The next `rows` nodes; `tight`: with as few words as they need.
  Rows next(int rows, bool tight) {
    Rows r{slot, history, range(first_token + done, rows), {}, tight ? (done + rows + 63) / 64 : words, done};
    for (int i = done; i < done + rows; ++i)
      r.ancestors.insert(r.ancestors.end(), bits.begin() + i * words, bits.begin() + i * words + r.words);
    done += rows;
    return r;
  }
};

Grown make_grown(int slot, int history, int nodes, bool by_level, uint64_t& random) {
  Grown g{slot, history, 3000 + 1000 * slot, {}, {}, (nodes + 63) / 64};
  if (!by_level) {
    g.bits = random_tree(nodes, g.words, random, random_below(random, 9), &g.parents);
    return g;
  }
  g.width = 1 + random_below(random, 12);
  for (int i = 0; i < nodes; ++i) {
    const int level = (i + g.width - 1) / g.width;  // node 0 alone on level 0
    const int first = level <= 1 ? 0 : (level - 2) * g.width + 1, last = level <= 1 ? 0 : (level - 1) * g.width;
    g.parents.push_back(i == 0 ? -1 : first + random_below(random, last - first + 1));
    g.bits.resize(g.bits.size() + static_cast<size_t>(g.words));
    uint64_t* mine = g.bits.data() + i * g.words;
    if (i > 0) std::copy_n(g.bits.data() + g.parents.back() * g.words, g.words, mine);
    mine[i / 64] |= uint64_t(1) << (i % 64);
  }
  return g;
}

// Two trees grow side by side, in portions; every row must equal the row of the same tree written in one step (which
// check_tree compares with plain decoding) and, for some nodes, the path decoded plainly.
void check_grown(const Shape& s, int history_a, int history_b, int nodes, bool by_level, int window, uint64_t& random) {
  const int capacity = std::max(history_a, history_b) + nodes + 1;
  World once(s, 3, capacity), grown(s, 2, capacity);
  std::vector<Grown> trees = {make_grown(0, history_a, nodes, by_level, random),
                              make_grown(1, history_b, nodes / 2 + 1, by_level, random)};
  std::vector<std::vector<float>> expected;
  for (Grown& t : trees) {
    grown.fill(t.slot, capacity, 9000);  // what lies in the tail before must not matter
    for (World* w : {&once, &grown}) w->fill(t.slot, t.history, 100 * t.slot);
    expected.push_back(once.step({t.next(t.nodes(), true)}, 2, window));
    t.done = 0;
  }
  while (trees[0].done < trees[0].nodes() || trees[1].done < trees[1].nodes()) {
    std::vector<Rows> step;
    std::vector<std::pair<size_t, int>> what;  // tree, first node
    for (size_t t = 0; t < 2; ++t) {
      const int rows = trees[t].portion(random);
      if (rows == 0 && random_below(random, 2)) continue;  // a sequence without rows, or none at all
      what.push_back({t, trees[t].done});
      step.push_back(trees[t].next(rows, random_below(random, 2) == 0));
    }
    if (random_below(random, 2)) std::reverse(step.begin(), step.end()), std::reverse(what.begin(), what.end());
    const auto out = grown.step(step, 1 + random_below(random, 3), window);
    size_t at = 0;
    for (size_t i = 0; i < step.size(); ++i) {
      const size_t count = step[i].tokens.size() * grown.out_width();
      const auto first = static_cast<size_t>(what[i].second) * grown.out_width();
      ASSERT_TRUE(same(out.data() + at, expected[what[i].first].data() + first, count))
          << s.name() << " history " << step[i].history << " uncommitted " << step[i].uncommitted << " rows "
          << step[i].tokens.size() << " window " << window << (by_level ? " by level" : "");
      at += count;
    }
  }
  for (size_t t = 0; t < 2; ++t) {
    once.fill(2, trees[t].history, 100 * trees[t].slot);
    std::vector<int> path;
    const int node = trees[t].nodes() - 1 - random_below(random, std::min(8, trees[t].nodes()));
    for (int i = node; i >= 0; i = trees[t].parents[static_cast<size_t>(i)])
      path.insert(path.begin(), trees[t].first_token + i);
    const auto plain = decode(once, 2, trees[t].history, path, window);
    const size_t width = once.out_width(), last = (path.size() - 1) * width;
    ASSERT_TRUE(same(plain.data() + last, expected[t].data() + static_cast<size_t>(node) * width, width))
        << s.name() << " node " << node;
  }
}

TEST(Attention, TreesThatGrowOverSeveralSteps) {
  uint64_t random = 5;
  const int histories[] = {0, 1, 50, 63, 64, 120, kSpan - 20, kSpan - 1, kSpan, 2 * kSpan - 30};
  for (const Shape& s : kinds(3, 1, 64))
    for (int turn = 0; turn < 6; ++turn)
      check_grown(s, histories[random_below(random, 10)], histories[random_below(random, 10)],
                  1 + random_below(random, 90), turn % 2 == 0, turn == 5 ? 20 + random_below(random, 60) : 0, random);
  for (const Shape& s : kinds(4, 2, 80)) check_grown(s, 60, kSpan - 5, 40, true, 0, random);
  const Isa best = available_isas().front();
  for (const KvTypes& type : kTypes)
    for (bool by_level : {false, true})
      check_grown({best, type, 3, 1, 64}, kSpan - 100, 2 * kSpan - 9, 512, by_level, 0, random);
}

TEST(Attention, ChainsThatGrowOverSeveralSteps) {
  uint64_t random = 6;
  for (const Shape& s : kinds(3, 1, 64))
    for (int window : {0, 45}) {
      World w(s, 2, 768);
      const int base = kSpan - 70, n = 140;
      for (int slot : {0, 1}) w.fill(slot, base, 0);
      const auto alone = decode(w, 0, base, range(base, n), window);
      for (int at = 0; at < n;) {
        const int rows = std::min(n - at, 1 + random_below(random, 40));
        Rows chain{1, base, range(base + at, rows), {}, 0, at};
        if (random_below(random, 2)) {  // given as bits
          chain.words = (at + rows + 63) / 64;
          for (int i = at; i < at + rows; ++i)
            for (int k = 0; k < chain.words; ++k) {
              const uint64_t some = i < k * 64 ? 0 : (uint64_t(2) << (i % 64)) - 1;
              chain.ancestors.push_back(i >= k * 64 + 63 ? ~uint64_t(0) : some);
            }
        }
        const auto out = w.step({chain}, 1 + random_below(random, 3), window);
        ASSERT_TRUE(same(out.data(), alone.data() + static_cast<size_t>(at) * w.out_width(), out.size()))
            << s.name() << " window " << window << " at " << at << " rows " << rows;
        at += rows;
      }
    }
}

TEST(Attention, WindowsHideBothEnds) {
  uint64_t random = 4;
  for (const Shape& s : kinds(3, 1, 32)) {
    World w(s, 2, 1280);
    const int base = kSpan - 70, n = 140;
    w.fill(0, base, 0);
    for (int window : {1, 37, 64, 300}) {
      const auto alone = decode(w, 0, base, range(base, n), window);
      for (int i : {0, 69, 70, n - 1}) {
        const int index = base + i, low = std::max(0, index + 1 - window);
        EXPECT_LT(relative_error(alone.data() + static_cast<size_t>(i) * w.out_width(),
                                 naive(s, index, range(low, index + 1 - low))),
                  tolerance(s.type) * 1.5)
            << s.name() << " window " << window << " index " << index;
      }
      for (int at = 0; at < n;) {
        const int rows = std::min(n - at, 1 + random_below(random, 90));
        const auto out = w.step({{0, base + at, range(base + at, rows), {}, 0}}, 1 + random_below(random, 3), window);
        EXPECT_TRUE(same(out.data(), alone.data() + static_cast<size_t>(at) * w.out_width(),
                         static_cast<size_t>(rows) * w.out_width()))
            << s.name() << " window " << window << " at " << at << " rows " << rows;
        at += rows;
      }
    }
  }
}

TEST(Attention, ChainGivenAsTreeIsTheSameChain) {
  for (const Shape& s : kinds(3, 1, 64)) {
    World w(s, 1, 640);
    w.fill(0, 100, 0);
    const Rows chain{0, 100, range(100, 30), {}, 0};
    Rows tree = chain;
    tree.words = 1;
    for (int i = 0; i < 30; ++i) tree.ancestors.push_back((uint64_t(2) << i) - 1);
    const auto a = w.step({chain}), b = w.step({tree});
    EXPECT_TRUE(same(a.data(), b.data(), a.size())) << s.name();
  }
}

TEST(Attention, StaleCellsAreInvisible) {
  for (const Shape& s : kinds(3, 1, 64)) {
    World fresh(s, 1, 256), used(s, 1, 256);
    used.fill(0, 256, 900);
    fresh.fill(0, 70, 0);
    used.fill(0, 70, 0);
    const auto a = fresh.step({{0, 70, range(70, 3), {}, 0}}), b = used.step({{0, 70, range(70, 3), {}, 0}});
    EXPECT_TRUE(same(a.data(), b.data(), a.size())) << s.name();
  }
}

// Folds a block into a tile as attend() does.
void fold_block(const AttentionKernels& kernels, float* state, const std::byte* query, const std::byte* keys,
                const std::byte* values, int rows = 3, int padded = 64) {
  std::vector<std::byte> k(size_t(kBlock) * size_t(padded) * 4 + 256), v(k.size());
  if (kernels.enter) kernels.enter();
  if (kernels.ready_keys) {
    kernels.ready_keys(keys, keys, padded, k.data());
    kernels.ready_values(values, values, padded, v.data());
    keys = k.data(), values = v.data();
  }
  kernels.fold({state, query, keys, values, rows, padded});
  if (kernels.leave) kernels.leave();
}

// The same check must notice a fold in another order, or it would prove nothing.
TEST(Attention, AnotherFoldOrderIsNoticed) {
  for (const Shape& s : kinds(3, 1, 64)) {
    World w(s, 1, kSpan);
    const int n = 4 * kBlock;
    w.fill(0, n - 1, 0);
    const auto out = w.step({{0, n - 1, {n - 1}, {}, 0}});
    const auto& store = static_cast<CpuKvStore&>(*w.store);
    if (store.key_layout().record || store.value_layout().record) continue;  // its kernels are those of bf16
    const auto& kernels = attention_kernels(store.key_layout(), store.value_layout(), s.isa);
    const auto q = token_vector(s, n - 1);
    std::vector<std::byte> packed(query_bytes(kernels.tile_rows, 64));
    for (int i = 0; i < 3; ++i) kernels.pack(packed.data(), i, q.data() + i * 64, 64, 64, w.scale());
    const auto fold_in = [&](std::vector<int> order) {
      std::vector<float> state(static_cast<size_t>(state_floats(kernels.tile_rows, 64))), result(3 * 64);
      reset_state(state.data(), kernels, 64);
      for (int b : order)
        fold_block(kernels, state.data(), packed.data(), store.keys(0, 0, 0, b), store.values(0, 0, 0, b));
      for (int i = 0; i < 3; ++i) kernels.finish(state.data(), i, result.data() + i * 64, 64, 64);
      return result;
    };
    EXPECT_TRUE(same(fold_in({0, 1, 2, 3}).data(), out.data(), out.size())) << s.name();
    EXPECT_FALSE(same(fold_in({3, 2, 1, 0}).data(), out.data(), out.size())) << s.name();
    EXPECT_FALSE(same(fold_in({0, 2, 1, 3}).data(), out.data(), out.size())) << s.name();
  }
}

// A kernel may fold few rows with other instructions than many: with the same bits, those of numbers that are hardly
// any included (AMX takes subnormal ones for zeros).
TEST(Attention, RowsOfATileKeepTheirBitsWhateverTheirNumber) {
  constexpr int kBlocks = 3;
  for (int dim : {16, 64, 72, 128})
    for (const Shape& s : kinds(1, 1, dim)) {
      World w(s, 1, kSpan);
      auto& store = static_cast<CpuKvStore&>(*w.store);
      if (store.key_layout().record || store.value_layout().record) continue;
      const int padded = store.key_layout().padded;
      for (int c = 0; c < kBlocks * kBlock; ++c) {
        auto x = token_vector(s, c);
        for (int i = 0; i < dim; ++i) x[size_t(dim + i)] *= c % 5 == 0 ? 8.0f : 1.0f;
        for (int i = 0; i < dim; ++i) x[size_t(2 * dim + i)] *= std::ldexp(1.0f, c / kBlock == 1 ? -118 - c % 9 : 0);
        store_key(store.key_layout(), store.keys(0, 0, 0, c / kBlock), c % kBlock, &x[size_t(dim)]);
        store_value(store.value_layout(), store.values(0, 0, 0, c / kBlock), c % kBlock, &x[size_t(2 * dim)]);
      }
      const auto& base = attention_kernels(store.key_layout(), store.value_layout(), s.isa);
      std::vector<const AttentionKernels*> tables{&base};
      if (base.shared) tables.push_back(base.shared);
      std::vector<float> all;  // of a whole tile
      for (const AttentionKernels* kernels : tables)
        for (int rows = base.tile_rows; rows > 0; --rows) {
          std::vector<std::byte> packed(query_bytes(base.tile_rows, padded));
          std::vector<float> state(size_t(state_floats(base.tile_rows, padded)) + 16), out;
          float* const at = state.data() + (64 - reinterpret_cast<uintptr_t>(state.data()) % 64) / sizeof(float);
          reset_state(at, *kernels, padded);
          for (int i = 0; i < rows; ++i)
            kernels->pack(packed.data(), i, token_vector(s, 1000 + i).data(), dim, padded, w.scale());
          for (int b : {1, 0, 2}) {
            fold_block(*kernels, at, packed.data(), store.keys(0, 0, 0, b), store.values(0, 0, 0, b), rows, padded);
            for (int i = 0; i < rows; ++i) {
              out.resize(out.size() + size_t(dim) + 1);
              kernels->finish(at, i, out.data() + out.size() - size_t(dim) - 1, dim, padded);
              out.back() = at[i];  // the maximum: weights are rounded, so that they hardly show a score's last bit
            }
          }
          if (all.empty()) all = out;
          for (int step = 0; step < 3; ++step)
            EXPECT_TRUE(same(all.data() + size_t(step * base.tile_rows * (dim + 1)),
                             out.data() + size_t(step * rows * (dim + 1)), size_t(rows * (dim + 1))))
                << s.name() << ", " << rows << " rows, block " << step;
        }
    }
}

}  // namespace
}  // namespace sx::cpu::testing
