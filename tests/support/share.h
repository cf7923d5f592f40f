// A part of the cases of a test, for sanitizers, under which a whole one takes minutes: SPECEXTEND_TEST_SHARE=1/4 in
// the environment means every fourth case, from the second on. Processes that have a share each do all of them
// together.
#pragma once
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

namespace sx {

class TestCases {
 public:
  TestCases() {
    const char* wanted = std::getenv("SPECEXTEND_TEST_SHARE");
    if (!wanted || !*wanted) return;
    if (std::sscanf(wanted, "%d/%d", &mine_, &of_) != 2 || mine_ < 0 || mine_ >= of_)
      throw std::runtime_error(std::string("SPECEXTEND_TEST_SHARE: '") + wanted + "' is no share such as 0/4");
  }
  bool next() {  // whether the next case belongs to the share
    const bool is_mine = count_++ % of_ == mine_;
    done_ += is_mine ? 1 : 0;
    return is_mine;
  }
  int count() const { return count_; }
  // To be called at the end: a share without cases would pass for nothing.
  void expect_some() const { EXPECT_GT(done_, 0) << "share " << mine_ << "/" << of_ << " of " << count_ << " cases"; }

 private:
  int mine_ = 0, of_ = 1, count_ = 0, done_ = 0;
};

}  // namespace sx
