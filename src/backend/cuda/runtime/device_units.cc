#include "backend/cuda/runtime/device_units.h"

#include <specextend/error.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "backend/cuda/runtime/cuda_options.h"
#include "backend/cuda/runtime/driver_call.h"

namespace sx::cuda {
namespace {

using Unit = UnitMapper::Unit;

constexpr size_t kKept = size_t(512) << 20;  // bytes of units that nobody has

void check(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    throw Error(std::string("CUDA: ") + what + ": error " + std::to_string(int(result)) + " of the driver");
}

template <class Function>
bool find(const char* name, Function& function) {
  function = reinterpret_cast<Function>(find_driver_call(name));
  return function != nullptr;
}

bool find_calls(MemoryCalls& calls) {
  return find("cuMemAddressReserve", calls.reserve) && find("cuMemAddressFree", calls.free) &&
         find("cuMemCreate", calls.create) && find("cuMemRelease", calls.release) && find("cuMemMap", calls.map) &&
         find("cuMemUnmap", calls.unmap) && find("cuMemSetAccess", calls.set_access);
}

CUmemAllocationProp properties(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  return wanted;
}

// What a unit is a multiple of; 0: there are no units here.
size_t find_granularity(int device) {
  decltype(&cuDeviceGetAttribute) attribute = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  if (!find("cuDeviceGetAttribute", attribute) || !find("cuMemGetAllocationGranularity", granularity)) return 0;
  int can = 0;
  if (attribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device) != CUDA_SUCCESS || !can)
    return 0;
  size_t bytes = 0;
  const CUmemAllocationProp wanted = properties(device);
  return granularity(&bytes, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS ? bytes : 0;
}

// SPECEXTEND_KV=reserved: stores take all their memory at once, as on devices that cannot map it. =units: the smallest
// stores of tests have units, too.
bool kv_is(std::string_view what) {
  const char* value = std::getenv("SPECEXTEND_KV");
  return value && value == what;
}

}  // namespace

UnitPool::UnitPool(int device, size_t most) : device_(device), most_(most > 0 ? most : SIZE_MAX) {
  if (!kv_is("reserved") && find_calls(calls_)) granularity_ = find_granularity(device);
  constexpr size_t kFew = 4;  // units of a slot
  least_ = kv_is("units") ? 1 : kFew * granularity_;
}

UnitPool::~UnitPool() { release_free(0); }

bool UnitPool::create(size_t bytes, Unit& unit) {
  const CUmemAllocationProp wanted = properties(device_);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult result = calls_.create(&handle, bytes, &wanted, 0);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
  check(result, "memory for cells");
  unit = handle, made_ += bytes;
  return true;
}

void UnitPool::release(const Free& unit) {
  calls_.release(unit.unit);
  made_ -= unit.bytes;
}

// The oldest first.
void UnitPool::release_free(size_t most) {
  size_t count = 0;
  for (; count < free_.size() && free_bytes_ > most; ++count) {
    release(free_[count]);
    free_bytes_ -= free_[count].bytes;
  }
  free_.erase(free_.begin(), free_.begin() + ptrdiff_t(count));
}

bool UnitPool::fits(size_t bytes) const {
  size_t left = 0, total = 0;
  cuda::check(cudaMemGetInfo(&left, &total), "free memory");
  return made_ + bytes <= most_ && bytes + kDriverSpare <= left;
}

bool UnitPool::take(size_t bytes, std::span<Unit> units) {
  if (take_free(bytes, units)) return true;
  for (KvUnits* store : stores_) store->give_spare();
  return take_free(bytes, units);
}

bool UnitPool::take_free(size_t bytes, std::span<Unit> units) {
  size_t taken = 0;
  for (size_t i = free_.size(); i > 0 && taken < units.size(); --i) {
    if (free_[i - 1].bytes != bytes) continue;
    units[taken++] = free_[i - 1].unit;
    free_bytes_ -= bytes;
    free_.erase(free_.begin() + ptrdiff_t(i) - 1);
  }
  if (taken == units.size()) return true;
  const size_t wanted = (units.size() - taken) * bytes;
  if (!fits(wanted)) release_free(0);  // units of another size
  if (fits(wanted))
    while (taken < units.size() && create(bytes, units[taken])) ++taken;
  if (taken == units.size()) return true;
  give(bytes, units.first(taken));
  return false;
}

void UnitPool::give(size_t bytes, std::span<const Unit> units) {
  for (const Unit unit : units) free_.push_back({bytes, unit});
  free_bytes_ += units.size() * bytes;
  release_free(kKept);
}

DeviceUnits::DeviceUnits(std::shared_ptr<UnitPool> pool, size_t range, size_t unit, cudaStream_t stream)
    : pool_(std::move(pool)), range_(range), unit_(unit), stream_(stream) {
  check(pool_->calls().reserve(&base_, range_, pool_->granularity(), 0, 0), "addresses for the KV store");
}

DeviceUnits::~DeviceUnits() { pool_->calls().free(base_, range_); }

void DeviceUnits::map(size_t at, std::span<const Unit> units) {
  for (size_t i = 0; i < units.size(); ++i)
    check(pool_->calls().map(base_ + at + i * unit_, unit_, 0, units[i], 0), "memory for cells");
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = pool_->device();
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  check(pool_->calls().set_access(base_ + at, units.size() * unit_, &access, 1), "memory for cells");
}

// Not for the device: another engine may be recording a step on it, which that would end.
void DeviceUnits::unmap(size_t at, size_t count) {
  pool_->wait();
  for (size_t i = 0; i < count; ++i) check(pool_->calls().unmap(base_ + at + i * unit_, unit_), "memory for cells");
}

void DeviceUnits::clear(size_t at, size_t bytes) {
  cuda::check(cudaMemsetAsync(data() + at, 0, bytes, stream_), "memory for cells");
}

void DeviceUnits::copy(size_t to, size_t from, size_t bytes) {
  cuda::check(cudaMemcpyAsync(data() + to, data() + from, bytes, cudaMemcpyDeviceToDevice, stream_), "cells");
}

}  // namespace sx::cuda
