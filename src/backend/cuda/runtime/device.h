// Calls into the CUDA runtime that must not fail silently, and device memory. Set-up throws sx::Error; a failing launch
// inside an op means a bug or a lost device, and throws as well.
#pragma once
#include <cuda_runtime.h>

#include <cstddef>
#include <string>

namespace sx::cuda {

// Throws sx::Error "CUDA: what: reason" unless status is success.
void check(cudaError_t status, const char* what);

// Makes a device the calling thread's; nothing else does, since each thread remembers which one it has.
cudaError_t use_device(int device);

// Waits for copies and fills that were not given a stream: they may still be under way when their call returns, and the
// backend's stream does not wait for them.
void settle();

// While one is there, kernels are launched without programmatic dependence, in this thread.
class PlainLaunches {
 public:
  explicit PlainLaunches(bool wanted);
  ~PlainLaunches();
  PlainLaunches(const PlainLaunches&) = delete;
  PlainLaunches& operator=(const PlainLaunches&) = delete;

 private:
  bool before_;
};

// All device memory of a backend: pieces of one arena, given back together. Addresses are multiples of 256 bytes.
class DeviceMemory {
 public:
  virtual ~DeviceMemory() = default;
  // Zeroed. Throws sx::Error naming the purpose and what is free when it does not fit.
  virtual void* take(size_t bytes, const char* purpose) = 0;
  // Counts memory that will be taken elsewhere, as it is used: so much must be free beside what is taken here.
  virtual void expect(size_t bytes, const char* purpose) { (void)bytes, (void)purpose; }
  // Only adds up what is asked for: addresses are not to be used, and there is nothing to upload.
  virtual bool counts_only() const { return false; }
};

}  // namespace sx::cuda
