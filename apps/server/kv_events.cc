#include "server/kv_events.h"

#include <algorithm>
#include <utility>

namespace sx::server {
namespace {

using PlainJson = nlohmann::json;

constexpr const char* kMedium = "GPU";  // vLLM's word for the cache that passes read, whatever the device

uint64_t mixed(uint64_t hash, uint64_t value) {  // splitmix64's steps
  hash += value + 0x9E3779B97F4A7C15ull;
  hash = (hash ^ (hash >> 30)) * 0xBF58476D1CE4E5B9ull;
  hash = (hash ^ (hash >> 27)) * 0x94D049BB133111EBull;
  return hash ^ (hash >> 31);
}

}  // namespace

void KvBlocks::update(size_t slot, uint64_t scope, std::span<const Token> text) {
  if (slots_.size() <= slot) slots_.resize(slot + 1);
  Held& held = slots_[slot];
  const size_t blocks = text.size() / kBlock;
  size_t same = 0;
  if (held.scope == scope) {
    const size_t most = std::min(blocks * kBlock, held.text.size());
    same = size_t(std::mismatch(text.begin(), text.begin() + std::ptrdiff_t(most), held.text.begin()).first -
                  text.begin()) /
           kBlock;
  }
  PlainJson removed = PlainJson::array();
  for (size_t i = same; i < held.hashes.size(); ++i)
    if (const auto found = holders_.find(held.hashes[i]); --found->second == 0) {
      removed.push_back(held.hashes[i]);
      holders_.erase(found);
    }
  if (!removed.empty()) events_.push_back(PlainJson::array({"BlockRemoved", std::move(removed), kMedium}));
  held.scope = scope;
  held.hashes.resize(same);
  held.text.resize(same * kBlock);
  // Stored blocks are told in runs: those between two that another slot has told already.
  PlainJson stored = PlainJson::array(), tokens = PlainJson::array(), parent;
  const auto tell = [&] {
    if (stored.empty()) return;
    events_.push_back(PlainJson::array(
        {"BlockStored", std::move(stored), parent, std::move(tokens), kBlock, nullptr, kMedium, nullptr}));
    stored = PlainJson::array(), tokens = PlainJson::array();
  };
  for (size_t i = same; i < blocks; ++i) {
    const std::span<const Token> block = text.subspan(i * kBlock, kBlock);
    const uint64_t before = i > 0 ? held.hashes.back() : mixed(scope, 0);
    uint64_t hash = before;
    for (const Token token : block) hash = mixed(hash, uint64_t(token));
    if (++holders_[hash] > 1) {
      tell();
    } else {
      if (stored.empty()) parent = i > 0 ? PlainJson(before) : PlainJson(nullptr);
      stored.push_back(hash);
      for (const Token token : block) tokens.push_back(token);
    }
    held.hashes.push_back(hash);
    held.text.insert(held.text.end(), block.begin(), block.end());
  }
  tell();
}

void KvEvents::flush() {
  if (const PlainJson events = blocks_.take(); !events.empty()) publisher_->publish(events);
}

PlainJson KvBlocks::take() { return std::exchange(events_, PlainJson::array()); }

}  // namespace sx::server
