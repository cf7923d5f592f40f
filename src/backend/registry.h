// Makes backends by name. This is the only place that knows which ones exist.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "backend/cpu/isa.h"
#include "backend/cuda/runtime/cuda_options.h"

namespace sx {

struct CpuOptions {
  int threads = 0;              // 0: what cpu_count() says
  std::optional<cpu::Isa> isa;  // empty: the best this machine has (or SPECEXTEND_ISA)
};

std::unique_ptr<Backend> make_cpu_backend(const CpuOptions& options);

// Throws sx::Error that says why there is none: the library is not installed, no driver, no device, one that is too
// old.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options);
// "" when make_cuda_backend can work here, else why not.
std::string why_no_cuda();
int cuda_devices();  // how many there are

}  // namespace sx
