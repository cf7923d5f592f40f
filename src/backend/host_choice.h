// kv_retrieve() for backends that choose chunks on the host.
#pragma once
#include <vector>

#include "backend/backend.h"

namespace sx {

class HostChoice : public KvChoice {
 public:
  explicit HostChoice(int most_cells) { chosen.reserve(size_t(most_cells)), before.reserve(size_t(most_cells)); }
  std::span<const int32_t> cells() override { return chosen; }
  std::vector<int32_t> chosen, before;
};

void retrieve_on_host(Backend& backend, const KvRetrieveArgs& args, HostChoice& choice);

}  // namespace sx
