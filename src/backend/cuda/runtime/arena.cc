#include "backend/cuda/runtime/arena.h"

#include <algorithm>

#include "base/error.h"

namespace sx::cuda {
namespace {

constexpr size_t kAlign = 256, kSlab = size_t(64) << 20;
constexpr double kMega = 1e6;

}  // namespace

Arena::Arena(const CudaOptions& options, std::string device_name)
    : device_name_(std::move(device_name)),
      fixed_(options.memory > 0 && !options.grows),
      counts_only_(options.counts_only),
      beside_(options.beside) {
  if (options.memory > 0) add_slab(options.memory, "model, context and draft");
  beside_ = 0;
}

Arena::~Arena() {
  for (const Slab& slab : slabs_) cudaFree(slab.data);
}

void Arena::add_slab(size_t bytes, const char* purpose) {
  size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "free memory");
  if (bytes + beside_ > free)
    fail(
        "device memory: {:.0f} MB are needed for {}, {} has {:.0f} of {:.0f} MB free; use a shorter context (-c), a smaller KV type "
        "(--kv-type q8_0) or a smaller model",
        double(bytes + beside_) / kMega, purpose, device_name_, double(free) / kMega, double(total) / kMega);
  void* data = nullptr;
  check(cudaMalloc(&data, bytes), purpose);
  slabs_.push_back({static_cast<char*>(data), bytes, 0});
}

void Arena::count(size_t bytes, const char* purpose, bool as_used) {
  auto use = std::find_if(uses_.begin(), uses_.end(),
                          [&](const Backend::Use& u) { return u.purpose == purpose && u.as_used == as_used; });
  if (use == uses_.end()) use = uses_.insert(use, {purpose, 0, as_used});
  use->bytes += bytes;
}

void Arena::expect(size_t bytes, const char* purpose) {
  if (counts_only_) count(bytes, purpose, true);
}

void* Arena::take(size_t bytes, const char* purpose) {
  bytes = std::max((bytes + kAlign - 1) / kAlign * kAlign, kAlign);
  count(bytes, purpose, false);
  if (counts_only_) return reinterpret_cast<void*>(kAlign);
  auto slab = std::find_if(slabs_.begin(), slabs_.end(), [&](const Slab& s) { return s.size - s.used >= bytes; });
  if (slab == slabs_.end()) {
    if (fixed_)
      fail("device memory: {:.1f} MB are needed for {}, of {:.0f} MB set aside {:.1f} are left", double(bytes) / kMega,
           purpose, double(slabs_[0].size) / kMega, double(slabs_[0].size - slabs_[0].used) / kMega);
    add_slab(std::max(bytes, kSlab), purpose);
    slab = slabs_.end() - 1;
  }
  void* data = slab->data + slab->used;
  slab->used += bytes;
  check(cudaMemset(data, 0, bytes), purpose);
  settle();
  return data;
}

}  // namespace sx::cuda
