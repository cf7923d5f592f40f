// Whether drafting pays for everybody who shares a round, by what whole rounds took: drafting, retrieval, verification and everything on the
// host, for all requests together, against rounds of as many requests without drafts. One account for each size of a batch (to a power
// of two), in plain rounds: a drafted round earns the tokens it gave beyond one for each request and pays for the time it took beyond a plain
// round's; plain rounds earn a little. While the account is overdrawn the batch decodes plainly. So drafts can lose a batch no more than
// the first stake and a small share of its time, and a loss that has other causes than drafting is forgotten.
//
// A round without drafts comes now and then by itself, so that what one takes is not a memory.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

#include "speculative/budget/average.h"

namespace sx {

class BatchBudget {
 public:
  // Whether a round of so many requests may draft.
  bool may_draft(int requests) const;
  // A round took `time` in all, in units of the pass that a round without drafts is expected to be: histories grow, batches shrink. Rounds
  // that did other work beside (prompts) are not told.
  void plain_round(int requests, double time);
  // `trial`: only some of them drafted. The others have only waited for it, so what it gave does not count for the account.
  void drafted_round(int requests, int tokens, double time, bool trial = false);
  // Whether the account covers that a drafter reads a piece of a text, while all wait, without good reason to hope that this pays.
  bool covers_reading(int requests, double time) const;
  void reading(int requests, double time);

  // The share of a plain round's time per token that drafted rounds have saved lately; less than 0: lost. 1 before anything is known.
  double saved(int requests) const { return account(requests).saved; }
  bool proven(int requests) const { return saved(requests) > 0 && saved(requests) < 1; }
  double balance(int requests) const { return account(requests).balance; }
  // Rounds since the last draft, of any size.
  int64_t idle() const { return idle_; }

 private:
  struct Account {
    double balance = 1, saved = 1;
    Average plain;            // time of a plain round; 0: none yet
    int drafted = 0;          // rounds since a plain one
    bool checked = false;     // there was one among drafted rounds
  };
  static size_t size_of(int requests);
  const Account& account(int requests) const { return accounts_[size_of(requests)]; }
  Account& account(int requests) { return accounts_[size_of(requests)]; }

  std::array<Account, 12> accounts_{};
  int64_t idle_ = 0;
};

}  // namespace sx
