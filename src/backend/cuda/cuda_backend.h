// How the registry reaches the CUDA backend. cuda_stub.cc stands in for it in builds without CUDA.
#pragma once
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/runtime/cuda_options.h"

namespace sx::cuda {

// `host` does what is not worth a kernel: sampling with filters and penalties, on rows that are copied back to it.
std::unique_ptr<Backend> make_backend(const CudaOptions& options, std::unique_ptr<Backend> host);
std::string why_unavailable();

}  // namespace sx::cuda
