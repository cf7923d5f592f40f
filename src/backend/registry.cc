#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/peaks.h"

namespace sx {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options.threads, options.isa ? *options.isa : cpu::default_isa());
}

CpuPeaks measure_cpu_peaks(int threads) {
  const cpu::Peaks p = cpu::measure_peaks(threads);
  return {p.read_gb_per_s, p.int8_gop_per_s, p.float16_gflop_per_s};
}

}  // namespace sx
