// The sequences against an oracle: cells hold random tokens, moves are carried out on them, and the committed cells
// must always spell the text that plain appending would have given.
#include "kv/sequence_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "base/error.h"

namespace sx {
namespace {

TEST(SequenceTable, RandomHistoriesMatchAVectorOfTokens) {
  std::mt19937 random(42);
  const auto pick = [&](int n) { return int(random() % unsigned(n)); };
  for (int trial = 0; trial < 200; ++trial) {
    const int slots = 1 + pick(4), capacity = 20 + pick(200);
    SequenceTable sequences(slots, capacity);
    std::vector<std::vector<int>> cells(size_t(slots), std::vector<int>(size_t(capacity), -1));
    std::vector<std::vector<int>> text(static_cast<size_t>(slots));
    std::vector<bool> open(size_t(slots), false);
    for (int step = 0; step < 200; ++step) {
      if (pick(8) == 0) {
        const int free_slots = int(std::count(open.begin(), open.end(), false));
        if (free_slots == 0) {
          EXPECT_THROW(sequences.open(), Error);
          continue;
        }
        const SeqId s = sequences.open();
        ASSERT_FALSE(open[size_t(s)]);
        open[size_t(s)] = true;
        text[size_t(s)].clear();
        continue;
      }
      const int s = pick(slots);
      if (!open[size_t(s)]) continue;
      auto& mine = cells[size_t(s)];
      auto& words = text[size_t(s)];
      ASSERT_EQ(sequences.length(s), int(words.size()));
      const int room = capacity - int(words.size());
      ASSERT_EQ(sequences.can_extend(s, room), true);
      ASSERT_EQ(sequences.can_extend(s, room + 1), false);
      switch (pick(4)) {
        case 0: {  // append
          const int n = pick(std::min(room, 9) + 1);
          for (int i = 0; i < n; ++i) {
            const int token = pick(1000);
            mine[words.size()] = token;
            words.push_back(token);
          }
          sequences.append(s, n);
          break;
        }
        case 1: {  // stage a random tree, commit a random path through it
          if (room == 0) break;
          const int nodes = 1 + pick(std::min(room, 20));
          std::vector<int> parent(size_t(nodes), -1), token(static_cast<size_t>(nodes));
          sequences.add_uncommitted(s, nodes);
          for (int i = 0; i < nodes; ++i) {
            token[size_t(i)] = pick(1000);
            mine[words.size() + size_t(i)] = token[size_t(i)];
            if (i > 0) parent[size_t(i)] = pick(i);
          }
          ASSERT_EQ(sequences.uncommitted(s), nodes);
          std::vector<NodeId> path;
          if (pick(5))
            for (int at = pick(nodes); at >= 0; at = parent[size_t(at)]) path.insert(path.begin(), at);
          std::vector<KvMove> moves;
          sequences.commit(s, path, moves);
          for (const KvMove& m : moves) {
            ASSERT_EQ(m.delta, 0);
            mine[size_t(m.dst)] = mine[size_t(m.src)];
          }
          for (NodeId n : path) words.push_back(token[size_t(n)]);
          break;
        }
        case 2: {  // truncate
          const int length = pick(int(words.size()) + 1);
          if (pick(3)) break;
          sequences.truncate(s, length);
          words.resize(size_t(length));
          break;
        }
        case 3:
          if (pick(6) == 0) {
            sequences.close(s);
            open[size_t(s)] = false;
            continue;
          }
      }
      ASSERT_EQ(sequences.length(s), int(words.size()));
      for (size_t i = 0; i < words.size(); ++i) ASSERT_EQ(mine[i], words[i]);
    }
  }
}

TEST(SequenceTable, RefusesMisuse) {
  SequenceTable sequences(1, 10);
  EXPECT_THROW(sequences.length(0), InternalError);
  const SeqId s = sequences.open();
  EXPECT_THROW(sequences.append(s, 11), InternalError);
  sequences.add_uncommitted(s, 3);
  EXPECT_THROW(sequences.append(s, 1), InternalError);
  std::vector<KvMove> moves;
  const NodeId backwards[] = {0, 2, 1}, rootless[] = {1}, beyond[] = {0, 3};
  EXPECT_THROW(sequences.commit(s, backwards, moves), InternalError);
  EXPECT_THROW(sequences.commit(s, rootless, moves), InternalError);
  EXPECT_THROW(sequences.commit(s, beyond, moves), InternalError);
  EXPECT_THROW(sequences.truncate(s, 1), InternalError);
  sequences.close(s);
  EXPECT_THROW(sequences.close(s), InternalError);
}

}  // namespace
}  // namespace sx
