#include "speculative/draft/model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr int kMostOutputs = 128;  // rows of a level over several sequences, unless one sequence needs more

}  // namespace

int model_drafter_rows(const TreeConfig& tree, int slots, int ahead) {
  const int one = make_tree_policy(tree)->rows() + ahead;
  return std::max(one, std::min(one * slots, kMostOutputs));
}

ModelDrafter::ModelDrafter(const ModelDrafterOptions& options, std::unique_ptr<Drafter> inner)
    : options_(options), inner_(std::move(inner)), vocab_(std::min(options.vocab, options.model->config().vocab)),
      rows_(options.model->options().max_rows),
      most_new_(options.cache && options.cache->moving() ? std::min(rows_, DraftCache::kSlack / 2) : rows_), slots_(size_t(options.slots)),
      guesser_(*options.backend, options.guess, make_tree_policy(options.tree)->width(), options.model->options().max_outputs, vocab_,
               options.model->config().vocab),
      levels_(*options.backend, options.tree) {
  SX_ASSERT(model_drafter_rows(options.tree, 1, options.ahead) <= std::min(rows_, options.model->options().max_outputs));
  SX_ASSERT((inner_ != nullptr) == (options.ahead > 0) && (!inner_ || options.tree.kind == TreeKind::kChain));
  if (inner_) {
    inner_tasks_.reserve(size_t(options.slots));
    for (int i = 0; i < options.slots; ++i) guesses_.emplace_back(options.ahead + 1);
    places_.resize(size_t(options.ahead) + 1);
    depths_.resize(size_t(options.ahead));
    ahead_bits_.resize(size_t(options.slots) * kMaxChain * DraftTail::kWords);
    static_assert(kMaxChain <= 64);  // a word of ancestors
  }
  tokens_.resize(size_t(rows_));
  positions_.resize(size_t(rows_));
  outputs_.reserve(size_t(options.model->options().max_outputs));
  seqs_.reserve(size_t(options.slots));
  moves_.reserve(kMaxTreeNodes);
  for (Slot& s : slots_) {
    s.policy = make_tree_policy(options.tree);
    s.next.reserve(size_t(s.policy->rows()));
    s.distributions.reserve(size_t(s.policy->rows()));
  }
}

ModelDrafter::Slot& ModelDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size());
  return slots_[size_t(seq)];
}

void ModelDrafter::open(SeqId seq) {
  if (inner_) inner_->open(seq);
  truncate(seq, 0);
}

void ModelDrafter::close(SeqId seq) {
  truncate(seq, 0);
  if (inner_) inner_->close(seq);
}

void ModelDrafter::truncate(SeqId seq, int length) {
  if (inner_) inner_->truncate(seq, length);
  slot(seq).tail.clear();
  if (options_.cache) options_.cache->truncate(seq, length, length);
}

double ModelDrafter::take_forward_ms() { return std::exchange(forward_ms_, 0.0) + (inner_ ? inner_->take_forward_ms() : 0); }

// Adds a sequence's rows behind those of the current step; returns the first of them.
int ModelDrafter::add_rows(const SeqRows& rows) {
  const int first = seqs_.empty() ? 0 : seqs_.back().first_row + seqs_.back().rows;
  SX_ASSERT(first + rows.rows <= rows_);
  seqs_.push_back(rows);
  return seqs_.back().first_row = first;
}

const StepOutputs& ModelDrafter::forward(KvStore& kv, int window) {
  const double start = now_ms();
  const size_t rows = size_t(seqs_.back().first_row + seqs_.back().rows);
  // Long chains go the way of prompts: what a draft computes need not be the same to the bit.
  const bool prompt = std::any_of(seqs_.begin(), seqs_.end(), [](const SeqRows& s) { return !s.ancestors && s.rows > kMaxChain; });
  const StepOutputs& out =
      options_.model->forward({std::span(tokens_).first(rows), std::span(positions_).first(rows), seqs_, outputs_, prompt}, kv, plan(window));
  logits_ = out.logits;
  step_ms_ = now_ms() - start;
  forward_ms_ += step_ms_;
  return out;
}

LayerPlan ModelDrafter::plan(int window) const {
  return {options_.skip_attention.empty() ? nullptr : options_.skip_attention.data(),
          options_.skip_ffn.empty() ? nullptr : options_.skip_ffn.data(), window};
}

// Of the rows of the last step.
void ModelDrafter::take_candidates() {
  const double start = now_ms();
  guesser_.prepare(logits_, int(outputs_.size()));
  const double ms = now_ms() - start;
  step_ms_ += ms;
  forward_ms_ += ms;
}

bool ModelDrafter::prefill(SeqId seq, std::span<const Token> text) {
  const bool inner = !inner_ || inner_->prefill(seq, text);
  return read_piece(seq, text) && inner;
}

bool ModelDrafter::read_piece(SeqId seq, std::span<const Token> text) {
  if (!options_.cache) return true;
  DraftCache& cache = *options_.cache;
  const int known = cache.length(seq), left = int(text.size()) - known;
  if (left <= 0 || !cache.writes_full()) return true;
  const int rows = std::min(left, rows_);
  seqs_.clear();
  outputs_.clear();
  add_rows({0, rows, seq, known});
  for (int i = 0; i < rows; ++i) {
    tokens_[size_t(i)] = std::min(text[size_t(known + i)], Token(options_.model->config().vocab - 1));
    positions_[size_t(i)] = known + i;
  }
  const StepOutputs& out = forward(cache.prompt_store(), cache.prompt_window());
  if (cache.reads_draft()) cache.note_own(seq, out.query, 0, rows, known + rows - 1, known + rows - 1);
  cache.prompted(seq, rows);
  return rows == left;
}

int ModelDrafter::behind(SeqId seq, std::span<const Token> text) const {
  const int own = options_.cache && options_.cache->writes_full() ? int(text.size()) - options_.cache->length(seq) : 0;
  return inner_ ? std::max(own, inner_->behind(seq, text)) : own;
}

void ModelDrafter::copy(SeqId from, SeqId to, int length) {
  truncate(to, 0);
  if (options_.cache) options_.cache->copy(from, to, length, length);
  if (inner_) inner_->copy(from, to, length);
}

size_t ModelDrafter::save_bytes(SeqId seq) const {
  return (options_.cache ? options_.cache->save_bytes(seq) : 0) + (inner_ ? inner_->save_bytes(seq) : 0);
}

void ModelDrafter::save(SeqId seq, std::ostream& to) const {
  if (options_.cache) options_.cache->save(seq, to);
  if (inner_) inner_->save(seq, to);
}

void ModelDrafter::restore(SeqId seq, std::istream& from, int length) {
  if (options_.cache) options_.cache->restore(seq, from, length, length);
  if (inner_) inner_->restore(seq, from, length);
}

void ModelDrafter::prompt(const PromptChunk& chunk) {
  const int end = chunk.first + chunk.rows;
  if (chunk.rows > 0) options_.cache->note_target(chunk.seq, chunk.outputs->query, chunk.first_row + chunk.rows - 1, end);
}

std::span<const int32_t> ModelDrafter::working_cells(SeqId seq, int& refreshes) const {
  if (!options_.cache || !options_.cache->moving()) return {};
  refreshes = options_.cache->refreshes(seq);
  return options_.cache->cells(seq);
}

// Brings each cache up to the pending token, whose distribution starts the tree.
void ModelDrafter::catch_up(std::span<DraftTask> tasks) {
  DraftCache* cache = options_.cache;
  const int share = std::min(rows_ / int(tasks.size()), most_new_);
  for (DraftTask& task : tasks)  // what does not fit in one step is run before it
    while (cache && cache->writes_full() && int(task.text.size()) - cache->length(task.seq) > share)
      read_piece(task.seq, task.text.first(std::min(task.text.size() - 1, size_t(cache->length(task.seq) + rows_))));
  seqs_.clear();
  outputs_.clear();
  for (DraftTask& task : tasks) {
    Slot& s = slot(task.seq);
    s.tail.clear();
    const int length = int(task.text.size());
    if (cache) cache->prepare(task.seq, task.text, std::min(share, length - cache->length(task.seq)));
    const int from = cache ? cache->length(task.seq) : length - 1, rows = length - from;
    SX_ASSERT(rows > 0 && rows <= share);
    if (!cache) s.tail.add(*task.tree, 0);
    add_known_and_guessed(task, from, rows_ / int(tasks.size()));
  }
  const StepOutputs& out = forward(cache ? cache->store() : *options_.kv);
  for (size_t i = 0; cache && i < tasks.size(); ++i) {
    const SeqId seq = tasks[i].seq;
    const int rows = int(tasks[i].text.size()) - cache->length(seq), last = slot(seq).first_row + rows - 1;  // without guesses
    cache->appended(seq, rows);
    if (cache->reads_draft()) cache->note_own(seq, out.query, last, 1, positions_[size_t(last)], cache->length(seq) - 1);
  }
}

// Runs the nodes the policies asked for; false when there are none.
bool ModelDrafter::run_level(std::span<DraftTask> tasks) {
  seqs_.clear();
  outputs_.clear();
  for (DraftTask& task : tasks) {
    Slot& s = slot(task.seq);
    const DraftCache* cache = options_.cache;
    const int pending = int(task.text.size()) - 1, history = cache ? cache->work(task.seq) : pending;
    const int rows = int(s.next.size()), uncommitted = s.tail.size();
    if (!s.tail.has_room(rows) || history + uncommitted + rows > kv().geometry().capacity) s.next.clear();
    if (s.next.empty()) continue;
    s.first_row = add_rows({0, rows, task.seq, history, s.tail.ancestors(uncommitted), DraftTail::kWords, uncommitted});
    for (int i = 0; i < rows; ++i) {
      const NodeId node = s.next[size_t(i)];
      const int depth = task.tree->depth(node);
      s.tail.add(*task.tree, node);
      tokens_[size_t(s.first_row + i)] = task.tree->token(node);
      positions_[size_t(s.first_row + i)] = cache ? cache->position(task.seq, depth - 1) : pending + depth;
      outputs_.push_back(s.first_row + i);
    }
  }
  if (outputs_.empty()) return false;
  forward(kv());
  take_candidates();
  level_ms_.add(step_ms_);
  return true;
}

// Asks the inner drafter what may come; deeper than the tree nothing is of use, nor are distributions of its last level.
void ModelDrafter::guess_ahead(std::span<DraftTask> tasks) {
  inner_tasks_.clear();
  for (DraftTask& task : tasks) {
    TokenTree& guesses = guesses_[size_t(task.seq)];
    guesses.reset(task.text.back());
    const int depth = std::min(task.limits.depth, task.limits.nodes) - 1;
    if (depth < 1) continue;
    inner_tasks_.push_back(task);
    inner_tasks_.back().tree = &guesses;
    inner_tasks_.back().distributions = nullptr;
    inner_tasks_.back().limits = {.nodes = options_.ahead, .depth = std::min(depth, options_.ahead)};
  }
  if (!inner_tasks_.empty()) inner_->draft(inner_tasks_);
}

// Puts what was guessed on the tail; at most `most` nodes. Returns how many.
int ModelDrafter::place_guesses(const DraftTask& task, int most) {
  Slot& s = slot(task.seq);
  const TokenTree& guesses = guesses_[size_t(task.seq)];
  const int before = s.tail.size();
  places_[0] = before - 1;  // node 0: -1 where it lies in the history
  for (NodeId n = 1; n < guesses.size(); ++n) {
    const int parent = places_[size_t(guesses.parent(n))];
    const bool runs = parent >= before - 1 && guesses.token(n) < vocab_ && s.tail.size() - before < most;
    places_[size_t(n)] = runs ? s.tail.add_ahead(guesses.token(n), parent) : -2;
  }
  return s.tail.size() - before;
}

// The rows of one sequence that catch_up() is to run, those from `from` on of its text, and what was guessed behind them.
void ModelDrafter::add_known_and_guessed(DraftTask& task, int from, int most) {
  Slot& s = slot(task.seq);
  const DraftCache* cache = options_.cache;
  const int known = int(task.text.size()) - from, own = s.tail.size();  // own: node 0, where it is on the tail
  const int room = std::min({most - known, kMaxChain - known, kv().geometry().capacity - (cache ? cache->work(task.seq) : from) - known});
  const int guessed = inner_ && known < kMaxChain ? place_guesses(task, room) : 0;
  SeqRows rows{0, known + guessed, task.seq, cache ? cache->work(task.seq) : from};
  if (guessed > 0) {  // as a tree: a chain of known tokens, from whose end the guesses hang
    constexpr size_t kWords = DraftTail::kWords;
    uint64_t* const bits = ahead_bits_.data() + size_t(task.seq) * kMaxChain * kWords;
    std::fill_n(bits, size_t(rows.rows) * kWords, 0);
    for (int i = 0; i < known; ++i) bits[size_t(i) * kWords] = (uint64_t{2} << i) - 1;
    const uint64_t all = (uint64_t{1} << known) - 1;
    for (int i = 0; i < guessed; ++i) bits[size_t(known + i) * kWords] = all | *s.tail.ancestors(own + i) << (known - own);
    rows.ancestors = bits, rows.words = DraftTail::kWords;
  }
  s.first_row = add_rows(rows);
  for (int i = 0; i < known; ++i) {
    tokens_[size_t(s.first_row + i)] = std::min(task.text[size_t(from + i)], Token(options_.model->config().vocab - 1));
    positions_[size_t(s.first_row + i)] = cache ? cache->position(task.seq, i) : from + i;
  }
  for (int i = 0; i < guessed; ++i) {
    const int place = own + i, parent = s.tail.parent(place), row = s.first_row + known + i;
    depths_[size_t(i)] = parent < own ? 1 : depths_[size_t(parent - own)] + 1;
    const int at = known + depths_[size_t(i)] - 1;
    tokens_[size_t(row)] = s.tail.token(place);
    positions_[size_t(row)] = cache ? cache->position(task.seq, at) : from + at;
  }
  s.first_output = int(outputs_.size());
  for (int i = known - 1; i < known + guessed; ++i) outputs_.push_back(s.first_row + i);
}

// After the first pass: the distribution of node 0, and those of all nodes below it that were guessed.
void ModelDrafter::take_guessed(DraftTask& task) {
  Slot& s = slot(task.seq);
  const int root = options_.cache ? -1 : 0;  // where node 0 is on the tail
  int place = root, levels = 0;
  do {
    make_candidates(task, s.first_output + place - root, 1);
    ++levels;
    place = s.next.empty() || !inner_ ? root : s.tail.child(place, task.tree->token(s.next[0]));
    if (place > root) s.tail.bind(place, s.next[0]);
  } while (place > root);
  if (levels < 2) return;
  const double each = step_ms_ / levels;
  level_ms_.add(each);
}

// The whole tree without the host between its levels, where the backend can; false: nothing has been done.
bool ModelDrafter::grow_on_backend(DraftTask& task, const TreeGrowthSampling& how) {
  Slot& s = slot(task.seq);
  const DraftCache& cache = *options_.cache;
  TreeGrowthArgs args;
  if (!levels_.begin(*s.policy, kv().geometry(), cache.work(task.seq), args)) return false;
  for (int i = 0; i < args.rules.depth; ++i) levels_.positions()[size_t(i)] = cache.position(task.seq, i);
  args.sampling = how;
  args.slot = task.seq;
  args.vocab = vocab_;
  const double start = now_ms();
  if (!options_.model->levels(args, kv(), plan(0))) return false;
  const double ms = now_ms() - start;
  forward_ms_ += ms;
  levels_.take(*task.tree, s.tail);
  // The wait was for the step before as well.
  const double each = (step_ms_ + ms) / (levels_.passes() + 1);
  if (levels_.passes() > 0) level_ms_.add(each);
  return true;
}

// Lets the policy of a task see the distributions of the nodes just run: `count` rows of logits from `row` on, or node 0.
void ModelDrafter::make_candidates(DraftTask& task, int row, int count) {
  Slot& s = slot(task.seq);
  guesser_.grow(task, logits_, row, count, *s.policy, s.distributions, s.next);
}

void ModelDrafter::draft_group(std::span<DraftTask> tasks) {
  if (inner_) guess_ahead(tasks);
  catch_up(tasks);
  TreeGrowthSampling how;
  const bool alone = tasks.size() == 1 && options_.on_backend && options_.cache && levels_.rows() > 0 && tasks[0].tree->size() == 1 &&
                     guesser_.by_backend(tasks[0], how);
  for (DraftTask& task : tasks) {
    TreeLimits limits = task.limits;
    if (alone) limits.rows = levels_.rows();
    slot(task.seq).policy->start(limits);
    slot(task.seq).next.clear();
  }
  if (alone && grow_on_backend(tasks[0], how)) return slot(tasks[0].seq).policy->finish(*tasks[0].tree);
  take_candidates();
  for (DraftTask& task : tasks) take_guessed(task);
  while (run_level(tasks))
    for (DraftTask& task : tasks) {
      Slot& s = slot(task.seq);
      if (!s.next.empty()) make_candidates(task, s.first_row, int(s.next.size()));
    }
  for (DraftTask& task : tasks) slot(task.seq).policy->finish(*task.tree);
}

void ModelDrafter::draft(std::span<DraftTask> tasks) {
  const size_t most = std::max<size_t>(1, size_t(options_.model->options().max_outputs / (slots_[0].policy->rows() + options_.ahead)));
  while (!tasks.empty()) {
    const size_t n = std::min(most, tasks.size());
    draft_group(tasks.first(n));
    tasks = tasks.subspan(n);
  }
}

// Accepted nodes that were run keep their cells: only the others are computed again.
void ModelDrafter::observe(std::span<const Outcome> outcomes) {
  if (inner_) inner_->observe(outcomes);
  for (const Outcome& o : outcomes) {
    Slot& s = slot(o.seq);
    DraftCache* cache = options_.cache;
    if (cache && cache->reads_target())
      cache->note_target(o.seq, o.outputs->query, o.first_row + o.path.back(), o.history + int(o.path.size()));
    if (o.tree->size() > 1) {
      s.policy->observe(*o.tree, o.path);
      if (cache) cache->observe(o.seq, int(o.path.size()) - 1);
    }
    if (!cache || s.tail.size() == 0) continue;
    moves_.clear();
    const int history = cache->work(o.seq);
    int parent = -1, kept = 0;
    for (size_t i = 1; i < o.path.size() && kept < cache->room(o.seq); ++i) {
      const Token token = o.tree->token(o.path[i]);
      int found = parent + 1;
      while (found < s.tail.size() && (s.tail.parent(found) != parent || s.tail.token(found) != token)) ++found;
      if (found == s.tail.size()) break;
      if (found != kept) moves_.push_back({history + found, history + kept, 0});
      parent = found;
      ++kept;
    }
    if (!moves_.empty()) options_.backend->kv_move({&cache->store(), &cache->store(), o.seq, o.seq, moves_});
    if (kept > 0) cache->appended(o.seq, kept);
    s.tail.clear();
  }
}

}  // namespace sx
