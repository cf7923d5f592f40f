// The KV store and the ops that write it: cells come back as they went in, rotation and norms against double precision,
// moves copy bits or turn keys, bytes hold cells, and a large capacity costs no memory before it is used.
#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdio>
#include <numeric>

#include "attention_fixture.h"
#include "backend/cpu/kv/records.h"
#include "backend/cpu/kv/rotate.h"
#include "base/error.h"
#include "tensor/half.h"

namespace sx::cpu::testing {
namespace {

constexpr KvTypes kTypes[] = {DType::kF32,
                              DType::kF16,
                              DType::kBF16,
                              DType::kQ8_0,
                              DType::kQ4_0,
                              DType::kQ4_1,
                              KvTypes(DType::kQ8_0, DType::kQ4_0),
                              KvTypes(DType::kBF16, DType::kQ8_0),
                              KvTypes(DType::kQ4_1, DType::kBF16)};

// Largest error a stored element may have, relative to the largest element of its vector.
double rounding(DType type) {
  switch (type) {
    case DType::kF32: return 0;
    case DType::kF16: return 0x1p-11;
    case DType::kBF16: return 0x1p-8;
    case DType::kQ4_0: return 1.0 / 8 + 0x1p-8;   // the extreme of the other sign may be cut off by a step
    case DType::kQ4_1: return 1.0 / 15 + 0x1p-8;  // half a step of the whole range
    default: return 0.5 / 127 + 1e-6;
  }
}

double largest(const float* x, int n) {
  double top = 0;
  for (int i = 0; i < n; ++i) top = std::max(top, std::fabs(double(x[i])));
  return top;
}

CpuKvStore& as_cpu(KvStore& s) { return static_cast<CpuKvStore&>(s); }

TEST(KvStore, EveryCellComesBack) {
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes)
      for (int dim : {8, 10, 40, 64, 80, 128, 256}) {
        const Shape s{isa, type, 1, 2, dim};
        World w(s, 2, 200);
        for (int slot = 0; slot < 2; ++slot) w.fill(slot, 200, slot * 1000);
        std::vector<float> x(static_cast<size_t>(dim));
        for (int slot = 0; slot < 2; ++slot)
          for (int cell = 0; cell < 200; cell += 7)
            for (int h = 0; h < 2; ++h) {
              const auto t = token_vector(s, slot * 1000 + cell);
              const float *k = t.data() + (1 + h) * dim, *v = t.data() + (3 + h) * dim;
              as_cpu(*w.store).load_key(slot, 0, h, cell, x.data());
              for (int d = 0; d < dim; ++d)
                ASSERT_NEAR(x[static_cast<size_t>(d)], k[d], rounding(type.keys) * largest(k, dim)) << s.name();
              as_cpu(*w.store).load_value(slot, 0, h, cell, x.data());
              for (int d = 0; d < dim; ++d)
                ASSERT_NEAR(x[static_cast<size_t>(d)], v[d], rounding(type.values) * largest(v, dim)) << s.name();
            }
      }
}

// Every set of instructions unpacks blocks of 4 bits to the numbers that single cells have.
TEST(KvStore, UnpackedBlocksAreTheirCells) {
  for (Isa isa : available_isas())
    for (DType type : {DType::kQ4_0, DType::kQ4_1})
      for (int dim : {8, 10, 40, 64, 80, 96, 112, 128, 256}) {
        const Shape s{isa, type, 1, 1, dim};
        World w(s, 1, 64);
        w.fill(0, 64, dim);
        const CpuKvStore& store = as_cpu(*w.store);
        const KvLayout tile = tile_layout(store.key_layout(), store.value_layout(), isa);
        std::vector<std::byte> k(tile.bytes), v(tile.bytes);
        unpack_kernels(isa).keys(store.key_layout(), store.keys(0, 0, 0, 0), tile, k.data());
        unpack_kernels(isa).values(store.value_layout(), store.values(0, 0, 0, 0), tile, v.data());
        std::vector<float> mine(static_cast<size_t>(dim)), cell(static_cast<size_t>(dim));
        for (int p = 0; p < 64; ++p) {
          load_key(tile, k.data(), p, mine.data()), store.load_key(0, 0, 0, p, cell.data());
          ASSERT_EQ(mine, cell) << s.name() << " key " << p;
          load_value(tile, v.data(), p, mine.data()), store.load_value(0, 0, 0, p, cell.data());
          ASSERT_EQ(mine, cell) << s.name() << " value " << p;
        }
      }
}

TEST(KvStore, ValuesAreFiniteWhateverIsWritten) {
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes) {
      CpuKvStore store({1, 1, 16, 1, 64, type}, isa);
      float v[16] = {INFINITY, -INFINITY, NAN, 1e38f, -3.4e38f, 70000, 1};
      store_value(store.value_layout(), store.values(0, 0, 0, 0), 5, v);
      float back[16];
      store.load_value(0, 0, 0, 5, back);
      for (float x : back) EXPECT_TRUE(std::isfinite(x)) << kv_types_name(type);
    }
}

TEST(KvStore, RefusesWhatItCannotHold) {
  const Isa isa = Isa::kGeneric;
  EXPECT_THROW(make_kv_store({1, 1, 64, 1, 64, DType::kQ5_0}, isa), Error);
  EXPECT_THROW(make_kv_store({1, 1, 64, 1, 64, KvTypes(DType::kF16, DType::kQ5_0)}, isa), Error);
  EXPECT_THROW(make_kv_store({1, 1, 258, 1, 64, DType::kF32}, isa), Error);
  EXPECT_THROW(make_kv_store({1, 1, 63, 1, 64, DType::kF32}, isa), Error);
  EXPECT_THROW(make_kv_store({0, 1, 64, 1, 64, DType::kF32}, isa), Error);
  EXPECT_THROW(make_kv_store({1, 1, 64, 1, 0, DType::kF32}, isa), Error);
  EXPECT_EQ(make_kv_store({1, 1, 64, 1, 65, DType::kF32}, isa)->geometry().capacity, 128);
}

size_t resident_bytes() {
  long pages = 0, ignored = 0;
  if (FILE* f = std::fopen("/proc/self/statm", "r")) {
    if (std::fscanf(f, "%ld %ld", &ignored, &pages) != 2) pages = 0;
    std::fclose(f);
  }
  return static_cast<size_t>(pages) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

TEST(KvStore, CapacityCostsNothingBeforeUse) {
  const size_t before = resident_bytes();
  const auto store = make_kv_store({30, 3, 64, 4, 131072, DType::kBF16}, available_isas().front());
  EXPECT_GT(store->bytes(), size_t(10) << 30);
  float x[64] = {1};
  for (int layer = 0; layer < 30; ++layer)
    for (int h = 0; h < 3; ++h) store_key(as_cpu(*store).key_layout(), as_cpu(*store).keys(0, layer, h, 0), 0, x);
  EXPECT_LT(resident_bytes() - before, size_t(64) << 20);  // the first thousand cells of every layer
}

// ---- rope_store ---------------------------------------------------------------------------------------------------

// What rope_store should do to one head, in double.
std::vector<double> expected_head(const float* x, int dim, int dims, RopeStyle style, double position,
                                  const float* weight, double eps, const std::vector<double>& frequencies) {
  std::vector<double> y(x, x + dim);
  if (weight) {
    double sum = 0;
    for (double v : y) sum += v * v;
    for (int i = 0; i < dim; ++i) y[static_cast<size_t>(i)] *= weight[i] / std::sqrt(sum / dim + eps);
  }
  for (int i = 0; i < dims / 2; ++i) {
    const auto a = static_cast<size_t>(style == RopeStyle::kHalves ? i : 2 * i);
    const auto b = static_cast<size_t>(style == RopeStyle::kHalves ? i + dims / 2 : 2 * i + 1);
    const double c = std::cos(position * frequencies[static_cast<size_t>(i)]),
                 s = std::sin(position * frequencies[static_cast<size_t>(i)]);
    const double u = y[a], v = y[b];
    y[a] = u * c - v * s;
    y[b] = u * s + v * c;
  }
  return y;
}

std::vector<double> frequencies_of(int dims) {
  std::vector<double> f;
  for (int i = 0; i < dims / 2; ++i) f.push_back(std::pow(10000.0, -2.0 * i / dims));
  return f;
}

std::vector<float> table_of(const std::vector<double>& f, const std::vector<int>& positions) {
  std::vector<float> t;
  for (int p : positions)
    for (double w : f)
      t.push_back(static_cast<float>(std::cos(w * p))), t.push_back(static_cast<float>(std::sin(w * p)));
  return t;
}

TEST(RopeStore, NormsRotatesAndWritesEveryRowOfEverySequence) {
  ThreadPool pool(3);
  for (RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved})
    for (bool norms : {false, true})
      for (int dims : {32, 64}) {
        const int heads = 4, kv_heads = 2, dim = 64, rows = 70;
        CpuKvStore store({2, kv_heads, dim, 2, 256, DType::kF32}, available_isas().front());
        const Shape shape{Isa::kGeneric, DType::kF32, heads, kv_heads, dim};
        std::vector<float> qkv, q_norm(64), k_norm(64);
        std::vector<int> positions;
        for (int i = 0; i < rows; ++i) {
          const auto x = token_vector(shape, i);
          qkv.insert(qkv.end(), x.begin(), x.end());
          positions.push_back(i * 3);
        }
        for (size_t i = 0; i < 64; ++i)
          q_norm[i] = 1 + 0.01f * static_cast<float>(i), k_norm[i] = 2 - 0.01f * static_cast<float>(i);
        const auto before = qkv;
        const auto f = frequencies_of(dims);
        const auto table = table_of(f, positions);
        const SeqRows seqs[] = {{0, 30, 1, 50, nullptr, 0}, {30, 40, 0, 7, nullptr, 0}};
        RopeStoreArgs a{};
        a.qkv = qkv.data(), a.table = table.data();
        if (norms) a.q_norm = q_norm.data(), a.k_norm = k_norm.data();
        a.eps = 1e-5f;
        a.shape = {heads, kv_heads, dim}, a.dims = dims, a.style = style;
        a.kv = &store, a.layer = 1, a.seqs = seqs;
        rope_store(a, available_isas().front(), pool);
        for (int i = 0; i < rows; ++i) {
          const SeqRows& s = seqs[i < 30 ? 0 : 1];
          const int cell = s.history + i - s.first_row;
          const size_t at = static_cast<size_t>(i) * (heads + 2 * kv_heads) * dim;
          float x[64];
          for (int h = 0; h < heads + kv_heads; ++h) {
            const float* weight = !norms ? nullptr : h < heads ? q_norm.data() : k_norm.data();
            const auto y = expected_head(&before[at + static_cast<size_t>(h * dim)], dim, dims, style,
                                         positions[static_cast<size_t>(i)], weight, 1e-5, f);
            if (h < heads) std::copy_n(&qkv[at + static_cast<size_t>(h * dim)], dim, x);
            else store.load_key(s.slot, 1, h - heads, cell, x);
            for (int d = 0; d < dim; ++d)
              ASSERT_NEAR(x[d], y[static_cast<size_t>(d)], 2e-5) << i << " " << h << " " << d;
          }
          for (int h = 0; h < kv_heads; ++h) {
            store.load_value(s.slot, 1, h, cell, x);
            EXPECT_EQ(0, std::memcmp(x, &before[at + static_cast<size_t>((heads + kv_heads + h) * dim)], sizeof x));
          }
        }
      }
}

// ---- kv_move ------------------------------------------------------------------------------------------------------

// All of a slot's vectors, as floats.
std::vector<float> dump(const CpuKvStore& s, int slot, int cell) {
  const KvGeometry& g = s.geometry();
  std::vector<float> all, x(static_cast<size_t>(g.head_dim));
  for (int l = 0; l < g.layers; ++l)
    for (int h = 0; h < g.kv_heads; ++h) {
      s.load_key(slot, l, h, cell, x.data());
      all.insert(all.end(), x.begin(), x.end());
      s.load_value(slot, l, h, cell, x.data());
      all.insert(all.end(), x.begin(), x.end());
    }
  return all;
}

void scribble(CpuKvStore& s, int slot, int cells, int seed) {
  const KvGeometry& g = s.geometry();
  const Shape shape{Isa::kGeneric, g.type, 1, 1, g.head_dim};
  for (int c = 0; c < cells; ++c)
    for (int l = 0; l < g.layers; ++l)
      for (int h = 0; h < g.kv_heads; ++h) {
        const auto x = token_vector(shape, seed + (c * 10 + l) * 10 + h);
        store_key(s.key_layout(), s.keys(slot, l, h, c / kBlock), c % kBlock, x.data());
        store_value(s.value_layout(), s.values(slot, l, h, c / kBlock), c % kBlock, x.data() + g.head_dim);
      }
}

TEST(KvMove, CopiesBitsWithinAndBetweenStores) {
  ThreadPool pool(2);
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes) {
      CpuKvStore a({2, 3, 40, 2, 300, type}, isa), b({2, 3, 40, 3, 100, type}, isa);
      scribble(a, 1, 300, 1);
      const KvMove moves[] = {{250, 3, 0}, {17, 64, 0}, {64, 63, 0}};
      KvMoveArgs m{};
      m.from = &a, m.to = &b, m.from_slot = 1, m.to_slot = 2, m.moves = moves;
      kv_move(m, isa, pool);
      for (const KvMove& x : moves) EXPECT_EQ(dump(a, 1, x.src), dump(b, 2, x.dst)) << kv_types_name(type);
      EXPECT_EQ(dump(b, 2, 5), std::vector<float>(2 * 3 * 2 * 40));  // nothing else is touched
    }
}

TEST(KvMove, CompactsAnAcceptedPathInPlace) {
  ThreadPool pool(2);
  for (const KvTypes& type : kTypes) {
    const Isa isa = available_isas().front();
    CpuKvStore s({2, 2, 64, 1, 256, type}, isa);
    scribble(s, 0, 200, 5);
    const int path[] = {100, 103, 104, 110, 140};  // tail cells of the accepted nodes, ascending
    std::vector<std::vector<float>> want;
    std::vector<KvMove> moves;
    for (int i = 0; i < 5; ++i) want.push_back(dump(s, 0, path[i])), moves.push_back({path[i], 100 + i, 0});
    KvMoveArgs m{};
    m.from = &s, m.to = &s, m.moves = moves;
    kv_move(m, isa, pool);
    for (int i = 0; i < 5; ++i) EXPECT_EQ(want[static_cast<size_t>(i)], dump(s, 0, 100 + i)) << kv_types_name(type);
  }
}

TEST(KvMove, TurnedKeysAgreeWithKeysStoredAtTheNewPosition) {
  ThreadPool pool(2);
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes)
      for (RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved}) {
        const int dim = 64, dims = 48;
        const auto f = frequencies_of(dims);
        CpuKvStore s({1, 1, dim, 1, 128, type}, isa);
        const Shape shape{isa, type, 1, 1, dim};
        const int delta[] = {-900, 5, -1, 7, -900, 0, 33};
        std::vector<KvMove> moves;
        for (int i = 0; i < 7; ++i) {
          const auto x = token_vector(shape, i);
          const auto y = expected_head(x.data(), dim, dims, style, 1000 + i, nullptr, 0, f);
          const std::vector<float> k(y.begin(), y.end());
          store_key(s.key_layout(), s.keys(0, 0, 0, 0), i, k.data());
          store_value(s.value_layout(), s.values(0, 0, 0, 0), i, x.data() + dim);
          moves.push_back({i, 70 + i, delta[i]});
        }
        KvMoveArgs m{};
        m.from = &s, m.to = &s, m.moves = moves, m.frequencies = f.data(), m.dims = dims, m.style = style;
        kv_move(m, isa, pool);
        for (int i = 0; i < 7; ++i) {
          const auto x = token_vector(shape, i);
          const auto y = expected_head(x.data(), dim, dims, style, 1000 + i + delta[i], nullptr, 0, f);
          float k[64];
          s.load_key(0, 0, 0, 70 + i, k);
          for (int d = 0; d < dim; ++d)
            EXPECT_NEAR(k[d], y[static_cast<size_t>(d)], 3 * rounding(type.keys) * largest(x.data(), dim) + 2e-5)
                << kv_types_name(type);
          float v[64], w[64];
          s.load_value(0, 0, 0, i, v);
          s.load_value(0, 0, 0, 70 + i, w);
          EXPECT_EQ(0, std::memcmp(v, w, sizeof v));
        }
      }
}

// What kv_move should leave behind, cell by cell through the layout's own reading and writing.
void move_one_by_one(const KvMoveArgs& a) {
  const auto& from = static_cast<const CpuKvStore&>(*a.from);
  auto& to = static_cast<CpuKvStore&>(*a.to);
  const KvLayout &l = from.key_layout(), &v = from.value_layout();
  for (const KvMove& m : a.moves)
    for (int layer = 0; layer < from.geometry().layers; ++layer)
      for (int h = 0; h < from.geometry().kv_heads; ++h) {
        if ((a.layer >= 0 && a.layer != layer) || (a.head >= 0 && a.head != h)) continue;
        const int b = m.src / kBlock, p = m.src % kBlock, c = m.dst / kBlock, q = m.dst % kBlock;
        if (m.delta == 0) {
          copy_key(l, from.keys(a.from_slot, layer, h, b), p, to.keys(a.to_slot, layer, h, c), q);
        } else {
          std::vector<float> table, x(static_cast<size_t>(l.dim));
          for (int i = 0; i < a.dims / 2; ++i) {
            const double angle = a.frequencies[i] * m.delta;
            table.push_back(static_cast<float>(std::cos(angle)));
            table.push_back(static_cast<float>(std::sin(angle)));
          }
          load_key(l, from.keys(a.from_slot, layer, h, b), p, x.data());
          rotate(x.data(), table.data(), a.dims, a.style);
          store_key(l, to.keys(a.to_slot, layer, h, c), q, x.data());
        }
        copy_value(v, from.values(a.from_slot, layer, h, b), p, to.values(a.to_slot, layer, h, c), q);
      }
}

// Every byte of a slot's blocks.
std::vector<std::byte> bytes_of(const CpuKvStore& s, int slot) {
  std::vector<std::byte> all;
  const KvGeometry& g = s.geometry();
  for (int l = 0; l < g.layers; ++l)
    for (int h = 0; h < g.kv_heads; ++h)
      for (int b = 0; b < s.blocks(); ++b) {
        const std::byte *k = s.keys(slot, l, h, b), *v = s.values(slot, l, h, b);
        all.insert(all.end(), k, k + s.key_layout().bytes);
        all.insert(all.end(), v, v + s.value_layout().bytes);
      }
  return all;
}

// Runs of all lengths and alignments, single cells, overlaps, cells that are moved on, many deltas.
std::vector<KvMove> random_moves(uint64_t& state, int cells, int count, bool turned) {
  std::vector<KvMove> moves;
  while (static_cast<int>(moves.size()) < count) {
    const int n = 1 + random_below(state, random_below(state, 3) == 0 ? 100 : 9);
    int src = random_below(state, cells - n), dst = random_below(state, cells - n);
    if (random_below(state, 4) == 0) dst = std::min(cells - n, src + random_below(state, 5));
    if (random_below(state, 3) == 0) src = src / 32 * 32, dst = dst / 32 * 32;
    const int delta = turned && random_below(state, 4) > 0 ? random_below(state, 3000) - 2000 : 0;
    for (int i = 0; i < n; ++i) moves.push_back({src + i, dst + i, delta});
  }
  return moves;
}

TEST(KvMove, RunsGetTheBitsOfSingleCells) {
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes)
      for (int dim : {10, 64, 96}) {
        uint64_t state = static_cast<uint64_t>(dim) + 5;
        for (int trial = 0; trial < 12; ++trial) {
          const bool same = trial % 3 == 0;
          const int dims = trial % 4 == 3 ? dim / 4 * 2 : dim, cells = 300;
          const auto f = frequencies_of(dims);
          CpuKvStore a({2, 3, dim, 2, cells, type}, isa), b({2, 3, dim, 2, cells, type}, isa);
          CpuKvStore c({2, 3, dim, 2, cells, type}, isa);
          for (CpuKvStore* s : {&a, &b}) scribble(*s, 1, cells, 3);
          if (!same) scribble(b, 0, cells, 9), scribble(c, 0, cells, 9);
          const auto moves = random_moves(state, cells, trial == 1 ? 3000 : 200, trial != 2);
          KvMoveArgs m{};
          m.from = &a, m.to = same ? &a : &c, m.from_slot = 1, m.to_slot = same ? 1 : 0, m.moves = moves;
          m.frequencies = f.data(), m.dims = dims;
          m.style = trial % 2 ? RopeStyle::kHalves : RopeStyle::kInterleaved;
          m.layer = trial % 5 - 1 < 2 ? trial % 5 - 1 : -1, m.head = trial % 7 - 1 < 3 ? trial % 7 - 1 : -1;
          ThreadPool pool(1 + trial % 3);
          kv_move(m, isa, pool);
          m.from = &b, m.to = &b;
          move_one_by_one(m);
          const CpuKvStore& moved = same ? a : c;
          ASSERT_TRUE(bytes_of(moved, m.to_slot) == bytes_of(b, m.to_slot))
              << isa_name(isa) << " " << kv_types_name(type) << " dim " << dim << " trial " << trial;
        }
      }
}

TEST(KvMove, GathersAscendingChunksOnSeveralThreads) {  // few heads: the runs are shared out
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes) {
      const auto f = frequencies_of(64);
      CpuKvStore a({2, 1, 64, 1, 2048, type}, isa), b({2, 1, 64, 1, 1024, type}, isa);
      CpuKvStore c({2, 1, 64, 1, 1024, type}, isa);
      scribble(a, 0, 2048, 1);
      std::vector<KvMove> moves;
      for (int chunk = 0; chunk < 60; chunk += 2)
        for (int i = 0; i < 32; ++i) {
          const int dst = 5 + static_cast<int>(moves.size()), src = chunk * 32 + i;
          moves.push_back({src, dst, dst - src});
        }
      KvMoveArgs m{};
      m.from = &a, m.to = &c, m.moves = moves, m.frequencies = f.data(), m.dims = 64;
      move_one_by_one(m);
      m.to = &b;
      ThreadPool pool(3);
      kv_move(m, isa, pool);
      ASSERT_TRUE(bytes_of(b, 0) == bytes_of(c, 0)) << isa_name(isa) << " " << kv_types_name(type);
    }
}

TEST(KvMove, FilterTakesOneLayerAndOneHead) {
  ThreadPool pool(2);
  const Isa isa = available_isas().front();
  for (int layer : {-1, 0, 2})
    for (int head : {-1, 0, 1}) {
      CpuKvStore a({3, 2, 64, 1, 128, DType::kF32}, isa), b({3, 2, 64, 1, 128, DType::kF32}, isa);
      scribble(a, 0, 128, 1);
      const KvMove moves[] = {{10, 70, 0}, {11, 71, 0}, {99, 3, 0}};
      KvMoveArgs m{};
      m.from = &a, m.to = &b, m.moves = moves, m.layer = layer, m.head = head;
      kv_move(m, isa, pool);
      for (int l = 0; l < 3; ++l)
        for (int h = 0; h < 2; ++h)
          for (const KvMove& x : moves) {
            const bool taken = (layer < 0 || l == layer) && (head < 0 || h == head);
            float want[2][64] = {}, have[2][64];
            if (taken) a.load_key(0, l, h, x.src, want[0]), a.load_value(0, l, h, x.src, want[1]);
            b.load_key(0, l, h, x.dst, have[0]), b.load_value(0, l, h, x.dst, have[1]);
            EXPECT_EQ(0, std::memcmp(want, have, sizeof want)) << layer << " " << head << " at " << l << " " << h;
          }
    }
}

// ---- cells as bytes ------------------------------------------------------------------------------------------------

// Bytes go to any place of any slot of any store as kv_move would have brought them, whatever set of instructions it
// has, from and to any address, and touch nothing else.
TEST(KvCells, BytesAreTheCells) {
  for (Isa isa : available_isas())
    for (const KvTypes& type : kTypes)
      for (int dim : {10, 64, 96}) {
        uint64_t state = static_cast<uint64_t>(dim) + 5;
        CpuKvStore a({2, 3, dim, 2, 1300, type}, isa);
        CpuKvStore b({2, 3, dim, 3, 1200, type}, isa), c({2, 3, dim, 3, 1200, type}, isa);
        scribble(a, 1, 1300, 3), scribble(b, 2, 1200, 9), scribble(c, 2, 1200, 9);
        for (int trial = 0; trial < 6; ++trial) {
          const int count = trial == 0 ? 1 : trial == 1 ? 0 : 1 + random_below(state, trial == 2 ? 1100 : 150);
          const int first = random_below(state, 1300 - count), to = random_below(state, 1200 - count);
          ThreadPool pool(1 + trial % 3);
          std::vector<KvMove> moves;
          for (int i = 0; i < count; ++i) moves.push_back({first + i, to + i, 0});
          KvMoveArgs m{};
          m.from = &a, m.to = &c, m.from_slot = 1, m.to_slot = 2, m.moves = moves;
          move_one_by_one(m);
          const size_t size = static_cast<size_t>(count) * kv_cell_bytes(a), odd = static_cast<size_t>(trial % 4);
          std::vector<std::byte> bytes(size + odd + 1, std::byte{77});
          kv_read(a, {1, first, count}, bytes.data() + odd, pool);
          EXPECT_EQ(bytes.back(), std::byte{77});
          kv_write(b, {2, to, count}, bytes.data() + odd, pool);
          ASSERT_TRUE(bytes_of(b, 2) == bytes_of(c, 2))
              << isa_name(isa) << " " << kv_types_name(type) << " dim " << dim << " trial " << trial;
          // And in the layout of another set of instructions they are the same numbers.
          CpuKvStore d({2, 3, dim, 1, 1200, type}, Isa::kGeneric);
          kv_write(d, {0, to, count}, bytes.data() + odd, pool);
          for (int i = 0; i < count; i += 1 + count / 9) ASSERT_EQ(dump(a, 1, first + i), dump(d, 0, to + i));
        }
      }
}

}  // namespace
}  // namespace sx::cpu::testing
