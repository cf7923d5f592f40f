#include "speculative/budget/draft_planner.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace sx {
namespace {

constexpr double kNearlyAll = 0.75;  // of a batch
constexpr int kFew = 8;              // requests of a small batch
// Faded costs are for trying what the costs forbid: where a node costs more than a good draft gains, and now and then.
constexpr double kHopeless = 0.7;       // plain passes
constexpr int kHopeEvery = 32;          // passes
constexpr double kMuchSlower = 1.5;     // than expected: the cost model is wrong, or the pass was interrupted
constexpr double kInterrupted = 2;      // times what was expected is the most that a draft is charged with
constexpr double kGoodDraft = 0.7;      // chance that a level of a good draft is accepted
constexpr double kDraftSize = 0.25;     // of the target's, for what a draft takes to read a text before it has read any
constexpr double kExplore = 0.025;      // of an answer's plain rounds, for reading on trust
constexpr double kExploreGain = 0.125;  // of what it would gain with a good draft
constexpr double kTryShare = 0.5;       // of a balance that does not cover a whole draft, for a shorter one
constexpr int kWarmDrafts = 3;          // of a model, after which what a level takes is believed
constexpr double kCheapReading = 1;     // plain steps
constexpr int kLookFirst = 6;           // rounds without the model before it reads a text at more than that
constexpr int kCautious = 1;            // levels of a draft after one of which nothing was accepted
constexpr double kAlong = 0.03;         // of a prompt, for a head that reads along, before that was measured
constexpr int kPromptRows = 512;
constexpr double kAlongOdds = 2;  // what good drafts would save, by what reading along costs
constexpr int kUnderWay = 8;      // tokens of an answer before much is drafted

}  // namespace

// Preset auto in a batch, with an index that drafts beside the model.
bool DraftPlanner::two_budgets(int requests) const {
  return requests > 1 && kind_.controlled && kind_.has_index && kind_.runs_model;
}

DraftPlanner::DraftPlanner(const CostModel& cost_model, const DraftKind& kind)
    : cost_model_(cost_model), kind_(kind), costs_(size_t(kind.nodes) + 1, 1.0f) {}

double DraftPlanner::plain_ms(int requests, int history) const {
  return has_costs() ? std::max(1e-6, cost_model_.predict(requests, history)) : 0;
}

// One more level of a draft in plain rounds, for choosing what to try: what it took long ago is believed less and less.
double DraftPlanner::hoped_level(double level_ms, double plain_ms) const {
  return faded(level_ms, batch_budget_.idle()) / plain_ms;
}

// A batch drafts together or not at all: a request that does not draft only waits for those that do, so nearly all must
// gain. Until it is known that drafts pay at this batch size, one request alone tries.
int DraftPlanner::count_drafting(int requests, int ready, int history) {
  requests_ = requests;
  trial_ = false;
  model_turns_ = 1, index_ = true;
  if (!has_costs() || ready == 0) return ready;
  if (two_budgets(requests)) {
    const int drafting = count_controlled(requests, ready);
    if (drafting > 0) set_costs({requests, drafting, double(history)});
    return drafting;
  }
  if (!batch_budget_.may_draft(requests)) return 0;
  const bool one = requests > 1 && kind_.runs_model && !batch_budget_.proven(requests);
  if (!one && kind_.runs_model && double(ready) < kNearlyAll * requests) return 0;
  const int drafting = one ? 1 : ready;
  trial_ = one;
  set_costs({requests, drafting, double(history)});
  return drafting;
}

// Preset auto in a batch: whether all draft with the index and whether the model drafts are two questions. The index
// takes no pass of its own, so all may use it. The model's passes make everybody wait: until they are known to give
// more than the index does, one request alone tries them.
int DraftPlanner::count_controlled(int requests, int ready) {
  const bool proven = model_budget_.proven(requests);
  index_ = batch_budget_.may_draft(requests);
  model_turns_ = !model_budget_.may_draft(requests)       ? 0
                 : !proven                                ? 1
                 : double(ready) >= kNearlyAll * requests ? ready
                                                          : 0;
  trial_ = model_turns_ == 1 && !proven;
  return index_ ? ready : model_turns_;
}

// What nodes of one request cost it, if all drafting requests have as many: time that a batch of four loses must gain
// four times as much.
void DraftPlanner::set_costs(const CostModel::BatchShape& batch) {
  cost_model_.costs(kind_.nodes, batch, costs_, false);
  if (kind_.nodes < 1) return;
  const bool hopeless = double(costs_[1]) - 1 > kHopeless;
  if (hopeless || cost_model_.rounds() % kHopeEvery == 0) cost_model_.costs(kind_.nodes, batch, costs_);
}

DraftGrant DraftPlanner::grant(const DraftAsker& asker, double level_ms, TreeLimits& limits) {
  DraftGrant out;
  if (limits.depth <= 0 || limits.nodes <= 0) return out;
  if (!has_costs()) return {.draft = true};
  const SpeculationBudget& budget = asker.budget;
  const double plain = plain_ms(requests_, asker.history);
  limits.verify_cost = costs_.data();
  limits.level_cost = float(level_ms / plain);
  if (kind_.controlled && (requests_ == 1 || two_budgets(requests_))) return decide(asker, limits);
  double balance = budget.balance();
  const double node = double(costs_[1]) - 1, level = double(limits.level_cost);
  const bool known = level > 0 || requests_ == 1;  // what a level costs a batch is found out with one
  const double deepest = level * limits.depth;     // what a draft costs before this request has made one
  // A trial may also cost no more than the batch can spend.
  const double spend = trial_ ? batch_budget_.may_spend(requests_) : std::numeric_limits<double>::infinity();
  // A single request whose last draft gave nothing tries single levels rather than a few deep drafts, and no try takes
  // all of its balance: one level that is right earns a whole draft.
  const bool cautious = requests_ == 1 && level > 0 && !kind_.has_index && budget.cautious();
  const bool whole =
      !kind_.runs_model || (known && !cautious && budget.covers_draft(node, deepest) && deepest <= spend);
  const int deep = cautious ? std::min(kCautious, limits.depth) : limits.depth;
  int depth = whole ? limits.depth : budget.depth_within_budget(deep, level, node);
  if (depth > 1 && !whole && requests_ == 1)
    depth = std::min(depth, std::max(1, int(kTryShare * budget.balance() / level)));
  if (!whole && trial_ && level > 0) depth = std::min(depth, int(std::max(0.0, spend / level)));
  const double hoped = hoped_level(level_ms, plain);
  const bool probe =
      !whole && (kind_.has_index ? !known || hoped < level : depth == 0) && budget.may_probe(hoped, node);
  out.cheap_only = !whole && !probe && kind_.has_index;
  if (kind_.runs_model && !out.cheap_only) {
    if (probe) depth = 1;
    if (depth == 0) return out;
    out.whole = depth == limits.depth;
    limits.depth = depth;
    out.draft_ms = whole && budget.draft_cost() > 0 ? budget.draft_cost() * plain : depth * level_ms;
    if (!probe) balance -= whole ? budget.draft_cost() : depth * level;
  }
  while (limits.nodes > 0 && double(costs_[size_t(limits.nodes)]) - 1 > balance) --limits.nodes;
  out.draft = limits.nodes > 0;
  return out;
}

// Preset auto: the controller says how deep the model drafts. An index drafts in any case: it cuts its tree by the same
// costs, and by how sure it is. A trial in a batch takes no more than the batch can spend.
DraftGrant DraftPlanner::decide(const DraftAsker& asker, TreeLimits& limits) {
  DraftController& controller = asker.budget.controller();
  const double plain = plain_ms(requests_, asker.history);
  if (!controller.begun()) controller.begin(asker.waited_ms / plain, experience_, asker.remaining, kind_.has_index);
  DraftGrant out{.draft = true};
  if (!kind_.runs_model) {
    out.decision.why = "there is no model";
  } else if (asker.unread) {
    out.decision.why = "the model has not read the text";
  } else if (model_turns_ == 0) {
    out.decision.why = "the model costs the batch more than it gives";
  } else {
    const double known = requests_ > 1 ? double(limits.level_cost) : 0;
    const double level = known > 0 ? known : controlled_level(plain);
    int deepest = limits.depth;
    if (trial_ && level > 0) deepest = std::min(deepest, int(model_budget_.may_spend(requests_) / level));
    const DraftCosts costs{
        .level = level, .verify = costs_, .depth = deepest, .nodes = limits.nodes, .has_index = kind_.has_index};
    out.decision = controller.decide(costs, experience_, asker.remaining);
    out.draft_ms = out.decision.depth * level * plain;
    if (requests_ > 1 && out.decision.depth > 0) --model_turns_;
  }
  out.model_depth = out.decision.depth;
  out.cheap_only = out.decision.depth == 0;
  if (!kind_.has_index) limits.depth = out.decision.depth, out.draft = out.decision.depth > 0;
  const double most = controller.index_balance();
  const bool alone = out.cheap_only && index_ && kind_.has_index && limits.nodes > 0;
  if (out.cheap_only)
    while (limits.nodes > 0 && double(costs_[size_t(limits.nodes)]) - 1 > most) --limits.nodes;
  if (alone && limits.nodes == 0) out.look = true, limits.nodes = 1;
  out.draft = out.draft && !out.look && limits.nodes > 0 && (index_ || !out.cheap_only);
  return out;
}

void DraftPlanner::look(DraftController& controller, bool right) const {
  if (kind_.nodes > 0) controller.look(right, double(costs_[1]) - 1);
}

// What a level of the model takes, in plain steps. The first drafts load what they need, so that little is believed of
// them; what a noisy moment said is believed less and less.
double DraftPlanner::controlled_level(double plain) const {
  const double level = faded(least_level_ms_, rounds_ - drafted_at_) / plain;
  return experience_.acceptance().drafts() >= kWarmDrafts ? level
                                                          : std::min(kDraftSize, level > 0 ? level : kDraftSize);
}

int DraftPlanner::worthwhile(const TokenTree& tree, const DraftAsker& asker, double draft_ms) const {
  if (!has_costs() || !kind_.runs_model) return tree.drafted();  // an index has cut its tree itself
  return worthwhile_nodes(tree, costs_, draft_ms / plain_ms(requests_, asker.history), asker.budget.confidence());
}

// What verifying its nodes cost a request, in plain passes: its share of what all lost by them. For a single request
// the cost model says it, which every pass corrects and whose errors cancel in their ratio, unless it is far off. In a
// batch the clock says it, because sizes are many and most of them are seldom tried. A pass that was interrupted counts
// as at most twice what was expected.
double DraftPlanner::verifying(const DraftAsker& asker, const RoundCost& cost, int nodes) const {
  if (nodes == 0) return 1;
  const double plain = plain_ms(cost.requests, asker.history);
  const double expected = cost_model_.predict(cost.requests + cost.nodes, asker.history) / plain;
  const double measured = std::min(cost.verify_ms / plain, 2 * std::max(1.0, expected));
  const bool by_model = cost.with_prompts || (cost.requests == 1 && measured < kMuchSlower * expected);
  const double took = by_model ? expected : measured;
  return 1 + std::max(0.0, took - 1) * double(cost.requests) * nodes / cost.nodes;
}

void DraftPlanner::settle(const DraftAsker& asker, const RoundCost& cost, const TokenTree* tree, int accepted,
                          bool whole) {
  if (kind_.controlled && has_costs() && (cost.requests == 1 || two_budgets(cost.requests)))
    settle_controlled(asker, cost, tree, accepted);
  if (!tree || !has_costs()) return asker.budget.plain_round();
  double expected = 0;
  for (NodeId n = 1; n < tree->size(); ++n) expected += std::exp(double(tree->score(n)));
  const double plain = plain_ms(cost.requests, asker.history);
  // A device records the passes of a draft that it meets first, which takes as long as many drafts.
  const double draft_ms = asker.draft_ms > 0 ? std::min(cost.draft_ms, kInterrupted * asker.draft_ms) : cost.draft_ms;
  asker.budget.drafted_round(expected, accepted, draft_ms / plain,
                             verifying(asker, cost, tree->drafted()) + cost.cache_ms / plain, whole);
}

// A round whose tree has nothing of the model is one without it, whatever was granted: the index was sure. A tree of
// which nothing was worth verifying is a draft whose first token was wrong.
void DraftPlanner::settle_controlled(const DraftAsker& asker, const RoundCost& cost, const TokenTree* tree,
                                     int accepted) {
  DraftController& controller = asker.budget.controller();
  if (!tree) return controller.settle_without(1, 1);
  const double plain = plain_ms(cost.requests, asker.history);
  double time = verifying(asker, cost, tree->drafted());
  // In a batch only those whose drafts took passes of the model are charged with them.
  if (cost.requests == 1 || asker.decision.depth > 0) time += (cost.draft_ms + cost.cache_ms) / plain;
  bool by_model = !kind_.has_index || (tree->drafted() == 0 && asker.decision.depth > 0);
  for (NodeId n = 1; n < tree->size(); ++n) by_model |= (tree->source(n) & kFromModel) != 0;
  if (!by_model) return controller.settle_without(accepted + 1, time);
  if (const DraftDecision& d = asker.decision; d.depth > 0) {
    const double seen = cost.requests == 1 ? cost.draft_ms / d.depth : double(least_level_ms_);
    if (least_level_ms_ == 0 || seen < least_level_ms_) least_level_ms_ = seen;
    else least_level_ms_ += Average::kLearn * (std::min(seen, 2 * least_level_ms_) - least_level_ms_);
    // A round that was interrupted, or the first of its kind, is not held against the model.
    time = std::min(time, (experience_.acceptance().drafts() < kWarmDrafts ? 1 : 2) * d.time);
  }
  drafted_at_ = rounds_;
  const int depth = std::max(1, tree->max_depth());
  controller.settle({.depth = depth, .nodes = std::max(1, tree->drafted()), .accepted = accepted, .time = time},
                    experience_);
}

// A round that ran prompts, too, is counted as what its drafts should have added to a plain one. Where drafts take
// passes of a model, a round of many requests gave what it gave the slower half of them: a batch in which a few get ten
// tokens in a round that takes three times as long is fast on average, and most of its answers come later. In a small
// batch the fast ones soon leave, and the others gain by that (on an H200: 4 requests gained 3.1x by the mean, 1.2x by
// the slower half; 16 lost 7 to 10 % by the mean).
void DraftPlanner::settle(const RoundOutcome& o) {
  const double expected = has_costs() ? cost_model_.predict(o.requests, o.history) : 0;
  if (!(expected > 0)) return;
  if (two_budgets(o.requests)) return settle_batch(o, expected);
  if (o.drafting == 0) {
    if (o.plain) batch_budget_.plain_round(o.requests, o.with_prompts ? 0 : o.ms / expected, o.wanting > 0);
    return;
  }
  const double drafting = o.draft_ms / expected,
               verifying = cost_model_.predict(o.requests + o.nodes, o.history) / expected;
  const double time =
      o.with_prompts ? batch_budget_.plain_time(o.requests) + drafting + verifying - 1 : o.ms / expected;
  const double each = double(o.tokens) / o.requests;
  if (!kind_.runs_model) return batch_budget_.drafted_round(o.requests, each, time);
  if (double(o.drafting) >= kNearlyAll * o.requests)
    return batch_budget_.drafted_round(o.requests,
                                       o.requests > kFew && o.slow_pace > 0 ? std::min(each, o.slow_pace) : each, time);
  // If all had drafted: as many nodes and tokens for each, and levels of a draft that grow as the target's passes do.
  const int all_rows = o.requests + o.requests * o.nodes / o.drafting;
  const double more_rows = cost_model_.predict(all_rows, o.history) / expected - verifying;
  const double larger = expected / std::max(1e-6, cost_model_.predict(o.drafting, o.history));
  batch_budget_.trial_round(o.requests, time, 1 + double(o.tokens - o.requests) / o.drafting,
                            time + std::max(0.0, more_rows) + drafting * std::max(0.0, larger - 1));
}

// Preset auto: rounds with the index alone are held against plain ones, and rounds with the model against those without
// it, by time per token. A round that ran prompts, too, is counted as what its drafts should have added to a plain one.
void DraftPlanner::settle_batch(const RoundOutcome& o, double expected) {
  const double verifying = cost_model_.predict(o.requests + o.nodes, o.history) / expected;
  const double each = double(o.tokens) / o.requests;
  const double time = !o.with_prompts   ? o.ms / expected
                      : o.drafting == 0 ? 0
                                        : batch_budget_.plain_time(o.requests) + o.draft_ms / expected + verifying - 1;
  if (o.by_model == 0) {
    if (o.drafting > 0) batch_budget_.drafted_round(o.requests, each, time);
    else if (o.plain) batch_budget_.plain_round(o.requests, time, o.wanting > 0);
    if (o.drafting > 0 || o.plain) model_budget_.plain_round(o.requests, time / std::max(1.0, each), o.wanting > 0);
    return;
  }
  if (double(o.by_model) >= kNearlyAll * o.requests)
    return model_budget_.drafted_round(o.requests,
                                       o.requests > kFew && o.slow_pace > 0 ? std::min(each, o.slow_pace) : each, time);
  // If all had drafted as those did that tried: levels and rows grow as the target's passes do.
  const int all_rows = o.requests + o.requests * o.nodes / std::max(1, o.drafting);
  const double more_rows = cost_model_.predict(all_rows, o.history) / expected - verifying;
  const double larger = expected / std::max(1e-6, cost_model_.predict(o.by_model, o.history));
  model_budget_.trial_round(o.requests, time, 1 + double(o.model_tokens - o.by_model) / o.by_model,
                            time + std::max(0.0, more_rows) + o.draft_ms / expected * std::max(0.0, larger - 1));
}

// The share of its time that drafts would save a request at this batch size if they were good.
double DraftPlanner::hoped_saving(double hoped_level) const {
  double best = 1, tokens = 1, right = 1;
  for (int depth = 1; depth <= std::min(kind_.depth, kind_.nodes); ++depth) {
    tokens += right *= kGoodDraft;
    best = std::min(best, (double(costs_[size_t(depth)]) + depth * hoped_level) / tokens);
  }
  return 1 - best;
}

// A drafter's reading pays by what drafts could save, and have saved at this batch size, in the rounds to come: if all
// requests of the batch are read for. Before anything is known one text is read on trust, if that costs little of the
// answer and of what a good draft would gain.
bool DraftPlanner::worth_reading(const UnreadText& text, double level_ms) {
  if (!has_costs() || kind_.nodes < 1) return true;
  cost_model_.costs(kind_.nodes, {text.requests, text.requests, double(text.history)}, costs_);
  const int requests = text.requests;
  const double plain = plain_ms(requests, text.history), reading = text.behind * read_ms(requests) / plain;
  if (kind_.controlled && requests == 1) return repays_reading(text, level_ms, text.behind * read_ms(2) / plain);
  const double hoped = hoped_saving(hoped_level(level_ms, plain_ms(requests_, text.history)));
  const double gain = hoped * text.remaining - reading * requests;
  if (requests == 1 || gain < 0) return gain >= 0 && hoped > 0;
  const BatchBudget& budget = two_budgets(requests) ? model_budget_ : batch_budget_;
  if (budget.proven(requests)) return reading * requests <= budget.saved(requests) * text.remaining;
  if (!budget.unknown(requests)) return budget.covers_reading(requests, reading);
  return budget.covers_reading(requests, reading, std::min(kExplore * text.remaining, kExploreGain * gain));
}

// Where an index drafts, too, it is known first what it gives: what the model adds to that has to repay the reading.
bool DraftPlanner::repays_reading(const UnreadText& text, double level_ms, double reading) const {
  const DraftController* controller = text.controller;
  const bool look = kind_.has_index && controller && reading > kCheapReading;
  if (look && controller->rounds_without() < kLookFirst) return false;
  return experience_.repays(reading,
                            {.level = level_ms / plain_ms(text.requests, text.history),
                             .verify = costs_,
                             .depth = kind_.depth,
                             .nodes = kind_.nodes},
                            text.made, text.remaining, look ? std::max(1.0, controller->without()) : 1);
}

// A head reads along in the target's passes over a prompt, or not at all: then the index drafts alone. Even good drafts
// could not repay that in an answer that has to be short. How long it really gets and how good the drafts are is not
// asked: the session may go on, and a head that does not read does not learn.
bool DraftPlanner::reads_along(int tokens, int limit) {
  if (!kind_.is_head || !kind_.controlled || !kind_.has_index || !has_costs() || limit <= 0) return true;
  const double plain = plain_ms(1, tokens);
  const double along =
      along_ms_ > 0 ? double(along_ms_) : kAlong * cost_model_.predict(kPromptRows, tokens / 2.0) / kPromptRows;
  cost_model_.costs(kind_.nodes, {1, 1, double(tokens)}, costs_, false);
  const double saving = hoped_saving(least_level_ms_ > 0 ? least_level_ms_ / plain : kDraftSize);
  return kAlongOdds * tokens * along <= saving * plain * (limit - kUnderWay);
}

// Milliseconds that a drafter takes to read a token. For a single request a reading that was slow long ago is believed
// less and less, and the first is simply made. In a batch, where all wait for it, nothing is read in the hope that it
// is cheaper than it was.
double DraftPlanner::read_ms(int requests) const {
  constexpr int kRows = 512;
  if (requests == 1) return faded(read_ms_, rounds_ - read_at_);
  return read_ms_ > 0 ? read_ms_ : kDraftSize * cost_model_.predict(kRows, 0) / kRows;
}

void DraftPlanner::finish_reading(const UnreadText& text, int tokens, double ms) {
  observe_reading(tokens, ms);
  BatchBudget& budget = two_budgets(text.requests) ? model_budget_ : batch_budget_;
  if (has_costs()) budget.reading(text.requests, ms / plain_ms(text.requests, text.history));
}

void DraftPlanner::observe_reading(int tokens, double ms) {
  if (tokens <= 0 || !(ms > 0)) return;
  const double seen = ms / tokens;
  if (2 * seen < read_ms_) read_ms_.restart(seen);  // so fast a reading proves that the one before was interrupted
  else read_ms_.add(seen);
  read_at_ = rounds_;
}

}  // namespace sx
