#include "backend/nccl_link.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"

namespace sx {
namespace {

// The few functions and types of NCCL that are used here, by our own declarations; they have not changed since 2.7.
struct UniqueId {
  char bytes[128];
};
using Comm = void*;
constexpr int kFloat32 = 7, kInProgress = 7;

struct Library {
  const char* (*error_text)(int);
  int (*version)(int*);
  int (*unique_id)(UniqueId*);
  int (*init_rank)(Comm*, int ranks, UniqueId, int rank);
  int (*destroy)(Comm);
  int (*abort)(Comm);
  int (*error)(Comm, int*);
  int (*group_start)();
  int (*group_end)();
  int (*send)(const void*, size_t count, int type, int to, Comm, void* stream);
  int (*receive)(void*, size_t count, int type, int from, Comm, void* stream);
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
  find("ncclCommAbort", it.abort);
  find("ncclCommGetAsyncError", it.error);
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
  explicit NcclLink(std::unique_ptr<NcclDevice> device) : device_(std::move(device)) {}
  ~NcclLink() override { leave(); }

  std::string name() const override {
    int version = 0;
    check_nccl(nccl().version(&version), "version");
    return fmt::format("NCCL {}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  }

  // NCCL takes a machine's name from NCCL_HOSTID where that is set, and joins ranks on one device of several machines.
  Offer offer() override {
    const char* const machine = std::getenv("NCCL_HOSTID");
    return {machine ? fmt::format("{} of {}", device_->name(), machine) : device_->name(), loaded().why_not};
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
    Comm comm = nullptr;
    check_nccl(nccl().init_rank(&comm, size, id, rank), "joining the ranks");
    {
      const std::lock_guard hold(lock_);
      comm_ = comm;
    }
    // The first messages between two ranks make their connection, which no recorded step should do.
    const auto release = [this](float* data) { device_->release(data); };
    const std::unique_ptr<float, decltype(release)> words(device_->allocate(size_t(size) * 2), release);
    std::vector<Part> out, in;
    for (int r = 0; r < size; ++r) {
      out.push_back({r, words.get() + r, 1});
      in.push_back({r, words.get() + size + r, 1});
    }
    exchange(out, in);
    const Wait waits(this);
    device_->wait();
    waits.check();
  }

  void exchange(std::span<const Part> out, std::span<const Part> in) override {
    device_->before_exchange();
    const std::lock_guard hold(lock_);
    check();
    void* const stream = device_->stream();
    check_nccl(nccl().group_start(), "messages");
    for (const Part& part : out)
      check_nccl(nccl().send(part.data, part.count, kFloat32, part.rank, comm_, stream), "sending");
    for (const Part& part : in)
      check_nccl(nccl().receive(part.data, part.count, kFloat32, part.rank, comm_, stream), "receiving");
    check_nccl(nccl().group_end(), "messages");
  }

  void give_up(const std::string& why) noexcept override {
    try {
      {
        const std::lock_guard hold(reason_lock_);
        if (given_up_) return;
        reason_ = why;
        given_up_ = true;
      }
      // NCCL ends its kernels at once, but comes back only when no recorded step refers to the communicator any more.
      aborting_ = std::thread([this] { abort(); });
    } catch (const std::exception&) {}
  }

  void check() const override {
    if (!given_up_) return;
    const std::lock_guard hold(reason_lock_);
    fail("{}", reason_);
  }

  std::string trouble() override {
    const std::unique_lock hold(lock_, std::try_to_lock);
    if (!hold || !comm_ || given_up_) return {};
    int error = 0;
    if (nccl().error(comm_, &error) != 0 || error == 0 || error == kInProgress) return {};
    return fmt::format("NCCL: {}", nccl().error_text(error));
  }

 private:
  static const Library& nccl() { return loaded().library; }

  // Who has the lock is about to enqueue messages, which takes microseconds, or waits for a connection to a rank that
  // is lost, and then nothing else ends that.
  void abort() noexcept {
    try {
      Comm comm = nullptr;
      {  // not while NCCL aborts: an exchange behind this one has to come to its check()
        const std::unique_lock hold(lock_, std::chrono::milliseconds(200));
        comm = comm_;
      }
      if (!comm) return;
      device_->bind();
      nccl().abort(comm);
    } catch (const std::exception&) {}
  }

  void leave() {
    if (aborting_.joinable()) aborting_.join();
    const std::lock_guard hold(lock_);
    Comm const comm = std::exchange(comm_, nullptr);
    if (comm && !given_up_) nccl().destroy(comm);
  }

  const std::unique_ptr<NcclDevice> device_;
  std::timed_mutex lock_;  // of the communicator
  Comm comm_ = nullptr;
  mutable std::mutex reason_lock_;
  std::string reason_;
  std::atomic<bool> given_up_{false};
  std::thread aborting_;
};

}  // namespace

std::unique_ptr<DeviceLink> make_nccl_link(std::unique_ptr<NcclDevice> device) {
  return std::make_unique<NcclLink>(std::move(device));
}

}  // namespace sx
