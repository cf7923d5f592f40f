// The matcher: tokens that split characters, masks, ends, forced bytes, and bounds on what it keeps.
#include <gtest/gtest.h>

#include "base/error.h"
#include "grammar_support.h"

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
  EXPECT_EQ(allowed(matcher.mask(matcher.advance(matcher.start(), std::string_view("ab")))), (std::vector<Token>{3, 4}));
  EXPECT_EQ(matcher.mask(matcher.start())->size(), 2u);
  GrammarMatcher stuck("root ::= \"ac\"", trie);  // no token has a c
  EXPECT_EQ(allowed(stuck.mask(stuck.advance(stuck.start(), Token(0)))), (std::vector<Token>{3, 4}));
  EXPECT_THROW(TokenTrie(bytes, {}, 40), Error);
}

TEST(GrammarMatcher, ForcedBytes) {
  const TestVocabulary vocabulary({"name", "na", "am", "\":", "\"name\":"});
  GrammarMatcher matcher("root ::= \"{\\\"n\" (\"ame\\\":\" | \"umber\\\":\") [0-9] \"é\" (\"x\" | \"é\" \"y\")?", vocabulary.trie);
  EXPECT_EQ(matcher.forced(matcher.start(), 100), "{\"n");
  EXPECT_EQ(matcher.forced(matcher.start(), 2), "{\"");
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"na")), 100), "me\":");
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"name\":1")), 100), "é");  // then it may end
  EXPECT_EQ(matcher.forced(matcher.advance(matcher.start(), std::string_view("{\"name\":1")), 1), "");       // whole characters
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

TEST(GrammarMatcher, KeepsABoundedNumberOfStatesAndMasks) {
  const TestVocabulary vocabulary({"aa", "aaa"});
  const size_t words = vocabulary.trie->words();
  GrammarMatcher matcher("root ::= \"a\"{0,90000} \"b\"", vocabulary.trie, {.states = 64, .mask_bytes = 10 * words * 4});
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
  EXPECT_TRUE(matcher.advance(matcher.start(), std::string_view("a")) == matcher.advance(matcher.start(), std::string_view("abcdefgh")));
}

TEST(GrammarMatcher, CacheKeepsTheLatestGrammars) {
  const TestVocabulary vocabulary;
  GrammarCache cache(vocabulary.trie, 2);
  const auto a = cache.get("root ::= \"a\""), b = cache.get("root ::= \"b\"");
  EXPECT_EQ(cache.get("root ::= \"a\""), a);
  cache.get("root ::= \"c\"");  // b goes
  EXPECT_EQ(cache.get("root ::= \"a\""), a);
  EXPECT_NE(cache.get("root ::= \"b\""), b);
  EXPECT_THROW(cache.get("root ::= "
                         "x"), Error);
}

}  // namespace
}  // namespace sx
