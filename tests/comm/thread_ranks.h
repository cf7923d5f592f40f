// Engines whose target is spread over ranks that are threads of the test, on the CPU or what else a test makes.
#pragma once
#include <memory>
#include <utility>

#include "backend/registry.h"
#include "comm/threads.h"
#include "engine/rank_devices.h"
#include "engine/rank_follower.h"

namespace sx::testing {

// Rank 0 is the caller; the others run until the object is gone.
class ThreadRanks {
 public:
  explicit ThreadRanks(int size, RankSplit split, sx::ThreadRanks::MakeBackend make = on_cpu)
      : all_(size, split, std::move(make)) {
    all_.first()->comm().deadline_seconds = 60;
  }
  Ranks& first() { return *all_.first(); }
  std::unique_ptr<Backend> backend() { return all_.backend(); }

 private:
  static std::unique_ptr<Backend> on_cpu(int) { return make_cpu_backend({1, std::nullopt}); }
  sx::ThreadRanks all_;
};

}  // namespace sx::testing
