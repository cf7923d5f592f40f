#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"

namespace sx {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options.threads, options.isa ? *options.isa : cpu::default_isa());
}

cpu::Peaks measure_cpu_peaks(int threads) { return cpu::measure_peaks(threads); }

}  // namespace sx
