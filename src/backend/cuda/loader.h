// How the registry reaches the CUDA backend: its library is looked for and loaded by the first call, once.
#pragma once
#include <memory>
#include <string>

#include "backend/cuda/plugin.h"

namespace sx::cuda {

// `host` does what is not worth a kernel: sampling with filters and penalties, on rows that are copied back to it.
std::unique_ptr<Backend> load_backend(const CudaOptions& options, std::unique_ptr<Backend> host);
// Why there is no CUDA backend here; empty: there is one.
std::string why_not_loaded();
int device_count();  // 0 where there is none

// The library at `path`, for tests; throws sx::Error with the reason where it cannot be used.
const Plugin& load_plugin(const std::string& path);

}  // namespace sx::cuda
