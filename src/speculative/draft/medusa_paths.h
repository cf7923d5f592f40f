// The static tree for Medusa heads that bring none of their own.
#pragma once
#include <vector>

namespace sx {

// The static tree of heads that bring none of their own: 63 nodes (10 for a single head), the likeliest if a guess is
// right the more rarely the further ahead it is and the lower it ranks.
std::vector<std::vector<int>> medusa_paths(int heads);
inline constexpr int kMedusaHeads = 4;  // taken where the heads are not known yet

}  // namespace sx
