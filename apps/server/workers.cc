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

Workers::Added Workers::add(Lane lane, const std::string& owner, std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  Waiting& waiting = lanes_[size_t(lane)];
  if (ending_ || waiting.count >= most_) return Added::kFull;
  const auto found = waiting.tasks.find(owner);
  const size_t own = found == waiting.tasks.end() ? 0 : found->second.size();
  if (own > 0 && own + 2 > most_ - waiting.count) return Added::kShareFull;
  waiting.tasks[owner].push_back(std::move(task));
  if (own == 0) waiting.turns.push_back(owner);
  ++waiting.count;
  changed_.notify_all();
  return Added::kYes;
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

// The next task of the owner whose turn it is.
std::function<void()> Workers::take(Waiting& waiting) {
  const std::string owner = std::move(waiting.turns.front());
  waiting.turns.pop_front();
  const auto found = waiting.tasks.find(owner);
  std::function<void()> task = std::move(found->second.front());
  found->second.pop_front();
  if (found->second.empty()) waiting.tasks.erase(found);
  else waiting.turns.push_back(owner);
  --waiting.count;
  return task;
}

void Workers::work(Waiting& waiting) {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || waiting.count > 0; });
    if (ending_) {
      waiting = {};
      return;
    }
    std::function<void()> task = take(waiting);
    lock.unlock();
    task();
    task = nullptr;  // what it holds goes without the lock
    lock.lock();
  }
}

}  // namespace sx::server
