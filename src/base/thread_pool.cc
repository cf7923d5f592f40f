#include "base/thread_pool.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

#include "base/clock.h"
#include "base/cpu_count.h"
#include "base/error.h"

namespace sx {
namespace {

constexpr double kSpinMs = 0.2;  // longer than the pauses inside a step, shorter than those between requests
constexpr int kLook = 32;        // tries between two looks at the clock
constexpr double kMoveMs = 1;    // members change cores no more often: each time costs some 20 us

inline void pause_cpu() {
#if defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#elif defined(__x86_64__)
  asm volatile("pause" ::: "memory");
#endif
}

// Spins until done() holds; false: it took too long. To yield would be worse than to sleep: among busy neighbours it
// gives away a whole time slice, while a sleeper is woken as soon as there is something to do.
template <class Done>
bool spin_until(Done done) {
  for (double start = 0;;) {
    for (int i = 0; i < kLook; ++i) {
      if (done()) return true;
      pause_cpu();
    }
    const double now = now_ms();
    if (start == 0) start = now;
    else if (now - start > kSpinMs) return false;
  }
}

// Sleeps while the word has this value.
template <class Word>
void sleep_on(std::atomic<Word>& word, Word value) {
  static_assert(sizeof(word) == 4);
  ::syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, value, nullptr);
}

template <class Word>
void wake(std::atomic<Word>& word, int most) {
  ::syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, most);
}

// A wish: if it is refused the system places the thread.
void pin(std::thread& thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  ::pthread_setaffinity_np(thread.native_handle(), sizeof set, &set);
}

}  // namespace

ThreadPool::ThreadPool(int threads, int at_once) {
  const std::vector<int> cores = allowed_cpus();
  const CpuCount& count = cpu_count();
  size_ = threads > 0 ? threads : count.threads();
  SX_ASSERT(size_ <= 4096);
  const int members =
      std::min(size_, at_once > 0 ? at_once : std::max(1, int(cores.empty() ? size_t(count.allowed) : cores.size())));
  spins_ = members <= int(cores.size()) && (count.quota == 0 || members <= count.quota);
  // A woken thread starts on its waker's core and can stay there, spinning against it. When the team fills the machine
  // every member but the caller gets a core of its own; a smaller team is left to the system, so that two programs do
  // not sit on the same cores.
  const bool pinned = members > 1 && size_t(members) == cores.size() && cores.back() < CPU_SETSIZE;
  if (pinned) cores_ = cores;
  threads_.reserve(size_t(members - 1));
  for (int i = 1; i < members; ++i) {
    threads_.emplace_back([this, i] { work(i); });
    if (pinned) pin(threads_.back(), cores[size_t(i)]);
  }
}

ThreadPool::~ThreadPool() {
  quit_.store(true);
  ticket_.fetch_add(1);
  wake(ticket_, INT_MAX);
  for (auto& t : threads_) t.join();
}

// The system can put the caller on the core of a member that sleeps just then, when a third thread wakes while all
// cores are busy (the reader of a stream) or when the caller was woken there. The two then share it while another core
// idles: the member cannot go, and the system may leave the caller there for seconds. So the member goes to the core
// that is free. The caller's thread is the user's: its affinity is not touched.
void ThreadPool::leave(int core) {
  const auto place = std::find(cores_.begin(), cores_.end(), core);
  const double now = now_ms();
  if (place == cores_.end() || now - moved_ < kMoveMs) return;
  moved_ = now;
  std::swap(*place, cores_.front());
  pin(threads_[size_t(place - cores_.begin()) - 1], *place);
}

// Whoever has claimed a piece keeps the job alive until it has reported it, so only then the job's fields may be read.
// A member that comes late finds nothing, or a piece of the next job, which is just as good.
int ThreadPool::claim_pieces(int worker) {
  int done = 0;
  for (int left; unclaimed_.load(std::memory_order_relaxed) > 0 &&
                 (left = unclaimed_.fetch_sub(1, std::memory_order_acq_rel)) > 0;
       ++done)
    entry_(context_, items_ - left, worker);
  return done;
}

void ThreadPool::start(Entry entry, void* context, int items) {
  if (!cores_.empty()) {
    if (const int core = ::sched_getcpu(); core != cores_.front()) leave(core);
  }
  entry_ = entry;
  context_ = context;
  items_ = items;
  unfinished_.store(items, std::memory_order_relaxed);
  unclaimed_.store(items, std::memory_order_release);
  ticket_.fetch_add(1);  // sequentially consistent with asleep_: a sleeper is either counted or sees the new ticket
  if (asleep_.load() > 0) wake(ticket_, items - 1);
  const int done = claim_pieces(0);
  if (unfinished_.fetch_sub(done, std::memory_order_acq_rel) == done) return;
  const auto finished = [&] { return unfinished_.load(std::memory_order_acquire) == 0; };
  if (spins_ ? spin_until(finished) : finished()) return;
  caller_asleep_.store(true);
  for (int left; (left = unfinished_.load()) != 0;) sleep_on(unfinished_, left);
  caller_asleep_.store(false);
}

void ThreadPool::work(int worker) {
  for (uint32_t seen = 0;;) {
    const auto called = [&] { return ticket_.load(std::memory_order_acquire) != seen; };
    if (!(spins_ ? spin_until(called) : called())) {
      asleep_.fetch_add(1);
      while (!called()) sleep_on(ticket_, seen);
      asleep_.fetch_sub(1);
    }
    seen = ticket_.load(std::memory_order_acquire);
    if (quit_.load()) return;
    const int done = claim_pieces(worker);
    if (done > 0 && unfinished_.fetch_sub(done) == done && caller_asleep_.load()) wake(unfinished_, 1);
  }
}

}  // namespace sx
