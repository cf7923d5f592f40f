// NCCL on a CUDA device.
#pragma once
#include <cuda_runtime.h>

#include <functional>
#include <memory>

#include "backend/nccl_link.h"

namespace sx::cuda {

// device: the number of the GPU. stream: that of the ops. before: called by every exchange first.
std::unique_ptr<DeviceLink> make_nccl_link(int device, cudaStream_t stream, std::function<void()> before);

}  // namespace sx::cuda
