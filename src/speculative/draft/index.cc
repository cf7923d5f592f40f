// The part of an index drafter that does not depend on its index.
#include "speculative/draft/index.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sx {
namespace {

// Observations that count: the text at hand changes its manner within hundreds of tokens, the average of all texts
// slowly.
constexpr float kOwnMemory = 64, kSharedMemory = 1024;
constexpr float kLeast = std::numeric_limits<float>::min();  // scores stay finite however long and unlikely a path

}  // namespace

IndexDrafter::Slot::Slot() : calibration(kOwnMemory) {}

IndexDrafter::IndexDrafter(const TreeConfig& tree, const IndexLimits& limits)
    : max_nodes_(tree.nodes), capacity_(limits.context + 1), shared_(kSharedMemory) {
  if (tree.nodes < 1 || tree.nodes >= kMaxTreeNodes)
    fail("index drafter: {} nodes, expected 1 to {}", tree.nodes, kMaxTreeNodes - 1);
  if (limits.slots < 1 || limits.context < 1)
    fail("index drafter: {} slots of {} tokens, expected at least one of each", limits.slots, limits.context);
  slots_.resize(size_t(limits.slots));
  probabilities_.reserve(size_t(max_nodes_));
}

IndexDrafter::Slot& IndexDrafter::slot(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size() && slots_[size_t(seq)].open);
  return slots_[size_t(seq)];
}

void IndexDrafter::open(SeqId seq) {
  SX_ASSERT(seq >= 0 && size_t(seq) < slots_.size() && !slots_[size_t(seq)].open);
  Slot& s = slots_[size_t(seq)];
  if (!s.made) {
    make_index(seq, capacity_);
    s.proposal.nodes.reserve(size_t(max_nodes_) + 1);
    s.made = true;
  }
  s.open = true;
  s.calibration.seed(shared_);
  s.proposal.reset(kNoToken);
}

void IndexDrafter::close(SeqId seq) {
  truncate(seq, 0);
  slot(seq).open = false;
}

// An automaton cannot unlearn; the text comes again with the next call, and indexing it anew takes a few hundred
// nanoseconds a token.
void IndexDrafter::truncate(SeqId seq, int length) {
  Slot& s = slot(seq);
  s.proposal.reset(kNoToken);
  if (length >= s.indexed) return;
  clear_index(seq);
  s.indexed = 0;
}

bool IndexDrafter::prefill(SeqId seq, std::span<const Token> text) { return catch_up(seq, text, kPiece); }

bool IndexDrafter::catch_up(SeqId seq, std::span<const Token> text, int most) {
  Slot& s = slot(seq);
  const int size = std::min(static_cast<int>(text.size()), capacity_);
  const int to = std::min(size, s.indexed + most);
  if (to > s.indexed) {
    extend_index(seq, text, s.indexed, to);
    s.indexed = to;
  }
  return s.indexed >= size;
}

void IndexDrafter::draft(std::span<DraftTask> tasks) {
  for (DraftTask& task : tasks) draft_one(task);
}

void IndexDrafter::draft_one(DraftTask& task) {
  Slot& s = slot(task.seq);
  SX_ASSERT(!task.text.empty() && task.tree->size() == 1);
  s.proposal.reset(task.text.back());
  catch_up(task.seq, task.text, capacity_);
  TreeLimits limits = task.limits;
  limits.nodes = std::min({limits.nodes, max_nodes_, task.tree->capacity() - 1});
  // A text beyond the context is not indexed to its end.
  if (limits.nodes < 1 || limits.depth < 1 || s.indexed != static_cast<int>(task.text.size())) return;
  int keep = propose(task.seq, task.text, limits, s.proposal).nodes;
  auto& nodes = s.proposal.nodes;
  if (keep == 0 && s.proposal.drafted() > 0 && s.calibration.skip(nodes[0].bucket, limits.verify_cost[1] - 1)) keep = 1;
  nodes.resize(size_t(keep) + 1);
  for (size_t i = 1; i < nodes.size(); ++i)
    task.tree->add(nodes[i].parent, nodes[i].token, std::log(std::max(nodes[i].probability, kLeast)), kFromIndex);
}

Cut IndexDrafter::cut(const Proposal& proposal, const float* cost) {
  probabilities_.clear();
  for (size_t i = 1; i < proposal.nodes.size(); ++i) probabilities_.push_back(proposal.nodes[i].probability);
  return best_cut(probabilities_, cost);
}

void IndexDrafter::observe(std::span<const Outcome> outcomes) {
  for (const Outcome& outcome : outcomes) {
    Slot& s = slot(outcome.seq);
    learn(outcome, s.proposal, s.calibration, shared_);
    s.proposal.reset(kNoToken);
  }
}

}  // namespace sx
