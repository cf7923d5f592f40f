// A progress bar: one line on standard error where that is a terminal, nothing elsewhere.
#pragma once
#include <string>
#include <string_view>

namespace sx::cli {

class ProgressLine {
 public:
  ProgressLine(std::string label, bool quiet);
  ~ProgressLine() { clear(); }
  void update(double done, std::string_view note);  // done: 0..1
  void clear();

 private:
  std::string label_;
  bool active_;
  bool shown_ = false;
  double last_ms_ = -1e9;
};

}  // namespace sx::cli
