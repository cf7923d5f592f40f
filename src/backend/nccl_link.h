// NCCL between the devices of several ranks. Its library is looked for and loaded when ranks want to be joined: nothing
// links to it, and where it is missing rows travel through host memory. What is CUDA's lies behind NcclDevice, so that
// tests run this link without a GPU, on a stand-in for the library.
#pragma once
#include <memory>

#include "backend/device_link.h"

namespace sx {

class NcclDevice {
 public:
  virtual ~NcclDevice() = default;
  virtual std::string name() = 0;  // among the devices of all machines
  virtual void* stream() = 0;      // of the ops
  virtual void bind() = 0;         // makes it the calling thread's
  virtual float* allocate(size_t count) = 0;
  virtual void release(float* data) = 0;
  virtual void wait() = 0;  // for all that the stream was given
  virtual void before_exchange() {}
};

std::unique_ptr<DeviceLink> make_nccl_link(std::unique_ptr<NcclDevice> device);

}  // namespace sx
