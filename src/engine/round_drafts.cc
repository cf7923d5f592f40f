#include "engine/round_drafts.h"

#include <algorithm>
#include <numeric>

#include "base/clock.h"

namespace sx {
namespace {

constexpr int kWorthReading = 8;  // tokens still to come for which a drafter reads a long prompt

}  // namespace

RoundDrafts::RoundDrafts(const EngineParts& parts) : parts_(parts) {
  tasks_.reserve(size_t(parts.sequences->slots()));
  outcomes_.reserve(size_t(parts.sequences->slots()));
  paces_.reserve(size_t(parts.sequences->slots()));
}

void RoundDrafts::grow_trees(std::span<RoundSlot> slots, int share, PhaseTimes& times) {
  drafting_ms_ = verifying_ms_ = 0;
  for (RoundSlot& slot : slots) slot.request->begin_tree(slot, share);
  for (const auto& spec : parts_.speculations)
    if (spec->drafter()) draft_with(*spec, slots, share, times);
}

// Requests whose drafter has read their text may draft, as many as the planner allows; all others keep a tree of one
// node.
void RoundDrafts::draft_with(Speculation& spec, std::span<RoundSlot> slots, int share, PhaseTimes& times) {
  const auto ready = [&](const RoundSlot& slot) {
    const Generation& g = *slot.request;
    return &g.spec() == &spec && g.drafter() && slot.drafted == 0 &&
           (spec.planner().drafts_unread() || g.behind() <= kMaxChain);
  };
  const auto first = std::find_if(slots.begin(), slots.end(), ready);
  if (first == slots.end()) return;
  const int asking = int(std::count_if(first, slots.end(), ready));
  const int allowed = spec.planner().count_drafting(int(slots.size()), asking, first->history);
  tasks_.clear();
  double drafting = 0;  // requests draft together
  for (RoundSlot& slot : slots) {
    if (int(tasks_.size()) == allowed) break;
    if (!ready(slot)) continue;
    DraftTask task = slot.request->draft_task(slot, share);
    const DraftAsker asker{.budget = slot.request->budget(),
                           .history = slot.history,
                           .remaining = slot.request->remaining(),
                           .unread = slot.request->unread(),
                           .waited_ms = slot.request->prompt_ms()};
    const DraftGrant grant = spec.planner().grant(asker, spec.drafter()->level_ms(), task.limits);
    task.cheap_only = grant.cheap_only;
    task.model_depth = grant.model_depth;
    slot.decision = grant.decision;
    slot.drafting = grant.draft;
    slot.draft_ms = grant.draft_ms;
    slot.looking = grant.look;
    slot.whole = grant.whole;
    if (!grant.draft && !grant.look) continue;
    tasks_.push_back(task);
    drafting = std::max(drafting, grant.draft_ms);
  }
  if (tasks_.empty()) return;
  drafting_ms_ += drafting;
  spec.drafter()->draft(tasks_);
  const auto [ms, cache] = spec.drafter()->take_times();
  times.draft += ms;
  times.score += cache;
  cut_trees(spec, slots, ms);
}

void RoundDrafts::cut_trees(Speculation& spec, std::span<RoundSlot> slots, double draft_ms) {
  for (RoundSlot& slot : slots) {
    if (&slot.request->spec() != &spec) continue;
    if (slot.looking && slot.tree->drafted() > 0) slot.foreseen = slot.tree->token(1), slot.tree->keep_best(0);
    if (!slot.drafting) continue;
    slot.drafted = slot.tree->drafted();
    slot.request->prune(slot);
    const int worth = spec.planner().worthwhile(*slot.tree, {slot.request->budget(), slot.history}, draft_ms);
    if (worth < slot.tree->drafted()) slot.tree->keep_best(worth);
  }
}

void RoundDrafts::observe(std::span<const RoundSlot> slots, const StepOutputs* outputs, PhaseTimes& times) {
  for (const auto& spec : parts_.speculations)
    if (spec->drafter()) observe_with(*spec, slots, outputs, times);
}

void RoundDrafts::observe_with(Speculation& spec, std::span<const RoundSlot> slots, const StepOutputs* outputs,
                               PhaseTimes& times) {
  const double start = now_ms();
  const bool batch_may = spec.planner().may_draft(int(slots.size()));
  const StepOutputs* const seen = outputs ? &spec.seen(*outputs) : nullptr;
  outcomes_.clear();
  for (const RoundSlot& slot : slots) {
    const Generation& g = *slot.request;
    // A request that decodes plainly pays for no drafter; a drafter that reads the target has to see these tokens later
    // then.
    if (&g.spec() != &spec || !(slot.drafting || (g.drafter() && spec.drafter()->reads_target()))) continue;
    const auto path = slot.committed_path();
    const bool all = path.size() == slot.result.path.size();
    outcomes_.push_back({.seq = g.text().seq(),
                         .tree = slot.tree,
                         .path = path,
                         .next = all ? slot.result.next : slot.tree->token(slot.result.path[path.size()]),
                         .outputs = seen,
                         .first_row = slot.first_row,
                         .history = slot.history,
                         .text = g.text().tokens(),
                         .may_draft = slot.drafting || (batch_may && g.behind() <= kMaxChain)});
  }
  if (outcomes_.empty()) return;
  spec.drafter()->observe(outcomes_);
  const auto [draft, cache] = spec.drafter()->take_times();
  times.score += cache;
  times.draft += draft;
  times.commit += now_ms() - start - cache - draft;
}

void RoundDrafts::count_predicted(const PhaseTimes& times, double round_ms, bool drafted) {
  const double verifying = std::exchange(verifying_ms_, 0.0);  // a round of prompts alone has no pass of trees
  if (!(verifying > 0)) return;
  Average& others = others_ms_[drafted];
  if (others > 0) {
    predicted_.predicted_ms += drafting_ms_ + verifying + double(others);
    predicted_.measured_ms += round_ms;
  }
  others.add(round_ms - times.draft - times.verify);
}

void RoundDrafts::settle(std::span<const RoundSlot> slots, const PhaseTimes& times, bool with_prompts,
                         double round_ms) {
  RoundCost cost{.draft_ms = times.draft,
                 .verify_ms = times.verify,
                 .cache_ms = times.score,
                 .requests = int(slots.size()),
                 .with_prompts = with_prompts};
  RoundOutcome outcome{.requests = int(slots.size()),
                       .ms = round_ms,
                       .draft_ms = times.draft + times.score,
                       .with_prompts = with_prompts};
  for (const RoundSlot& slot : slots) {
    cost.nodes += slot.tree->drafted();
    outcome.tokens += slot.committed;
    outcome.plain &= !slot.drafting && slot.tree->drafted() == 0;
    outcome.history += double(slot.request->text().length()) / double(slots.size());
  }
  if (!with_prompts) count_predicted(times, round_ms, cost.nodes > 0);
  for (const RoundSlot& slot : slots) {
    Generation& g = *slot.request;
    DraftPlanner& planner = g.spec().planner();
    const int length = g.text().length();
    g.count(slot, times, planner.plain_ms(cost.requests, length));
    if (slot.foreseen != kNoToken) planner.look(g.budget().controller(), slot.foreseen == slot.chosen());
    planner.settle({.budget = g.budget(), .history = length, .decision = slot.decision, .draft_ms = slot.draft_ms},
                   cost, slot.drafting ? slot.tree : nullptr, int(slot.result.path.size()) - 1, slot.whole);
  }
  for (const auto& spec : parts_.speculations) spec->planner().count_round();
  if (slots.empty()) return;
  outcome.nodes = cost.nodes;
  if (!outcome.plain) outcome.slow_pace = slow_pace(slots);
  for (const auto& spec : parts_.speculations) {
    outcome.drafting = outcome.wanting = outcome.by_model = 0;
    outcome.model_tokens = 0;
    for (const RoundSlot& slot : slots) {
      if (&slot.request->spec() != spec.get()) continue;
      outcome.drafting += slot.drafting;
      outcome.wanting += slot.request->drafter() != nullptr;
      if (!slot.drafting || slot.decision.depth == 0) continue;
      ++outcome.by_model;
      outcome.model_tokens += slot.committed;
    }
    spec->planner().settle(outcome);
  }
}

double RoundDrafts::slow_pace(std::span<const RoundSlot> slots) {
  paces_.clear();
  for (const RoundSlot& slot : slots) {
    SpeculationBudget& budget = slot.request->budget();
    budget.batch_round(slot.committed);
    paces_.push_back(budget.pace());
  }
  const auto half = paces_.begin() + std::ptrdiff_t((paces_.size() + 1) / 2);
  std::nth_element(paces_.begin(), half - 1, paces_.end());
  return std::accumulate(paces_.begin(), half, 0.0) / double(half - paces_.begin());
}

void RoundDrafts::prefill_one(std::span<const RoundSlot> slots, int answering) {
  Generation* first = nullptr;
  for (const RoundSlot& slot : slots) {
    Generation* const g = slot.request;
    if (g->done() || !g->drafter() || g->remaining() < kWorthReading || g->behind() <= kMaxChain) continue;
    if (!first || g->behind() < first->behind()) first = g;
  }
  if (!first) return;
  const UnreadText unread{.requests = std::max(answering, int(slots.size())),
                          .behind = first->behind(),
                          .piece = parts_.chunk,
                          .remaining = first->remaining(),
                          .history = first->text().length(),
                          .made = first->made(),
                          .controller = &first->budget().controller()};
  DraftPlanner& planner = first->spec().planner();
  if (!planner.worth_reading(unread, first->drafter()->level_ms())) return;
  const double ms = first->catch_up();
  planner.finish_reading(unread, unread.behind - first->behind(), ms);
}

}  // namespace sx
