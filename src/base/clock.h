// Time for measuring, in milliseconds since some fixed moment.
#pragma once
#include <atomic>
#include <chrono>

namespace sx {

// Time that has passed without anybody waiting: tests of what is decided by the clock let it pass here.
inline std::atomic<double> skipped_ms{0};

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count() +
         skipped_ms.load(std::memory_order_relaxed);
}

}  // namespace sx
