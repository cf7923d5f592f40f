// Time for measuring, in milliseconds since some fixed moment.
#pragma once
#include <atomic>
#include <chrono>

namespace sx {

// Time that has passed without anybody waiting: tests of what is decided by the clock let it pass here.
inline std::atomic<double> skipped_ms{0};
// No other time passes: what such a test shows must not depend on how busy the machine is.
inline std::atomic<bool> only_skipped_ms{false};

inline double now_ms() {
  const double skipped = skipped_ms.load(std::memory_order_relaxed);
  if (only_skipped_ms.load(std::memory_order_relaxed)) return skipped;
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count() +
         skipped;
}

}  // namespace sx
