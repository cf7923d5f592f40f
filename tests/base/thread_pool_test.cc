// The team of threads: everybody works once per job, barriers hold, sleepers wake.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>

namespace sx {
namespace {

TEST(ThreadPool, RunsOnceOnEveryMember) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    std::vector<int> calls(size_t(threads), 0);
    for (int job = 0; job < 2000; ++job) pool.run([&](int thread) { ++calls[size_t(thread)]; });
    EXPECT_EQ(calls, std::vector<int>(size_t(threads), 2000)) << threads;
  }
}

TEST(ThreadPool, EachVisitsEveryItemOnce) {
  ThreadPool pool(3);
  for (int items : {0, 1, 2, 3, 100, 1001}) {
    std::vector<std::atomic<int>> seen(size_t(items) + 1);
    pool.each(items, [&](int i) { seen[size_t(i)].fetch_add(1); });
    for (int i = 0; i < items; ++i) EXPECT_EQ(seen[size_t(i)].load(), 1) << items << " " << i;
    EXPECT_EQ(seen[size_t(items)].load(), 0);
  }
}

TEST(ThreadPool, BarrierSeparatesPhases) {
  ThreadPool pool(4);
  std::vector<int> value(4, 0);
  std::atomic<int> bad{0};
  for (int job = 0; job < 300; ++job)
    pool.run([&](int thread) {
      for (int phase = 1; phase <= 5; ++phase) {
        value[size_t(thread)] = phase;
        pool.barrier();
        for (int v : value) if (v != phase) bad.fetch_add(1);
        pool.barrier();
      }
    });
  EXPECT_EQ(bad.load(), 0);
}

TEST(ThreadPool, WakesSleepersAfterIdleness) {
  ThreadPool pool(2);
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    std::atomic<int> sum{0};
    pool.run([&](int thread) { sum += thread + 1; });
    EXPECT_EQ(sum.load(), 3);
  }
}

TEST(ThreadPool, ComesAndGoes) {
  for (int i = 0; i < 50; ++i) {
    ThreadPool pool(3);
    if (i % 2) pool.run([](int) {});
  }
}

}  // namespace
}  // namespace sx
