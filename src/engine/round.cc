#include "engine/round.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"

namespace sx {

Round::Round(const EngineParts& parts)
    : parts_(parts),
      max_outputs_(parts.model->options().max_outputs),
      separate_prompts_(parts.backend->traits().separate_prefill),
      step_(parts.model->options().max_rows, max_outputs_, parts.sequences->slots()),
      walks_(*parts.backend, parts.sequences->slots(), max_outputs_),
      drafts_(parts_),
      slots_(size_t(parts.sequences->slots())) {
  int nodes = 1;
  for (const auto& spec : parts.speculations) nodes = std::max(nodes, spec->nodes() + 1);
  for (RoundSlot& slot : slots_) slot.reserve(size_t(nodes));
  prompts_.reserve(slots_.size());
  moves_.reserve(kMaxTreeNodes);
}

void Round::run(std::span<Generation* const> decoding, std::span<const PromptPiece> prompts, int answering) {
  begin(decoding, prompts);
  draft();
  verify();
  accept();
  commit();
  finish_prompts();
  settle(answering);
}

void Round::begin(std::span<Generation* const> decoding, std::span<const PromptPiece> prompts) {
  SX_ASSERT(int(decoding.size()) <= max_outputs_ && decoding.size() <= slots_.size());
  if (with_prompts_ && !decoding.empty()) parts_.backend->wait();  // else drafts are charged with the prompts' time
  start_ = now_ms();
  times_ = {};
  active_ = std::span(slots_).first(decoding.size());
  for (size_t i = 0; i < decoding.size(); ++i) active_[i].request = decoding[i];
  prompts_.assign(prompts.begin(), prompts.end());
  with_prompts_ = !prompts.empty();
  for (Generation* request : decoding) request->end_if_exhausted(), request->hold_memory();
  drop_finished();
}

// Slots change places rather than being overwritten: their vectors keep their memory.
void Round::drop_finished() {
  size_t kept = 0;
  for (RoundSlot& slot : active_)
    if (!slot.request->poll_cancelled()) std::swap(active_[kept++], slot);
  active_ = active_.first(kept);
}

void Round::draft() {
  if (active_.empty()) return;
  drafts_.grow_trees(active_, max_outputs_ / int(active_.size()) - 1, times_);
  drop_finished();
}

// One pass of the target over all trees, and over the prompt pieces where they may share it.
void Round::verify() {
  const double start = now_ms();
  double history = 0;
  step_.clear();
  for (RoundSlot& slot : active_) {
    const SeqId seq = slot.request->text().seq();
    parts_.sequences->add_uncommitted(seq, slot.tree->size());
    slot.first_row = step_.add_tree(seq, slot.history, *slot.tree);
    history += slot.history;
  }
  const int rows = step_.rows();
  if (!separate_prompts_) add_prompts();
  if (step_.empty()) return;
  const bool trees_alone = step_.rows() == rows;  // else the time says nothing about the cost of trees
  if (trees_alone) drafts_.expect_pass(parts_.cost_model->predict(rows, history / double(active_.size())));
  run_pass(rows);
  parts_.backend->wait();
  times_.verify = now_ms() - start;
  if (trees_alone) parts_.cost_model->observe(rows, history / double(active_.size()), times_.verify);
  drop_finished();
}

// Walks each tree, and gives each request its tokens. A request that fails before its next token leaves the round.
void Round::accept() {
  const double start = now_ms();
  for (RoundSlot& slot : active_) slot.request->accept(slot, logits_of(slot), walks_);
  walks_.run();
  times_.accept = now_ms() - start;
  size_t kept = 0;
  for (RoundSlot& slot : active_) {
    slot.committed = slot.request->take(slot, logits_of(slot));
    if (slot.committed > 0) std::swap(active_[kept++], slot);
  }
  active_ = active_.first(kept);
  if (!separate_prompts_) score_prompts();  // overwrites the logits of the trees
}

// Compacts the accepted cells of the KV cache, and tells drafters which they are.
void Round::commit() {
  const double start = now_ms();
  for (const RoundSlot& slot : active_) {
    const SeqId seq = slot.request->text().seq();
    moves_.clear();
    parts_.sequences->commit(seq, slot.committed_path(), moves_);
    if (parts_.windows) parts_.windows->grow(seq, parts_.sequences->length(seq));
    if (moves_.empty()) continue;
    parts_.backend->kv_move({.from = parts_.kv, .to = parts_.kv, .from_slot = seq, .to_slot = seq, .moves = moves_});
  }
  times_.commit = now_ms() - start;
  drafts_.observe(active_, outputs_, times_);
}

// Drafters of prompts read the outputs of their pass, so no other pass may come before this.
void Round::finish_prompts() {
  if (separate_prompts_) {
    step_.clear();
    add_prompts();
    if (!step_.empty()) run_pass(0);
    score_prompts();
  }
  for (const PromptPiece& p : prompts_) p.request->finish_piece(p.rows, *outputs_, p.first_row);
}

void Round::settle(int answering) {
  const double all = now_ms() - start_;
  times_.host = all - times_.draft - times_.verify - times_.accept - times_.commit - times_.score;
  drafts_.settle(active_, times_, with_prompts_, all);
  if (with_prompts_ && !active_.empty()) parts_.backend->wait();
  drafts_.prefill_one(active_, answering);
}

void Round::add_prompts() {
  std::erase_if(prompts_, [](const PromptPiece& p) {
    if (!p.request->poll_cancelled()) p.request->hold_memory(p.rows);
    return p.request->done();
  });
  for (PromptPiece& p : prompts_) {
    const CachedText& text = p.request->text();
    p.first_row = step_.add_prompt(text.seq(), text.length(), p.request->waiting().first(size_t(p.rows)));
  }
}

// One pass. Logits are those of the trees' rows, or one row's where prompts that want logits run alone.
void Round::run_pass(int tree_rows) {
  const bool scored = std::ranges::any_of(prompts_, [](const PromptPiece& p) { return p.request->scored(); });
  outputs_ = &parts_.model->forward(step_.step(tree_rows > 0 ? tree_rows : int(scored), tree_rows == 0), *parts_.kv);
}

void Round::score_prompts() {
  for (const PromptPiece& p : prompts_)
    if (p.request->scored()) p.request->score(p.rows, p.first_row);
}

}  // namespace sx
