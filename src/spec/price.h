// What a pass of the target costs, in milliseconds, by rows and history: measured at a few points when the engine opens, then
// corrected by every pass that is run. From it follows how many drafted nodes are worth their rows.
#pragma once
#include <array>
#include <span>

#include "spec/tree.h"

namespace sx {

class StepPrice {
 public:
  static constexpr std::array<int, 10> kRows = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

  // A measured point; points not measured follow from their neighbours.
  void set(int rows, int history, double ms);
  bool known() const { return known_; }
  // Expected time of a pass. 0 before anything is known.
  double predict(int rows, double history) const;
  // A pass was run: the expectation for similar ones moves towards it.
  void observe(int rows, double history, double ms);

  // cost[n], n = 0..nodes: a pass over n drafted nodes besides `base` other rows, in units of a pass over those rows alone.
  void costs(int nodes, int base, double history, std::span<float> cost) const;

 private:
  struct Point { double at_zero = 0, slope = 0, correction = 1; bool near = false, far = false; };
  double corrected(size_t i, double history) const;
  void fill();

  bool known_ = false;
  int far_history_ = 0;
  std::array<Point, kRows.size()> measured_{}, points_{};
};

// How many drafted nodes of the tree to verify: the n that maximises (1 + trust * sum of the n largest path probabilities) /
// (sunk + cost[n]). `sunk`: what drafting has cost already, in the same unit.
int worthwhile_nodes(const TokenTree& tree, std::span<const float> cost, double sunk, double trust);

}  // namespace sx
