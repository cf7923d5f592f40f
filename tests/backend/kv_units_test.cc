// Units of memory behind the cells of slots (KvUnits): every slot reads what it has written and what it took over,
// whoever writes, is cut, shares again or finds no memory; and one prefix costs one prefix. The device is a file in
// memory, mapped page by page, so that cells without memory end the test and shared ones are truly shared.
#include "backend/kv_units.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <vector>

#include "base/rng.h"

namespace sx {
namespace {

constexpr size_t kPage = 65536;  // a unit: whole pages on every machine

class FileMapper final : public UnitMapper {
 public:
  FileMapper(size_t range, size_t most) : range_(range), most_(most) {
    file_ = ::memfd_create("units", MFD_CLOEXEC);
    EXPECT_EQ(::ftruncate(file_, off_t(most * kPage)), 0);
    all_ = static_cast<std::byte*>(::mmap(nullptr, most * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0));
    base_ =
        static_cast<std::byte*>(::mmap(nullptr, range_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    for (size_t i = most; i > 0; --i) free_.push_back(i - 1);
  }
  ~FileMapper() override {
    EXPECT_EQ(used(), 0u) << "units that nobody gave back";
    EXPECT_TRUE(mapped_.empty());
    ::munmap(base_, range_);
    ::munmap(all_, most_ * kPage);
    ::close(file_);
  }

  std::byte* data() const { return base_; }
  size_t used() const { return most_ - free_.size(); }
  int copies = 0;

  KvUnits* store = nullptr;
  bool take(std::span<Unit> units) override {
    if (units.size() > free_.size() && store) store->give_spare();
    if (units.size() > free_.size()) return false;
    for (Unit& unit : units) unit = free_.back(), free_.pop_back();
    return true;
  }
  void give(std::span<const Unit> units) override {
    for (const Unit unit : units) {
      for (const auto& [at, other] : mapped_) EXPECT_NE(other, unit) << "still mapped at " << at;
      EXPECT_EQ(std::count(free_.begin(), free_.end(), unit), 0);
      std::memset(all_ + unit * kPage, 0xa5, kPage);  // whoever takes it next finds no zeros
      free_.push_back(unit);
    }
  }
  void map(size_t at, std::span<const Unit> units) override {
    for (size_t i = 0; i < units.size(); ++i) {
      EXPECT_TRUE(mapped_.emplace(at + i * kPage, units[i]).second) << "mapped twice";
      EXPECT_LE(at + (i + 1) * kPage, range_);
      EXPECT_NE(::mmap(base_ + at + i * kPage, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file_,
                       off_t(units[i] * kPage)),
                MAP_FAILED);
    }
  }
  void unmap(size_t at, size_t count) override {
    for (size_t i = 0; i < count; ++i) EXPECT_EQ(mapped_.erase(at + i * kPage), 1u) << "not mapped";
    ::mmap(base_ + at, count * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
  void clear(size_t at, size_t bytes) override { std::memset(base_ + at, 0, bytes); }
  void copy(size_t to, size_t from, size_t bytes) override {
    std::memcpy(base_ + to, base_ + from, bytes);
    ++copies;
  }

 private:
  const size_t range_, most_;
  int file_ = -1;
  std::byte *all_ = nullptr, *base_ = nullptr;  // the file, and the store's addresses
  std::vector<Unit> free_;
  std::map<size_t, Unit> mapped_;
};

// A store of blocks of 4 cells in two arrays: one with less than a unit for a block and one with more, neither a
// multiple; and one that does not last.
class Store {
 public:
  static constexpr int kSlots = 4, kCells = 4, kBlocks = 64;
  static constexpr size_t kBytes[] = {kPage / 16 * 11 / 64 * 64, kPage * 5 / 4, kPage / 8};
  explicit Store(size_t most = 4096, size_t spare = 0) : mapper_(range(), most), units_(shape(spare), mapper_) {
    mapper_.store = &units_;
  }

  static UnitShape shape(size_t spare = 0) {
    UnitShape shape{.slots = kSlots, .block_cells = kCells, .unit = kPage, .spare = spare * kPage};
    size_t at = 0;
    for (size_t a = 0; a < 3; ++a) {
      const size_t slot = (kBlocks * kBytes[a] + kPage - 1) / kPage * kPage;
      shape.arrays.push_back({.at = at, .slot_bytes = slot, .block_bytes = kBytes[a], .lasts = a < 2});
      at += kSlots * slot;
    }
    shape.window = at;
    return shape;
  }
  static size_t range() { return shape().window + kPage; }

  KvUnits& units() { return units_; }
  FileMapper& mapper() { return mapper_; }
  int length(int slot) const { return int(text_[size_t(slot)].size()); }
  std::byte* cell(size_t array, int slot, int at) {
    const UnitShape::Array a = shape().arrays[array];
    return mapper_.data() + a.at + size_t(slot) * a.slot_bytes + size_t(at / kCells) * a.block_bytes +
           size_t(at % kCells) * (a.block_bytes / kCells);
  }
  // Cells behind the first `first`, of which the text has that many; the rest of it is gone.
  bool write(int slot, int first, int count, uint8_t with) {
    if (!units_.hold(slot, first, first + count)) return false;
    auto& text = text_[size_t(slot)];
    text.resize(size_t(first + count));
    for (int i = first; i < first + count; ++i) {
      text[size_t(i)] = uint8_t(with + i);
      for (size_t a = 0; a < 3; ++a) std::memset(cell(a, slot, i), int(uint8_t(with + i + int(a))), kBytes[a] / kCells);
    }
    return true;
  }
  void truncate(int slot, int to) { text_[size_t(slot)].resize(size_t(to)); }
  void cut(int slot, int to) { truncate(slot, to), units_.cut(slot, to); }
  bool share(int from, int to, int cells) {
    text_[size_t(to)].clear();
    if (!units_.share(from, to, cells)) return false;
    text_[size_t(to)].assign(text_[size_t(from)].begin(), text_[size_t(from)].begin() + cells);
    return true;
  }
  ::testing::AssertionResult same() {
    for (int slot = 0; slot < kSlots; ++slot)
      for (int i = 0; i < length(slot); ++i)
        for (size_t a = 0; a < 2; ++a) {
          const std::vector<uint8_t> want(kBytes[a] / kCells, uint8_t(text_[size_t(slot)][size_t(i)] + int(a)));
          if (std::memcmp(cell(a, slot, i), want.data(), want.size()) != 0)
            return ::testing::AssertionFailure() << "slot " << slot << ", cell " << i << ", array " << a;
        }
    return ::testing::AssertionSuccess();
  }

 private:
  FileMapper mapper_;
  KvUnits units_;
  std::array<std::vector<uint8_t>, kSlots> text_;
};

int random_below(uint64_t& state, int n) { return int((state = mix64(state + 1)) % uint64_t(n)); }

TEST(KvUnits, AnyHistoryGivesTheCellsOfCopies) {
  uint64_t state = 5;
  int refusals[2] = {};  // with memory for all, and with so little that some find none
  for (int round = 0; round < 30; ++round) {
    int& refused = refusals[round % 3 == 0];
    const size_t spare = round % 2 == 0 ? 0 : 40;
    Store store(round % 3 == 0 ? 200 : 4096, spare);
    bool kept = false;
    for (int step = 0; step < 80; ++step) {
      const int slot = random_below(state, Store::kSlots), other = (slot + 1 + random_below(state, 3)) % Store::kSlots;
      const int length = store.length(slot), room = Store::kBlocks * Store::kCells - length;
      switch (random_below(state, 6)) {
        case 0:
        case 1:
          if (room > 1)
            refused += !store.write(slot, length, 1 + random_below(state, std::min(room, 90)), uint8_t(step));
          break;
        case 2: store.truncate(slot, random_below(state, length + 1)); break;
        case 3: store.cut(slot, random_below(state, 2) ? random_below(state, length + 1) : 0); break;
        case 4:  // another end, as after an edit
          store.truncate(slot, random_below(state, std::max(1, length)));
          refused += !store.write(slot, store.length(slot), 1, uint8_t(step));
          break;
        default:
          if (length > 0) refused += !store.share(slot, other, 1 + random_below(state, length));
      }
      ASSERT_TRUE(store.same()) << "round " << round << ", step " << step;
      const KvUse use = store.units().use();
      ASSERT_LE(use.own + use.shared, store.mapper().used() * kPage);
      ASSERT_GE(use.own + use.shared + spare * kPage, store.mapper().used() * kPage);
      kept = kept || use.own + use.shared < store.mapper().used() * kPage;
    }
    EXPECT_EQ(kept, spare > 0);
  }
  EXPECT_EQ(refusals[0], 0);
  EXPECT_GT(refusals[1], 10);
}

TEST(KvUnits, OnePrefixCostsOnePrefix) {
  Store store;
  ASSERT_TRUE(store.write(0, 0, 200, 1));
  const size_t one = store.mapper().used();
  for (int slot = 1; slot < Store::kSlots; ++slot) {
    ASSERT_TRUE(store.share(0, slot, 200));
    ASSERT_TRUE(store.write(slot, 200, 3, uint8_t(10 * slot)));
  }
  EXPECT_TRUE(store.same());
  // Of each array a taker has a unit or two of its own; that which does not last is each slot's own.
  const size_t scratch = (200 / Store::kCells * Store::kBytes[2] + kPage - 1) / kPage;
  EXPECT_LE(store.mapper().used(), one + (Store::kSlots - 1) * (2 * 2 + scratch + 1));
  EXPECT_GT(store.units().use().saved, 3 * (one - scratch - 6) * kPage);
  for (int slot = 0; slot < Store::kSlots; ++slot) store.cut(slot, 0);
  EXPECT_EQ(store.mapper().used(), 0u);
  EXPECT_EQ(store.units().use().own + store.units().use().shared, 0u);
}

// A text that is cut at the border of a block goes on in a unit that reaches over the border, and that others have.
TEST(KvUnits, AWriterGetsItsOwnUnitsFirst) {
  for (int cut : {100, 96, 97, 8, 1, 0}) {
    Store store;
    ASSERT_TRUE(store.write(0, 0, 200, 1));
    ASSERT_TRUE(store.share(0, 1, 200) && store.share(1, 2, 160));
    store.cut(0, cut);
    ASSERT_TRUE(store.write(0, cut, 60, 77));
    EXPECT_TRUE(store.same()) << cut;
    ASSERT_TRUE(store.write(1, 120, 50, 99));
    EXPECT_TRUE(store.same()) << cut;
  }
}

TEST(KvUnits, WritingBehindASharedPrefixCopiesNothingMore) {
  Store store;
  ASSERT_TRUE(store.write(0, 0, 150, 1));
  ASSERT_TRUE(store.share(0, 1, 150));
  const int copies = store.mapper().copies;
  for (int i = 150; i < 200; ++i) ASSERT_TRUE(store.write(1, i, 1, 5) && store.write(0, i, 1, 6));
  EXPECT_EQ(store.mapper().copies, copies);
  EXPECT_TRUE(store.same());
}

// Ops ask for the cells they read, too: up to `end`, none of which they write.
TEST(KvUnits, ReadingASharedPrefixCopiesNothing) {
  Store store;
  ASSERT_TRUE(store.write(0, 0, 150, 1));
  ASSERT_TRUE(store.share(0, 1, 150));
  const int copies = store.mapper().copies;
  const size_t used = store.mapper().used();
  for (int end = 1; end <= 150; ++end) ASSERT_TRUE(store.units().hold(1, end, end) && store.units().hold(0, end, end));
  EXPECT_EQ(store.mapper().copies, copies);
  EXPECT_EQ(store.mapper().used(), used);
  ASSERT_TRUE(store.write(1, 50, 1, 9)) << "a writer still gets its own";
  EXPECT_GT(store.mapper().copies, copies);
  EXPECT_TRUE(store.same());
}

TEST(KvUnits, NewMemoryIsZeros) {
  Store store(300);
  ASSERT_TRUE(store.write(0, 0, 240, 1));
  store.cut(0, 0);
  ASSERT_TRUE(store.units().hold(1, 0, 240));
  for (size_t a = 0; a < 3; ++a)
    for (int i = 0; i < 240; ++i)
      ASSERT_EQ(*std::max_element(store.cell(a, 1, i), store.cell(a, 1, i) + Store::kBytes[a] / Store::kCells),
                std::byte{});
  ASSERT_TRUE(store.write(1, 0, 5, 3) && store.share(1, 2, 5));  // the rest of the last unit
  EXPECT_EQ(*std::max_element(store.cell(1, 2, 8), store.cell(1, 2, 8) + 64), std::byte{});
}

// A text that begins anew finds the memory of the one before it, unless others have asked for it meanwhile.
TEST(KvUnits, SpareMemoryIsUsedAgainAndGivenToWhoAsks) {
  Store store(100, 60);
  ASSERT_TRUE(store.write(0, 0, 100, 1));
  const size_t used = store.mapper().used();
  store.cut(0, 0);
  EXPECT_EQ(store.mapper().used(), used);
  EXPECT_EQ(store.units().use().own, 0u);
  EXPECT_FALSE(store.share(0, 1, 4)) << "a giver without cells";
  ASSERT_TRUE(store.write(0, 0, 50, 2));
  EXPECT_EQ(store.mapper().used(), used);
  EXPECT_LT(store.units().use().own, used * kPage);
  ASSERT_TRUE(store.share(0, 1, 50));
  EXPECT_FALSE(store.write(2, 0, 240, 3)) << "more than there is";
  EXPECT_EQ(store.units().use().own + store.units().use().shared, store.mapper().used() * kPage);
  ASSERT_TRUE(store.write(2, 0, 100, 4));
  EXPECT_TRUE(store.same());
}

TEST(KvUnits, WhoFindsNoMemoryLosesNothing) {
  Store store(100);
  ASSERT_TRUE(store.write(0, 0, 100, 1) && store.write(1, 0, 60, 2));
  const size_t used = store.mapper().used();
  EXPECT_FALSE(store.write(1, 60, 180, 3));
  EXPECT_EQ(store.mapper().used(), used);
  EXPECT_TRUE(store.same());
  EXPECT_TRUE(store.write(0, 100, 1, 4)) << "others go on";
  store.cut(0, 0);
  EXPECT_TRUE(store.write(1, 60, 100, 5));
  EXPECT_TRUE(store.same());
}

// Memory for new cells is there, but not for copies of those that are shared.
TEST(KvUnits, AWriterWithoutMemoryForItsCopiesKeepsNothingNew) {
  int refused = 0;
  for (size_t most = 40; most < 120; ++most) {
    Store store(most);
    if (!store.write(0, 0, 100, 1) || !store.share(0, 1, 100)) continue;
    const KvUse before = store.units().use();
    const size_t used = store.mapper().used();
    if (store.units().hold(1, 0, 110)) continue;
    ++refused;
    const KvUse after = store.units().use();
    EXPECT_EQ(after.own + after.shared + after.saved, before.own + before.shared + before.saved) << most;
    EXPECT_TRUE(store.same()) << most;
    // Units that were copied before memory ran out are no longer shared; new cells have none.
    EXPECT_EQ((store.mapper().used() - used) * kPage, before.saved - after.saved) << most;
    constexpr size_t kBlockUnits = 1 + 2 + 1;  // of the three arrays
    const bool room = store.mapper().used() + kBlockUnits <= most;
    EXPECT_EQ(store.write(2, 0, 1, 7), room) << most;
  }
  EXPECT_GT(refused, 10);
}

TEST(KvUnits, ATakerWithoutMemoryHoldsNothing) {
  Store store(66);
  ASSERT_TRUE(store.write(0, 0, 120, 1));  // all but a few units
  const size_t used = store.mapper().used();
  ASSERT_LT(66 - used, 4u);
  EXPECT_FALSE(store.share(0, 1, 101));
  EXPECT_EQ(store.mapper().used(), used);
  EXPECT_FALSE(store.share(1, 2, 4)) << "a giver without cells";
  EXPECT_TRUE(store.same());
}

}  // namespace
}  // namespace sx
