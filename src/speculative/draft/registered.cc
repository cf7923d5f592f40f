// The drafters that programs and tests have registered. Settings read their names without the built-in drafters.
#include <algorithm>

#include "speculative/draft/registry.h"

namespace sx {

std::vector<DrafterEntry>& registered_drafters() {
  static std::vector<DrafterEntry> all;
  return all;
}

bool is_registered_drafter(std::string_view name) {
  const auto& all = registered_drafters();
  return std::any_of(all.begin(), all.end(), [&](const DrafterEntry& e) { return name == e.name; });
}

}  // namespace sx
