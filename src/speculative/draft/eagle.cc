#include "speculative/draft/eagle.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
EagleDrafter::EagleDrafter(const EagleDrafterOptions& options)
    : options_(options), slots_(size_t(options.slots)),
      guesser_(*options.backend, options.guess, make_tree_policy(options.tree)->width(), options.head->options().max_outputs,
               options.head->config().draft_vocab, options.head->config().draft_vocab, options.head->token_map()),
      levels_(*options.backend, options.tree) {
  const size_t rows = size_t(options.head->options().max_rows);
  tokens_.resize(rows);
  positions_.resize(rows);
  outputs_.reserve(size_t(options.head->options().max_outputs));
  which_.reserve(std::max(rows, size_t(kMaxTreeNodes)));
  seqs_.reserve(1);
  states_ = options.backend->allocate(rows * width(), "states of the draft head");
  for (Slot& s : slots_) {
    s.features = options.backend->allocate(kWaiting * options.head->feature_width(), "states of the draft head");
    s.tail_states = options.backend->allocate(size_t(kMaxTreeNodes + 1) * width(), "states of the draft head");
    s.policy = make_tree_policy(options.tree);
    s.next.reserve(size_t(s.policy->rows()));
    s.distributions.reserve(size_t(s.policy->rows()));
  }
  if (const auto map = options.head->token_map(); levels_.rows() > 0 && !map.empty()) {
    float* placed = options.backend->allocate(map.size(), "tokens of the draft head");  // whatever they are, they are 4 bytes
    static_assert(sizeof(Token) == sizeof(float));
    options.backend->upload(placed, reinterpret_cast<const float*>(map.data()), map.size());
    map_ = reinterpret_cast<const Token*>(placed);
  }
}

EagleDrafter::Slot& EagleDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size());
  return slots_[size_t(seq)];
}

// Pair j holds token j + 1, so the pair of the last kept token's state goes; its state is gone too unless it waits.
void EagleDrafter::truncate(SeqId seq, int length) {
  Slot& s = slot(seq);
  s.tail.clear();
  const int known = pairs(seq), seen = std::min(known + s.waiting, length), kept = std::min(known, std::max(0, length - 1));
  options_.cache->truncate(seq, kept, length);
  s.waiting = pairs(seq) < known ? 0 : std::max(0, std::min(seen, options_.cache->covered(seq)) - kept);
}

void EagleDrafter::copy(SeqId from, SeqId to, int length) {
  truncate(to, 0);
  options_.cache->copy(from, to, std::max(0, length - 1), length);
}

std::span<const int32_t> EagleDrafter::working_cells(SeqId seq, int& refreshes) const {
  if (!options_.cache->moving()) return {};
  refreshes = options_.cache->refreshes(seq);
  return options_.cache->cells(seq);
}

void EagleDrafter::copy_states(float* to, const float* from, int rows) {
  const int w = int(width());
  options_.backend->copy_rows({to, from, rows, w, w, w});
}

void EagleDrafter::begin_step(const SeqRows& rows) {
  SX_ASSERT(rows.rows <= int(tokens_.size()));
  outputs_.clear();
  seqs_.assign(1, rows);
}

void EagleDrafter::forward(KvStore& kv, int window, bool cells_only) {
  const double start = now_ms();
  const size_t rows = size_t(seqs_[0].rows);
  EagleStep step{{std::span(tokens_).first(rows), std::span(positions_).first(rows), seqs_, outputs_, seqs_[0].rows > kMaxChain}, states_};
  step.window = window, step.cells_only = cells_only;
  result_ = options_.head->forward(step, kv);
  step_ms_ = now_ms() - start;
  forward_ms_ += step_ms_;
}

// Of the rows of the last step.
void EagleDrafter::take_candidates() {
  const double start = now_ms();
  guesser_.prepare(result_.logits, int(outputs_.size()));
  const double ms = now_ms() - start;
  step_ms_ += ms;
  forward_ms_ += ms;
}

void EagleDrafter::flush(SeqId seq, std::span<const Token> text) {
  Slot& s = slot(seq);
  DraftCache& cache = *options_.cache;
  const int rows = std::min(s.waiting, int(text.size()) - 1 - pairs(seq));
  if (rows <= 0) return;
  cache.prepare(seq, text, rows);
  begin_step({0, rows, seq, cache.work(seq)});
  const double start = now_ms();
  options_.head->fuse(s.features, rows, states_);
  forward_ms_ += now_ms() - start;
  for (int i = 0; i < rows; ++i) {
    tokens_[size_t(i)] = text[size_t(pairs(seq) + i + 1)];
    positions_[size_t(i)] = cache.position(seq, i);
  }
  outputs_.push_back(rows - 1);
  forward(cache.store());
  cache.appended(seq, rows);
  if (cache.reads_draft()) cache.note_own(seq, result_.query, rows - 1, 1, positions_[size_t(rows - 1)], pairs(seq) - 1);
  copy_states(s.tail_states + size_t(kMaxTreeNodes) * width(), result_.states + size_t(rows - 1) * width(), 1);
  s.waiting -= rows;
  const int w = int(options_.head->feature_width());
  for (int i = 0; i < s.waiting; ++i)  // those left over move to the front
    options_.backend->copy_rows({s.features + size_t(i) * size_t(w), s.features + size_t(rows + i) * size_t(w), 1, w, w, w});
}

void EagleDrafter::prompt(const PromptChunk& chunk) {
  Slot& s = slot(chunk.seq);
  DraftCache& cache = *options_.cache;
  const int known = pairs(chunk.seq);
  if (chunk.first != known + s.waiting) return;  // it has lost the thread: covered() says so
  if (cache.reads_target())
    cache.note_target(chunk.seq, chunk.outputs->query, chunk.first_row + chunk.rows - 1, chunk.first + chunk.rows);
  const int rows = s.waiting + chunk.rows - 1;   // the last state waits for its token
  begin_step({0, rows, chunk.seq, known});
  if (s.waiting > 0) options_.head->fuse(s.features, s.waiting, states_);
  which_.resize(size_t(chunk.rows));
  std::iota(which_.begin(), which_.end(), chunk.first_row);
  if (chunk.rows > 1) options_.head->fuse(chunk.outputs->hidden, std::span(which_).first(which_.size() - 1), states_ + size_t(s.waiting) * width());
  for (int i = 0; i < rows; ++i) {
    tokens_[size_t(i)] = chunk.text[size_t(known + i + 1)];
    positions_[size_t(i)] = known + i;
  }
  options_.head->take(chunk.outputs->hidden, std::span(which_).last(1), s.features);
  if (rows > 0) {
    forward(cache.prompt_store(), cache.prompt_window(), true);
    if (cache.reads_draft()) cache.note_own(chunk.seq, result_.query, 0, rows, known + rows - 1, known + rows - 1);
    cache.prompted(chunk.seq, rows);
  }
  s.waiting = 1;
}

void EagleDrafter::make_candidates(DraftTask& task, int count) {
  Slot& s = slot(task.seq);
  guesser_.grow(task, result_.logits, 0, count, *s.policy, s.distributions, s.next);
}

bool EagleDrafter::run_level(DraftTask& task) {
  Slot& s = slot(task.seq);
  const int rows = int(s.next.size()), uncommitted = s.tail.size();
  DraftCache& cache = *options_.cache;
  const int history = cache.work(task.seq);
  if (!s.tail.has_room(rows) || history + uncommitted + rows > cache.store().geometry().capacity) s.next.clear();
  if (s.next.empty()) return false;
  begin_step({0, rows, task.seq, history, s.tail.ancestors(uncommitted), DraftTail::kWords, uncommitted});
  which_.resize(size_t(rows));
  for (int i = 0; i < rows; ++i) {
    const NodeId node = s.next[size_t(i)];
    const int parent = s.tail.parent(s.tail.add(*task.tree, node));
    which_[size_t(i)] = parent < 0 ? kMaxTreeNodes : parent;
    tokens_[size_t(i)] = task.tree->token(node);
    positions_[size_t(i)] = cache.position(task.seq, task.tree->depth(node) - 1);
    outputs_.push_back(i);
  }
  const int w = int(width());
  options_.backend->copy_rows({states_, s.tail_states, rows, w, w, w, which_.data()});
  forward(cache.store());
  take_candidates();
  level_ms_.add(step_ms_);
  copy_states(s.tail_states + size_t(uncommitted) * width(), result_.states, rows);
  return true;
}

// The whole tree without the host between its levels, where the backend can; false: nothing has been done.
bool EagleDrafter::grow_on_backend(DraftTask& task, const TreeGrowthSampling& how) {
  Slot& s = slot(task.seq);
  DraftCache& cache = *options_.cache;
  TreeGrowthArgs args;
  if (!levels_.begin(*s.policy, cache.store().geometry(), cache.work(task.seq), args)) return false;
  for (int i = 0; i < args.rules.depth; ++i) levels_.positions()[size_t(i)] = cache.position(task.seq, i);
  args.sampling = how;
  args.slot = task.seq;
  args.map = map_;
  args.states = states_;
  const double start = now_ms();
  const int w = int(width());
  which_.assign(size_t(args.rules.rows), kMaxTreeNodes);  // the first level hangs below the root
  options_.backend->copy_rows({states_, s.tail_states, args.rules.rows, w, w, w, which_.data()});
  if (!options_.head->levels(args, cache.store())) return false;
  const double ms = now_ms() - start;
  forward_ms_ += ms;
  levels_.take(*task.tree, s.tail);
  // The wait was for the step before as well.
  const double each = (step_ms_ + ms) / (levels_.passes() + 1);
  if (levels_.passes() > 0) level_ms_.add(each);
  return true;
}

void EagleDrafter::draft_one(DraftTask& task) {
  Slot& s = slot(task.seq);
  s.tail.clear();
  if (s.waiting == 0 || covered(task.seq) != int(task.text.size()) - 1) return;  // states are missing: nothing to draft from
  flush(task.seq, task.text);
  TreeLimits limits = task.limits;
  TreeGrowthSampling how;
  const bool on_backend = options_.on_backend && levels_.rows() > 0 && task.tree->size() == 1 && guesser_.by_backend(task, how);
  if (on_backend) limits.rows = levels_.rows();
  s.policy->start(limits);
  s.next.clear();
  if (on_backend && grow_on_backend(task, how)) return s.policy->finish(*task.tree);
  take_candidates();
  make_candidates(task, 1);
  while (run_level(task)) make_candidates(task, int(s.next.size()));
  s.policy->finish(*task.tree);
}

void EagleDrafter::draft(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) draft_one(task);
}

// The pass gave the states of the committed nodes. What the head made of drafted nodes is not kept: it was fed its own states.
void EagleDrafter::observe(std::span<const Outcome> outcomes) {
  for (const Outcome& o : outcomes) {
    Slot& s = slot(o.seq);
    s.tail.clear();
    if (covered(o.seq) != o.history) continue;  // it has lost the thread: covered() says so
    DraftCache& cache = *options_.cache;
    if (cache.reads_target())
      cache.note_target(o.seq, o.outputs->query, o.first_row + o.path.back(), o.history + int(o.path.size()));
    if (o.tree->size() > 1) {
      s.policy->observe(*o.tree, o.path);
      cache.observe(o.seq, int(o.path.size()) - 1);
    }
    for (size_t first = 0; first < o.path.size();) {
      if (s.waiting == kWaiting) flush(o.seq, o.text);
      SX_ASSERT(s.waiting < kWaiting);
      const size_t end = std::min(o.path.size(), first + size_t(kWaiting - s.waiting));
      which_.clear();
      for (; first < end; ++first) which_.push_back(o.first_row + o.path[first]);
      options_.head->take(o.outputs->hidden, which_, s.features + size_t(s.waiting) * options_.head->feature_width());
      s.waiting += int(which_.size());
    }
  }
}

}  // namespace sx
