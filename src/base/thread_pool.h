// A team of threads that works in step: run(body) calls body(thread) once on every member, the caller being member 0, and
// returns when all are done. Members spin for a short while between jobs (a decode step is hundreds of jobs of a few
// microseconds), then sleep, so an idle engine costs nothing.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace sx {

class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // 0: as many as the machine has cores
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return size_; }

  // body: void(int thread). Must not throw. Not re-entrant; one caller at a time.
  template <class Body>
  void run(Body&& body) {
    if (size_ == 1) return void(body(0));
    using Bare = std::remove_reference_t<Body>;
    start([](void* context, int thread) { (*static_cast<Bare*>(context))(thread); }, const_cast<std::remove_const_t<Bare>*>(&body));
  }

  // Dynamic share of `items` work items: body(int item). Which thread runs which item must not change any result.
  template <class Body>
  void each(int items, Body&& body) {
    if (size_ == 1 || items <= 1) {
      for (int i = 0; i < items; ++i) body(i);
      return;
    }
    next_.store(0, std::memory_order_relaxed);
    run([&](int) {
      for (int i; (i = next_.fetch_add(1, std::memory_order_relaxed)) < items;) body(i);
    });
  }

  // Inside run: waits until every member has arrived.
  void barrier();

 private:
  using Entry = void (*)(void*, int);
  void start(Entry entry, void* context);
  void work(int thread);

  int size_ = 1;
  alignas(64) std::atomic<uint32_t> ticket_{0};  // counts jobs; members wait for it to change
  alignas(64) std::atomic<int> running_{0};      // members still inside the job
  alignas(64) std::atomic<int> arrived_{0};      // barrier
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> next_{0};         // each(): next item
  alignas(64) std::atomic<int> asleep_{0};
  std::atomic<bool> quit_{false};
  Entry entry_ = nullptr;
  void* context_ = nullptr;
  std::vector<std::thread> threads_;
};

}  // namespace sx
