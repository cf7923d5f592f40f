#include "backend/cuda/device.h"

#include <specextend/error.h>

#include <cstdlib>
#include <mutex>
#include <unordered_set>

#include "backend/cuda/launch.cuh"

namespace sx::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

void settle() { check(cudaStreamSynchronize(cudaStreamLegacy), "set-up"); }

bool has_dependent_launch() {
  static const bool known = [] {
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    return major >= 9;
  }();
  return known;
}

void prepare_kernel(const void* kernel) {
  static std::mutex mutex;
  static std::unordered_set<const void*> prepared;
  static const char* wanted = std::getenv("SPECEXTEND_CARVEOUT");  // percent, for experiments
  const std::lock_guard lock(mutex);
  if (!prepared.insert(kernel).second) return;
  const int percent = wanted ? std::atoi(wanted) : int(cudaSharedmemCarveoutMaxShared);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, percent), "division of shared memory");
}

}  // namespace sx::cuda
