#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/cuda_backend.h"

namespace sx {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options.threads, options.isa ? *options.isa : cpu::default_isa());
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  return cuda::make_backend(options, make_cpu_backend({}));
}
std::string why_no_cuda() { return cuda::why_unavailable(); }

}  // namespace sx
