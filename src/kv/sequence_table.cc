#include "kv/sequence_table.h"

#include <utility>

#include "base/error.h"

namespace sx {

KvBook::KvBook(int slots, int capacity) : capacity_(capacity), sequences_(static_cast<size_t>(slots)) {
  SX_ASSERT(slots > 0 && capacity > 0);
}

const KvBook::Sequence& KvBook::at(SeqId seq) const {
  SX_ASSERT(seq >= 0 && seq < slots() && sequences_[static_cast<size_t>(seq)].open);
  return sequences_[static_cast<size_t>(seq)];
}

KvBook::Sequence& KvBook::at(SeqId seq) { return const_cast<Sequence&>(std::as_const(*this).at(seq)); }

SeqId KvBook::open() {
  for (size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].open) {
      sequences_[i] = {true, 0, 0};
      return static_cast<SeqId>(i);
    }
  fail("all {} sequence slots are in use", sequences_.size());
}

void KvBook::close(SeqId seq) { at(seq) = {}; }

void KvBook::append(SeqId seq, int cells) {
  Sequence& s = at(seq);
  SX_ASSERT(cells >= 0 && s.staged == 0 && cells <= capacity_ - s.length);
  s.length += cells;
}

void KvBook::stage(SeqId seq, int nodes) {
  Sequence& s = at(seq);
  SX_ASSERT(nodes > 0 && s.staged == 0 && nodes <= capacity_ - s.length);
  s.staged = nodes;
}

void KvBook::commit(SeqId seq, std::span<const NodeId> path, std::vector<KvMove>& moves) {
  Sequence& s = at(seq);
  SX_ASSERT(path.size() <= static_cast<size_t>(s.staged) && (path.empty() || path[0] == 0));
  NodeId previous = -1;
  for (size_t i = 0; i < path.size(); ++i) {
    SX_ASSERT(path[i] > previous && path[i] < s.staged);
    previous = path[i];
    const auto to = static_cast<int32_t>(i);
    if (path[i] != to) moves.push_back({s.length + path[i], s.length + to, 0});
  }
  s.length += static_cast<int>(path.size());
  s.staged = 0;
}

void KvBook::truncate(SeqId seq, int length) {
  Sequence& s = at(seq);
  SX_ASSERT(length >= 0 && length <= s.length);
  s.length = length;
  s.staged = 0;
}

}  // namespace sx
