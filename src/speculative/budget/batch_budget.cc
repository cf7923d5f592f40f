#include "speculative/budget/batch_budget.h"

#include <algorithm>
#include <bit>

namespace sx {
namespace {

constexpr double kShare = 0.01;       // of the time of plain rounds, for trying
constexpr double kMost = 8, kDebt = 8;  // plain rounds; what was won or lost long ago does not decide
constexpr int kFirstPlain = 64, kPlain = 256;  // drafted rounds after which a plain one is due

}  // namespace

size_t BatchBudget::size_of(int requests) { return std::min<size_t>(11, size_t(std::bit_width(unsigned(std::max(1, requests) - 1)))); }

bool BatchBudget::may_draft(int requests) const {
  const Account& b = account(requests);
  if (b.drafted >= (b.checked ? kPlain : kFirstPlain)) return false;
  return requests == 1 || (b.plain > 0 && b.balance >= 0);  // one alone looks after itself (SpeculationBudget)
}

void BatchBudget::plain_round(int requests, double time) {
  Account& b = account(requests);
  ++idle_;
  b.balance = std::min(kMost, b.balance + kShare);
  b.checked |= b.drafted > 0;
  b.drafted = 0;
  if (!(time > 0)) return;
  b.plain.add(time);
}

void BatchBudget::drafted_round(int requests, int tokens, double time, bool trial) {
  Account& b = account(requests);
  idle_ = 0;
  ++b.drafted;
  if (b.plain == 0 || !(time > 0)) return;
  const double gave = double(tokens) / requests, took = time / b.plain;
  b.balance = std::clamp(b.balance + kShare + (trial ? 1 : gave) - took, -kDebt, kMost);
  const double saved = gave > 0 ? std::clamp(1 - took / gave, -1.0, 1.0) : -1;
  b.saved = b.saved == 1 ? saved : b.saved + Average::kLearn * (saved - b.saved);
}

bool BatchBudget::covers_reading(int requests, double time) const {
  const Account& b = account(requests);
  return b.plain > 0 && b.balance * b.plain >= time;
}

void BatchBudget::reading(int requests, double time) {
  Account& b = account(requests);
  if (b.plain > 0) b.balance = std::max(-kDebt, b.balance - time / b.plain);
}

}  // namespace sx
