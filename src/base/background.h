// A thread for work that nobody waits for at once. It gives way to all others: on a machine whose cores are all busy
// it gets about a tenth of one.
#pragma once
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace sx {

class Background {
 public:
  Background() = default;
  ~Background();  // runs to its end what was added
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  // Tasks run one after the other, in order. They must not throw. The thread begins with the first of them. Where the
  // system gives none, add() runs the task itself: nobody loses what is to be done, and nobody has to be told.
  void add(std::function<void()> task);
  // Tasks that have ended so far. wait(): returns when there are more than these, or after this time. Whoever waits for
  // something asks for them before looking for it.
  uint64_t ended() const;
  void wait(uint64_t ended, std::chrono::microseconds most);

 private:
  void work();
  void run(std::function<void()>&& task);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t ended_ = 0;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace sx
