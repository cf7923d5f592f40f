#include "spec/drafter_model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr int kMostOutputs = 128;  // rows of a level over several sequences, unless one sequence needs more
constexpr double kLearn = 0.1;

}  // namespace

int model_drafter_rows(const TreeConfig& tree, int slots) {
  const int one = make_tree_policy(tree)->rows();
  return std::max(one, std::min(one * slots, kMostOutputs));
}

ModelDrafter::ModelDrafter(const ModelDrafterOptions& options)
    : options_(options), vocab_(std::min(options.vocab, options.model->config().vocab)),
      rows_(options.model->options().max_rows), slots_(size_t(options.slots)),
      guesser_(*options.backend, options.guess, make_tree_policy(options.tree)->width(), options.model->options().max_outputs, vocab_,
               options.model->config().vocab) {
  SX_ASSERT(model_drafter_rows(options.tree, 1) <= std::min(rows_, options.model->options().max_outputs));
  tokens_.resize(size_t(rows_));
  positions_.resize(size_t(rows_));
  outputs_.reserve(size_t(options.model->options().max_outputs));
  seqs_.reserve(size_t(options.slots));
  moves_.reserve(kMaxTreeNodes);
  for (Slot& s : slots_) {
    s.policy = make_tree_policy(options.tree);
    s.next.reserve(size_t(s.policy->rows()));
    s.laws.reserve(size_t(s.policy->rows()));
  }
}

ModelDrafter::Slot& ModelDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size());
  return slots_[size_t(seq)];
}

void ModelDrafter::open(SeqId seq) { truncate(seq, 0); }
void ModelDrafter::close(SeqId seq) { truncate(seq, 0); }

void ModelDrafter::truncate(SeqId seq, int length) {
  Slot& s = slot(seq);
  s.length = std::min(s.length, length);
  s.strip.clear();
}

double ModelDrafter::take_forward_ms() { return std::exchange(forward_ms_, 0.0); }

// Adds a sequence's rows behind those of the current step; returns the first of them.
int ModelDrafter::add_rows(const SeqRows& rows) {
  const int first = seqs_.empty() ? 0 : seqs_.back().first_row + seqs_.back().rows;
  SX_ASSERT(first + rows.rows <= rows_);
  seqs_.push_back(rows);
  return seqs_.back().first_row = first;
}

const StepOutputs& ModelDrafter::forward() {
  const double start = now_ms();
  const size_t rows = size_t(seqs_.back().first_row + seqs_.back().rows);
  const LayerPlan plan{options_.skip_attention.empty() ? nullptr : options_.skip_attention.data(),
                       options_.skip_ffn.empty() ? nullptr : options_.skip_ffn.data()};
  const StepOutputs& out =
      options_.model->forward({std::span(tokens_).first(rows), std::span(positions_).first(rows), seqs_, outputs_}, *options_.kv, plan);
  logits_ = out.logits;
  guesser_.prepare(logits_, int(outputs_.size()));
  forward_ms_ += now_ms() - start;
  return out;
}

bool ModelDrafter::prefill(SeqId seq, std::span<const Token> text) {
  Slot& s = slot(seq);
  const int left = int(text.size()) - s.length;
  if (!options_.own_cache || left <= 0) return true;
  const int rows = std::min(left, rows_);
  seqs_.clear();
  outputs_.clear();
  add_rows({0, rows, seq, s.length});
  for (int i = 0; i < rows; ++i) {
    tokens_[size_t(i)] = std::min(text[size_t(s.length + i)], Token(options_.model->config().vocab - 1));
    positions_[size_t(i)] = s.length + i;
  }
  forward();
  s.length += rows;
  return rows == left;
}

// Brings each cache up to the pending token, whose law starts the tree.
void ModelDrafter::catch_up(std::span<DraftTask> tasks) {
  const int share = rows_ / int(tasks.size());
  for (DraftTask& task : tasks) {  // what does not fit in one step is run before it
    const Slot& s = slot(task.seq);
    while (options_.own_cache && int(task.text.size()) - s.length > share)
      prefill(task.seq, task.text.first(std::min(task.text.size() - 1, size_t(s.length + rows_))));
  }
  seqs_.clear();
  outputs_.clear();
  for (DraftTask& task : tasks) {
    Slot& s = slot(task.seq);
    s.strip.clear();
    const int length = int(task.text.size());
    const int from = options_.own_cache ? s.length : length - 1, rows = length - from;
    SX_ASSERT(rows > 0 && rows <= share);
    const int first = add_rows({0, rows, task.seq, from});
    for (int i = 0; i < rows; ++i) {
      tokens_[size_t(first + i)] = std::min(task.text[size_t(from + i)], Token(options_.model->config().vocab - 1));
      positions_[size_t(first + i)] = from + i;
    }
    outputs_.push_back(first + rows - 1);
    if (options_.own_cache) s.length = length;
    else s.strip.add(*task.tree, 0);
  }
  forward();
}

// Runs the nodes the policies asked for; false when there are none.
bool ModelDrafter::run_level(std::span<DraftTask> tasks) {
  seqs_.clear();
  outputs_.clear();
  for (DraftTask& task : tasks) {
    Slot& s = slot(task.seq);
    const int pending = int(task.text.size()) - 1, history = options_.own_cache ? pending + 1 : pending;
    const int rows = int(s.next.size());
    const int staged = s.strip.size();
    if (!s.strip.has_room(rows) || history + staged + rows > options_.kv->geometry().capacity) s.next.clear();
    if (s.next.empty()) continue;
    s.first_row = add_rows({0, rows, task.seq, history, s.strip.ancestors(staged), DraftStrip::kWords, staged});
    for (int i = 0; i < rows; ++i) {
      const NodeId node = s.next[size_t(i)];
      s.strip.add(*task.tree, node);
      tokens_[size_t(s.first_row + i)] = task.tree->token(node);
      positions_[size_t(s.first_row + i)] = pending + task.tree->depth(node);
      outputs_.push_back(s.first_row + i);
    }
  }
  if (outputs_.empty()) return false;
  const double before = forward_ms_;
  forward();
  const double ms = forward_ms_ - before;
  level_ms_ = level_ms_ == 0 ? ms : level_ms_ + kLearn * (ms - level_ms_);
  return true;
}

// Lets the policy of a task see the laws of the nodes just run: `count` rows of logits from `row` on, or node 0.
void ModelDrafter::make_laws(DraftTask& task, int row, int count) {
  Slot& s = slot(task.seq);
  s.laws.clear();
  for (int i = 0; i < count; ++i) {
    const NodeId node = s.next.empty() ? 0 : s.next[size_t(i)];
    const uint64_t position = task.text.size() + size_t(task.tree->depth(node));
    const float* logits = logits_ + size_t(row + i) * size_t(options_.model->config().vocab);
    s.laws.push_back({node, guesser_.guess(task, node, position, logits, row + i)});
  }
  s.next.clear();
  s.policy->grow(*task.tree, s.laws, s.next);
}

void ModelDrafter::draft_group(std::span<DraftTask> tasks) {
  catch_up(tasks);
  for (size_t i = 0; i < tasks.size(); ++i) {
    Slot& s = slot(tasks[i].seq);
    s.policy->start(tasks[i].limits);
    s.next.clear();
    make_laws(tasks[i], int(i), 1);
  }
  while (run_level(tasks))
    for (DraftTask& task : tasks) {
      Slot& s = slot(task.seq);
      if (!s.next.empty()) make_laws(task, s.first_row, int(s.next.size()));
    }
  for (DraftTask& task : tasks) slot(task.seq).policy->finish(*task.tree);
}

void ModelDrafter::draft(std::span<DraftTask> tasks) {
  const size_t most = std::max<size_t>(1, size_t(options_.model->options().max_outputs / slots_[0].policy->rows()));
  while (!tasks.empty()) {
    const size_t n = std::min(most, tasks.size());
    draft_group(tasks.first(n));
    tasks = tasks.subspan(n);
  }
}

// Accepted nodes that were run keep their cells: only the others are computed again.
void ModelDrafter::observe(std::span<const Outcome> outcomes) {
  for (const Outcome& o : outcomes) {
    Slot& s = slot(o.seq);
    s.policy->observe(*o.tree, o.path);
    if (!options_.own_cache || s.strip.size() == 0) continue;
    moves_.clear();
    int parent = -1, kept = 0;
    for (size_t i = 1; i < o.path.size(); ++i) {
      const Token token = o.tree->token(o.path[i]);
      int found = parent + 1;
      while (found < s.strip.size() && (s.strip.parent(found) != parent || s.strip.token(found) != token)) ++found;
      if (found == s.strip.size()) break;
      if (found != kept) moves_.push_back({s.length + found, s.length + kept, 0});
      parent = found;
      ++kept;
    }
    if (!moves_.empty()) options_.backend->kv_move({options_.kv, options_.kv, o.seq, o.seq, moves_});
    s.length += kept;
    s.strip.clear();
  }
}

}  // namespace sx
