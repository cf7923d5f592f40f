#include "backend/cuda/runtime/nccl.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "backend/cuda/runtime/device.h"
#include "base/error.h"

namespace sx::cuda {
namespace {

// The few functions and types of NCCL that are used here, by our own declarations; they have not changed since 2.7.
struct UniqueId {
  char bytes[128];
};
using Comm = void*;
constexpr int kFloat32 = 7;

struct Library {
  const char* (*error_text)(int);
  int (*version)(int*);
  int (*unique_id)(UniqueId*);
  int (*init_rank)(Comm*, int ranks, UniqueId, int rank);
  int (*destroy)(Comm);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void*, size_t count, int type, int to, Comm, cudaStream_t);
  int (*receive)(void*, size_t count, int type, int from, Comm, cudaStream_t);
};

struct Loaded {
  Library library{};
  std::string why_not;  // empty: the library is there
};

Loaded load() {
  const char* named = std::getenv("SPECEXTEND_NCCL_LIBRARY");
  const char* const name = named ? named : "libnccl.so.2";
  void* const handle = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  Loaded loaded;
  if (!handle) {
    const char* const error = ::dlerror();
    loaded.why_not =
        fmt::format("NCCL is not installed (Debian: libnccl2, PyPI: nvidia-nccl-cu13): {}", error ? error : name);
    return loaded;
  }
  const auto find = [&](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle, symbol));
    if (!function) loaded.why_not = fmt::format("'{}' has no function {}", name, symbol);
  };
  Library& it = loaded.library;
  find("ncclGetErrorString", it.error_text);
  find("ncclGetVersion", it.version);
  find("ncclGetUniqueId", it.unique_id);
  find("ncclCommInitRank", it.init_rank);
  find("ncclCommDestroy", it.destroy);
  find("ncclGroupStart", it.group_start);
  find("ncclGroupEnd", it.group_end);
  find("ncclSend", it.send);
  find("ncclRecv", it.receive);
  return loaded;
}

const Loaded& loaded() {
  static const Loaded one = load();
  return one;
}

void check_nccl(int status, const char* what) {
  if (status != 0) fail("NCCL: {}: {}", what, loaded().library.error_text(status));
}

class NcclLink final : public DeviceLink {
 public:
  NcclLink(int device, cudaStream_t stream, std::function<void()> before)
      : device_(device), stream_(stream), before_(std::move(before)) {}
  ~NcclLink() override { leave(); }

  std::string name() const override {
    int version = 0;
    check_nccl(nccl().version(&version), "version");
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  Offer offer() override {
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, device_), "device properties");
    std::string id;
    for (const char byte : properties.uuid.bytes) id += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    return {fmt::format("GPU {}", id), loaded().why_not};
  }

  std::vector<std::byte> new_id() override {
    UniqueId id;
    check_nccl(nccl().unique_id(&id), "an identifier");
    std::vector<std::byte> bytes(sizeof id);
    std::memcpy(bytes.data(), &id, sizeof id);
    return bytes;
  }

  void join(std::span<const std::byte> bytes, int rank, int size) override {
    leave();
    UniqueId id;
    SX_ASSERT(bytes.size() == sizeof id);
    std::memcpy(&id, bytes.data(), sizeof id);
    check_nccl(nccl().init_rank(&comm_, size, id, rank), "joining the ranks");
    // The first messages between two ranks make their connection, which no recorded step should do.
    float* words = nullptr;
    check(cudaMalloc(&words, size_t(size) * 2 * sizeof(float)), "joining the ranks");
    std::vector<Part> out, in;
    for (int r = 0; r < size; ++r) {
      out.push_back({r, words + r, 1});
      in.push_back({r, words + size + r, 1});
    }
    exchange(out, in);
    const cudaError_t status = cudaStreamSynchronize(stream_);
    cudaFree(words);
    check(status, "joining the ranks");
  }

  void exchange(std::span<const Part> out, std::span<const Part> in) override {
    before_();
    check_nccl(nccl().group_start(), "messages");
    for (const Part& part : out)
      check_nccl(nccl().send(part.data, part.count, kFloat32, part.rank, comm_, stream_), "sending");
    for (const Part& part : in)
      check_nccl(nccl().receive(part.data, part.count, kFloat32, part.rank, comm_, stream_), "receiving");
    check_nccl(nccl().group_end(), "messages");
  }

 private:
  static const Library& nccl() { return loaded().library; }
  void leave() {
    if (comm_) nccl().destroy(std::exchange(comm_, nullptr));
  }

  const int device_;
  const cudaStream_t stream_;
  const std::function<void()> before_;
  Comm comm_ = nullptr;
};

}  // namespace

std::unique_ptr<DeviceLink> make_nccl_link(int device, cudaStream_t stream, std::function<void()> before) {
  return std::make_unique<NcclLink>(device, stream, std::move(before));
}

}  // namespace sx::cuda
