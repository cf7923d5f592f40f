#include "base/background.h"

#include <specextend/give_way.h>

#include <exception>
#include <utility>

namespace sx {

Background::~Background() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void Background::add(std::function<void()> task) {
  try {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { work(); });
    tasks_.push_back(std::move(task));
    return changed_.notify_all();
  } catch (const std::exception&) {}  // no thread, or no memory: the task is still here
  run(std::move(task));
}

uint64_t Background::ended() const {
  const std::lock_guard lock(mutex_);
  return ended_;
}

void Background::wait(uint64_t ended, std::chrono::microseconds most) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, most, [&] { return ended_ != ended; });
}

void Background::work() {
  give_way();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    run(std::move(task));
    lock.lock();
  }
}

void Background::run(std::function<void()>&& task) {
  task();
  task = nullptr;  // what it holds goes without the lock
  const std::lock_guard lock(mutex_);
  ++ended_;
  changed_.notify_all();
}

}  // namespace sx
