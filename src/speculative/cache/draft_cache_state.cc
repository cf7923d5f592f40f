// Copies, saves and restores the cells of a draft cache. Only the cells of the text are kept; the policy chooses again
// which of them the drafter attends to.
#include <algorithm>

#include "backend/kv_stream.h"
#include "base/error.h"
#include "speculative/cache/draft_cache.h"
#include "speculative/tree/tree.h"

namespace sx {

void DraftCache::refilled(SeqId seq, int cells, int tokens) {
  Slot& s = at(seq);
  s.length = cells;
  s.ended = tokens;
  if (!moving()) s.work = cells;
}

void DraftCache::copy(SeqId from, SeqId to, int cells, int tokens) {
  SX_ASSERT(from != to && at(to).length == 0);
  if (!parts_.writes_full) return refilled(to, 0, tokens);
  cells = std::min(cells, at(from).length);
  refilled(to, copy_cells(*parts_.backend, prompt_store(), from, to, cells) ? cells : 0, tokens);
}

// Behind the working cells there may be more than a tree, as many as may be appended between refreshes.
bool DraftCache::hold(SeqId seq, int length) {
  const Slot& s = at(seq);
  const int tree = length + kMaxTreeNodes;
  if (!moving()) return hold_cells(*parts_.work, seq, std::min(s.work, length), tree);
  return hold_cells(*parts_.work, seq, 0, tree + kSlack) &&
         (!parts_.writes_full || hold_cells(*parts_.full, seq, std::min(s.length, length), length));
}

size_t DraftCache::save_bytes(SeqId seq) const {
  const KvStore& store = moving() ? *parts_.full : *parts_.work;
  return saved_cells_bytes(*parts_.backend, store, parts_.writes_full ? at(seq).length : 0);
}

void DraftCache::save(SeqId seq, std::ostream& to) const {
  const KvStore& store = moving() ? *parts_.full : *parts_.work;
  save_cells(*parts_.backend, store, seq, parts_.writes_full ? at(seq).length : 0, to);
}

void DraftCache::restore(SeqId seq, std::istream& from, int cells, int tokens) {
  SX_ASSERT(at(seq).length == 0);
  const int saved = restore_cells(*parts_.backend, prompt_store(), seq, tokens, from);
  refilled(seq, parts_.writes_full ? std::min(saved, cells) : 0, tokens);
}

}  // namespace sx
