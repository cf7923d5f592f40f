// Which device each rank runs on, and ranks that are threads of this process, one for each device of a list.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "backend/ranks/ranked_backend.h"

namespace sx {

// The devices that EngineOptions::device names, separated by commas: "auto", "cpu", "cuda" or "cuda:N" each. Throws
// sx::Error that names the one it does not know.
std::vector<std::string> device_list(const std::string& devices);

// The backend of one rank. number: of the rank on its machine; it takes that entry of the list, and "cuda" without a
// number is the GPU of that number. Both begin again where there are fewer. threads: of the CPU backend, 0: as many as
// cpu_count() says.
std::unique_ptr<Backend> make_rank_backend(const std::vector<std::string>& devices, int number, int threads);

// Rank 0 is whoever holds the object; the others are threads that run until it is gone.
class ThreadRanks {
 public:
  using MakeBackend = std::function<std::unique_ptr<Backend>(int rank)>;
  ThreadRanks(int size, RankSplit split, MakeBackend make);
  ~ThreadRanks();
  ThreadRanks(const ThreadRanks&) = delete;
  ThreadRanks& operator=(const ThreadRanks&) = delete;

  const std::shared_ptr<Ranks>& first() const { return first_; }
  std::unique_ptr<Backend> backend() const { return std::make_unique<RankedBackend>(make_(0), first_); }

 private:
  MakeBackend make_;
  std::shared_ptr<Ranks> first_;
  std::vector<std::thread> threads_;
};

// Rank 0's backend over one thread for each of these devices; the threads end with it.
std::unique_ptr<Backend> make_devices_backend(const std::vector<std::string>& devices, RankSplit split, int threads);

}  // namespace sx
