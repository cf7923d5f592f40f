// Cells on a device whose memory follows use: slots that share a prefix read what copies would have given them, one
// prefix costs one prefix, slots are reserved far beyond the memory there is, and only who asks for too much is
// refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/kv_sharing.h"
#include "backend/kv_stream.h"
#include "backend/registry.h"
#include "base/error.h"
#include "base/rng.h"

namespace sx {
namespace {

// A backend whose stores have units, or take their memory at once (SPECEXTEND_KV is read when it is made).
std::unique_ptr<Backend> backend_with(const char* kv, size_t cells = 0) {
  ::setenv("SPECEXTEND_KV", kv, 1);
  auto backend = make_cuda_backend({.cells = cells});
  ::unsetenv("SPECEXTEND_KV");
  return backend;
}

class CudaUnits : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_cuda(); !why.empty()) GTEST_SKIP() << why;
  }
};

int below(uint64_t& state, int n) { return int((state = mix64(state + 1)) % uint64_t(n)); }

std::vector<std::byte> random_cells(size_t bytes, uint64_t seed) {
  std::vector<std::byte> out(bytes);
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = mix64(seed * 0x10001 + i) & 0x3f7f3f7f3f7f3f7full;  // finite in every type
    std::memcpy(&out[i], &word, 8);
  }
  return out;
}

// The same history on a store whose slots share and on one whose slots copy. A unit has 341 cells at most.
class Twice {
 public:
  static constexpr int kSlots = 4, kCapacity = 2000;
  explicit Twice(const KvTypes& type) {
    for (Side* side : {&shares_, &copies_}) {
      side->backend = backend_with(side == &shares_ ? "units" : "reserved");
      side->kv = side->backend->make_kv(
          {.layers = 12, .kv_heads = 8, .head_dim = 64, .slots = kSlots, .capacity = kCapacity, .type = type});
    }
    cell_ = shares_.backend->kv_cell_bytes(*shares_.kv);
  }
  int length(int slot) const { return length_[slot]; }
  void write(int slot, int first, int count, uint64_t seed) {
    const auto bytes = random_cells(size_t(count) * cell_, seed);
    each([&](Side& s) { s.backend->kv_write(*s.kv, {.slot = slot, .first = first, .count = count}, bytes.data()); });
    length_[slot] = first + count;
  }
  void truncate(int slot, int to) {
    each([&](Side& s) { forget_cells(*s.backend, *s.kv, slot, to, length_[slot]); });
    length_[slot] = to;
  }
  void copy(int from, int to, int count) {
    each([&](Side& s) { copy_cells(*s.backend, *s.kv, from, to, count); });
    length_[to] = count;
  }
  void compact(int slot, int first, int from) {
    const KvMove moves[] = {{from, first, 0}, {from + 2, first + 1, 0}};
    each([&](Side& s) {
      s.backend->kv_move({.from = s.kv.get(), .to = s.kv.get(), .from_slot = slot, .to_slot = slot, .moves = moves});
    });
    length_[slot] = first + 2;
  }
  ::testing::AssertionResult same() {
    for (int slot = 0; slot < kSlots; ++slot)
      if (read(shares_, slot) != read(copies_, slot))
        return ::testing::AssertionFailure() << "slot " << slot << " of " << length_[slot];
    return ::testing::AssertionSuccess();
  }
  KvUse use() { return dynamic_cast<KvSharing&>(*shares_.kv).use(); }

 private:
  struct Side {
    std::unique_ptr<Backend> backend;
    std::unique_ptr<KvStore> kv;
  };
  template <class Body>
  void each(const Body& body) {
    body(shares_), body(copies_);
  }
  std::vector<std::byte> read(Side& s, int slot) {
    std::vector<std::byte> bytes(size_t(length_[slot]) * cell_);
    s.backend->kv_read(*s.kv, {.slot = slot, .first = 0, .count = length_[slot]}, bytes.data());
    return bytes;
  }
  Side shares_, copies_;
  size_t cell_ = 0;
  int length_[kSlots] = {};
};

TEST_F(CudaUnits, AnyHistoryGivesTheCellsOfCopies) {
  for (const KvTypes& type :
       {KvTypes(DType::kBF16), KvTypes(DType::kQ8_0), KvTypes(DType::kQ4_1), KvTypes(DType::kQ8_0, DType::kQ4_0)}) {
    Twice both(type);
    uint64_t state = uint64_t(type.keys) + 3;
    bool shared = false;
    for (int step = 0; step < 60; ++step) {
      const int slot = below(state, Twice::kSlots), other = (slot + 1 + below(state, 3)) % Twice::kSlots;
      const int length = both.length(slot), room = Twice::kCapacity - length;
      switch (below(state, 6)) {
        case 0:
        case 1:
          if (room > 1) both.write(slot, length, 1 + below(state, std::min(room, 1400)), uint64_t(step));
          break;
        case 2:
          both.truncate(slot, below(state, 3) == 0 ? 0 : below(state, length + 1));
          if (both.length(slot) + 40 < Twice::kCapacity) both.write(slot, both.length(slot), 30, uint64_t(step) + 99);
          break;
        case 3:
          if (length > 10) both.compact(slot, length - 8, length - 5);
          break;
        default:
          if (length > 0) both.copy(slot, other, 1 + below(state, length));
      }
      ASSERT_TRUE(both.same()) << kv_types_name(type) << ", step " << step;
      shared = shared || both.use().saved > 0;
    }
    EXPECT_TRUE(shared);
  }
}

// Of Llama-3.1-8B: 128 KB a token.
KvGeometry large(int slots, int capacity) {
  return {.layers = 32, .kv_heads = 8, .head_dim = 128, .slots = slots, .capacity = capacity, .type = DType::kBF16};
}

TEST_F(CudaUnits, EightQuestionsAboutOneDocumentCostOneDocument) {
  constexpr int kDocument = 6144, kQuestion = 96;
  const auto backend = backend_with("units");
  const auto kv = backend->make_kv(large(8, 8192));
  const auto bytes = random_cells(size_t(256) * backend->kv_cell_bytes(*kv), 7);
  const auto write = [&](int slot, int first, int count) {
    for (int done = 0; done < count; done += 256)
      backend->kv_write(*kv, {.slot = slot, .first = first + done, .count = std::min(256, count - done)}, bytes.data());
  };
  const auto used = [&] {
    const KvUse use = dynamic_cast<KvSharing&>(*kv).use();
    return use.own + use.shared;
  };
  write(0, 0, kDocument + kQuestion);
  const size_t one = used();
  EXPECT_LE(one, size_t(kDocument + kQuestion + 128) * 131072);
  for (int slot = 1; slot < 8; ++slot) {
    copy_cells(*backend, *kv, 0, slot, kDocument);
    write(slot, kDocument, kQuestion);
  }
  EXPECT_LE(double(used()), 1.3 * double(one)) << used() << " bytes, of one text " << one;
  size_t taken = 0;
  for (const auto& use : backend->memory()) taken += use.as_used ? use.bytes : 0;
  EXPECT_EQ(taken, used()) << "of the device";
  for (int slot = 0; slot < 8; ++slot) forget_cells(*backend, *kv, slot, 0, kDocument + kQuestion);
  EXPECT_EQ(used(), 0u);
}

TEST_F(CudaUnits, ATextFindsTheMemoryOfTheOneBeforeIt) {
  const auto backend = backend_with("units");
  const auto kv = backend->make_kv(large(2, 8192));
  const auto taken = [&] {
    size_t bytes = 0;
    for (const auto& use : backend->memory()) bytes += use.as_used ? use.bytes : 0;
    return bytes;
  };
  const auto bytes = random_cells(size_t(256) * backend->kv_cell_bytes(*kv), 7);
  std::vector<std::byte> found(bytes.size());
  for (int text = 0; text < 3; ++text) {
    backend->kv_write(*kv, {.slot = text % 2, .first = 0, .count = 256}, bytes.data());
    const size_t before = taken();
    forget_cells(*backend, *kv, text % 2, 0, 256);
    EXPECT_EQ(dynamic_cast<KvSharing&>(*kv).use().own, 0u);
    backend->kv_write(*kv, {.slot = text % 2, .first = 0, .count = 128}, bytes.data());
    EXPECT_EQ(taken(), before);
    backend->kv_read(*kv, {.slot = text % 2, .first = 0, .count = 128}, found.data());
    EXPECT_EQ(std::memcmp(found.data(), bytes.data(), bytes.size() / 2), 0);
    forget_cells(*backend, *kv, text % 2, 0, 128);
  }
}

TEST_F(CudaUnits, SlotsAreReservedBeyondTheMemory) {
  const auto backend = backend_with("units");
  const auto kv = backend->make_kv(large(64, 131072));  // a terabyte
  EXPECT_GE(kv->bytes(), size_t(1) << 40);
  const auto bytes = random_cells(size_t(70) * backend->kv_cell_bytes(*kv), 9);
  for (int slot = 0; slot < 64; ++slot)
    backend->kv_write(*kv, {.slot = slot, .first = slot, .count = 70}, bytes.data());
  std::vector<std::byte> found(bytes.size());
  for (int slot = 0; slot < 64; ++slot) {
    backend->kv_read(*kv, {.slot = slot, .first = slot, .count = 70}, found.data());
    ASSERT_EQ(std::memcmp(found.data(), bytes.data(), bytes.size()), 0) << slot;
  }
}

TEST_F(CudaUnits, WhoAsksForTooMuchIsRefused) {
  constexpr size_t kMost = size_t(256) << 20;
  const auto backend = backend_with("units", kMost);
  const auto kv = backend->make_kv(large(2, 8192));
  auto& sharing = dynamic_cast<KvSharing&>(*kv);
  const auto bytes = random_cells(size_t(1000) * backend->kv_cell_bytes(*kv), 9);
  backend->kv_write(*kv, {.slot = 0, .first = 0, .count = 1000}, bytes.data());
  EXPECT_FALSE(sharing.hold(1, 0, 2000));
  try {
    backend->kv_write(*kv, {.slot = 1, .first = 1500, .count = 1000}, bytes.data());
    ADD_FAILURE() << "2,500 cells";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("memory"), std::string::npos) << error.what();
  }
  std::vector<std::byte> found(bytes.size());
  backend->kv_read(*kv, {.slot = 0, .first = 0, .count = 1000}, found.data());
  EXPECT_EQ(std::memcmp(found.data(), bytes.data(), bytes.size()), 0);
  backend->kv_write(*kv, {.slot = 1, .first = 0, .count = 1000}, bytes.data());
  EXPECT_FALSE(sharing.hold(1, 1000, 2000));
  forget_cells(*backend, *kv, 0, 0, 1000);
  EXPECT_TRUE(sharing.hold(1, 1000, 2000));
}

}  // namespace
}  // namespace sx
