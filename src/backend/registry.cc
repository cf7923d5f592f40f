#include "backend/registry.h"

#include "backend/cpu/cpu_backend.h"
#include "backend/cuda/loader.h"

namespace sx {

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options) {
  return std::make_unique<cpu::CpuBackend>(options.threads, options.isa ? *options.isa : cpu::default_isa());
}

std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options) {
  return cuda::load_backend(options, make_cpu_backend({}));
}
std::string why_no_cuda() { return cuda::why_not_loaded(); }
int cuda_devices() { return cuda::device_count(); }

}  // namespace sx
