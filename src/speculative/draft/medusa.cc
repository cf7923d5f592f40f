#include "speculative/draft/medusa.h"

#include <algorithm>
#include <cmath>

#include "base/clock.h"
#include "base/error.h"

namespace sx {
namespace {

// Places for candidates: those of all heads of a batch, or what is drawn for the nodes of one level.
int guess_places(const MedusaDrafterOptions& options, const TreePolicy& policy) {
  return std::max(options.slots * options.heads->heads(), policy.rows());
}

}  // namespace

MedusaDrafter::MedusaDrafter(const MedusaDrafterOptions& options)
    : options_(options), slots_(size_t(options.slots)),
      guesser_(*options.backend, options.guess, make_tree_policy(options.tree)->width(),
               guess_places(options, *make_tree_policy(options.tree)), options.heads->config().draft_vocab,
               options.heads->config().draft_vocab, options.heads->token_map()) {
  states_ = options.backend->allocate(size_t(options.slots) * width(), "states of the Medusa heads");
  for (Slot& s : slots_) {
    s.state = options.backend->allocate(width(), "states of the Medusa heads");
    s.policy = make_tree_policy(options.tree);
    s.next.reserve(size_t(s.policy->rows()));
    s.distributions.reserve(size_t(s.policy->rows()));
    s.levels.resize(size_t(options.heads->heads()));
  }
}

MedusaDrafter::Slot& MedusaDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size());
  return slots_[size_t(seq)];
}

// Of a shorter text the last state is gone: its last token must be run again.
void MedusaDrafter::truncate(SeqId seq, int length) {
  Slot& s = slot(seq);
  if (s.known && length >= s.length) return;
  s.known = false;
  s.length = std::min(s.length, std::max(0, length - 1));
}

void MedusaDrafter::keep(Slot& s, const StepOutputs& outputs, int row, int length) {
  const int w = int(width());
  options_.backend->copy_rows({s.state, outputs.hidden[0] + size_t(row) * width(), 1, w, w, w});
  s.length = length;
  s.known = true;
}

void MedusaDrafter::prompt(const PromptChunk& chunk) {
  keep(slot(chunk.seq), *chunk.outputs, chunk.first_row + chunk.rows - 1, chunk.first + chunk.rows);
}

void MedusaDrafter::observe(std::span<const Outcome> outcomes) {
  for (const Outcome& o : outcomes) {
    if (o.path.empty()) continue;
    Slot& s = slot(o.seq);
    s.policy->observe(*o.tree, o.path);
    keep(s, *o.outputs, o.first_row + o.path.back(), o.history + int(o.path.size()));
  }
}

bool MedusaDrafter::ready(const DraftTask& task) const {
  const Slot& s = slots_[size_t(task.seq)];
  return s.known && s.length == int(task.text.size()) - 1;
}

// One pass for all sequences; those without a state have no row.
void MedusaDrafter::forward(std::span<const DraftTask> tasks) {
  SX_ASSERT(tasks.size() <= slots_.size());
  const double start = now_ms();
  const int w = int(width());
  int rows = 0;
  for (const DraftTask& task : tasks)
    if (ready(task)) options_.backend->copy_rows({states_ + size_t(rows++) * width(), slot(task.seq).state, 1, w, w, w});
  if (rows == 0) return;
  logits_ = options_.heads->forward(states_, rows);
  guesser_.prepare(logits_, rows * options_.heads->heads());
  forward_ms_ += now_ms() - start;
}

// `place` counts the nodes whose distributions are made together.
std::span<const Candidate> MedusaDrafter::candidates(DraftTask& task, int row, NodeId node, int place) {
  const int depth = task.tree->depth(node), head = row * options_.heads->heads() + depth;
  const float* logits = logits_ + size_t(head) * size_t(options_.heads->config().draft_vocab);
  const uint64_t position = task.text.size() + size_t(depth);
  // Draws are each node's own; the best are the same for all nodes of a level, and may be asked for only once.
  if (options_.guess.draws != DrawMode::kBest) return guesser_.guess(task, node, position, logits, place);
  std::span<const Candidate>& level = slot(task.seq).levels[size_t(depth)];
  DraftTask any = task;  // nodes of a level differ in what a grammar allows: the tree is pruned instead
  any.grammar = nullptr;
  if (level.empty()) level = guesser_.guess(any, node, position, logits, head);
  return level;
}

void MedusaDrafter::make_candidates(DraftTask& task, int row) {
  Slot& s = slot(task.seq);
  s.distributions.clear();
  for (NodeId node : s.next)  // some policies ask below the last level
    if (task.tree->depth(node) < options_.heads->heads())
      s.distributions.push_back({node, candidates(task, row, node, int(s.distributions.size()))});
  s.next.clear();
  s.policy->grow(*task.tree, s.distributions, s.next);
}

void MedusaDrafter::draft_one(DraftTask& task, int row) {
  Slot& s = slot(task.seq);
  std::fill(s.levels.begin(), s.levels.end(), std::span<const Candidate>());
  TreeLimits limits = task.limits;
  limits.depth = std::min(limits.depth, options_.heads->heads());
  s.policy->start(limits);
  s.next.assign(1, 0);
  while (!s.next.empty()) make_candidates(task, row);
  s.policy->finish(*task.tree);
}

void MedusaDrafter::draft(std::span<DraftTask> tasks) {
  forward(tasks);
  int row = 0;
  for (DraftTask& task : tasks)
    if (ready(task)) draft_one(task, row++);
}

}  // namespace sx
