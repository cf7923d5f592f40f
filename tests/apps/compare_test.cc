// What is said of a run with speculation beside one without: every wait counts, and the text it was measured on is
// described.
#include "cli/compare.h"

#include <gtest/gtest.h>

namespace sx::cli {
namespace {

GenerateResult result(int prompt, int cached, double prompt_ms, double draft_ms, double decode_ms) {
  GenerateResult r;
  r.timings = {.prompt_tokens = prompt,
               .cached_tokens = cached,
               .generated_tokens = 10,
               .prompt_ms = prompt_ms,
               .decode_ms = decode_ms,
               .draft_prompt_ms = draft_ms};
  return r;
}

TEST(Compare, TheDraftsReadingCounts) {
  PromptTimes times;
  const AnswerTime drafted = times.of(result(700, 0, 500, 60, 165), true),
                   plain = times.of(result(700, 0, 500, 0, 990), false);
  const Speedup s = speedup(plain, drafted);
  EXPECT_NEAR(s.decode, 6.0, 1e-9);
  EXPECT_NEAR(s.after_prompt, 990.0 / 225, 1e-9);
  EXPECT_NEAR(s.whole, 1490.0 / 725, 1e-9);
  EXPECT_EQ(to_object(s)["whole_answer"], s.whole);
  EXPECT_EQ(to_object(drafted)["whole_ms"], 725);
}

TEST(Compare, APromptFoundInTheCacheWasReadBefore) {
  PromptTimes times;
  EXPECT_EQ(times.of(result(700, 0, 500, 0, 990), false).whole(), 1490);
  EXPECT_EQ(times.of(result(0, 700, 0.01, 60, 165), true).whole(), 725);   // as plain decoding read it
  EXPECT_EQ(times.of(result(0, 700, 0.01, 0, 800), false).whole(), 1300);  // other sampling, the same prompt
  EXPECT_EQ(times.of(result(0, 700, 0.01, 0, 200), true).whole(), 760);    // and the draft had read it already
  PromptTimes head;  // a head reads the prompt with the target, which runs again for it
  head.of(result(700, 0, 500, 0, 990), false);
  EXPECT_EQ(head.of(result(700, 0, 640, 0, 165), true).whole(), 805);
  EXPECT_EQ(head.of(result(0, 700, 0.01, 0, 990), false).whole(), 1490);
}

TEST(Compare, DistinctNgrams) {
  std::vector<Token> counting, looping;
  for (int i = 0; i < 107; ++i) counting.push_back(i), looping.push_back(i % 5);
  EXPECT_EQ(distinct_ngrams(counting), 1);
  EXPECT_DOUBLE_EQ(distinct_ngrams(looping), 0.05);  // 5 of 100
  EXPECT_EQ(distinct_ngrams({}), 1);
  EXPECT_EQ(distinct_ngrams(std::vector<Token>(7, 3)), 1);  // no run of eight
  EXPECT_EQ(distinct_ngrams(std::vector<Token>(8, 3)), 1);
  EXPECT_EQ(distinct_ngrams(std::vector<Token>(9, 3)), 0.5);
  EXPECT_DOUBLE_EQ(distinct_ngrams(std::vector<Token>{1, 2, 1, 2, 1}, 2), 0.5);
}

}  // namespace
}  // namespace sx::cli
