// Stands in for the CUDA backend in builds without CUDA.
#include "backend/cuda/cuda_backend.h"
#include "base/error.h"

namespace sx::cuda {

std::string why_unavailable() { return "this build has no CUDA backend (configure with -DSPECEXTEND_CUDA=ON)"; }

std::unique_ptr<Backend> make_backend(const CudaOptions&, std::unique_ptr<Backend>) {
  fail("device cuda: {}", why_unavailable());
}

}  // namespace sx::cuda
