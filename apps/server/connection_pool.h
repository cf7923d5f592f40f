// The threads that connections run on. When all are busy no further connection is taken: it waits in the system's own queue.
#pragma once
#include <httplib.h>

#include <condition_variable>
#include <mutex>

namespace sx::server {

class ConnectionPool final : public httplib::ThreadPool {
 public:
  explicit ConnectionPool(size_t threads) : ThreadPool(threads), free_(threads) {}

  // Its type differs between versions of the library.
  decltype(std::declval<httplib::ThreadPool&>().enqueue({})) enqueue(std::function<void()> connection) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_ > 0; });
    --free_;
    return ThreadPool::enqueue([this, connection = std::move(connection)] {
      connection();
      const std::lock_guard ended(mutex_);
      ++free_;
      changed_.notify_one();
    });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  size_t free_;
};

}  // namespace sx::server
