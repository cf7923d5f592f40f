// Stop strings: nothing of them is ever shown, nothing else is ever lost.
#include "engine/stop_strings.h"

#include <gtest/gtest.h>

#include <random>

namespace sx {
namespace {

TEST(StopMatcher, PassesTextThroughWithoutStops) {
  StopMatcher watch({});
  EXPECT_EQ(watch.push("abc"), "abc");
  EXPECT_EQ(watch.finish(), "");
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher watch({"END"});
  EXPECT_EQ(watch.push("the E"), "the ");
  EXPECT_EQ(watch.push("N"), "");
  EXPECT_EQ(watch.push("X"), "ENX");
  EXPECT_EQ(watch.push("EN"), "");
  EXPECT_EQ(watch.push("D tail"), "");
  EXPECT_TRUE(watch.stopped());
  EXPECT_EQ(watch.push("more"), "");
  EXPECT_EQ(watch.finish(), "");
}

TEST(StopMatcher, GivesBackAnUnfinishedStopAtTheEnd) {
  StopMatcher watch({"END"});
  EXPECT_EQ(watch.push("EN"), "");
  EXPECT_EQ(watch.finish(), "EN");
}

// Whatever the cuts between pieces, the shown text is the text before the first stop string.
TEST(StopMatcher, AgreesWithSearchingTheWholeText) {
  std::mt19937 random(9);
  for (int trial = 0; trial < 3000; ++trial) {
    std::string text;
    for (int i = 0; i < 30; ++i) text += char('a' + random() % 2);
    std::vector<std::string> stops;
    for (unsigned i = 0; i < random() % 3; ++i) {
      std::string s;
      for (unsigned j = 0; j < random() % 7; ++j) s += char('a' + random() % 2);
      stops.push_back(s);
    }
    // The first stop to be complete wins when pieces are single characters; with several candidates the earliest start
    // among those complete at that moment.
    std::string shown;
    StopMatcher watch(stops);
    for (size_t at = 0; at < text.size() && !watch.stopped();) {
      const size_t n = std::min<size_t>(1, text.size() - at);
      shown += watch.push(text.substr(at, n));
      at += n;
    }
    shown += watch.finish();
    std::string expected = text;
    for (size_t end = 1; end <= text.size(); ++end) {
      size_t first = std::string::npos;
      for (const auto& s : stops)
        if (!s.empty()) first = std::min(first, text.substr(0, end).find(s));
      if (first != std::string::npos) {
        expected = text.substr(0, first);
        break;
      }
    }
    EXPECT_EQ(shown, expected) << text;
  }
}

}  // namespace
}  // namespace sx
