#include "backend/cuda/runtime/nccl.h"

#include <utility>

#include "backend/cuda/runtime/device.h"
#include "base/error.h"

namespace sx::cuda {
namespace {

class CudaNcclDevice final : public NcclDevice {
 public:
  CudaNcclDevice(int device, cudaStream_t stream, std::function<void()> before)
      : device_(device), stream_(stream), before_(std::move(before)) {}

  std::string name() override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device_), "device properties");
    std::string id;
    for (const char byte : properties.uuid.bytes) id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return fmt::format("GPU {}", id);
  }
  void* stream() override { return stream_; }
  void bind() override { check(use_device(device_), "device"); }
  float* allocate(size_t count) override {
    float* data = nullptr;
    check(cudaMalloc(&data, count * sizeof(float)), "joining the ranks");
    return data;
  }
  void release(float* data) override { cudaFree(data); }
  void wait() override { check(cudaStreamSynchronize(stream_), "joining the ranks"); }
  void before_exchange() override { before_(); }

 private:
  const int device_;
  const cudaStream_t stream_;
  const std::function<void()> before_;
};

}  // namespace

std::unique_ptr<DeviceLink> make_nccl_link(int device, cudaStream_t stream, std::function<void()> before) {
  return sx::make_nccl_link(std::make_unique<CudaNcclDevice>(device, stream, std::move(before)));
}

}  // namespace sx::cuda
