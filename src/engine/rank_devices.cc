#include "engine/rank_devices.h"

#include <algorithm>

#include "backend/registry.h"
#include "base/cpu_count.h"
#include "base/error.h"
#include "comm/threads.h"
#include "engine/rank_follower.h"

namespace sx {

std::vector<std::string> device_list(const std::string& devices) {
  std::vector<std::string> list;
  for (size_t begin = 0; begin <= devices.size();) {
    const size_t end = std::min(devices.find(',', begin), devices.size());
    const std::string one = devices.substr(begin, end - begin);
    const bool numbered = one.starts_with("cuda:") && one.size() > 5 && one.size() < 8 &&
                          one.find_first_not_of("0123456789", 5) == std::string::npos;
    if (one != "auto" && one != "cpu" && one != "cuda" && !numbered)
      fail("device '{}' is not known: use auto, cpu, cuda or cuda:N, or several of these with commas between them",
           one);
    list.push_back(one);
    begin = end + 1;
  }
  return list;
}

std::unique_ptr<Backend> make_rank_backend(const std::vector<std::string>& devices, int number, int threads) {
  const std::string& device = devices[size_t(number) % devices.size()];
  const bool chosen = device == "auto" ? why_no_cuda().empty() : device.starts_with("cuda");
  if (!chosen) return make_cpu_backend({threads, std::nullopt});
  CudaOptions cuda;
  if (const size_t colon = device.find(':'); colon != std::string::npos)
    cuda.device = std::stoi(device.substr(colon + 1));
  else cuda.device = number % std::max(1, cuda_devices());
  return make_cuda_backend(cuda);
}

ThreadRanks::ThreadRanks(int size, RankSplit split, MakeBackend make) : make_(std::move(make)) {
  auto comms = make_thread_ranks(size);
  first_ = std::make_shared<Ranks>(std::shared_ptr<Communicator>(std::move(comms[0])), split);
  for (int r = 1; r < size; ++r) {
    auto ranks = std::make_shared<Ranks>(std::shared_ptr<Communicator>(std::move(comms[size_t(r)])), split);
    threads_.emplace_back([ranks, r, one = make_] {
      try {
        RankFollower(ranks, [&] { return one(r); }).run();
      } catch (const std::exception& e) { ranks->comm().abort(fmt::format("rank {}: {}", r, e.what())); }
    });
  }
}

ThreadRanks::~ThreadRanks() {
  try {
    dismiss(*first_);
  } catch (const std::exception& e) { first_->comm().abort(e.what()); }
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<Backend> make_devices_backend(const std::vector<std::string>& devices, RankSplit split, int threads) {
  // The processor's cores are divided among the ranks.
  const int all = threads > 0 ? threads : cpu_count().threads(), each = std::max(1, all / int(devices.size()));
  const auto ranks = std::make_shared<ThreadRanks>(
      int(devices.size()), split, [devices, each](int rank) { return make_rank_backend(devices, rank, each); });
  // The backend owns the other ranks through its Ranks.
  return std::make_unique<RankedBackend>(make_rank_backend(devices, 0, each),
                                         std::shared_ptr<Ranks>(ranks, ranks->first().get()));
}

}  // namespace sx
