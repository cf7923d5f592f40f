#include "speculative/budget/batch_budget.h"

#include <algorithm>
#include <bit>

namespace sx {
namespace {

constexpr double kShare = 0.01;       // of the time of plain rounds, for trying
constexpr double kProvenShare = 0.1;  // where drafts are known to save time: an unlucky stretch soon ends
// Plain rounds. An answer of 128 tokens may lose 3 %, not quite four: what was won or lost long ago must not decide.
constexpr double kMost = 2, kDebt = 4;
constexpr double kOnTrust =
    0.5;  // plain rounds of the balance that a reading may count on; a trial's cost where one is due
constexpr double kLearn = 0.1;  // weight of a round in what drafts save
constexpr double kDoubt =
    0.01;  // off what a trial promises, for each request of the batch: nobody has seen all of them draft
constexpr double kForget = 0.95;               // of how wrong trials were, per trial
constexpr int kProof = 3;                      // rounds: one request may be lucky
constexpr int kTrials = 2;                     // drafts that follow a reading
constexpr int kFirstPlain = 64, kPlain = 256;  // drafted rounds after which a plain one is due

// The share of a plain round's time per token that a round saved; `time` in plain rounds.
double saving(double tokens, double time) { return tokens > 0 ? std::clamp(1 - time / tokens, -1.0, 1.0) : -1; }

}  // namespace

size_t BatchBudget::size_of(int requests) {
  return std::min<size_t>(11, size_t(std::bit_width(unsigned(std::max(1, requests) - 1))));
}

bool BatchBudget::is_proven(const Account& b) { return b.seen >= kProof && b.saved > 0; }

bool BatchBudget::may_draft(int requests) const {
  const Account& b = account(requests);
  if (b.drafted >= (b.checked ? kPlain : kFirstPlain)) return false;
  return requests == 1 ||
         (b.plain > 0 && (b.balance >= 0 || b.trials > 0));  // one alone looks after itself (SpeculationBudget)
}

double BatchBudget::may_spend(int requests) const {
  const Account& b = account(requests);
  return b.trials > 0 ? std::max(kOnTrust, b.balance) : b.balance;
}

bool BatchBudget::covers_reading(int requests, double time, double limit) const {
  const Account& b = account(requests);
  if (!(b.plain > 0)) return false;
  return time / b.plain <= (limit > 0 ? limit + std::min(b.balance, kOnTrust) : b.balance);
}

void BatchBudget::plain_round(int requests, double time, bool wanted) {
  Account& b = account(requests);
  ++idle_;
  if (wanted) b.balance = std::max(b.balance, std::min(kMost, b.balance + (is_proven(b) ? kProvenShare : kShare)));
  b.checked |= b.drafted > 0;
  b.drafted = 0;
  if (time > 0) b.plain.add(time);
}

// Rounds in which all draft say more than trials: they count for more at first, and correct what trials will say.
void BatchBudget::drafted_round(int requests, double tokens, double time) {
  Account& b = account(requests);
  idle_ = 0;
  ++b.drafted;
  if (b.plain == 0 || !(time > 0)) return;
  pay(b, tokens, time);
  if (b.projected) b.promised = b.saved, b.seen = std::min(b.seen, kProof);
  b.projected = false;
  learn(b, saving(tokens, time / b.plain));
  if (b.seen > kProof && b.saved <= 0) b.excess = std::max(b.excess, b.promised - b.saved);
}

void BatchBudget::trial_round(int requests, double time, double tokens, double all_time) {
  Account& b = account(requests);
  idle_ = 0;
  ++b.drafted;
  if (b.plain == 0 || !(time > 0)) return;
  pay(b, 1, time);
  b.projected = true;
  learn(b, saving(tokens, all_time / b.plain) - b.excess - kDoubt * requests);
  b.excess *= kForget;
  if (b.seen > kProof || b.saved <= 0) return;
  // So far they promise something: the trials go on until that is proven, and then what was read for them was no loss.
  if (is_proven(b)) b.balance = std::max(b.balance, kOnTrust);
  else b.trials = std::max(b.trials, 1);
}

void BatchBudget::pay(Account& b, double earned, double time) {
  b.balance = std::clamp(b.balance + kShare + earned - time / b.plain, -kDebt, kMost);
  b.trials = std::max(0, b.trials - 1);
}

void BatchBudget::learn(Account& b, double saved) {
  ++b.seen;
  b.saved = b.seen == 1 ? saved : b.saved + std::max(kLearn, 1.0 / b.seen) * (saved - b.saved);
}

void BatchBudget::reading(int requests, double time) {
  Account& b = account(requests);
  if (requests == 1 || is_proven(b)) return;
  b.balance = std::max(-kDebt, b.balance - time / (b.plain > 0 ? double(b.plain) : 1.0));
  b.trials = kTrials;
}

}  // namespace sx
