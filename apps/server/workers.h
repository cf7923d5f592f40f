// A few threads for what takes long: tokenising, templates, schemas, files. Quick tasks, larger and slow ones have
// lanes of their own, so that nobody's small request waits for another's large one. In a lane the owners of tasks take
// part in turn, a task each, so that nobody waits for all that another has sent. The threads of these two lanes
// give way to others: a step of the model on all cores takes as long as its thread that gets the least of a core.
#pragma once
#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
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

  // kShareFull: the owner has as many tasks waiting in the lane as it leaves places free. One is always taken while
  // there is a place.
  enum class Added { kYes, kShareFull, kFull };
  Added add(Lane lane, const std::string& owner, std::function<void()> task);
  void stop();  // drops what waits and joins the threads; safe to call twice

 private:
  // Tasks that wait: each owner's in their order, and the owners in turn.
  struct Waiting {
    std::map<std::string, std::deque<std::function<void()>>> tasks;  // by owner, who has at least one
    std::deque<std::string> turns;                                   // of these owners
    size_t count = 0;
  };
  static std::function<void()> take(Waiting& waiting);
  void work(Waiting& waiting);

  const size_t most_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Waiting, 3> lanes_;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace sx::server
