// Watches streamed text for stop strings: text that could still become one is held back until that is decided.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace sx {

class StopMatcher {
 public:
  explicit StopMatcher(std::vector<std::string> stops);

  // Adds text; returns what may be shown now. After a stop string was met everything from it on is swallowed.
  std::string push(std::string_view text);
  // The end of the text: what was held back.
  std::string finish();
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace sx
