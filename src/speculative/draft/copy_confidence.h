// Calibration of drafters that copy: how often is the continuation seen earlier in the text the right one? The share of
// a continuation among those seen says little by itself (a pair seen once has share 1), so the chance that the text
// follows its past at all is measured while it grows, by what was known: how long the match is and how many
// continuations of it have been seen.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/token.h"
#include "speculative/tree/tree.h"

namespace sx {

struct Outcome;

class Calibration {
 public:
  // `memory`: observations after which one counts a 1/e-th of a new one.
  explicit Calibration(float memory);

  // Buckets by tokens matched (1, 2, 3-4, 5-8, 9-16, 17-32, more) and continuations seen (1, 2-3, more). A node deep in
  // a draft is a longer match: if its parent is accepted, the text has matched that far.
  static constexpr int kLengths = 7, kCounts = 3, kBuckets = kLengths * kCounts;
  static int bucket(int matched, int continuations);

  // Chance that the next token is among all continuations seen, to be split by their shares.
  float chance(int bucket) const { return buckets_[size_t(bucket)].chance; }
  // Continuations that made up `share` of those seen were tried and one of them was right, or none.
  void record(int bucket, float share, bool right);
  // The best continuation was not worth `cost` plain steps. True when it shall be tried all the same: as often as
  // keeps the cost of trying under kExplore of the time. Old evidence counts less each time.
  bool skip(int bucket, float cost);
  // Forgets everything but the chances of `other`, which become prior knowledge.
  void seed(const Calibration& other);

  static constexpr float kExplore = 0.01f;

 private:
  struct Bucket {
    float right, tried;  // weighted; their ratio is the chance
    float chance;
    float balance;  // plain steps that may be spent on trying
  };
  static void set(Bucket& b);

  float keep_;
  std::array<Bucket, kBuckets> buckets_;
};

// What an index drafter proposed in a round, best first, and on what grounds.
struct Proposal {
  struct Node {
    int32_t parent;  // in the list; parents come first. -1 for node 0
    Token token;
    int32_t depth;
    float share;        // of the continuations seen after the parent
    float probability;  // of the whole path
    int32_t bucket;     // of its children
  };
  std::vector<Node> nodes;  // node 0 is the pending token

  void reset(Token pending) { nodes.assign(1, {-1, pending, 0, 1, 1, 0}); }
  int drafted() const { return static_cast<int>(nodes.size()) - 1; }
  // Or -1.
  int child(int parent, Token token) const;
};

// A number of nodes, best first, and what it is worth: expected tokens in all, per plain step of cost.
struct Cut {
  int nodes = 0;
  float worth = 1;
};
// The best number of nodes to verify. `cost`: see TreeLimits::verify_cost; null: all of them.
Cut best_cut(std::span<const float> probabilities, const float* cost);

// Learns from a result. The tree may have lost nodes of the proposal and gained others.
void learn(const Outcome& outcome, const Proposal& proposal, Calibration& own, Calibration& shared);

}  // namespace sx
