// A trie over bytes in one flat hash table. It is small, and fast enough to be walked from every position of a text.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace sx {

class ByteTrie {
 public:
  static constexpr uint32_t kRoot = 0, kNone = ~uint32_t{0};

  ByteTrie() : slots_(64, Slot{kEmpty, 0}), values_(1, -1) {}

  // Adds a key with a value >= 0. The last of equal keys counts.
  void insert(std::string_view key, int32_t value) {
    uint32_t node = kRoot;
    for (char c : key) {
      uint32_t next = child(node, static_cast<unsigned char>(c));
      if (next == kNone) {
        next = static_cast<uint32_t>(values_.size());
        values_.push_back(-1);
        put(static_cast<uint64_t>(node) << 8 | static_cast<unsigned char>(c), next);
      }
      node = next;
    }
    values_[node] = value;
  }

  uint32_t child(uint32_t node, unsigned char byte) const {
    const uint64_t key = static_cast<uint64_t>(node) << 8 | byte;
    const size_t mask = slots_.size() - 1;
    for (size_t at = hash(key) & mask; slots_[at].key != kEmpty; at = (at + 1) & mask) {
      if (slots_[at].key == key) return slots_[at].node;
    }
    return kNone;
  }

  int32_t value(uint32_t node) const { return values_[node]; }  // -1: no key ends here

 private:
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  struct Slot {
    uint64_t key;  // parent << 8 | byte
    uint32_t node;
  };
  static size_t hash(uint64_t key) { return static_cast<size_t>(key * 0x9E3779B97F4A7C15ull >> 24); }

  void place(uint64_t key, uint32_t node) {
    const size_t mask = slots_.size() - 1;
    size_t at = hash(key) & mask;
    while (slots_[at].key != kEmpty) at = (at + 1) & mask;
    slots_[at] = {key, node};
  }
  void put(uint64_t key, uint32_t node) {
    if (values_.size() * 2 > slots_.size()) {
      std::vector<Slot> old(slots_.size() * 2, Slot{kEmpty, 0});
      old.swap(slots_);
      for (const Slot& slot : old) {
        if (slot.key != kEmpty) place(slot.key, slot.node);
      }
    }
    place(key, node);
  }

  std::vector<Slot> slots_;
  std::vector<int32_t> values_;  // [nodes]
};

}  // namespace sx
