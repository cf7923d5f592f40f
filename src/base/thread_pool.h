// A team of threads that share jobs out piece by piece. A job is cut into pieces, whoever is free claims the next one,
// and the job is done when the claimed pieces are: a thread that the system has put aside, or has not woken yet, holds
// up nobody unless it is inside a piece. The caller works too, so in the worst case it does the whole job alone.
// Members spin for a short while between jobs (a decode step is hundreds of jobs of a few microseconds), then sleep, so
// an idle engine costs nothing.
//
// Which thread runs which piece, and in which order, must not change any result.
#pragma once
#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace sx {

class ThreadPool {
 public:
  // threads: shares of a job; 0: as many as cpu_count() says. There are never more threads than CPUs to run them,
  // however many are asked for: `at_once` (0: those the process may use) bounds them, for tests.
  explicit ThreadPool(int threads, int at_once = 0);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Shares of run().
  int size() const { return size_; }
  // Threads that work at the same time, the caller included; at most size().
  int workers() const { return int(threads_.size()) + 1; }

  // body: void(int share), once for every share in [0, size()). Must not throw. Not re-entrant; one caller at a time.
  template <class Body>
  void run(Body&& body) {
    each(size_, body);
  }

  // body: void(int item) or void(int item, int worker), once for every item in [0, items). Items are claimed in
  // ascending order. Of two pieces that run at the same time the workers differ; they are in [0, workers()).
  template <class Body>
  void each(int items, Body&& body) {
    using Bare = std::remove_reference_t<Body>;
    const auto call = [](void* context, int item, int worker) {
      Bare& it = *static_cast<Bare*>(context);
      if constexpr (std::is_invocable_v<Bare&, int, int>) it(item, worker);
      else static_cast<void>(worker), it(item);
    };
    void* context = const_cast<std::remove_const_t<Bare>*>(&body);
    if (threads_.empty() || items <= 1) {
      for (int i = 0; i < items; ++i) call(context, i, 0);
    } else {
      start(call, context, items);
    }
  }

 private:
  using Entry = void (*)(void*, int, int);
  void start(Entry entry, void* context, int items);
  void work(int worker);
  int claim_pieces(int worker);
  void leave(int core);

  int size_ = 1;
  bool spins_ = true;                            // there is a CPU for every member
  std::vector<int> cores_;                       // of the members, the caller first; none: the system places them
  double moved_ = 0;                             // when a member last left its core
  alignas(64) std::atomic<uint32_t> ticket_{0};  // counts jobs; members wait for it to change
  alignas(64) std::atomic<int> unclaimed_{
      0};  // pieces of the job nobody has taken; less than 0: late members looked for some
  alignas(64) std::atomic<int> unfinished_{0};  // pieces of the job that are not done
  alignas(64) std::atomic<int> asleep_{0};      // members
  std::atomic<bool> caller_asleep_{false}, quit_{false};
  Entry entry_ = nullptr;  // of the job; read only by those who have claimed a piece of it
  void* context_ = nullptr;
  int items_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace sx
