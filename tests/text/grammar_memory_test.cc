// A mask that another thread makes may find no memory, after any number of allocations: the process goes on, the
// matcher is whole, and whoever needs the mask makes it.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <new>
#include <thread>

#include "grammar_support.h"

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // g++ sees only one half of the pair when it inlines

namespace {
std::atomic<long> g_left{-1};  // allocations that still succeed; below 0: all
}

void* operator new(size_t size, const std::nothrow_t&) noexcept {
  long left = g_left;
  while (left > 0 && !g_left.compare_exchange_weak(left, left - 1)) {}
  return left == 0 ? nullptr : std::malloc(size ? size : 1);
}
void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace sx {
namespace {

// What is left of the matcher after its other thread has had so few allocations for the mask of a state.
bool made_with(GrammarMatcher& matcher, const GrammarMatcher::State& state, long allocations) {
  std::atomic<bool> go{false};
  Background background;
  background.add([&] {
    while (!go) std::this_thread::yield();
    g_left = allocations;
  });
  matcher.lend(state, background);
  go = true;
  for (uint64_t ended = 0; ended < 2; ended = background.ended()) background.wait(ended, std::chrono::hours(1));
  g_left = -1;
  EXPECT_FALSE(matcher.lent());
  matcher.take_back();
  EXPECT_NE(matcher.has_mask(state), matcher.failed(state));
  return matcher.has_mask(state);
}

TEST(GrammarMemory, AMaskWithoutMemoryIsMadeByWhoeverNeedsIt) {
  const TestVocabulary vocabulary({"ab", "abc", "xyz", "ab cd", "plain"});
  const char* const text = "root ::= \"x\" word{1,9} | \"plain\"\nword ::= [a-z]{1,4} (\" \" | \"-\" word)?";
  GrammarMatcher plenty(text, vocabulary.trie);
  const GrammarMask expected = plenty.mask(plenty.advance(plenty.start(), std::string_view("xab")));
  for (const GrammarLimits& limits : {GrammarLimits{}, GrammarLimits{.states = 4, .parts = 64}}) {
    GrammarMatcher again(text, vocabulary.trie, limits);  // goes on after every failure
    int failed = 0;
    bool made = false;
    for (long n = 0; !made; ++n) {
      ASSERT_LT(n, 100000);
      GrammarMatcher matcher(text, vocabulary.trie, limits);
      const auto state = matcher.advance(matcher.start(), std::string_view("xab"));
      made = made_with(matcher, state, n);
      EXPECT_EQ(*matcher.mask(state), *expected) << n;
      EXPECT_FALSE(matcher.failed(state));
      failed += !made;
      const auto here = again.advance(again.start(), std::string_view("xab"));
      if (!again.has_mask(here)) made_with(again, here, n % 7);
      if (n % 5 == 0) { EXPECT_EQ(*again.mask(here), *expected) << n; }
    }
    EXPECT_GT(failed, 10);
  }
}

// What the thread of a Background waits for, until this goes.
class Busy {
 public:
  explicit Busy(Background& background) {
    background.add([over = over_.get_future().share()] { over.wait(); });
  }
  ~Busy() {
    g_left = -1;
    over_.set_value();
  }

 private:
  std::promise<void> over_;
};

// A matcher that cannot be lent for want of memory is its owner's.
TEST(GrammarMemory, NotLentWithoutMemory) {
  const TestVocabulary vocabulary;
  Background background;
  const Busy busy(background);
  int failed = 0;
  for (bool is_lent = false; !is_lent && failed < 100; failed += !is_lent) {
    GrammarMatcher matcher("root ::= [ab]{1,20}", vocabulary.trie);
    const auto state = matcher.start();
    g_left = failed;
    matcher.lend(state, background);
    g_left = -1;
    is_lent = matcher.lent();
    EXPECT_NE(is_lent, matcher.failed(state)) << failed;
    matcher.take_back();
    EXPECT_NE(matcher.mask(state), nullptr);
    EXPECT_FALSE(matcher.failed(state));
  }
  EXPECT_GT(failed, 0);
  EXPECT_LT(failed, 100);
}

TEST(GrammarMemory, ATaskThatCannotBeKeptIsDoneAtOnce) {
  std::atomic<int> done{0};
  {
    Background background;
    const Busy busy(background);
    g_left = 0;
    for (int i = 0; i < 1000; ++i) background.add([&done] { ++done; });
    g_left = -1;
    EXPECT_GT(done, 0);
    EXPECT_LT(done, 1000);
  }
  EXPECT_EQ(done, 1000);
}

}  // namespace
}  // namespace sx
