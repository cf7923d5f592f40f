#include "backend/cuda/runtime/device.h"

#include <specextend/error.h>

#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {
namespace {

thread_local bool plain_launches = false;

}  // namespace

PlainLaunches::PlainLaunches(bool wanted) : before_(plain_launches) { plain_launches = plain_launches || wanted; }
PlainLaunches::~PlainLaunches() { plain_launches = before_; }

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw Error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

cudaError_t use_device(int device) {
  thread_local int current = -1;
  if (current == device) return cudaSuccess;
  const cudaError_t status = cudaSetDevice(device);
  if (status == cudaSuccess) current = device;
  return status;
}

void settle() { check(cudaStreamSynchronize(cudaStreamLegacy), "set-up"); }

bool has_dependent_launch() {
  static const bool known = [] {
    int device = 0, major = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    return major >= 9;
  }();
  return known && !plain_launches;
}

}  // namespace sx::cuda
