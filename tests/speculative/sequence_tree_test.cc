// The sequences, the tree and the commit together against a vector of tokens: random texts in several slots are
// appended to, uncommitted as trees, committed along random paths, truncated and closed; after every operation the
// cells of each history must hold its text, every cell remembering the whole path it was computed for.
#include <gtest/gtest.h>

#include <random>

#include "base/error.h"
#include "kv/sequence_table.h"
#include "speculative/tree/tree.h"

namespace sx {
namespace {

// Stands for a KV store: a cell holds a hash of the tokens up to and including its own.
struct Cells {
  std::vector<std::vector<uint64_t>> slots;
  Cells(int count, int capacity) : slots(size_t(count), std::vector<uint64_t>(size_t(capacity), 0xdead)) {}
};

uint64_t extend_hash(uint64_t before, Token token) {
  return (before ^ uint64_t(token + 1)) * 0x9e3779b97f4a7c15ull + 1;
}

struct Text {
  std::vector<Token> tokens;
  std::vector<uint64_t> hashes;
  uint64_t last() const { return hashes.empty() ? 7 : hashes.back(); }
  void push(Token t) {
    hashes.push_back(extend_hash(last(), t));
    tokens.push_back(t);
  }
};

class Machine {
 public:
  Machine(unsigned seed, int slots, int capacity)
      : random_(seed),
        sequences_(slots, capacity),
        cells_(slots, capacity),
        texts_(size_t(slots)),
        open_(size_t(slots), false),
        tree_(2 * kMaxTreeNodes) {}

  void step() {
    switch (random_() % 10) {
      case 0: return open();
      case 1: return random_() % 4 == 0 ? close() : truncate();
      case 2:
      case 3: return append();
      default: return round();
    }
  }

  void check() {
    for (size_t s = 0; s < texts_.size(); ++s) {
      if (!open_[s]) continue;
      ASSERT_EQ(sequences_.length(SeqId(s)), int(texts_[s].tokens.size()));
      ASSERT_EQ(sequences_.uncommitted(SeqId(s)), 0);
      for (size_t i = 0; i < texts_[s].hashes.size(); ++i)
        ASSERT_EQ(cells_.slots[s][i], texts_[s].hashes[i]) << "slot " << s << " cell " << i;
    }
  }
  int64_t committed = 0, moved = 0;
  int largest = 0;

 private:
  int pick() {
    std::vector<int> all;
    for (size_t s = 0; s < open_.size(); ++s)
      if (open_[s]) all.push_back(int(s));
    return all.empty() ? -1 : all[random_() % all.size()];
  }

  void open() {
    const bool room = std::count(open_.begin(), open_.end(), false) > 0;
    if (!room) {
      EXPECT_THROW(sequences_.open(), Error);
      return;
    }
    const SeqId s = sequences_.open();
    ASSERT_FALSE(open_[size_t(s)]);
    open_[size_t(s)] = true;
    texts_[size_t(s)] = {};
  }

  void close() {
    const int s = pick();
    if (s < 0) return;
    sequences_.close(s);
    open_[size_t(s)] = false;
  }

  void truncate() {
    const int s = pick();
    if (s < 0) return;
    Text& t = texts_[size_t(s)];
    const size_t n = random_() % (t.tokens.size() + 1);
    sequences_.truncate(s, int(n));
    t.tokens.resize(n);
    t.hashes.resize(n);
  }

  void append() {
    const int s = pick();
    if (s < 0) return;
    Text& t = texts_[size_t(s)];
    const int n = int(random_() % 40);
    ASSERT_EQ(sequences_.can_extend(s, n), int(t.tokens.size()) + n <= sequences_.capacity());
    if (!sequences_.can_extend(s, n)) return;
    for (int i = 0; i < n; ++i) {
      t.push(Token(random_() % 50));
      cells_.slots[size_t(s)][t.hashes.size() - 1] = t.hashes.back();
    }
    sequences_.append(s, n);
  }

  // Stages a random tree, writes its nodes, commits a random path from the root.
  void round() {
    const int s = pick();
    if (s < 0) return;
    Text& t = texts_[size_t(s)];
    const int room = sequences_.capacity() - int(t.tokens.size());
    if (room < 1) return;
    tree_.reset(Token(random_() % 50));
    const int grown = int(random_() % (random_() % 5 == 0 ? 700 : 40)), bushy = 1 + int(random_() % 6);
    for (int i = 0; i < grown; ++i) {
      const NodeId parent = NodeId(std::max<int>(0, tree_.size() - 1 - int(random_() % unsigned(bushy * 3))));
      tree_.add(parent, Token(random_() % 50), tree_.score(parent) - float(random_() % 100) / 100);
    }
    tree_.keep_best(std::min({int(random_() % unsigned(grown + 1)), room - 1, kMaxTreeNodes - 1}));
    largest = std::max(largest, tree_.size());
    sequences_.add_uncommitted(s, tree_.size());
    const int base = int(t.tokens.size());
    const uint64_t* bits = tree_.ancestors();
    for (NodeId n = 0; n < tree_.size(); ++n) {  // what a pass would compute: the tokens this node's bits let it see
      uint64_t hash = t.last();
      for (NodeId a = 0; a < tree_.size(); ++a)
        if (bits[size_t(n) * size_t(tree_.words()) + size_t(a / 64)] >> (a % 64) & 1)
          hash = extend_hash(hash, tree_.token(a));
      cells_.slots[size_t(s)][size_t(base + n)] = hash;
    }
    if (random_() % 10 == 0) return sequences_.truncate(s, base);  // the request was cancelled
    std::vector<NodeId> path{0};
    while (random_() % 8 != 0) {
      std::vector<NodeId> children;
      for (NodeId c = tree_.first_child(path.back()); c != kNoNode; c = tree_.next_sibling(c)) children.push_back(c);
      if (children.empty()) break;
      path.push_back(children[random_() % children.size()]);
    }
    std::vector<KvMove> moves;
    sequences_.commit(s, path, moves);
    for (const KvMove& m : moves) cells_.slots[size_t(s)][size_t(m.dst)] = cells_.slots[size_t(s)][size_t(m.src)];
    for (NodeId n : path) t.push(tree_.token(n));
    committed += int64_t(path.size());
    moved += int64_t(moves.size());
  }

  std::mt19937 random_;
  SequenceTable sequences_;
  Cells cells_;
  std::vector<Text> texts_;
  std::vector<bool> open_;
  TokenTree tree_;
};

TEST(SequenceTreeCommit, HistoriesHoldTheirTexts) {
  int64_t committed = 0, moved = 0;
  int largest = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    Machine machine(seed, 1 + int(seed % 4), 200 + int(seed) * 20);
    for (int i = 0; i < 300; ++i) {
      machine.step();
      machine.check();
      if (HasFatalFailure() || HasFailure()) FAIL() << "seed " << seed << ", operation " << i;
    }
    committed += machine.committed, moved += machine.moved, largest = std::max(largest, machine.largest);
  }
  EXPECT_GT(committed, 10000);
  EXPECT_GT(moved, 1000);
  EXPECT_EQ(largest, kMaxTreeNodes);
}

}  // namespace
}  // namespace sx
