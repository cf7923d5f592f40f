#include "speculative/draft/tree_drafter.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr int kMostOutputs = 128;  // rows of a level over several sequences, unless one sequence needs more
// Rows of a level that each of many sequences has at least, where its tree may have any shape. A pass over a level
// costs little more for many rows than for few, so that all sequences of a batch share it: each has fewer rows instead.
constexpr int kFewRows = 4;

// Sequences whose levels one pass can take.
size_t sequences_of_a_pass(const DraftShape& shape, const TreePolicy& policy, int ahead) {
  if (shape.parallel_levels > 0) return size_t(shape.sequences);
  const int widest = policy.rows() + ahead, least = policy.fixed_shape() ? widest : std::min(widest, kFewRows);
  return size_t(std::clamp(shape.outputs / least, 1, shape.sequences));
}

}  // namespace

int tree_drafter_rows(const TreeConfig& tree, int slots, int ahead) {
  const int one = make_tree_policy(tree)->rows() + ahead;
  return std::max(one, std::min(one * slots, kMostOutputs));
}

TreeDrafter::TreeDrafter(const TreeDrafterOptions& options, std::unique_ptr<DraftModel> model,
                         std::unique_ptr<Drafter> inner)
    : options_(options),
      model_(std::move(model)),
      inner_(std::move(inner)),
      shape_(model_->shape()),
      slots_(size_t(options.slots)),
      group_(sequences_of_a_pass(shape_, *make_tree_policy(options.tree), options.ahead)),
      finder_(*options.backend, options.guess, make_tree_policy(options.tree)->width(),
              std::max(shape_.outputs, tree_drafter_rows(options.tree, 1)), shape_.vocab, shape_.stride, shape_.map),
      levels_(options.on_backend && shape_.grows ? options.backend->level_rows() : 0, options.tree) {
  SX_ASSERT(shape_.parallel_levels > 0 || tree_drafter_rows(options.tree, 1, options.ahead) <= shape_.outputs);
  SX_ASSERT((inner_ != nullptr) == (options.ahead > 0) && (!inner_ || options.tree.kind == TreeKind::kChain));
  rows_.reserve(slots_.size());
  level_.reserve(slots_.size());
  accepted_.reserve(slots_.size());
  if (inner_) inner_tasks_.reserve(slots_.size());
  for (Slot& s : slots_) {
    s.policy = make_tree_policy(options.tree);
    s.next.reserve(size_t(s.policy->rows()));
    s.candidates.reserve(size_t(s.policy->rows()));
    if (inner_) guesses_.emplace_back(options.ahead + 1);
  }
}

TreeDrafter::Slot& TreeDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size());
  return slots_[size_t(seq)];
}

// ---- the text

void TreeDrafter::open(SeqId seq) {
  if (inner_) inner_->open(seq);
  truncate(seq, 0);
}

void TreeDrafter::close(SeqId seq) {
  truncate(seq, 0);
  if (inner_) inner_->close(seq);
}

void TreeDrafter::truncate(SeqId seq, int length) {
  if (inner_) inner_->truncate(seq, length);
  slot(seq).tail.clear();
  model_->truncate(seq, length);
}

bool TreeDrafter::prefill(SeqId seq, std::span<const Token> text) {
  const bool inner = !inner_ || inner_->prefill(seq, text);
  return model_->read(seq, text) && inner;
}

int TreeDrafter::behind(SeqId seq, std::span<const Token> text) const {
  const int own = model_->behind(seq, text);
  return inner_ ? std::max(own, inner_->behind(seq, text)) : own;
}

void TreeDrafter::remember(std::span<const Token> text, int answer) {
  if (inner_) inner_->remember(text, answer);
}

bool TreeDrafter::reads_target() const {
  return model_->reads_states() || (model_->cache() && model_->cache()->reads_target());
}

void TreeDrafter::prompt(const PromptChunk& chunk) {
  if (chunk.rows == 0 || !model_->follows(chunk.seq, chunk.first)) return;
  if (DraftCache* cache = model_->cache(); cache && cache->reads_target())
    cache->note_target(chunk.seq, chunk.outputs->query, chunk.first_row + chunk.rows - 1, chunk.first + chunk.rows);
  model_->read_prompt(chunk);
}

// ---- what is kept of it

void TreeDrafter::copy(SeqId from, SeqId to, int length) {
  if (DraftCache* cache = model_->cache()) cache->copy(from, to, model_->cells(length), length);
  if (inner_) inner_->state().copy(from, to, length);
}

size_t TreeDrafter::save_bytes(SeqId seq) const {
  return (model_->cache() ? model_->cache()->save_bytes(seq) : 0) + (inner_ ? inner_->state().save_bytes(seq) : 0);
}

void TreeDrafter::save(SeqId seq, std::ostream& to) const {
  if (const DraftCache* cache = model_->cache()) cache->save(seq, to);
  if (inner_) inner_->state().save(seq, to);
}

void TreeDrafter::restore(SeqId seq, std::istream& from, int length) {
  if (DraftCache* cache = model_->cache()) cache->restore(seq, from, model_->cells(length), length);
  if (inner_) inner_->state().restore(seq, from, length);
}

std::span<const int32_t> TreeDrafter::working_cells(SeqId seq, int& refreshes) const {
  const DraftCache* cache = model_->cache();
  refreshes = cache && cache->moving() ? cache->refreshes(seq) : 0;
  if (!cache || !cache->moving()) return {};
  return cache->cells(seq);
}

DraftTimes TreeDrafter::take_times() {
  DraftTimes times = inner_ ? inner_->take_times() : DraftTimes();
  times.forward += std::exchange(candidates_ms_, 0.0) + model_->timer().take();
  if (model_->cache()) times.cache += model_->cache()->take_ms();
  return times;
}

// ---- drafting

void TreeDrafter::draft(std::span<DraftTask> tasks) {
  for (size_t groups = (tasks.size() + group_ - 1) / group_; groups > 0; --groups) {
    const size_t n = (tasks.size() + groups - 1) / groups;
    draft_group(tasks.first(n));
    tasks = tasks.subspan(n);
  }
}

void TreeDrafter::draft_group(std::span<DraftTask> tasks) {
  rows_.clear();
  for (DraftTask& task : tasks) {
    Slot& s = slot(task.seq);
    s.tail.clear();
    s.next.clear();
    if (model_->ready(task)) rows_.push_back({.task = &task, .tail = &s.tail});
  }
  if (rows_.empty()) return;
  if (inner_) guess_ahead();
  logits_ = model_->run_text(rows_);
  if (!logits_.rows) return;
  DraftTask& only = *rows_[0].task;
  TreeGrowthSampling how;
  const bool on_backend =
      rows_.size() == 1 && levels_.rows() > 0 && only.tree->size() == 1 && finder_.by_backend(only, how);
  for (const DraftRows& r : rows_) {
    TreeLimits limits = r.task->limits;
    if (on_backend) limits.rows = levels_.rows();
    else if (rows_.size() > 1 && shape_.parallel_levels == 0)
      limits.rows = std::max(1, shape_.outputs / int(rows_.size()));
    if (shape_.parallel_levels > 0) limits.depth = std::min(limits.depth, shape_.parallel_levels);
    slot(r.task->seq).policy->start(limits);
  }
  if (!on_backend || !grow_on_backend(only, how)) {
    prepare_candidates();
    for (const DraftRows& r : rows_) shape_.parallel_levels > 0 ? expand_parallel(r) : expand_text(r);
    while (run_level())
      for (const DraftRows& r : level_) expand(*r.task, r.output, int(r.nodes.size()));
  }
  for (const DraftRows& r : rows_) slot(r.task->seq).policy->finish(*r.task->tree);
}

// Asks the inner drafter what may follow. Nothing deeper than the tree is of use, nor are candidates below its last
// level.
void TreeDrafter::guess_ahead() {
  inner_tasks_.clear();
  for (DraftRows& r : rows_) {
    TokenTree& guesses = guesses_[size_t(r.task->seq)];
    guesses.reset(r.task->text.back());
    r.guesses = &guesses;
    const int depth = std::min(r.task->limits.depth, r.task->limits.nodes) - 1;
    if (depth < 1) continue;
    DraftTask& task = inner_tasks_.emplace_back(*r.task);
    task.tree = &guesses;
    task.distributions = nullptr;
    task.limits = {.nodes = options_.ahead, .depth = std::min(depth, options_.ahead)};
  }
  if (!inner_tasks_.empty()) inner_->draft(inner_tasks_);
}

void TreeDrafter::prepare_candidates() {
  const double start = now_ms();
  finder_.prepare(logits_.rows, logits_.count);
  const double ms = now_ms() - start;
  step_ms_ = model_->timer().last() + ms;
  candidates_ms_ += ms;
}

// The backend grows the whole tree without the host between its levels; false: nothing has been done.
bool TreeDrafter::grow_on_backend(DraftTask& task, const TreeGrowthSampling& how) {
  Slot& s = slot(task.seq);
  DraftCache& cache = *model_->cache();
  TreeGrowthArgs args;
  if (!levels_.begin(*s.policy, cache.store().geometry(), cache.work(task.seq), args)) return false;
  for (int i = 0; i < args.rules.depth; ++i) levels_.positions()[size_t(i)] = cache.position(task.seq, i);
  args.sampling = how;
  args.slot = task.seq;
  const double before = model_->timer().last();
  bool grown = false;
  model_->timer().time([&] { grown = model_->grow(task, args); });
  if (!grown) return false;
  levels_.take(*task.tree, s.tail);
  // The host waited for the pass before as well. Where that was the only one, it says what a level takes at most:
  // drafts of one level would never correct what a noisy moment has said of deeper ones.
  const double ms = before + model_->timer().last();
  if (levels_.passes() > 0) observe_level(ms / (levels_.passes() + 1));
  else if (ms < level_ms_) level_ms_.restart(ms);
  return true;
}

// A level so fast proves that those before it were interrupted, or that a device recorded their passes first.
void TreeDrafter::observe_level(double ms) {
  if (2 * ms < level_ms_) level_ms_.restart(ms);
  else level_ms_.add(ms);
}

// Shows the policy the candidates of the nodes that were run (none: node 0): `count` rows of logits from `row` on.
void TreeDrafter::expand(DraftTask& task, int row, int count) {
  Slot& s = slot(task.seq);
  finder_.grow(task, logits_.rows, row, count, *s.policy, s.candidates, s.next);
}

// After the pass over the text: the candidates of node 0, and those of all nodes below it that were guessed.
void TreeDrafter::expand_text(const DraftRows& r) {
  Slot& s = slot(r.task->seq);
  int place = r.root, levels = 0;
  do {
    expand(*r.task, r.output + place - r.root, 1);
    ++levels;
    place = s.next.empty() || !inner_ ? r.root : s.tail.child(place, r.task->tree->token(s.next[0]));
    if (place > r.root) s.tail.bind(place, s.next[0]);
  } while (place > r.root);
  if (levels > 1) observe_level(step_ms_ / levels);
}

// All levels of a tree whose logits are there: one row for each level.
void TreeDrafter::expand_parallel(const DraftRows& r) {
  Slot& s = slot(r.task->seq);
  s.next.assign(1, 0);
  while (!s.next.empty()) {
    s.candidates.clear();
    for (NodeId node : s.next)  // some policies ask below the last level
      if (const int depth = r.task->tree->depth(node); depth < shape_.parallel_levels)
        s.candidates.push_back(
            {node, finder_.guess_level(*r.task, node, logits_.rows, r.output + depth, int(s.candidates.size()))});
    s.next.clear();
    s.policy->grow(*r.task->tree, s.candidates, s.next);
  }
}

// Runs the nodes that the policies asked for; false when there are none.
bool TreeDrafter::run_level() {
  level_.clear();
  int outputs = 0;
  for (const DraftRows& r : rows_) {
    Slot& s = slot(r.task->seq);
    if (s.next.empty()) continue;
    const int rows = int(s.next.size()), uncommitted = s.tail.size();
    if (!s.tail.has_room(rows) || !model_->has_room(*r.task, uncommitted, rows)) {
      s.next.clear();
      continue;
    }
    for (NodeId node : s.next) s.tail.add(*r.task->tree, node);
    level_.push_back({.task = r.task, .tail = r.tail, .nodes = s.next, .first = uncommitted, .output = outputs});
    outputs += rows;
  }
  if (level_.empty()) return false;
  logits_ = model_->run_level(level_);
  SX_ASSERT(logits_.rows && logits_.count == outputs);
  prepare_candidates();
  observe_level(step_ms_);
  return true;
}

// ---- results

void TreeDrafter::observe(std::span<const Outcome> outcomes) {
  if (inner_) inner_->observe(outcomes);
  DraftCache* cache = model_->cache();
  accepted_.clear();
  for (const Outcome& o : outcomes) {
    if (!model_->follows(o.seq, o.history)) continue;
    Slot& s = slot(o.seq);
    if (cache && cache->reads_target() && o.may_draft)
      cache->note_target(o.seq, o.outputs->query, o.first_row + o.path.back(), o.history + int(o.path.size()));
    if (o.tree->size() > 1) {
      s.policy->observe(*o.tree, o.path);
      if (cache) cache->observe(o.seq);
    }
    accepted_.push_back({&o, &s.tail});
  }
  if (!accepted_.empty()) model_->accept_all(accepted_);
  for (const Outcome& o : outcomes) slot(o.seq).tail.clear();
}

}  // namespace sx
