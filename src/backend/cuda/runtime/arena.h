// The device memory of a CUDA backend: one slab taken at set-up when its size is known, or slabs taken as they are
// needed.
#pragma once
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/runtime/cuda_options.h"
#include "backend/cuda/runtime/device.h"

namespace sx::cuda {

class Arena : public DeviceMemory {
 public:
  // `device_name` is for messages. Throws when the device has not as much free as the options ask for.
  Arena(const CudaOptions& options, std::string device_name);
  ~Arena() override;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* take(size_t bytes, const char* purpose) override;
  void expect(size_t bytes, const char* purpose) override;
  bool counts_only() const override { return counts_only_; }
  const std::vector<Backend::Use>& uses() const { return uses_; }

 private:
  struct Slab {
    char* data;
    size_t size, used;
  };
  void add_slab(size_t bytes, const char* purpose);
  void count(size_t bytes, const char* purpose, bool as_used);

  std::string device_name_;
  bool fixed_, counts_only_;
  size_t beside_;  // bytes that must be free besides
  std::vector<Slab> slabs_;
  std::vector<Backend::Use> uses_;
};

}  // namespace sx::cuda
