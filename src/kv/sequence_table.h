// The integers of a KV store: which slots are open, how many cells each sequence has committed, how many are
// uncommitted. Cells of a slot are its committed history [0, length) followed by the tail of uncommitted nodes [length,
// length + uncommitted). What is not committed is overwritten; there is no rollback.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "kv/move.h"

namespace sx {

using SeqId = int32_t;   // also the slot in the store
using NodeId = int32_t;  // index of a node among the uncommitted ones

class SequenceTable {
 public:
  SequenceTable(int slots, int capacity);

  SeqId open();  // throws sx::Error when every slot is taken
  void close(SeqId seq);
  int slots() const { return static_cast<int>(sequences_.size()); }
  int capacity() const { return capacity_; }
  bool is_open(SeqId seq) const { return sequences_[size_t(seq)].open; }
  int length(SeqId seq) const { return at(seq).length; }
  int uncommitted(SeqId seq) const { return at(seq).uncommitted; }
  bool can_extend(SeqId seq, int cells) const { return cells <= capacity_ - at(seq).length; }

  // The next `cells` cells are written and become history at once (a chunk of the prompt).
  void append(SeqId seq, int cells);
  // The next `nodes` cells hold the nodes of a tree until the result.
  void add_uncommitted(SeqId seq, int nodes);
  // Keeps the uncommitted nodes of `path` (ascending, starting with node 0) as history, drops the rest. The moves that
  // bring their cells together are added to `moves` in an order that is safe in place.
  void commit(SeqId seq, std::span<const NodeId> path, std::vector<KvMove>& moves);
  // Forgets committed cells from `length` on, and anything uncommitted.
  void truncate(SeqId seq, int length);

 private:
  struct Sequence {
    bool open = false;
    int length = 0, uncommitted = 0;
  };
  const Sequence& at(SeqId seq) const;
  Sequence& at(SeqId seq);

  int capacity_;
  std::vector<Sequence> sequences_;
};

}  // namespace sx
