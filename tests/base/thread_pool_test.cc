// The team of threads: every piece of a job is done once, whoever comes late; jobs follow each other; sleepers wake.
#include "base/thread_pool.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <numeric>
#include <set>

#include "base/cpu_count.h"

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

TEST(ThreadPool, JobsSeparatePhases) {
  for (int at_once : {0, 4}) {  // 4: members come late, where there are fewer CPUs
    ThreadPool pool(4, at_once);
    std::vector<int> value(4, 0);
    std::atomic<int> bad{0};
    for (int job = 0; job < 300; ++job)
      for (int phase = 1; phase <= 5; ++phase) {
        pool.run([&](int share) { value[size_t(share)] = phase; });
        pool.run([&](int) {
          for (int v : value)
            if (v != phase) bad.fetch_add(1);
        });
      }
    EXPECT_EQ(bad.load(), 0);
  }
}

TEST(ThreadPool, WorkersAtTheSameTimeDiffer) {
  for (int at_once : {2, 5}) {
    ThreadPool pool(5, at_once);
    EXPECT_EQ(pool.size(), 5);
    EXPECT_EQ(pool.workers(), at_once);
    std::vector<std::atomic<int>> inside(5);
    std::atomic<int> bad{0}, done{0};
    for (int job = 0; job < 300; ++job)
      pool.each(40, [&](int, int worker) {
        if (worker < 0 || worker >= at_once || inside[size_t(worker)].fetch_add(1) != 0) ++bad;
        ++done;
        inside[size_t(worker)].fetch_sub(1);
      });
    EXPECT_EQ(bad.load(), 0);
    EXPECT_EQ(done.load(), 300 * 40);
  }
}

TEST(ThreadPool, HasNoMoreThreadsThanCpus) {
  const int cpus = int(allowed_cpus().size());
  ThreadPool pool(cpus + 14);
  EXPECT_EQ(pool.size(), cpus + 14);  // the shares, which kernels may rely on
  EXPECT_EQ(pool.workers(), cpus);
  EXPECT_EQ(ThreadPool(0).size(), cpu_count().threads());
}

// A job waits for the pieces that were claimed, not for members that have not come: while one of them is held up inside
// a piece, the others finish everything else.
TEST(ThreadPool, AMemberThatIsHeldUpHoldsUpItsPieceOnly) {
  ThreadPool pool(2, 2);
  for (int job = 0; job < 20; ++job) {
    std::atomic<int> others{0};
    std::atomic<bool> held{false};
    pool.each(64, [&](int, int worker) {
      if (worker == 1 && !held.exchange(true)) {
        for (int i = 0; i < 20000 && others.load() < 63; ++i)
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        return;
      }
      std::this_thread::sleep_for(std::chrono::microseconds(10));
      ++others;
    });
    EXPECT_GE(others.load(), 63);
  }
}

void allow(const std::vector<int>& cores) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int core : cores) CPU_SET(core, &set);
  ASSERT_EQ(::sched_setaffinity(0, sizeof set, &set), 0);
}

// Wherever the system has put the caller, no member stays there, and the caller's affinity is its own.
TEST(ThreadPool, AMemberLeavesTheCoreOfTheCaller) {
  const std::vector<int> cores = allowed_cpus();
  if (cores.size() < 2 || cpu_count().quota > 0) GTEST_SKIP() << "there is one core";
  ThreadPool pool(int(cores.size()));
  int took_part = 0;
  for (int i = 0; i < 20; ++i) {
    const int callers = cores[size_t(i) % cores.size()];
    allow({callers});
    std::this_thread::sleep_for(std::chrono::milliseconds(2));  // they are not moved too often
    pool.each(1000, [](int) {});
    std::vector<std::atomic<int>> seen(size_t(pool.workers()));
    pool.each(200, [&](int, int worker) {
      seen[size_t(worker)] = ::sched_getcpu() + 1;
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // leaves pieces for the others
    });
    EXPECT_EQ(seen[0], callers + 1);
    std::set<int> distinct;
    for (const auto& core : seen) {
      if (core == 0) continue;
      ++took_part;
      EXPECT_TRUE(distinct.insert(core).second) << "core " << core - 1 << " has two";
    }
    EXPECT_EQ(allowed_cpus(), std::vector<int>{callers});
  }
  allow(cores);
  EXPECT_GT(took_part, 30);  // not the caller alone
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
