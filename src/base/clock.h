// Time for measuring, in milliseconds since some fixed moment.
#pragma once
#include <chrono>

namespace sx {

inline double now_ms() {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace sx
