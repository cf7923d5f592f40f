// The matcher: tokens that split characters, masks, ends, forced bytes, bounds on what it keeps, and the work of masks.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"
#include "grammar_support.h"
#include "support/no_threads.h"

namespace sx {
namespace {

std::vector<Token> allowed(const GrammarMask& mask) {
  std::vector<Token> out;
  for (Token t = 0; size_t(t) < mask->size() * 32; ++t)
    if (allows(mask, t)) out.push_back(t);
  return out;
}

TEST(GrammarMatcher, TokensMaySplitCharacters) {
  // é is C3 A9, 😀 is F0 9F 98 80.
  const TestVocabulary vocabulary({"\xC3\xA9", "\xF0\x9F", "\x98\x80", "\x98\x80!", "x\xF0", "\x9F\x98\x80", "\xA9x"});
  GrammarMatcher matcher("root ::= [é😀]+ \"!\"", vocabulary.trie);
  const auto after = [&](std::string_view bytes) { return matcher.advance(matcher.start(), bytes); };
  EXPECT_EQ(allowed(matcher.mask(matcher.start())), (std::vector<Token>{0xC3, 0xF0, 256, 257}));
  EXPECT_EQ(allowed(matcher.mask(after("\xF0"))), (std::vector<Token>{0x9F, 261}));
  EXPECT_EQ(allowed(matcher.mask(after("\xF0\x9F"))), (std::vector<Token>{0x98, 258, 259}));
  EXPECT_EQ(allowed(matcher.mask(after("\xC3"))), (std::vector<Token>{0xA9}));
  EXPECT_EQ(allowed(matcher.mask(after("\xC3\xA9"))), (std::vector<Token>{'!', 0xC3, 0xF0, 256, 257}));
  EXPECT_TRUE(after("\xC3\xA9") == after("\xF0\x9F\x98\x80"));  // equal states are one
  EXPECT_FALSE(after("\x98\x80"));
}

TEST(GrammarMatcher, EndsWhereTheTextMayEnd) {
  const TestVocabulary vocabulary({"ab", "abc"});
  GrammarMatcher matcher("root ::= \"a\" | \"abc\"", vocabulary.trie);
  auto state = matcher.start();
  EXPECT_EQ(allowed(matcher.mask(state)), (std::vector<Token>{'a', 256, 257}));
  EXPECT_FALSE(matcher.can_end(state));
  state = matcher.advance(state, Token('a'));
  EXPECT_EQ(allowed(matcher.mask(state)), (std::vector<Token>{'b', vocabulary.end}));
  EXPECT_TRUE(matcher.can_end(state));
  EXPECT_FALSE(matcher.must_end(state));
  state = matcher.advance(state, std::string_view("bc"));
  EXPECT_EQ(allowed(matcher.mask(state)), (std::vector<Token>{vocabulary.end}));
  EXPECT_TRUE(matcher.must_end(state));
  EXPECT_FALSE(matcher.advance(state, vocabulary.end));
  EXPECT_FALSE(matcher.advance(matcher.start(), vocabulary.control));
  EXPECT_FALSE(matcher.advance(matcher.start(), Token(-1)));
  EXPECT_FALSE(matcher.advance(matcher.start(), Token(1 << 20)));
}

TEST(GrammarMatcher, AllEndTokensAndNeverAnEmptyMask) {
  const std::vector<std::string> bytes = {"a", "b", "", "</s>", "<eot>", "a"};
  const std::vector<Token> ends = {4, 3};
  const auto trie = std::make_shared<const TokenTrie>(bytes, ends, 40);
  GrammarMatcher matcher("root ::= \"ab\" \"c\"?", trie);
  EXPECT_EQ(allowed(matcher.mask(matcher.start())), (std::vector<Token>{0, 5}));  // equal bytes, both
  EXPECT_EQ(allowed(matcher.mask(matcher.advance(matcher.start(), std::string_view("ab")))),
            (std::vector<Token>{3, 4}));
  EXPECT_EQ(matcher.mask(matcher.start())->size(), 2u);
  GrammarMatcher stuck("root ::= \"ac\"", trie);  // no token has a c
  EXPECT_EQ(allowed(stuck.mask(stuck.advance(stuck.start(), Token(0)))), (std::vector<Token>{3, 4}));
  EXPECT_THROW(TokenTrie(bytes, {}, 40), Error);
}

TEST(GrammarMatcher, ForcedBytes) {
  const TestVocabulary vocabulary({"name", "na", "am", "\":", "\"name\":"});
  GrammarMatcher matcher("root ::= \"{\\\"n\" (\"ame\\\":\" | \"umber\\\":\") [0-9] \"é\" (\"x\" | \"é\" \"y\")?",
                         vocabulary.trie);
  EXPECT_EQ(matcher.forced(matcher.start(), 100), "{\"n");
  EXPECT_EQ(matcher.forced(matcher.start(), 2), "{\"");
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"na")), 100), "me\":");
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"name\":1")), 100),
            "é");  // then it may end
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"name\":1")), 1),
            "");  // whole characters
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"name\":1\xC3")), 9), "\xA9");
  EXPECT_EQ(vocabulary.trie->spell("name\":"), (std::vector<Token>{256, 259}));
  EXPECT_EQ(vocabulary.trie->spell("nam"), (std::vector<Token>{257, 'm'}));
}

TEST(GrammarMatcher, SpellsAsTheTokenizerWherePossible) {
  const std::vector<std::string> bytes = {"a", "b", "ab", " a"};
  const Token end = 4;
  std::vector<Token> answer = {0, 1};
  const TokenTrie trie(bytes, std::span(&end, 1), 5, [&](std::string_view) { return answer; });
  EXPECT_EQ(trie.spell("ab"), (std::vector<Token>{0, 1}));
  answer = {3, 1};  // a space that is not there
  EXPECT_EQ(trie.spell("ab"), (std::vector<Token>{2}));
  EXPECT_EQ(trie.spell("abx"), (std::vector<Token>{2}));
}

// The tokens a mask allows.
std::vector<Token> allowed(GrammarMatcher& matcher, const GrammarMatcher::State& state) {
  const GrammarMask mask = matcher.mask(state);
  std::vector<Token> tokens;
  for (Token t = 0; t < matcher.trie().vocab(); ++t)
    if (allows(mask, t)) tokens.push_back(t);
  return tokens;
}

// Bytes, then an end, then control tokens of which one's text is the beginning of another's, then a token of the text
// alone.
std::shared_ptr<const TokenTrie> control_trie(std::vector<std::string> names) {
  std::vector<std::string> bytes;
  for (int b = 0; b < 256; ++b) bytes.emplace_back(1, char(b));
  const Token end = 256;
  bytes.emplace_back("</s>");
  TokenTrie::Control control;
  for (std::string& name : names) {
    control.emplace_back(Token(bytes.size()), std::move(name));
    bytes.emplace_back();
  }
  return std::make_shared<const TokenTrie>(bytes, std::span(&end, 1), int(bytes.size()) + 3, TokenTrie::Encode(),
                                           control);
}

TEST(GrammarMatcher, ControlTokensOfALiteral) {
  const auto trie = control_trie({"[CALL]", "[CALL", "[ARGS]", ""});
  GrammarMatcher matcher("root ::= @\"[CALL] f\" [a-z]* @\"[ARGS]\" [0-9]", trie);
  GrammarMatcher::State state = matcher.start();
  EXPECT_EQ(allowed(matcher, state),
            (std::vector<Token>{257}));  // nothing else can begin the call, not its bytes either
  EXPECT_FALSE(matcher.advance(state, Token('[')));
  EXPECT_FALSE(matcher.advance(state, Token(258)));
  EXPECT_FALSE(matcher.advance(state, Token(0xFF)));  // the byte that marks control tokens is no token's text
  EXPECT_EQ(trie->spell(matcher.forced(state, 100)), (std::vector<Token>{257, ' ', 'f'}));
  EXPECT_TRUE(matcher.forced(state, 5).empty());  // no part of a control token
  state = matcher.advance(state, Token(257));
  EXPECT_EQ(allowed(matcher, state), (std::vector<Token>{' '}));
  state = matcher.advance(matcher.advance(state, Token(' ')), Token('f'));
  std::vector<Token> letters;
  for (Token t = 'a'; t <= 'z'; ++t) letters.push_back(t);
  letters.push_back(259);
  EXPECT_EQ(allowed(matcher, state), letters);
  state = matcher.advance(matcher.advance(state, Token(259)), Token('7'));
  EXPECT_TRUE(matcher.must_end(state));
}

TEST(GrammarMatcher, ControlTokensAreNoTextElsewhere) {
  const auto trie = control_trie({"[CALL]", "[CALL]+"});
  GrammarMatcher plain("root ::= \"[CALL]\" .", trie);
  EXPECT_EQ(allowed(plain, plain.start()), (std::vector<Token>{'['}));
  EXPECT_FALSE(plain.advance(plain.start(), Token(257)));
  GrammarMatcher any("root ::= .*", trie);
  for (const Token t : allowed(any, any.start())) EXPECT_LE(t, 256);
  // Without such a token the text is spelled; the longest one is meant where there are several.
  GrammarMatcher without("root ::= @\"[ARGS]\"", trie);
  EXPECT_TRUE(matches(without, "[ARGS]"));
  GrammarMatcher longest("root ::= @\"[CALL]+\" | @\"x[CALL]-\"", trie);
  EXPECT_EQ(allowed(longest, longest.start()), (std::vector<Token>{'x', 258}));
  EXPECT_EQ(allowed(longest, longest.advance(longest.start(), Token('x'))), (std::vector<Token>{257}));
  for (const char* wrong : {"root ::= @", "root ::= @[a]", "root ::= @ \"a\"", "root ::= @x\nx ::= \"a\""})
    EXPECT_THROW(GrammarMatcher(wrong, trie), Error) << wrong;
}

TEST(GrammarMatcher, KeepsABoundedNumberOfStatesAndMasks) {
  const TestVocabulary vocabulary({"aa", "aaa"});
  const size_t words = vocabulary.trie->words();
  GrammarMatcher matcher("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie,
                         {.states = 64, .mask_bytes = 10 * words * 4});
  auto state = matcher.start();
  const auto held = matcher.advance(state, std::string_view("aaaaa"));
  const GrammarMask first = matcher.mask(held);
  for (int i = 0; i < 5000; ++i) {
    state = matcher.advance(state, Token('a'));
    ASSERT_TRUE(state);
    matcher.mask(state);
    ASSERT_LE(matcher.states(), 64u + 8u);
    ASSERT_LE(matcher.masks(), 10u);
  }
  EXPECT_TRUE(held == matcher.advance(matcher.start(), std::string_view("aaaaa")));  // what is held stays what it is
  EXPECT_EQ(*matcher.mask(held), *first);
  EXPECT_EQ(allowed(first), (std::vector<Token>{'a', 'b', 256, 257}));
  // A cached mask is the same object.
  EXPECT_EQ(matcher.mask(state), matcher.mask(state));
}

TEST(GrammarMatcher, RulesThatEndWithThemselvesDoNotGrow) {
  const TestVocabulary vocabulary;
  GrammarMatcher matcher("root ::= [a-z] root | \".\"", vocabulary.trie);
  EXPECT_TRUE(matcher.advance(matcher.start(), std::string_view("a")) ==
              matcher.advance(matcher.start(), std::string_view("abcdefgh")));
}

// Some texts of a nested repetition can be read in ever more ways.
constexpr const char* kNested =
    "root ::= \"plain \" [a-z]{1,9} | \"x\" a\na ::= b{1,99}\nb ::= c{1,99}\nc ::= [a-z]{1,99}";

const TestVocabulary& long_words() {
  static const TestVocabulary vocabulary(
      {"ab", "plain", "plain ", "xa", "abc", "abcd", "abcdefgh", "plain abcdefghi", "abcdefghijklmno"});
  return vocabulary;
}

// What came of a mask: its bits and work, or the error.
struct Answer {
  std::vector<Token> tokens;
  uint64_t work = 0;
  std::string error;
  bool operator==(const Answer&) const = default;
};

Answer ask(GrammarMatcher& matcher, std::string_view text) {
  Answer answer;
  try {
    const auto state = matcher.advance(matcher.start(), text);
    answer.work = matcher.work();
    answer.tokens = allowed(matcher.mask(state));
    answer.work += matcher.work();
  } catch (const Error& e) { answer.error = e.what(); }
  return answer;
}

// Whatever was asked before, and whatever of it was forgotten.
TEST(GrammarMatcher, WorkAndErrorsAreAFunctionOfGrammarAndText) {
  const std::string texts[] = {"",     "p",     "plain ",    "plain ab",      "x", "xa", "xab",
                               "xabc", "xabcd", "xabcdefgh", "xabcdefghijkl", "y"};
  const GrammarLimits usual{.stacks = 100, .work = 100000},
      forgetful{.stacks = 100, .states = 3, .parts = 30, .mask_bytes = 1, .work = 100000};
  std::vector<Answer> fresh;
  int errors = 0;
  for (const std::string& text : texts) {
    GrammarMatcher matcher(kNested, long_words().trie, usual);
    fresh.push_back(ask(matcher, text));
    errors += !fresh.back().error.empty();
  }
  EXPECT_GE(errors, 2);
  EXPECT_LE(errors, 9);
  for (const GrammarLimits& limits : {usual, forgetful}) {
    GrammarMatcher matcher(kNested, long_words().trie, limits);
    for (uint32_t random = 1, round = 0; round < 300; ++round) {
      const size_t i = (random = random * 1664525u + 1013904223u) % std::size(texts);
      ASSERT_EQ(ask(matcher, texts[i]), fresh[i]) << texts[i] << " " << round;
    }
  }
}

TEST(GrammarMatcher, AMaskOfTooMuchWorkIsRefused) {
  const auto work_of = [](const char* text) {
    GrammarMatcher matcher(kNested, long_words().trie);
    matcher.mask(matcher.advance(matcher.start(), std::string_view(text)));
    return matcher.work();
  };
  const uint64_t start = work_of(""), plain = work_of("plain "), nested = work_of("xa");
  EXPECT_GT(nested, 4 * start);
  EXPECT_LT(plain, start);
  GrammarMatcher matcher(kNested, long_words().trie, {.work = nested - 1});
  // Everything on the way is known, but for the last byte of the longest token: the work counts as if it were not.
  for (const char* text : {"xab", "xabc", "xabcd"}) ask(matcher, text);
  const auto at = [&](const char* text) { return matcher.advance(matcher.start(), std::string_view(text)); };
  for (int again = 0; again < 2; ++again) {
    const Answer refused = ask(matcher, "xa");
    EXPECT_NE(refused.error.find("too ambiguous"), std::string::npos) << refused.error;
    EXPECT_NE(refused.error.find("the rule c:"), std::string::npos) << refused.error;
    EXPECT_EQ(matcher.work(), nested - 1);
  }
  EXPECT_TRUE(at("xa"));  // a text of the grammar all the same
  EXPECT_EQ(allowed(matcher.mask(at("plain a"))).size(), 26u + 6u + 1u);
  GrammarMatcher enough(kNested, long_words().trie, {.work = nested});
  EXPECT_EQ(ask(enough, "xa").error, "");
}

// Long literals that begin alike: what is forced ends where it has taken long enough.
TEST(GrammarMatcher, ForcedBytesTakeNoMoreWorkThanAMask) {
  std::string grammar = "root ::= ";
  for (int i = 0; i < 50; ++i) grammar += "\"a\"{500} \"" + std::to_string(i) + "\" | ";
  grammar += "\"a\"{500} \"x\"";
  GrammarMatcher all(grammar, long_words().trie), few(grammar, long_words().trie, {.work = 100000});
  EXPECT_EQ(all.forced(all.start(), 1000), std::string(500, 'a'));
  const uint64_t work = all.work();
  EXPECT_GT(work, 1000000u);
  const std::string found = few.forced(few.start(), 1000);
  EXPECT_EQ(found, std::string(found.size(), 'a'));
  EXPECT_GT(found.size(), 500 * 100000 / work - 2);
  EXPECT_LT(found.size(), 500 * 100000 / work + 3);
  EXPECT_TRUE(few.advance(few.start(), std::string_view(found)));
}

// Alternatives that begin alike and lead to the same place: what follows is found once, not once for each pair of
// letters.
TEST(GrammarMatcher, EqualContinuationsAreFoundOnce) {
  const auto grammar = [](int alike) {
    std::string root = "root ::= block{1,1000}\nblock ::= ", rules;
    for (char c = 'a'; c <= 'z'; ++c)
      for (int i = 0; i < alike; ++i) {
        const std::string name = std::string(1, c) + "-" + std::to_string(i);
        root += (rules.empty() ? "" : " | ") + name;
        rules += name + " ::= \"" + c + "\" [a-z ]\n";
      }
    return root + "\n" + rules;
  };
  std::vector<std::string> pairs;
  for (int i = 0; i < 26 * 26; ++i) pairs.push_back({char('a' + i / 26), char('a' + i % 26)});
  const TestVocabulary vocabulary(pairs);
  const auto work_of = [&](int alike) {
    GrammarMatcher matcher(grammar(alike), vocabulary.trie);
    matcher.mask(matcher.start());
    return matcher.work();
  };
  // 5460 frames lead to what may follow a block. To follow them for each pair would be work for more than 10^8.
  const uint64_t one = work_of(1), seventy = work_of(70);
  EXPECT_LT(seventy, 70 * one);
  EXPECT_LT(seventy, 1000000u);
}

TEST(GrammarMatcher, AMaskCanBeCancelled) {
  GrammarMatcher matcher(kNested, long_words().trie);
  const auto state = matcher.advance(matcher.start(), std::string_view("xab"));
  const Answer whole = ask(matcher, "xab");
  ASSERT_GT(whole.work, 4u << 16);
  GrammarMatcher other(kNested, long_words().trie);
  const auto there = other.advance(other.start(), std::string_view("xab"));
  int asked = 0, most = 0;
  EXPECT_NO_THROW(other.mask(there, [&] { return ++most, false; }));
  EXPECT_GE(most, 4);
  GrammarMatcher third(kNested, long_words().trie);
  const auto here = third.advance(third.start(), std::string_view("xab"));
  EXPECT_THROW(third.mask(here, [&] { return ++asked == 2; }), GrammarCancelled);
  EXPECT_EQ(asked, 2);
  EXPECT_LT(third.work(), whole.work / 2);
  EXPECT_EQ(ask(third, "xab"), whole);  // nothing is left of it
}

TEST(GrammarMatcher, CacheKeepsTheLatestGrammars) {
  const TestVocabulary vocabulary;
  GrammarCache cache(vocabulary.trie, {.most = 2});
  const auto a = cache.get("root ::= \"a\"");
  const std::weak_ptr<GrammarMatcher> b = cache.get("root ::= \"b\"");
  EXPECT_EQ(cache.get("root ::= \"a\""), a);
  EXPECT_FALSE(b.expired());
  cache.get("root ::= \"c\"");  // b goes
  EXPECT_EQ(cache.get("root ::= \"a\""), a);
  EXPECT_TRUE(b.expired());
  EXPECT_THROW(cache.get("root ::= "
                         "x"),
               Error);
}

// Many small grammars; of large ones fewer, but always some.
TEST(GrammarMatcher, CacheKeepsWhatItHasMemoryFor) {
  const TestVocabulary vocabulary;
  const auto text = [](int i) { return "root ::= \"" + std::to_string(i) + "\""; };
  const auto kept = [&](const GrammarCacheLimits& limits) {
    GrammarCache cache(vocabulary.trie, limits);
    for (int i = 0; i < 20; ++i) cache.get(text(i));
    int found = 0;
    for (int i = 20; i-- > 0 && cache.known(text(i));) ++found;
    return found;
  };
  GrammarCache cache(vocabulary.trie);
  const size_t one = cache.get(text(10))->bytes();
  EXPECT_GT(one, 500u);
  EXPECT_LT(one, 100'000u);
  EXPECT_EQ(kept({.most = 12, .always = 3}), 12);
  EXPECT_EQ(kept({.most = 12, .always = 3, .bytes = 7 * one + one / 2}), 7);
  EXPECT_EQ(kept({.most = 12, .always = 3, .bytes = one}), 3);
}

// What a matcher keeps as it is used counts, and what it forgets does not.
TEST(GrammarMatcher, KnowsAboutHowMuchMemoryItTakes) {
  const TestVocabulary vocabulary({"aa", "aaa"});
  GrammarMatcher matcher("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie);
  const size_t fresh = matcher.bytes();
  matcher.mask(matcher.advance(matcher.start(), std::string(5000, 'a')));
  const size_t used = matcher.bytes();
  EXPECT_GT(used, fresh + 5000 * 100);
  GrammarMatcher small("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie, {.states = 64});
  auto state = small.start();
  for (int i = 0; i < 5000; ++i) small.mask(state = small.advance(state, Token('a')));
  EXPECT_LT(small.bytes(), fresh + 100'000);
}

TEST(GrammarMatcher, CacheKeepsWhatSomebodyHolds) {
  const TestVocabulary vocabulary;
  GrammarCache cache(vocabulary.trie, {.most = 1});
  const auto held = cache.get("root ::= \"a\"");
  std::weak_ptr<GrammarMatcher> dropped = cache.get("root ::= \"b\"");
  for (const char* other : {"root ::= \"c\"", "root ::= \"d\""}) cache.get(other);
  EXPECT_EQ(cache.get("root ::= \"a\""), held);
  EXPECT_TRUE(dropped.expired());
}

// Whoever steps requests does not pay for it: a mask that is not there yet would be cancelled.
TEST(GrammarMatcher, CacheHasTheFirstMask) {
  const TestVocabulary vocabulary;
  const auto never = [] { return true; };
  const char* const text = "root ::= [a-z]{1,9} \".\"";
  GrammarMatcher alone(text, vocabulary.trie);
  EXPECT_THROW(alone.mask(alone.start(), never), GrammarCancelled);
  GrammarCache cache(vocabulary.trie, {.most = 1});
  const auto held = cache.get(text);
  EXPECT_EQ(*held->mask(held->start(), never), *alone.mask(alone.start()));
}

// A mask that another thread makes is the one that it would have been, and is there afterwards.
TEST(GrammarMatcher, LentForAMask) {
  const auto never = [] { return true; };
  GrammarMatcher alone(kNested, long_words().trie), lent(kNested, long_words().trie);
  const auto at = [](GrammarMatcher& matcher) { return matcher.advance(matcher.start(), std::string_view("xab")); };
  const auto state = at(lent);
  EXPECT_FALSE(lent.has_mask(state));
  Background background;
  lent.lend(state, background);
  background.wait(0, std::chrono::hours(1));
  EXPECT_FALSE(lent.lent());
  EXPECT_TRUE(lent.has_mask(state));
  EXPECT_EQ(*lent.mask(state, never), *alone.mask(at(alone)));
  lent.take_back();
  EXPECT_FALSE(lent.lent());
}

// Whether the other thread has begun or not, after take_back() the matcher is its owner's, and nothing is spoilt.
TEST(GrammarMatcher, TakenBackAtAnyTime) {
  GrammarMatcher alone(kNested, long_words().trie);
  const auto expected = alone.mask(alone.advance(alone.start(), std::string_view("xabcabc")));
  Background background;
  for (int i = 0; i < 50; ++i) {
    GrammarMatcher matcher(kNested, long_words().trie);
    const auto state = matcher.advance(matcher.start(), std::string_view("xabcabc"));
    matcher.lend(state, background);
    if (i % 3 > 0) background.wait(background.ended(), std::chrono::microseconds(20 * i));
    matcher.take_back();
    EXPECT_FALSE(matcher.lent());
    EXPECT_EQ(*matcher.mask(state), *expected);
  }
}

// What nobody wants any more is not made, and nobody waits for that; the mask of another state is.
TEST(GrammarMatcher, GivenUpWithoutWaiting) {
  GrammarMatcher matcher(kNested, long_words().trie);
  const auto state = matcher.advance(matcher.start(), std::string_view("xab")), other = matcher.start();
  std::promise<void> go;
  Background background;
  background.add([&] { go.get_future().wait(); });
  matcher.lend(state, background);
  matcher.give_up(other);
  EXPECT_TRUE(matcher.lent());
  matcher.give_up(state);
  EXPECT_FALSE(matcher.lent());
  matcher.lend(other, background);
  go.set_value();
  for (uint64_t ended = 0; ended < 3; ended = background.ended()) background.wait(ended, std::chrono::hours(1));
  EXPECT_TRUE(matcher.has_mask(other));
  EXPECT_FALSE(matcher.has_mask(state));
}

// States are copied and let go while another thread makes masks and forgets; what is held stays what it is.
TEST(GrammarMatcher, StatesComeAndGoWhileItIsLent) {
  const TestVocabulary vocabulary({"aa", "aaa"});
  GrammarMatcher matcher("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie, {.states = 16});
  Background background;
  auto state = matcher.start();
  std::vector<GrammarMatcher::State> states;
  for (int i = 0; i < 300; ++i) {
    states.push_back(state);
    state = matcher.advance(state, Token('a'));
    matcher.lend(state, background);
    while (matcher.lent()) {
      const std::vector<GrammarMatcher::State> copies(states.begin(), states.end());
      auto first = matcher.start();
      first = copies.back();
    }
    if (i % 50 == 49) states.clear();
    ASSERT_TRUE(matcher.has_mask(state));
  }
  matcher.take_back();
  EXPECT_TRUE(state == matcher.advance(matcher.start(), std::string(300, 'a')));
}

// However few masks may be kept: those of states that are held are.
TEST(GrammarMatcher, KeepsTheMasksOfHeldStates) {
  const TestVocabulary vocabulary;
  const auto never = [] { return true; };
  GrammarMatcher matcher("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie, {.mask_bytes = 1});
  std::vector<GrammarMatcher::State> states = {matcher.start()};
  for (int i = 0; i < 20; ++i) states.push_back(matcher.advance(states.back(), Token('a')));
  for (const auto& state : states) matcher.mask(state);
  for (const auto& state : states) EXPECT_NE(matcher.mask(state, never), nullptr);
  EXPECT_EQ(matcher.masks(), states.size());
  const auto last = states.back();
  states.clear();
  matcher.mask(matcher.advance(last, Token('a')));
  EXPECT_EQ(matcher.masks(), 3u);  // of the start, this one, and the one made last
}

// The thread that has the matcher forgets, too, so that the owner need not.
TEST(GrammarMatcher, WhatIsKeptIsForgottenWhereItIsLent) {
  const TestVocabulary vocabulary({"aa", "aaa"});
  GrammarMatcher matcher("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie, {.states = 64});
  matcher.forget_when_lent();
  Background background;
  auto state = matcher.start();
  size_t most = 0;
  for (int i = 0; i < 500; ++i) {
    state = matcher.advance(state, Token('a'));
    const uint64_t before = background.ended();
    if (matcher.crowded() || !matcher.has_mask(state)) {
      matcher.lend(state, background);
      background.wait(before, std::chrono::hours(1));
    }
    EXPECT_FALSE(matcher.lent());
    matcher.take_back();
    most = std::max(most, matcher.states());
  }
  EXPECT_LE(most, 64u + 8u);
}

// What a large matcher holds is freed in the background.
TEST(GrammarMatcher, FreedInTheBackground) {
  const TestVocabulary vocabulary;
  std::shared_ptr<GrammarMatcher> held;
  std::promise<void> go;
  auto cache = std::make_unique<GrammarCache>(vocabulary.trie, GrammarCacheLimits{.most = 1});
  cache->background().add([&] { go.get_future().wait(); });
  std::weak_ptr<GrammarMatcher> first = cache->get("root ::= \"a\"");
  held = cache->get("root ::= \"b\"");  // drops the first while the background is busy
  EXPECT_TRUE(first.expired());
  go.set_value();
  cache.reset();
  EXPECT_TRUE(matches(*held, "b"));
  held.reset();  // after the cache and its thread
}

// Where there is no other thread, whoever lends a matcher makes the mask.
TEST(GrammarMatcher, LentWithoutAnotherThread) {
  const NoThreads none;
  GrammarMatcher matcher(kNested, long_words().trie);
  const auto state = matcher.advance(matcher.start(), std::string_view("xab"));
  Background background;
  matcher.lend(state, background);
  EXPECT_FALSE(matcher.lent());
  EXPECT_TRUE(matcher.has_mask(state));
}

// Whoever lets go of one frees it then.
TEST(GrammarMatcher, FreedWithoutAnotherThread) {
  const NoThreads none;
  GrammarCache cache(long_words().trie, {.most = 1});
  const std::weak_ptr<GrammarMatcher> first = cache.get("root ::= \"a\"");
  cache.get("root ::= \"b\"");
  EXPECT_TRUE(first.expired());
  EXPECT_EQ(cache.background().ended(), 1u);
}

TEST(GrammarMatcher, CacheIsAskedByThreads) {
  const TestVocabulary vocabulary;
  GrammarCache cache(vocabulary.trie, {.most = 2});
  const auto text = [](size_t i) { return "root ::= \"" + std::string(1, char('a' + i % 5)) + "\""; };
  std::vector<std::shared_ptr<GrammarMatcher>> got(40);
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = t; i < got.size(); i += 4) got[i] = cache.get(text(i));
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], cache.get(text(i))) << i;  // one of each, as all are held
}

}  // namespace
}  // namespace sx
