// The penalty window against counting from scratch.
#include "speculative/accept/penalties.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace sx {
namespace {

TEST(PenaltyWindow, CountsMatchTheWindow) {
  std::mt19937 random(1);
  for (int last_n : {-1, 0, 1, 5, 64}) {
    PenaltyWindow window(20, last_n);
    std::vector<Token> text;
    for (int i = 0; i < 500; ++i) {
      text.push_back(Token(random() % 20));
      window.push(text.back());
      const size_t n = last_n < 0 ? text.size() : std::min(text.size(), size_t(last_n));
      std::map<Token, int> expected, found;
      for (size_t j = text.size() - n; j < text.size(); ++j) ++expected[text[j]];
      for (const TokenCount& c : window.counts()) found[c.token] = c.count;
      ASSERT_EQ(found, expected) << last_n << " " << i;
    }
  }
}

// Pushing and taking back in any order is the same as never having pushed.
TEST(PenaltyWindow, PopUndoesPush) {
  std::mt19937 random(2);
  for (int last_n : {-1, 0, 1, 5, 64}) {
    PenaltyWindow window(12, last_n, 30);
    std::vector<Token> text;
    size_t longest = 0;
    for (int i = 0; i < 5000; ++i) {
      if (random() % 3 != 0 || text.empty() || longest - text.size() >= 29) {
        text.push_back(Token(random() % 12));
        window.push(text.back());
      } else {
        text.pop_back();
        window.pop();
      }
      longest = std::max(longest, text.size());
      const size_t n = last_n < 0 ? text.size() : std::min(text.size(), size_t(last_n));
      std::map<Token, int> expected, found;
      for (size_t j = text.size() - n; j < text.size(); ++j) ++expected[text[j]];
      for (const TokenCount& c : window.counts()) found[c.token] = c.count;
      ASSERT_EQ(found, expected) << last_n << " " << i;
    }
  }
}

}  // namespace
}  // namespace sx
