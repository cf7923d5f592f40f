#include "speculative/draft/longspec.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
int longspec_cells(int window) { return 2 * window + kMaxTreeNodes; }

LongSpecDrafter::LongSpecDrafter(const LongSpecDrafterOptions& options)
    : options_(options), slots_(size_t(options.slots)),
      guesser_(*options.backend, options.guess, make_tree_policy(options.tree)->width(), options.head->options().max_outputs,
               options.head->config().draft_vocab, options.head->config().draft_vocab, options.head->token_map()) {
  SX_ASSERT(options.kv->geometry().capacity >= longspec_cells(options.window));
  const size_t rows = size_t(options.head->options().max_rows);
  tokens_.reserve(rows);
  positions_.reserve(rows);
  outputs_.reserve(rows);
  seqs_.reserve(1);
  moves_.reserve(size_t(2 * options.window));
  for (Slot& s : slots_) {
    s.policy = make_tree_policy(options.tree);
    s.next.reserve(size_t(s.policy->rows()));
    s.distributions.reserve(size_t(s.policy->rows()));
  }
}

LongSpecDrafter::Slot& LongSpecDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size());
  return slots_[size_t(seq)];
}

void LongSpecDrafter::truncate(SeqId seq, int length) {
  Slot& s = slot(seq);
  s.tail.clear();
  s.length = std::min(s.length, length);
  if (s.length < s.base) s.base = s.length = 0;
  if (options_.cache) options_.cache->truncate(seq, length, length);
}

// Its own cells are made again when they are needed.
void LongSpecDrafter::copy(SeqId from, SeqId to, int length) {
  truncate(to, 0);
  if (options_.cache) options_.cache->copy(from, to, length, length);
}

void LongSpecDrafter::save(SeqId seq, std::ostream& to) const {
  if (options_.cache) options_.cache->save(seq, to);
}

void LongSpecDrafter::restore(SeqId seq, std::istream& from, int length) {
  if (options_.cache) options_.cache->restore(seq, from, length, length);
}

void LongSpecDrafter::prompt(const PromptChunk& chunk) {
  if (chunk.rows > 0)
    options_.cache->note_target(chunk.seq, chunk.outputs->query, chunk.first_row + chunk.rows - 1, chunk.first + chunk.rows);
}

std::span<const int32_t> LongSpecDrafter::working_cells(SeqId seq, int& refreshes) const {
  if (!options_.cache) return {};
  refreshes = options_.cache->refreshes(seq);
  return options_.cache->cells(seq);
}

// Cells before the new base go; if none of the others is there, or the base goes back, all are to be made again.
void LongSpecDrafter::move_base(SeqId seq, int base) {
  Slot& s = slot(seq);
  if (base == s.base) return;
  if (base < s.base || s.length <= base) {
    s.base = s.length = base;
    return;
  }
  moves_.clear();
  for (int t = base; t < s.length; ++t) moves_.push_back({t - s.base, t - base, 0});
  options_.backend->kv_move({options_.kv, options_.kv, seq, seq, moves_});
  s.base = base;
}

void LongSpecDrafter::add(Token token, int position) {
  tokens_.push_back(token);
  positions_.push_back(position);
}

// The rows that have been added, and clears them; outputs stay.
void LongSpecDrafter::run_own(const SeqRows& rows) {
  const double start = now_ms();
  SX_ASSERT(rows.rows == int(tokens_.size()));
  seqs_.assign(1, rows);
  options_.head->forward({tokens_, positions_, seqs_, outputs_, rows.rows > kMaxChain}, *options_.kv, options_.window);
  tokens_.clear();
  positions_.clear();
  forward_ms_ += now_ms() - start;
}

// The outputs of the last step at the target's cells, and their candidates. False: the store has no room for so many rows.
bool LongSpecDrafter::look(SeqId seq) {
  const double start = now_ms();
  const KvStore& store = options_.cache ? options_.cache->store() : *options_.target_kv;
  const int seen = options_.cache ? options_.cache->work(seq) : slot(seq).length - 1;
  if (seen - 1 + int(outputs_.size()) > store.geometry().capacity) return false;
  logits_ = options_.head->look(store, seq, seen);
  guesser_.prepare(logits_, int(outputs_.size()));
  forward_ms_ += now_ms() - start;
  return true;
}

// Brings the cells up to the text; its last token, which is pending, is the row that looks.
bool LongSpecDrafter::run_text(DraftTask& task) {
  Slot& s = slot(task.seq);
  const int known = int(task.text.size()), last = known - 1, most = int(options_.head->options().max_rows);
  s.length = std::min(s.length, last);
  move_base(task.seq, base_for(known));
  outputs_.clear();
  // Rows of long stretches are run as prompts are, without the last: it is a row of a tree.
  const auto run_up_to = [&](int end) {
    const int rows = end - s.length;
    for (int i = s.length; i < end; ++i) add(task.text[size_t(i)], i);
    run_own({0, rows, task.seq, s.length - s.base});
    s.length = end;
  };
  while (last - s.length >= kMaxChain) run_up_to(std::min(last, s.length + most));
  outputs_.push_back(last - s.length);
  run_up_to(known);
  if (options_.cache) options_.cache->follow(task.seq, task.text);
  return look(task.seq);
}

bool LongSpecDrafter::run_level(DraftTask& task) {
  Slot& s = slot(task.seq);
  const int rows = int(s.next.size()), uncommitted = s.tail.size(), history = s.length - s.base;
  if (rows == 0 || !s.tail.has_room(rows) || history + uncommitted + rows > options_.kv->geometry().capacity) return s.next.clear(), false;
  const double start = now_ms();
  outputs_.clear();
  for (int i = 0; i < rows; ++i) {
    const NodeId node = s.next[size_t(i)];
    s.tail.add(*task.tree, node);
    add(task.tree->token(node), s.length - 1 + task.tree->depth(node));
    outputs_.push_back(i);
  }
  run_own({0, rows, task.seq, history, s.tail.ancestors(uncommitted), DraftTail::kWords, uncommitted});
  if (!look(task.seq)) return s.next.clear(), false;
  const double ms = now_ms() - start;
  level_ms_.add(ms);
  return true;
}

void LongSpecDrafter::make_candidates(DraftTask& task) {
  Slot& s = slot(task.seq);
  guesser_.grow(task, logits_, 0, int(outputs_.size()), *s.policy, s.distributions, s.next);
}

void LongSpecDrafter::draft_one(DraftTask& task) {
  Slot& s = slot(task.seq);
  s.tail.clear();
  if (task.text.size() < 2) return;  // the target has no cells yet
  s.policy->start(task.limits);
  s.next.clear();
  if (!run_text(task)) return;
  make_candidates(task);
  while (run_level(task)) make_candidates(task);
  s.policy->finish(*task.tree);
}

void LongSpecDrafter::draft(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) draft_one(task);
}

// Its cells of the pending token stay; those of drafted nodes lie behind it and are made again as part of the text.
void LongSpecDrafter::observe(std::span<const Outcome> outcomes) {
  for (const Outcome& o : outcomes) {
    Slot& s = slot(o.seq);
    s.tail.clear();
    if (reads_target()) options_.cache->note_target(o.seq, o.outputs->query, o.first_row + o.path.back(), o.history + int(o.path.size()));
    if (o.tree->size() == 1) continue;
    s.policy->observe(*o.tree, o.path);
    if (options_.cache) options_.cache->observe(o.seq, int(o.path.size()) - 1);
  }
}

}  // namespace sx
