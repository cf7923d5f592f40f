// One factory per instruction set that this machine has.
#include "backends.h"

#include <fmt/format.h>

#include "backend/registry.h"

namespace sx::parity {

std::vector<std::pair<std::string, BackendFactory>> test_backends() {
  std::vector<std::pair<std::string, BackendFactory>> out;
  for (const cpu::Isa isa : cpu::available_isas()) {
    out.emplace_back(fmt::format("cpu-{}", cpu::isa_name(isa)),
                     [isa](int threads) { return make_cpu_backend({.threads = threads, .isa = isa}); });
  }
  return out;
}

}  // namespace sx::parity
