#include "speculative/draft/medusa_paths.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sx {

// A candidate of rank r on level d is taken to be right with probability 0.55 * 0.9^(d - 1) / (r + 1)^1.6. Logarithms
// are summed in whole thousandths, so that equal probabilities tie on every machine; ties go to the shorter path, then
// to the better ranks.
std::vector<std::vector<int>> medusa_paths(int heads) {
  constexpr size_t kNodes = 63;
  constexpr int kRanks = 10;
  struct Path {
    long cost;
    std::vector<int> ranks;
  };
  const auto later = [](const Path& a, const Path& b) {
    if (a.cost != b.cost) return a.cost > b.cost;
    return a.ranks.size() != b.ranks.size() ? a.ranks.size() > b.ranks.size() : a.ranks > b.ranks;
  };
  std::vector<Path> open;  // a heap: the children of chosen paths
  const auto offer_children = [&](const Path& parent) {
    if (int(parent.ranks.size()) == heads) return;
    for (int rank = 0; rank < kRanks; ++rank) {
      Path child = parent;
      child.cost += 598 + 105 * long(parent.ranks.size()) + std::lround(1600 * std::log(rank + 1.0));
      child.ranks.push_back(rank);
      open.push_back(std::move(child));
      std::push_heap(open.begin(), open.end(), later);
    }
  };
  std::vector<std::vector<int>> paths;
  offer_children({0, {}});
  while (!open.empty() && paths.size() < kNodes) {
    std::pop_heap(open.begin(), open.end(), later);
    const Path path = std::move(open.back());
    open.pop_back();
    offer_children(path);
    paths.push_back(path.ranks);
  }
  return paths;
}

}  // namespace sx
