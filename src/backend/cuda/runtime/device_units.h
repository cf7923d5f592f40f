// Units of device memory behind reserved addresses (CUDA's virtual memory management): what KvUnits decides is done
// here. The driver's functions are looked up at run time, as nothing is linked to it.
#pragma once
#include <cuda.h>

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "backend/cuda/runtime/device.h"
#include "backend/kv_units.h"

namespace sx::cuda {

// Null where the driver lacks them.
struct MemoryCalls {
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
};

// The units of a backend's stores. Those that no store has stay here for the next one, up to a limit.
class UnitPool {
 public:
  // most: bytes that it may have in all; 0: what there is.
  UnitPool(int device, size_t most);
  ~UnitPool();
  UnitPool(const UnitPool&) = delete;
  UnitPool& operator=(const UnitPool&) = delete;

  size_t granularity() const { return granularity_; }
  // Whether a store whose slots have so many bytes should take its memory from here: not if a slot is a few units, nor
  // if the device or its driver cannot map memory.
  bool serves(size_t slot_bytes) const { return granularity_ > 0 && slot_bytes >= least_; }
  bool take(size_t bytes, std::span<UnitMapper::Unit> units);
  void give(size_t bytes, std::span<const UnitMapper::Unit> units);
  size_t made_bytes() const { return made_; }  // of stores and of nobody
  // Stores whose spare memory others may have.
  void join(KvUnits& store) { stores_.push_back(&store); }
  void part(KvUnits& store) { std::erase(stores_, &store); }
  // How to wait for the ops under way, before memory is unmapped; empty: there are none, and will be none.
  void set_wait(std::function<void()> wait) { wait_ = std::move(wait); }
  void wait() const {
    if (wait_) wait_();
  }
  const MemoryCalls& calls() const { return calls_; }
  int device() const { return device_; }

 private:
  struct Free {
    size_t bytes;
    UnitMapper::Unit unit;
  };
  bool take_free(size_t bytes, std::span<UnitMapper::Unit> units);
  bool fits(size_t bytes) const;
  bool create(size_t bytes, UnitMapper::Unit& unit);
  void release(const Free& unit);
  void release_free(size_t most);

  const int device_;
  const size_t most_;
  std::function<void()> wait_;
  MemoryCalls calls_{};
  size_t granularity_ = 0, least_ = 0, made_ = 0, free_bytes_ = 0;
  std::vector<Free> free_;
  std::vector<KvUnits*> stores_;
};

// The addresses of a store, and their memory.
class DeviceUnits final : public UnitMapper {
 public:
  DeviceUnits(std::shared_ptr<UnitPool> pool, size_t range, size_t unit, cudaStream_t stream);
  ~DeviceUnits() override;
  DeviceUnits(const DeviceUnits&) = delete;
  DeviceUnits& operator=(const DeviceUnits&) = delete;

  std::byte* data() const { return reinterpret_cast<std::byte*>(base_); }
  bool take(std::span<Unit> units) override { return pool_->take(unit_, units); }
  void give(std::span<const Unit> units) override { pool_->give(unit_, units); }
  void map(size_t at, std::span<const Unit> units) override;
  void unmap(size_t at, size_t count) override;
  void clear(size_t at, size_t bytes) override;
  void copy(size_t to, size_t from, size_t bytes) override;

 private:
  const std::shared_ptr<UnitPool> pool_;
  const size_t range_, unit_;
  const cudaStream_t stream_;
  CUdeviceptr base_ = 0;
};

}  // namespace sx::cuda
