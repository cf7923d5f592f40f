#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

namespace sx::cli {

ProgressLine::ProgressLine(std::string label, bool quiet) : label_(std::move(label)), active_(!quiet && ::isatty(2)) {}

void ProgressLine::update(double done, std::string_view note) {
  if (!active_) return;
  const double now =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (now - last_ms_ < 50 && done < 1) return;  // redrawing costs more than it tells
  last_ms_ = now;
  constexpr int kWidth = 32;
  const int full = std::clamp(int(done * kWidth), 0, kWidth);
  fmt::print(stderr, "\r{} [{:#<{}}{:.<{}}] {:3.0f} % {}\033[K", label_, "", full, "", kWidth - full, 100 * done, note);
  std::fflush(stderr);
  shown_ = true;
}

void ProgressLine::clear() {
  if (!shown_) return;
  fmt::print(stderr, "\r\033[K");
  std::fflush(stderr);
  shown_ = false;
}

}  // namespace sx::cli
