// Decides before a draft is made whether a model drafts for one request and how deep, from what is known: what a level
// and a node cost (cost model), how often tokens have been accepted at each depth lately, and what rounds give without
// the model (plain, or what an index finds). All costs and times are in plain steps.
//
// An account bounds what wrong beliefs can cost: every round adds a little, an accepted token adds 1, drafting and
// verifying subtract what they took. While the model does not seem to pay, one level is tried now and then, so that a
// text that turns easy is noticed; two tries that are right are believed. Every answer leaves a little for tries of the
// answers after it: in a service that gives short answers none of them could pay for a try alone.
#pragma once
#include <array>
#include <cstdint>
#include <span>

namespace sx {

// How often drafted tokens are accepted, by depth: the share of drafts that reached a depth and had everything above it
// accepted whose token there was accepted, too. Recent drafts count more, and a run of results that the estimate makes
// unlikely takes most of what was known away: the text has changed.
class AcceptanceByDepth {
 public:
  static constexpr int kDepths = 16;

  // The chance of a token at `depth` (1, 2, ...), those above it accepted.
  double at(int depth) const;
  // Accepted tokens to be expected of a draft of so many levels.
  double expected(int depth) const;
  // A draft reached `depth` levels, and `accepted` of them were accepted.
  void observe(int depth, int accepted);
  // What to believe before anything was observed: what another one has learned.
  void believe(const AcceptanceByDepth& other);
  int64_t drafts() const { return drafts_; }

 private:
  void notice_change(bool hit);

  struct Level {
    double hits = 0, tries = 0;
  };
  std::array<Level, kDepths> levels_{};
  double prior_ = 0.6;
  int run_ = 0;  // drafts in a row whose first token was accepted (> 0) or not (< 0)
  int64_t drafts_ = 0;
};

// What a draft of the next round costs.
struct DraftCosts {
  double level = 0;                 // one more level of the model
  std::span<const float> verify{};  // [n]: a pass over n drafted nodes and the pending token; [0] is 1
  int depth = 0, nodes = 0;         // most of a tree
  bool has_index = false;           // rounds without the model may draft, too
};

struct DraftDecision {
  enum class Kind { kWithout, kTry, kModel };
  Kind kind = Kind::kWithout;
  int depth = 0;                // levels of the model
  double tokens = 1, time = 1;  // of the round, as expected
  const char* why = "";         // a few words for people
};
const char* decision_name(DraftDecision::Kind kind);  // "without", "try", "model"

// What the answers of one engine have in common.
class DraftExperience {
 public:
  const AcceptanceByDepth& acceptance() const { return acceptance_; }
  bool proven() const { return rounds_ >= kProof && saved_ > 0; }
  // Rounds with the model have given no more than they took.
  bool disproven() const { return rounds_ >= 2 * kProof && saved_ < 0; }
  double saved() const { return saved_; }  // share of the plain time that rounds with the model have saved lately
  double usual_answer() const { return answer_; }
  // Plain steps that earlier answers have put aside for tries that a short answer could not pay for.
  double reserve() const { return reserve_; }
  void spend(double steps) { reserve_ = steps < reserve_ ? reserve_ - steps : 0; }

  void drafted(int depth, int accepted, double tokens, double time);
  void answered(int tokens);

  // Tokens that are still to come of an answer that has `made` and may have `limit` more: as long as answers usually
  // are, or half as long again as it is already.
  double to_come(int made, int limit) const;
  // Whether a draft model should read a text first, which takes `reading` plain steps. `without`: tokens per plain step
  // that rounds give without the model.
  bool repays(double reading, const DraftCosts& costs, int made, int limit, double without = 1) const;

 private:
  static constexpr int kProof = 12;
  AcceptanceByDepth acceptance_;
  double saved_ = 0, answer_ = 48, reserve_ = 0;
  int64_t rounds_ = 0;
};

class DraftController {
 public:
  // Before the first round of a request whose prompt took `waited` plain steps and that may generate `limit` tokens.
  void begin(double waited, const DraftExperience& shared, int limit, bool has_index);
  bool begun() const { return begun_; }
  // `limit`: tokens the request may still generate.
  DraftDecision decide(const DraftCosts& costs, const DraftExperience& shared, int limit);
  // A round without the model gave `tokens` and took `time`.
  void settle_without(double tokens, double time);
  // What the index proposed was not verified because its account did not cover that; it would have been right or not.
  // `node`: plain steps that it would have taken.
  void look(bool right, double node);
  // A round with the model: a tree of `depth` levels and `nodes` nodes was verified.
  struct Drafted {
    int depth = 0, nodes = 0, accepted = 0;
    double time = 1;  // drafting and verifying
  };
  void settle(const Drafted& round, DraftExperience& shared);

  double balance() const { return balance_; }
  // What rounds without the model may spend on what an index finds: its own account, so that tries of the model do not
  // keep it from drafting, nor its gains pay for a model that does not.
  double index_balance() const { return index_balance_; }
  // Tokens per plain step of rounds without the model lately, and how many of them there were.
  double without() const { return without_; }
  int rounds_without() const { return rounds_without_; }
  const AcceptanceByDepth& acceptance() const { return acceptance_; }

 private:
  static constexpr int kFirstLook = 12;
  static constexpr double kIndexStart = 1.0;
  double time_of(const DraftCosts& costs, int depth) const;

  AcceptanceByDepth acceptance_;
  bool begun_ = false;
  double trust_ = 1;                // share of what is spent on the model, by what it has given
  double balance_ = 0, tries_ = 0;  // the account, and what is put aside for tries
  double index_balance_ = kIndexStart;
  double without_ = 1, rate_ = 1;  // tokens per plain step of rounds without and with the model, lately
  double nodes_per_level_ = 1;     // of verified trees
  int rounds_without_ = 0;
  int idle_ = 0, misses_ = 0;                 // rounds since the model drafted; drafts in a row that gave nothing
  int drafting_ = 0, look_gap_ = kFirstLook;  // rounds with the model, and after how many one comes without
  DraftDecision::Kind last_ = DraftDecision::Kind::kWithout;
};

}  // namespace sx
