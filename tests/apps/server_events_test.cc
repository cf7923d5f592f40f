// Blocks as KV events tell them: what a listener has after every event is what the slots hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "server/kv_events.h"

namespace sx::server {
namespace {

using Json = nlohmann::json;
using Text = std::vector<Token>;
constexpr size_t kBlock = KvBlocks::kBlock;

// A listener that knows nothing but the events: hash -> its tokens from the beginning of the text on.
class Listener {
 public:
  void take(const Json& events) {
    for (const Json& event : events) {
      if (event[0] == "BlockStored") {
        ASSERT_EQ(event[4], kBlock);
        ASSERT_EQ(event[3].size(), kBlock * event[1].size());
        Text text;
        if (!event[2].is_null()) {
          ASSERT_TRUE(held.contains(event[2].get<uint64_t>()));
          text = held.at(event[2].get<uint64_t>());
        }
        for (size_t i = 0; i < event[1].size(); ++i) {
          for (size_t k = 0; k < kBlock; ++k) text.push_back(event[3][i * kBlock + k].get<Token>());
          ASSERT_TRUE(held.emplace(event[1][i].get<uint64_t>(), text).second) << "told twice";
        }
      } else {
        ASSERT_EQ(event[0], "BlockRemoved");
        for (const Json& hash : event[1]) ASSERT_EQ(held.erase(hash.get<uint64_t>()), 1u);
      }
    }
  }
  std::map<uint64_t, Text> held;
};

std::set<Text> prefixes(const std::vector<Text>& texts) {
  std::set<Text> all;
  for (const Text& text : texts)
    for (size_t end = kBlock; end <= text.size(); end += kBlock)
      all.insert(Text(text.begin(), text.begin() + std::ptrdiff_t(end)));
  return all;
}

TEST(ServerEvents, ListenersKnowWhatSlotsHold) {
  std::mt19937 dice(3);
  const auto below = [&](size_t n) { return size_t(dice() % n); };
  KvBlocks blocks;
  Listener listener;
  std::vector<Text> slots(3);
  for (int step = 0; step < 500; ++step) {
    Text& text = slots[below(3)];
    if (below(3) == 0) text = slots[below(3)];  // a copy of what another slot holds
    text.resize(text.size() - below(text.size() + 1) * below(2));
    for (size_t more = below(70); more > 0; --more) text.push_back(Token(below(2)));
    for (size_t i = 0; i < slots.size(); ++i) blocks.update(i, 1, slots[i]);
    listener.take(blocks.take());
    std::set<Text> told;
    for (const auto& [hash, prefix] : listener.held) told.insert(prefix);
    ASSERT_EQ(told, prefixes(slots)) << step;
    ASSERT_EQ(told.size(), listener.held.size()) << step;
  }
  for (size_t i = 0; i < slots.size(); ++i) blocks.update(i, 1, {});
  listener.take(blocks.take());
  EXPECT_TRUE(listener.held.empty());
  EXPECT_TRUE(blocks.take().empty());
}

TEST(ServerEvents, HashesAreTheSameEverywhereButForOthersKeys) {
  const Text text(3 * kBlock + 5, 7);
  const auto hashes = [&](size_t slot, uint64_t scope) {
    KvBlocks blocks;
    blocks.update(slot, scope, text);
    return blocks.take()[0][1];
  };
  EXPECT_EQ(hashes(0, 5).size(), 3u);
  EXPECT_EQ(hashes(0, 5), hashes(1, 5));
  const Json own = hashes(0, 5), other = hashes(0, 6);
  for (const Json& hash : own) EXPECT_EQ(std::ranges::count(other, hash), 0);
}

TEST(ServerEvents, ATextOfAnotherScopeReplacesTheBlocks) {
  KvBlocks blocks;
  blocks.update(0, 1, Text(kBlock, 7));
  blocks.take();
  blocks.update(0, 2, Text(kBlock, 7));
  const Json events = blocks.take();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0][0], "BlockRemoved");
  EXPECT_EQ(events[1][0], "BlockStored");
}

}  // namespace
}  // namespace sx::server
