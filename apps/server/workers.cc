#include "server/workers.h"

#include <specextend/give_way.h>

#include <utility>

namespace sx::server {

Workers::Workers(int threads_per_lane, size_t most_waiting) : most_(most_waiting) {
  for (size_t lane = 0; lane < lanes_.size(); ++lane)
    for (int i = 0; i < threads_per_lane; ++i)
      threads_.emplace_back([this, lane] {
        if (Lane(lane) != Lane::kQuick) give_way();
        work(lanes_[lane]);
      });
}

Workers::~Workers() { stop(); }

bool Workers::add(Lane lane, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  auto& tasks = lanes_[size_t(lane)];
  if (ending_ || tasks.size() >= most_) return false;
  tasks.push_back(std::move(task));
  changed_.notify_all();
  return true;
}

void Workers::stop() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
}

void Workers::work(std::deque<std::function<void()>>& tasks) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !tasks.empty(); });
    if (ending_) return tasks.clear();
    std::function<void()> task = std::move(tasks.front());
    tasks.pop_front();
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes without the lock
    lock.lock();
  }
}

}  // namespace sx::server
