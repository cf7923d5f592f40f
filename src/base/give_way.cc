// Threads of low priority.
#include <specextend/give_way.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace sx {
namespace {

constexpr int kNicer = 10;  // about a tenth of the share of other threads
thread_local bool t_gives_way = false;

}  // namespace

// Linux has a niceness for each thread. Without the call the work is done all the same.
void give_way() {
  if (t_gives_way) return;
  t_gives_way = true;
  const auto self = id_t(gettid());
  (void)setpriority(PRIO_PROCESS, self, std::min(19, getpriority(PRIO_PROCESS, self) + kNicer));
}

bool gives_way() { return t_gives_way; }

}  // namespace sx
