// A few threads for what takes long: tokenising, templates, schemas, files. Quick tasks, larger and slow ones have
// lanes of their own, so that nobody's small request waits for another's large one. The threads of these two
// give way to others: a step of the model on all cores takes as long as its thread that gets the least of a core.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace sx::server {

enum class Lane { kQuick, kLarge, kSlow };

// Thrown by a handler that has found out that the request takes long, before it has done anything.
struct TakesLong {};

class Workers {
 public:
  Workers(int threads_per_lane, size_t most_waiting);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  bool add(Lane lane, std::function<void()> task);  // false: too many wait
  void stop();                                      // drops what waits and joins the threads; safe to call twice

 private:
  void work(std::deque<std::function<void()>>& tasks);

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<std::deque<std::function<void()>>, 3> lanes_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sx::server
