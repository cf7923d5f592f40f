// The CUDA backend is a library of its own, libspecextend_cuda.so: programs and Python modules do not link to CUDA.
// They load the library when it is there and the machine has a driver (loader.cc), so that one build runs on both kinds
// of machines.
#pragma once
#include <memory>
#include <string>

#include "backend/backend.h"
#include "backend/cuda/runtime/cuda_options.h"

namespace sx::cuda {

// What the library offers. `interface` says which headers it was built with: classes are handed across, so both sides
// must have the same ones.
struct Plugin {
  const char* interface;
  std::string (*why_unavailable)();
  int (*device_count)();
  std::unique_ptr<Backend> (*make_backend)(const CudaOptions& options, std::unique_ptr<Backend> host);
};

inline constexpr const char* kPluginFile = "libspecextend_cuda.so";
inline constexpr const char* kPluginEntry = "specextend_cuda_plugin";
using PluginEntry = const Plugin* (*)();

}  // namespace sx::cuda
