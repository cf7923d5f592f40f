#include "server/connection_pool.h"

#include <system_error>

namespace sx::server {
namespace {

constexpr std::chrono::milliseconds kPause(
    100);  // between two that are cut off, if the first one's thread is not free by then

}  // namespace

void ConnectionPool::enqueue(std::function<void()> connection) {
  std::unique_lock lock(mutex_);
  while (free_ <= waiting_.size() && !add_thread()) {
    all_.shed();
    freed_.wait_for(lock, kPause);
  }
  waiting_.push_back(std::move(connection));
  given_.notify_one();
}

// The system may refuse one more.
bool ConnectionPool::add_thread() {
  if (threads_.size() >= most_) return false;
  try {
    threads_.emplace_back([this] { work(); });
  } catch (const std::system_error&) {
    if (threads_.empty()) throw;
    return false;
  }
  ++free_;
  return true;
}

void ConnectionPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    given_.wait(lock, [&] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::function<void()> connection = std::move(waiting_.front());
    waiting_.pop_front();
    --free_;
    lock.unlock();
    connection();
    lock.lock();
    ++free_;
    freed_.notify_one();
  }
}

void ConnectionPool::shutdown() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
    given_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace sx::server
