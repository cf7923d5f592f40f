// Engines whose target is spread over ranks that are threads of the test.
#pragma once
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/registry.h"
#include "comm/threads.h"
#include "engine/rank_follower.h"

namespace sx::testing {

// Rank 0 is the caller; the others run until the object is gone.
class ThreadRanks {
 public:
  ThreadRanks(int size, RankSplit split) {
    auto comms = make_thread_ranks(size);
    for (int r = 0; r < size; ++r) {
      std::shared_ptr<Communicator> comm = std::move(comms[size_t(r)]);
      comm->deadline_seconds = 60;
      auto ranks = std::make_shared<Ranks>(comm, split);
      if (r == 0) {
        first_ = ranks;
        continue;
      }
      threads_.emplace_back([ranks] {
        try {
          RankFollower(ranks, 1).run();
        } catch (const std::exception& e) { ranks->comm().abort(e.what()); }
      });
    }
  }
  ~ThreadRanks() {
    try {
      dismiss(*first_);
    } catch (const std::exception& e) { first_->comm().abort(e.what()); }
    for (auto& thread : threads_) thread.join();
  }
  Ranks& first() { return *first_; }
  std::unique_ptr<Backend> backend() {
    return std::make_unique<RankedBackend>(make_cpu_backend({1, std::nullopt}), first_);
  }

 private:
  std::shared_ptr<Ranks> first_;
  std::vector<std::thread> threads_;
};

}  // namespace sx::testing
