#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <vector>

#include "base/error.h"

namespace sx {
namespace {

// Some tens of microseconds of polite spinning, some yielding (more threads than cores), then sleep.
constexpr int kSpins = 2000, kYields = 200;

inline void pause_cpu() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

// Spins until done() holds; yields to other threads when that takes long.
template <class Done>
void spin_until(Done done) {
  for (int i = 0; !done(); ++i)
    if (i < kSpins) pause_cpu(); else ::sched_yield();
}

// The cores this process may use; empty if the system does not say.
std::vector<int> available_cores() {
  std::vector<int> cores;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) != 0) return cores;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) cores.push_back(i);
  return cores;
}

void pin_to(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::sched_setaffinity(0, sizeof set, &set);  // a wish: if it is refused the system places the thread
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  const std::vector<int> cores = available_cores();
  const size_t most = cores.empty() ? std::thread::hardware_concurrency() : cores.size();
  size_ = threads > 0 ? threads : std::max(1, static_cast<int>(most));
  SX_ASSERT(size_ <= 4096);
  // A woken thread starts on its waker's core and can stay there, spinning against it. When the team fills the machine
  // every member but the caller gets a core of its own; a smaller team is left to the system, so that two programs do not
  // sit on the same cores.
  const bool pinned = size_ > 1 && static_cast<size_t>(size_) == cores.size();
  threads_.reserve(static_cast<size_t>(size_ - 1));
  for (int i = 1; i < size_; ++i) {
    const int core = pinned ? cores[static_cast<size_t>(i)] : -1;
    threads_.emplace_back([this, i, core] {
      if (core >= 0) pin_to(core);
      work(i);
    });
  }
}

ThreadPool::~ThreadPool() {
  quit_.store(true);
  ticket_.fetch_add(1);
  ticket_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::start(Entry entry, void* context) {
  entry_ = entry;
  context_ = context;
  running_.store(size_ - 1, std::memory_order_relaxed);
  ticket_.fetch_add(1);  // sequentially consistent with asleep_: a sleeper is either counted or sees the new ticket
  if (asleep_.load() > 0) ticket_.notify_all();
  entry(context, 0);
  spin_until([&] { return running_.load(std::memory_order_acquire) == 0; });
}

void ThreadPool::work(int thread) {
  uint32_t seen = 0;
  while (true) {
    int tries = 0;
    while (ticket_.load(std::memory_order_acquire) == seen) {
      if (++tries < kSpins) pause_cpu();
      else if (tries < kSpins + kYields) ::sched_yield();
      else {
        asleep_.fetch_add(1);
        ticket_.wait(seen);
        asleep_.fetch_sub(1);
      }
    }
    ++seen;
    if (quit_.load(std::memory_order_relaxed)) return;
    entry_(context_, thread);
    running_.fetch_sub(1, std::memory_order_release);
  }
}

void ThreadPool::barrier() {
  if (size_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
  } else {
    spin_until([&] { return phase_.load(std::memory_order_acquire) != phase; });
  }
}

}  // namespace sx
