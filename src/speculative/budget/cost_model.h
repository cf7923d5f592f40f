// What a pass of the target costs, in milliseconds, by rows and history: measured at a few points when the engine
// opens, then corrected by every pass that is run. From it follows how many drafted nodes are worth their rows.
//
// A cost measured in a noisy moment would keep passes from being run, and only passes that are run correct it. So the
// cost of a pass that has not been run for some rounds fades towards that of a smaller one, until it is tried again and
// its cost is known.
#pragma once
#include <array>
#include <cstdint>
#include <span>

#include "speculative/tree/tree.h"

namespace sx {

// The doubtful part of a cost after so many rounds without a trial: all of it at first, then ever less.
double faded(double cost, int64_t rounds);

class CostModel {
 public:
  static constexpr std::array<int, 10> kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

  // A measured point; points not measured follow from their neighbours.
  void set(int rows, int history, double ms);
  bool known() const { return known_; }
  // Expected time of a pass. 0 before anything is known.
  double predict(int rows, double history) const;
  // Passes of so many rows, one of kRows, were timed while nothing else ran, and the fastest took `ms`: that is what
  // they take, or if it is slower than expected, perhaps another process ran: then half of it is believed.
  void measured(int rows, double history, double ms);
  // A pass was run: the expectation for similar ones moves towards it.
  void observe(int rows, double history, double ms);

  // cost[n], n = 0..nodes: what the whole batch loses by n drafted nodes in each of `drafting` trees of a batch of
  // `requests`, shared out to those trees, in units of a pass without drafts, and 1 for that pass itself. By the faded
  // costs if `hoping`: for choosing what to run, not for counting what it cost.
  struct BatchShape {
    int requests = 1, drafting = 1;
    double history = 0;
  };
  void costs(int nodes, const BatchShape& batch, std::span<float> cost, bool hoping = true) const;
  int64_t rounds() const { return rounds_; }  // passes observed

 private:
  struct Point {
    double at_zero = 0, slope = 0, correction = 1;
    int slow = 0;
    int64_t seen = 0;
    bool near = false, far = false;
  };
  using Curve = std::array<double, kRows.size()>;
  double corrected(size_t i, double history) const;
  Curve corrected_points(double history) const;
  Curve hoped_points(double history) const;
  static double between(const Curve& points, int rows);
  void quicken(size_t first);
  void fill();

  bool known_ = false;
  int far_history_ = 0;
  int64_t rounds_ = 0;  // passes observed
  std::array<Point, kRows.size()> measured_{}, points_{};
};

// How many drafted nodes of the tree to verify: the n that maximises (1 + confidence * sum of the n largest path
// probabilities) / (sunk + cost[n]). `sunk`: what drafting has cost already, in the same unit.
int worthwhile_nodes(const TokenTree& tree, std::span<const float> cost, double sunk, double confidence);

}  // namespace sx
