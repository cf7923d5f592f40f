// The threads that connections run on, as many as there ever were at a time. When no more may be made, a connection
// that waits for its client is cut off for a new one; where all are being answered, the new one waits in the system's
// own queue.
#pragma once
#include <httplib.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "server/connections.h"

namespace sx::server {

class ConnectionPool final : public httplib::TaskQueue {
 public:
  ConnectionPool(size_t most, Connections& all) : most_(most), all_(all) {}
  void enqueue(std::function<void()> connection) override;
  void shutdown() override;

 private:
  void work();
  bool add_thread();

  const size_t most_;
  Connections& all_;
  std::mutex mutex_;
  std::condition_variable given_, freed_;
  std::deque<std::function<void()>> waiting_;
  size_t free_ = 0;  // threads
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sx::server
