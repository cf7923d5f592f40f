// Makes backends by name. This is the only place that knows which ones exist.
#pragma once
#include <memory>
#include <optional>

#include "backend/backend.h"
#include "backend/cpu/isa.h"

namespace sx {

struct CpuOptions {
  int threads = 0;               // 0: one per core
  std::optional<cpu::Isa> isa;   // empty: the best this machine has (or SPECEXTEND_ISA)
};

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);
std::unique_ptr<Backend> make_reference_backend();  // naive, in double precision; for tests

}  // namespace sx
