// Functions of the driver, looked up at run time: nothing is linked to it.
#pragma once
#include <cuda.h>
#include <cuda_runtime.h>

namespace sx::cuda {

// Null where the driver lacks the function, or has it in a version before CUDA 12 only.
inline void* find_driver_call(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDA_VERSION >= 12050
  const cudaError_t status = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else  // the version of this runtime
  const cudaError_t status = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  return status == cudaSuccess && result == cudaDriverEntryPointSuccess ? found : nullptr;
}

}  // namespace sx::cuda
