#include "speculative/budget/draft_controller.h"

#include <algorithm>
#include <cmath>

namespace sx {
namespace {

// Acceptance.
constexpr double kForget = 0.95;    // per draft
constexpr double kPrior = 2;        // drafts' worth of what the level above, or the prior, says
constexpr double kUnlikely = 0.01;  // a run of such a chance means that the text has changed
constexpr double kAfterChange = 1;  // drafts' worth of memory that stays then
// The account, in plain steps.
constexpr double kShare = 0.005;       // every round, towards drafts
constexpr double kTryShare = 0.0095;   // and for trying: tries go on while the account is overdrawn
constexpr double kIndexShare = 0.004;  // and towards what an index finds, from an account of its own
constexpr double kLooked = 1;          // of what a proposal that was not verified would have gained or cost
constexpr double kMostDebt = 1;
constexpr double kMostTries = 0.5;
constexpr double kDisproven = 0.35;  // of all that, beside an index, where the model has not paid in this engine
constexpr double kStartShare = 0.8, kLeastStart = 0.1, kMostStart = 0.7, kMost = 4;
constexpr double kOverdraft = 0.75;  // where drafts of this engine are known to pay
constexpr double kIndexLoss = 0.02;  // of prompt and answer: most that an index may lose before it has given anything
constexpr double kReserveShare = 0.005, kMostReserve = 0.75;  // per token of an answer, for tries of later ones
// The choice.
constexpr double kMargin = 1.02;             // by which the model must beat rounds without it
constexpr int kFirstGap = 4, kMostGap = 12;  // rounds between tries
constexpr int kMostLook = 64;                // rounds with the model, then one without
constexpr double kLearnRate = 0.15, kLearnLook = 0.5, kLearnNodes = 0.2, kLearnSaved = 0.08, kLearnAnswer = 0.25;
constexpr double kGrowth = 0.5;  // an answer goes on for so much of its length

}  // namespace

double AcceptanceByDepth::at(int depth) const {
  double chance = prior_;
  for (int d = 0; d < std::min(depth, kDepths); ++d)
    chance = (levels_[size_t(d)].hits + kPrior * chance) / (levels_[size_t(d)].tries + kPrior);
  return chance;
}

double AcceptanceByDepth::expected(int depth) const {
  double chance = prior_, path = 1, sum = 0;
  for (int d = 0; d < depth; ++d) {
    if (d < kDepths) chance = (levels_[size_t(d)].hits + kPrior * chance) / (levels_[size_t(d)].tries + kPrior);
    sum += path *= chance;
  }
  return sum;
}

void AcceptanceByDepth::notice_change(bool hit) {
  const double chance = at(1);
  run_ = hit ? std::max(run_, 0) + 1 : std::min(run_, 0) - 1;
  if (std::pow(hit ? chance : 1 - chance, std::abs(run_)) >= kUnlikely) return;
  for (Level& level : levels_)
    if (const double keep = kAfterChange / level.tries; keep < 1) level.hits *= keep, level.tries *= keep;
  prior_ = hit ? std::max(prior_, 0.6) : std::min(prior_, 0.45);
}

void AcceptanceByDepth::observe(int depth, int accepted) {
  if (depth <= 0) return;
  notice_change(accepted > 0);
  ++drafts_;
  for (int d = 0; d < std::min({depth, accepted + 1, kDepths}); ++d) {
    Level& level = levels_[size_t(d)];
    level.hits = kForget * level.hits + (d < accepted);
    level.tries = kForget * level.tries + 1;
  }
}

void AcceptanceByDepth::believe(const AcceptanceByDepth& other) {
  *this = other;
  for (Level& level : levels_)
    if (const double keep = 2 * kAfterChange / level.tries; keep < 1) level.hits *= keep, level.tries *= keep;
  prior_ = 0.6;
  run_ = 0, drafts_ = 0;
}

const char* decision_name(DraftDecision::Kind kind) {
  switch (kind) {
    case DraftDecision::Kind::kWithout: return "without";
    case DraftDecision::Kind::kTry: return "try";
    case DraftDecision::Kind::kModel: return "model";
  }
  return "?";
}

void DraftExperience::drafted(int depth, int accepted, double tokens, double time) {
  acceptance_.observe(depth, accepted);
  const double saved = std::clamp(1 - time / std::max(1.0, tokens), -1.0, 1.0);
  ++rounds_;
  saved_ += std::max(kLearnSaved, 1.0 / double(rounds_)) * (saved - saved_);
}

void DraftExperience::answered(int tokens) {
  if (tokens <= 0) return;
  answer_ += kLearnAnswer * (std::min(tokens, 4096) - answer_);
  reserve_ = std::min(kMostReserve, reserve_ + kReserveShare * tokens);
}

double DraftExperience::to_come(int made, int limit) const {
  return std::min(double(limit), std::max(answer_ - made, kGrowth * made));
}

bool DraftExperience::repays(double reading, const DraftCosts& costs, int made, int limit, double without) const {
  double best = without;
  for (int depth = 1; depth <= std::min(costs.depth, costs.nodes); ++depth)
    best =
        std::max(best, (1 + acceptance_.expected(depth)) / (double(costs.verify[size_t(depth)]) + depth * costs.level));
  return reading <= (1 / without - 1 / best) * to_come(made, limit);
}

// Node 0 and as many nodes for each level as trees have had lately.
double DraftController::time_of(const DraftCosts& costs, int depth) const {
  const int nodes = std::clamp(int(std::lround(depth * nodes_per_level_)), depth, std::max(depth, costs.nodes));
  const size_t at = std::min(size_t(nodes), costs.verify.size() - 1);
  return double(costs.verify[at]) + depth * costs.level;
}

void DraftController::begin(double waited, const DraftExperience& shared, int limit, bool has_index) {
  begun_ = true;
  trust_ = has_index && shared.disproven() ? kDisproven : 1;
  const double answer = shared.to_come(0, limit);
  balance_ = trust_ * std::clamp(kStartShare * (kShare + kTryShare) * answer, kLeastStart, kMostStart);
  index_balance_ = std::min(kIndexStart, kIndexLoss * (waited + answer));
  if (shared.acceptance().drafts() > 0) acceptance_.believe(shared.acceptance());
}

DraftDecision DraftController::decide(const DraftCosts& costs, const DraftExperience& shared, int limit) {
  if (!begun_) begin(0, shared, limit, costs.has_index);
  trust_ = costs.has_index && shared.disproven() ? kDisproven : 1;
  DraftDecision out{.tokens = without_, .why = "the model does not pay"};
  // The last token needs no draft, and a draft no more tokens than are wanted.
  const int deepest = std::min({costs.depth, costs.nodes, limit - 1, int(costs.verify.size()) - 1});
  if (deepest < 1) return last_ = out.kind, out.why = "nothing to draft", out;
  const double risk = balance_ + std::max(trust_ * shared.reserve(), shared.proven() ? kOverdraft : 0);
  if (costs.has_index && drafting_ >= look_gap_) return last_ = out.kind, out.why = "to see what the index gives", out;
  double best = kMargin * std::max(1.0, without_);
  bool pays = false;
  for (int depth = 1; depth <= deepest; ++depth) {
    const double tokens = 1 + acceptance_.expected(depth), time = time_of(costs, depth);
    if (tokens / time <= best) continue;
    pays = true;
    if (time - 1 > risk) break;
    best = tokens / time;
    out = {DraftDecision::Kind::kModel, depth, tokens, time, "it pays"};
  }
  if (out.kind == DraftDecision::Kind::kWithout) {
    const double time = time_of(costs, 1);
    // Where the index gives more than the model could, tries are rare.
    const int gap = without_ > kMargin ? kMostGap
                    : misses_ == 0     ? 0
                                       : std::min(kMostGap, kFirstGap << std::min(misses_ - 1, 8));
    if (pays) out.why = "the account does not cover it";
    if (idle_ >= gap && time - 1 <= std::max(balance_, tries_) + (misses_ == 0 ? trust_ * shared.reserve() : 0))
      out = {DraftDecision::Kind::kTry, 1, 1 + acceptance_.at(1), time, pays ? "a level is covered" : "a try is due"};
  }
  last_ = out.kind;
  return out;
}

void DraftController::settle_without(double tokens, double time) {
  ++idle_;
  const bool look = drafting_ >= look_gap_;
  if (look) look_gap_ = tokens / time < rate_ ? std::min(2 * look_gap_, kMostLook) : kFirstLook;
  drafting_ = 0;
  // The first rounds count alike, with one plain round among them.
  const double weight = std::max(look ? kLearnLook : kLearnRate, 1.0 / (2 + rounds_without_++));
  if (time > 0) without_ += weight * (tokens / time - without_);
  tries_ = std::min(kMostTries, tries_ + trust_ * kTryShare);
  balance_ = std::min(kMost, balance_ + trust_ * kShare);
  index_balance_ = std::clamp(index_balance_ + kIndexShare + tokens - time, -kMostDebt, kMost);
}

// Looking a text up costs nothing, so an index whose first drafts failed need not wait until its account has grown
// again: a loop that it has learned by now shows within a few tokens. It earns no more by that than it had to begin
// with.
void DraftController::look(bool right, double node) {
  const double balance = index_balance_ + kLooked * (right ? 1 - node : -node);
  index_balance_ = std::clamp(balance, -kMostDebt, std::max(index_balance_, kIndexStart));
}

void DraftController::settle(const Drafted& round, DraftExperience& shared) {
  const double tokens = 1 + round.accepted;
  idle_ = 0;
  ++drafting_;
  rate_ += kLearnRate * (tokens / round.time - rate_);
  misses_ = round.accepted > 0 ? 0 : misses_ + 1;
  if (round.depth > 0) nodes_per_level_ += kLearnNodes * (double(round.nodes) / round.depth - nodes_per_level_);
  acceptance_.observe(round.depth, round.accepted);
  // What rounds without the model give is not seen in these; it is believed less and less.
  without_ += 0.02 * (1 - without_);
  // A try that gave nothing is paid for by what was put aside for tries.
  const bool paid = last_ == DraftDecision::Kind::kTry && round.accepted == 0 && tries_ >= round.time - 1;
  tries_ = std::min(kMostTries, tries_ + kTryShare - (paid ? round.time - 1 : 0));
  balance_ = std::min(kMost, balance_ + kShare + tokens - (paid ? 1 : round.time));
  if (tokens < round.time && !paid) shared.spend(round.time - tokens);
  shared.drafted(round.depth, round.accepted, tokens, round.time);
}

}  // namespace sx
