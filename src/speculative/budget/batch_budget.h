// Whether drafting pays for all requests that share a round, by what whole rounds took: drafting, retrieval,
// verification and everything on the host, for all requests together, against rounds of as many requests without
// drafts. There is one account for each batch size (to a power of two), in units of a plain round. A drafted round
// earns the tokens it gave beyond one for each request and pays for the time it took beyond a plain round's; a drafter
// that reads a text pays for that; plain rounds earn a little. While the account is overdrawn the batch decodes
// plainly. So drafts can lose a batch no more than the account can hold and a small share of its time.
//
// A round without drafts comes now and then by itself, so that the time of one is not out of date.
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
  // What a round may spend on drafts of which nothing is known, in plain rounds.
  double may_spend(int requests) const;
  // Whether a drafter may read a text that takes `time`, on trust: at most `limit` and what the account holds (or half
  // a plain round of it).
  bool covers_reading(int requests, double time, double limit = 0) const;

  // A round took `time` in all, in units of the pass that a round without drafts is expected to be: histories grow,
  // batches shrink. 0: it did other work, too. `wanted`: a request would have drafted; only then is something put aside
  // for trying.
  void plain_round(int requests, double time, bool wanted = true);
  // All requests drafted, or nearly all; each got so many tokens.
  void drafted_round(int requests, double tokens, double time);
  // Only some drafted. The others have waited for them, so the account pays and earns nothing. `tokens`, `all_time`:
  // what each request would have had of the round, and what it would have taken, if all had drafted; the larger the
  // batch, the less that is believed.
  void trial_round(int requests, double time, double tokens, double all_time);
  // A drafter has read (a piece of) a text, in the same unit of time. Reading that is justified by what drafts are
  // known to save is no loss.
  void reading(int requests, double time);

  // The share of a plain round's time per token that drafted rounds have saved lately; less than 0: lost. 1 before
  // anything is known.
  double saved(int requests) const { return account(requests).saved; }
  // Several rounds have shown that drafts save time.
  bool proven(int requests) const { return is_proven(account(requests)); }
  bool unknown(int requests) const { return account(requests).seen == 0; }
  double balance(int requests) const { return account(requests).balance; }
  double plain_time(int requests) const { return account(requests).plain; }  // 0: not known
  // Rounds since the last draft, of any size.
  int64_t idle() const { return idle_; }

 private:
  struct Account {
    double balance = 1, saved = 1;
    Average plain;           // time of a plain round; 0: none yet
    int seen = 0;            // rounds behind `saved`
    bool projected = false;  // they are trials
    double promised = 0;     // what trials said drafts would save, when all began to draft
    double excess = 0;       // how much too much that was
    int trials = 0;          // drafts that are due because a text was read for them
    int drafted = 0;         // rounds since a plain one
    bool checked = false;    // there was one among drafted rounds
  };
  static size_t size_of(int requests);
  static bool is_proven(const Account& account);
  static void pay(Account& account, double earned, double time);
  static void learn(Account& account, double saved);
  const Account& account(int requests) const { return accounts_[size_of(requests)]; }
  Account& account(int requests) { return accounts_[size_of(requests)]; }

  std::array<Account, 12> accounts_{};
  int64_t idle_ = 0;
};

}  // namespace sx
