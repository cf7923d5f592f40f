#include "kv/sequence_table.h"

#include <utility>

#include "base/error.h"

namespace sx {

SequenceTable::SequenceTable(int slots, int capacity) : capacity_(capacity), sequences_(static_cast<size_t>(slots)) {
  SX_ASSERT(slots > 0 && capacity > 0);
}

const SequenceTable::Sequence& SequenceTable::at(SeqId seq) const {
  SX_ASSERT(seq >= 0 && seq < slots() && sequences_[static_cast<size_t>(seq)].open);
  return sequences_[static_cast<size_t>(seq)];
}

SequenceTable::Sequence& SequenceTable::at(SeqId seq) { return const_cast<Sequence&>(std::as_const(*this).at(seq)); }

SeqId SequenceTable::open() {
  for (size_t i = 0; i < sequences_.size(); ++i)
    if (!sequences_[i].open) {
      sequences_[i] = {true, 0, 0};
      return static_cast<SeqId>(i);
    }
  fail("all {} sequence slots are in use", sequences_.size());
}

void SequenceTable::close(SeqId seq) { at(seq) = {}; }

void SequenceTable::append(SeqId seq, int cells) {
  Sequence& s = at(seq);
  SX_ASSERT(cells >= 0 && s.uncommitted == 0 && cells <= capacity_ - s.length);
  s.length += cells;
}

void SequenceTable::add_uncommitted(SeqId seq, int nodes) {
  Sequence& s = at(seq);
  SX_ASSERT(nodes > 0 && s.uncommitted == 0 && nodes <= capacity_ - s.length);
  s.uncommitted = nodes;
}

void SequenceTable::commit(SeqId seq, std::span<const NodeId> path, std::vector<KvMove>& moves) {
  Sequence& s = at(seq);
  SX_ASSERT(path.size() <= static_cast<size_t>(s.uncommitted) && (path.empty() || path[0] == 0));
  NodeId previous = -1;
  for (size_t i = 0; i < path.size(); ++i) {
    SX_ASSERT(path[i] > previous && path[i] < s.uncommitted);
    previous = path[i];
    const auto to = static_cast<int32_t>(i);
    if (path[i] != to) moves.push_back({s.length + path[i], s.length + to, 0});
  }
  s.length += static_cast<int>(path.size());
  s.uncommitted = 0;
}

void SequenceTable::truncate(SeqId seq, int length) {
  Sequence& s = at(seq);
  SX_ASSERT(length >= 0 && length <= s.length);
  s.length = length;
  s.uncommitted = 0;
}

}  // namespace sx
