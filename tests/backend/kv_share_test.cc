// Slots of a KV store that share the physical memory of a common prefix: every slot reads what copies would have given
// it, whoever writes, is cut, shares again or gives memory back, and one prefix costs one prefix.
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <string>

#include "attention_fixture.h"

namespace sx::cpu::testing {
namespace {

constexpr KvTypes kTypes[] = {DType::kF32,
                              DType::kF16,
                              DType::kBF16,
                              DType::kQ8_0,
                              DType::kQ4_0,
                              DType::kQ4_1,
                              KvTypes(DType::kQ8_0, DType::kQ4_1)};

std::vector<std::byte> read_cells(const CpuKvStore& s, int slot, int count, ThreadPool& pool) {
  std::vector<std::byte> bytes(static_cast<size_t>(count) * kv_cell_bytes(s));
  kv_read(s, {slot, 0, count}, bytes.data(), pool);
  return bytes;
}

void move_cells(CpuKvStore& s, int from, int to, int count, Isa isa, ThreadPool& pool) {
  std::vector<KvMove> moves;
  for (int i = 0; i < count; ++i) moves.push_back({i, i, 0});
  KvMoveArgs m{};
  m.from = &s, m.to = &s, m.from_slot = from, m.to_slot = to, m.moves = moves;
  kv_move(m, isa, pool);
}

// A store whose slots share, and one whose slots copy, through the same history.
class Pair {
 public:
  static constexpr int kSlots = 4, kCapacity = 3200;
  Pair(Isa isa, const KvTypes& type, int dim, int threads)
      : shape_{isa, type, 4, 2, dim},
        pool_(threads),
        shared_({2, 2, dim, kSlots, kCapacity, type}, isa, &pool_),
        copied_({2, 2, dim, kSlots, kCapacity, type}, isa) {
    // Bytes of cells to write: those of a store that was filled once.
    CpuKvStore source({2, 2, dim, 1, 512, type}, isa);
    for (int c = 0; c < 512; ++c)
      for (int l = 0; l < 2; ++l)
        for (int h = 0; h < 2; ++h) {
          const auto x = token_vector(shape_, (c * 2 + l) * 2 + h);
          store_key(source.key_layout(), source.keys(0, l, h, c / kBlock), c % kBlock, x.data());
          store_value(source.value_layout(), source.values(0, l, h, c / kBlock), c % kBlock, x.data() + dim);
        }
    cells_ = read_cells(source, 0, 512, pool_);
  }

  int length(int slot) const { return length_[slot]; }
  void write(int slot, int first, int count, int seed) {
    const size_t size = kv_cell_bytes(shared_);
    for (int i = 0; i < count;) {
      const int at = (seed + i) % 512, n = std::min(count - i, 512 - at);
      for (CpuKvStore* s : {&shared_, &copied_})
        kv_write(*s, {slot, first + i, n}, cells_.data() + static_cast<size_t>(at) * size, pool_);
      i += n;
    }
    length_[slot] = std::max(length_[slot], first + count);
  }
  void truncate(int slot, int to) { length_[slot] = to; }
  void share(int from, int to, int count) {
    if (!shared_.share(from, to, count)) move_cells(shared_, from, to, count, shape_.isa, pool_);
    move_cells(copied_, from, to, count, shape_.isa, pool_);
    length_[to] = count;
  }
  void give_back(int slot) { shared_.release({slot, 0, 2, length_[slot], shared_.geometry().capacity}); }
  void compact(int slot, int first, int from) {  // as a commit does
    const KvMove moves[] = {{from, first, 0}, {from + 2, first + 1, 0}};
    for (CpuKvStore* s : {&shared_, &copied_}) {
      KvMoveArgs m{};
      m.from = s, m.to = s, m.from_slot = m.to_slot = slot, m.moves = moves;
      kv_move(m, shape_.isa, pool_);
    }
    length_[slot] = first + 2;
  }
  ::testing::AssertionResult same() {
    for (int slot = 0; slot < kSlots; ++slot)
      if (read_cells(shared_, slot, length_[slot], pool_) != read_cells(copied_, slot, length_[slot], pool_))
        return ::testing::AssertionFailure() << shape_.name() << ", slot " << slot << " of " << length_[slot];
    return ::testing::AssertionSuccess();
  }
  CpuKvStore& shared() { return shared_; }

 private:
  const Shape shape_;
  ThreadPool pool_;
  CpuKvStore shared_, copied_;
  std::vector<std::byte> cells_;
  int length_[kSlots] = {};
};

TEST(KvShare, AnyHistoryGivesTheCellsOfCopies) {
  for (Isa isa : {available_isas().front(), Isa::kGeneric})
    for (const KvTypes& type : kTypes) {
      uint64_t state = static_cast<uint64_t>(type.keys) * 3 + 1;
      Pair pair(isa, type, type == DType::kF16 ? 40 : 64, 1 + static_cast<int>(type.keys) % 3);
      for (int step = 0; step < 40; ++step) {
        const int slot = random_below(state, Pair::kSlots), other = (slot + 1 + random_below(state, 3)) % Pair::kSlots;
        const int length = pair.length(slot), room = Pair::kCapacity - length;
        switch (random_below(state, 6)) {
          case 0:
          case 1:
            if (room > 40) pair.write(slot, length, 1 + random_below(state, std::min(room, 1500)), step * 37);
            break;
          case 2: pair.truncate(slot, random_below(state, length + 1)); break;
          case 3:
            if (length > 10) pair.compact(slot, length - 8, length - 5);
            break;
          case 4:
            pair.truncate(slot, random_below(state, length + 1));
            pair.give_back(slot);
            break;
          default:
            if (length > 0) pair.share(slot, other, 1 + random_below(state, length));
        }
        ASSERT_TRUE(pair.same()) << "step " << step;
      }
    }
}

TEST(KvShare, WritersGetTheirOwnCells) {
  Pair pair(available_isas().front(), DType::kBF16, 64, 2);
  pair.write(0, 0, 2100, 3);
  for (int slot = 1; slot < Pair::kSlots; ++slot) pair.share(0, slot, 2100);
  const KvUse use = pair.shared().use();
  EXPECT_GT(use.shared, size_t(2100) * kv_cell_bytes(pair.shared()) * 9 / 10);
  EXPECT_EQ(use.own, 0u);
  EXPECT_NEAR(double(use.saved), 3.0 * double(use.shared), 1);
  pair.truncate(1, 700), pair.write(1, 700, 50, 100);  // in the middle of what is shared
  pair.write(2, 2100, 64, 200);                        // behind it
  pair.truncate(0, 0), pair.write(0, 0, 10, 300);      // the first one begins anew
  ASSERT_TRUE(pair.same());
  EXPECT_GT(pair.shared().use().own, 0u);
  pair.share(2, 0, 2164), pair.share(1, 3, 750);
  ASSERT_TRUE(pair.same());
  for (int slot = 0; slot < Pair::kSlots; ++slot) pair.truncate(slot, 0), pair.give_back(slot);
  EXPECT_EQ(pair.shared().use().shared + pair.shared().use().own, 0u);
}

// Pages that several places of a process map count once.
size_t proportional_bytes() {
  size_t kilobytes = 0;
  char line[256];
  if (FILE* f = std::fopen("/proc/self/smaps_rollup", "r")) {
    while (std::fgets(line, sizeof line, f))
      if (std::sscanf(line, "Pss: %zu", &kilobytes) == 1) break;
    std::fclose(f);
  }
  return kilobytes << 10;
}

TEST(KvShare, OnePrefixCostsOnePrefix) {
  if (proportional_bytes() == 0) GTEST_SKIP() << "this system does not tell";
  ThreadPool pool(2);
  const Isa isa = available_isas().front();
  CpuKvStore store({8, 4, 64, 9, 8192, DType::kBF16}, isa, &pool);
  const size_t before = proportional_bytes(), cell = kv_cell_bytes(store);
  std::vector<std::byte> cells(256 * cell);
  for (size_t i = 0; i < cells.size(); ++i) cells[i] = std::byte(i * 37 % 101);
  const auto write = [&](int slot, int first, int count) {
    for (int i = 0; i < count; i += 256)
      kv_write(store, {slot, first + i, std::min(256, count - i)}, cells.data(), pool);
  };
  const auto touch = [&](int slot, int count) {  // what a pass does
    std::vector<std::byte> all(static_cast<size_t>(count) * cell);
    kv_read(store, {slot, 0, count}, all.data(), pool);
  };
  write(0, 0, 6100);
  touch(0, 6100);
  const size_t one = proportional_bytes() - before;
  for (int slot = 1; slot < 9; ++slot) {
    ASSERT_TRUE(store.share(0, slot, 6000));
    write(slot, 6000, 100);
    touch(slot, 6100);
  }
  const size_t nine = proportional_bytes() - before;
  EXPECT_LT(nine, one + one / 3) << one;
  for (int slot = 0; slot < 9; ++slot) store.release({slot, 0, 8, 0, 8192});
  EXPECT_LT(proportional_bytes() - before, one / 4);
}

// What is mapped anew, with others or alone again, is spread like the memory that was there before.
TEST(KvShare, KeepsToMemoryNodes) {
  constexpr size_t kBytes = 65536;
  constexpr int kCells = 8;
  const std::vector<int> nodes{0, 4000};  // the second one no machine has
  const Pages memory(4 * kBytes, "a test");
  const auto interleaved = [&] {
    size_t count = 0;
    for (size_t extent = 0; extent < 4; ++extent) {
      int mode = -1;
      unsigned long mask[16] = {};
      if (::syscall(SYS_get_mempolicy, &mode, mask, sizeof(mask) * 8, memory.data() + extent * kBytes, MPOL_F_ADDR) ==
          0)
        count += mode == MPOL_INTERLEAVE;
    }
    return count;
  };
  memory.interleave(nodes);
  if (interleaved() == 0) GTEST_SKIP() << "this system does not tell where memory will be";
  SharedExtents extents({.memory = memory.data(), .slots = 2, .extents = 2, .cells = kCells, .bytes = kBytes}, nodes);
  std::memset(memory.data(), 7, 2 * kBytes);
  extents.written(0, 0, 2 * kCells);
  ASSERT_TRUE(extents.share(0, 1, 2 * kCells, nullptr));
  EXPECT_EQ(interleaved(), 4u);
  EXPECT_EQ(memory.data()[4 * kBytes - 1], std::byte{7});
  for (int slot : {1, 0}) {
    extents.release({.slot = slot, .first = 0, .end = 2 * kCells, .at = 0, .bytes = kBytes});
    EXPECT_EQ(interleaved(), 4u) << slot;
  }
  EXPECT_EQ(memory.data()[0], std::byte{});
}

}  // namespace
}  // namespace sx::cpu::testing
