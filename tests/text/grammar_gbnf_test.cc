// GBNF: what grammars accept and refuse, every error of theirs, and the matcher against a naive recogniser on random
// grammars.
#include <gtest/gtest.h>

#include <functional>
#include <random>
#include <set>

#include "base/error.h"
#include "grammar_support.h"
#include "text/grammar/gbnf.h"

namespace sx {
namespace {

struct Case {
  const char* grammar;
  std::vector<std::string> yes, no;
};

TEST(GrammarGbnf, AcceptsAndRefuses) {
  const TestVocabulary vocabulary;
  const std::vector<Case> cases = {
      {R"(root ::= "abc")", {"abc"}, {"", "ab", "abcd", "abd"}},
      {"root ::= \"a\" | \"b\" |\n  \"c\" # three\n", {"a", "b", "c"}, {"", "ab", "d"}},
      {"# first\n\nroot ::= (\n \"a\" # x\n other-rule_2\n)* \"!\"\r\nother-rule_2 ::= [0-9]+\n",
       {"!", "a1!", "a12a3!"},
       {"a!", "1!", "a1"}},
      {R"(root ::= "\n\t\r\\\"\x41\u00e9\U0001F600\[")", {"\n\t\r\\\"A\xC3\xA9\xF0\x9F\x98\x80["}, {"\n\t\r\\\"A\xE9"}},
      {R"(root ::= [a-cx\-\]"^-])", {"a", "b", "c", "x", "-", "]", "\"", "^"}, {"d", "[", "", "\\"}},
      {R"(root ::= [^a-c])",
       {"d", "\n", "\xC3\xA9", "\xF0\x9F\x98\x80", "\xED\x9F\xBF", "\xEE\x80\x80", "\xF4\x8F\xBF\xBF"},
       {"a", "b", "c", "", "dd", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\x80", "\xC0\x80", "\xE0\x80\x80",
        "\xFF"}},
      {R"(root ::= .)",
       {"a", "\n", "\x7F", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xEF\xBF\xBF", "\xF0\x90\x80\x80"},
       {"", "\xC1\xBF", "\xE0\x9F\xBF", "ab"}},
      {R"(root ::= [^])", {"a", "\xC2\x80"}, {""}},
      {R"(root ::= [à-ü])", {"\xC3\xA0", "\xC3\xA9", "\xC3\xBC"}, {"\xC3\x9F", "\xC3\xBD", "a"}},
      {R"(root ::= [\u0FF0-\u1234])",
       {"\xE0\xBF\xB0", "\xE1\x80\x80", "\xE1\x88\xB4"},
       {"\xE0\xBF\xAF", "\xE1\x88\xB5", "\xE1\x89\x80"}},
      {R"(root ::= "ab"* "c"+ "d"?)", {"c", "ababcc", "cd"}, {"", "abab", "ac", "cdd"}},
      {R"(root ::= "a"{2} "b"{ 1 , 3 } "c"{2,} "d"{0})",
       {"aabcc", "aabbbccc"},
       {"abcc", "aacc", "aabbbbcc", "aabc", "aabccd"}},
      {R"(root ::= ("a" | "bc"){2,3})", {"aa", "abc", "bcbcbc", "aaa"}, {"a", "aaaa", "b"}},
      {R"(root ::= "a"{0,100000} "b")", {"b", "aaab"}, {"", "ba"}},
      {R"(root ::= ("a"? "b"?)* "c")", {"c", "abc", "bac", "aac"}, {"", "cc"}},
      {R"(root ::= ("a"?){0,4} "c")", {"c", "ac", "aaaac"}, {"aaaaac"}},
      {R"(root ::= ("a"?){3,} "c")", {"c", "ac", "aaaaaac"}, {"b"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "()", "((()))"}, {"(", ")", "()()"}},
      {"root ::= list\nlist ::= item | item \",\" list\nitem ::= [a-z] | \"[\" list \"]\"",
       {"a", "a,b", "[a,[b]],c"},
       {"", "a,", "[a"}},
      {"root ::= \"a\" ws \"b\"\nws ::= [ \\t] ws |\n", {"ab", "a \t b"}, {"a b "}},
      {"root ::= |", {""}, {"a"}},
      {"root ::=\n  \"a\"", {"a"}, {}},
  };
  for (const Case& c : cases) {
    GrammarMatcher matcher(c.grammar, vocabulary.trie);
    for (const std::string& text : c.yes) EXPECT_TRUE(matches(matcher, text)) << c.grammar << " on " << text;
    for (const std::string& text : c.no) EXPECT_FALSE(matches(matcher, text)) << c.grammar << " on " << text;
  }
}

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) { return error.what(); }
  return "";
}

TEST(GrammarGbnf, ErrorsNameTheirPlace) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "no rule root"},
      {"a ::= \"x\"", "no rule root"},
      {"root ::= a", "rule a is used in line 1 but not defined"},
      {"root ::= \"x\"\nb ::= \"a\" (\n nix)", "rule nix is used in line 3"},
      {"root ::= \"x\"\nroot ::= \"y\"", "line 2, column 1: rule root is defined twice"},
      {"root = \"x\"", "line 1, column 6: ::= was expected"},
      {"!", "line 1, column 1: a rule's name was expected"},
      {"root ::= \"x\" ; y", "line 1, column 14: unexpected ';' in rule root"},
      {"root ::= \"x\" )", "unexpected ')'"},
      {"root ::= \"x", "line 1, column 10: a literal that does not end"},
      {"root ::= \"x\n\"", "a literal that does not end"},
      {"root ::= [a-", "a class that does not end"},
      {"root ::= []", "line 1, column 10: a class without characters"},
      {"root ::= [^\\x00-\\U0010FFFF]", "a class without characters"},
      {"root ::= [z-a]", "line 1, column 11: a range"},
      {"root ::= \"\\q\"", "line 1, column 11: an escape that is not known"},
      {"root ::= \"\\x4\"", "fewer than 2"},
      {"root ::= \"\\uD800\"", "no character"},
      {"root ::= \"\\U00110000\"", "no character"},
      {"root ::= \"\xFF\"", "column 11: malformed UTF-8"},
      {"root ::= (\"a\"", "the parenthesis of line 1 is not closed"},
      {"root ::= \"a\"{", "a repetition that is not {n}"},
      {"root ::= \"a\"{1,2", "a repetition that is not {n}"},
      {"root ::= \"a\"{3,2}", "most is less than its least"},
      {"root ::= \"a\"{100001}", "more than 100000"},
      {"root ::= \"a\"{99999999999999999999}", "more than 100000"},
      {"root ::= \"a\"*+", "two repetitions in a row"},
      {"root ::= \"a\" * {2}", "two repetitions in a row"},
      {"root ::= * \"a\"", "unexpected '*'"},
      {"root ::= root \"a\" | \"b\"", "may not begin with itself: root -> root"},
      {"root ::= \"x\" a\na ::= b\nb ::= \"y\"? c? a\nc ::= \"z\"", "may not begin with itself: a -> b -> a"},
      {"root ::= \"x\" a\nc ::= \"\"\na ::= c* (\"q\" | c a)", "may not begin with itself: a -> a"},
      {"root ::= (root)*", "may not begin with itself"},
      {"root ::= \"a\" root", "no text of the rule root ever ends"},
      {"root ::= \"a\" b\nb ::= \"c\" b | \"d\" b", "no text of the rule root ever ends"},
      {std::string(300000, '#'), "300000 bytes, at most 262144"},
      {"root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "more than 64 levels"},
      {"root ::= " + std::string(250000, '('), "more than 64 levels"},
      {"root ::= " + std::string(250000, '.'), "too large"},
  };
  const TestVocabulary vocabulary;
  for (const auto& [grammar, message] : cases) {
    const std::string error = error_of([&] { GrammarMatcher matcher(grammar, vocabulary.trie); });
    EXPECT_NE(error.find(message), std::string::npos) << grammar.substr(0, 80) << "\n  gives: " << error;
  }
  std::string many = "root ::= r0\n";
  for (int i = 0; i < 20000; ++i) many += "r" + std::to_string(i) + "::=.\n";
  EXPECT_NE(error_of([&] { parse_gbnf(many); }).find("more than 16384 rules"), std::string::npos);
  // A long chain of rules is no error, and no depth of calls either.
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 3000; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
  GrammarMatcher matcher(chain + "r3000 ::= \"x\"", vocabulary.trie);
  EXPECT_TRUE(matches(matcher, "x"));
}

TEST(GrammarGbnf, TooAmbiguousIsAnErrorNotALoop) {
  const TestVocabulary vocabulary;
  std::string grammar = "root ::= r0\n";  // 2^20 stacks at once
  for (int i = 0; i < 20; ++i) grammar += fmt::format("r{} ::= r{} \"x\" | r{} \"y\"\n", i, i + 1, i + 1);
  EXPECT_NE(error_of([&] { GrammarMatcher m(grammar + "r20 ::= \"z\"", vocabulary.trie); }).find("too ambiguous"),
            std::string::npos);
  // Only after some text: every prefix may have been split in many ways.
  GrammarMatcher matcher("root ::= (\"a\" | \"a\" \"a\"){0,100000} \"b\"", vocabulary.trie, {.stacks = 50});
  EXPECT_TRUE(matches(matcher, std::string(30, 'a') + "b"));
  EXPECT_NE(error_of([&] { matches(matcher, std::string(1000, 'a')); }).find("too ambiguous"), std::string::npos);
  EXPECT_TRUE(matches(matcher, "aab"));  // and it goes on working
}

TEST(GrammarGbnf, LiteralsComeBack) {
  const TestVocabulary vocabulary;
  const std::string text = "a\"b\\c\n\r\t\x01\x1F\x7F é\xF0\x9F\x98\x80 [x] \\x41";
  GrammarMatcher matcher("root ::= " + gbnf_literal(text), vocabulary.trie);
  EXPECT_TRUE(matches(matcher, text));
}

// --- Random grammars. The recogniser tries everything, from the parsed rules.

using Ends = std::set<size_t>;

struct Naive {
  const GrammarRules& rules;
  std::string_view text;

  // Where a part that begins at `from` may end.
  Ends ends(const GrammarPart& part, size_t from) const {
    using Kind = GrammarPart::Kind;
    Ends out;
    switch (part.kind) {
      case Kind::kLiteral:
        if (text.substr(from).starts_with(part.bytes)) out.insert(from + part.bytes.size());
        break;
      case Kind::kClass:  // the random grammars and texts are ASCII
        for (auto r : part.ranges)
          if (from < text.size() && r.first <= char32_t(text[from]) && char32_t(text[from]) <= r.last)
            out.insert(from + 1);
        break;
      case Kind::kRule: return ends(rules.bodies[size_t(part.rule)], from);
      case Kind::kSequence:
        out = {from};
        for (const GrammarPart& p : part.parts) out = after(p, out);
        break;
      case Kind::kChoice:
        for (const GrammarPart& p : part.parts) out.merge(ends(p, from));
        break;
      case Kind::kRepeat: {
        Ends now = {from};
        for (uint32_t i = 0; i < part.least; ++i) now = after(part.parts[0], now);
        out = now;
        // More rounds than there are characters left can only be empty ones.
        for (uint32_t i = part.least; i < std::min<uint32_t>(part.most, part.least + uint32_t(text.size()) + 1); ++i) {
          now = after(part.parts[0], now);
          out.insert(now.begin(), now.end());
        }
        break;
      }
    }
    return out;
  }
  Ends after(const GrammarPart& part, const Ends& starts) const {
    Ends out;
    for (size_t s : starts) out.merge(ends(part, s));
    return out;
  }
  bool matches() const { return ends(rules.bodies[size_t(rules.root)], 0).contains(text.size()); }
};

std::string random_body(std::mt19937& random, int depth, int rules) {
  const auto pick = [&](int n) { return int(random() % unsigned(n)); };
  std::string out;
  for (int i = pick(3) + (depth == 0); i >= 0; --i) {
    switch (pick(depth < 2 ? 8 : 5)) {
      case 0: out += "\"a\" "; break;
      case 1: out += "\"b\" "; break;
      case 2: out += "[ab] "; break;
      case 3: out += "\"ab\" "; break;
      case 4: out += fmt::format("r{} ", pick(rules)); break;
      default: out += "(" + random_body(random, depth + 1, rules) + ") "; break;
    }
    constexpr const char* kRepeats[] = {"* ", "+ ", "? ", "{2} ", "{1,3} ", "{2,} ", "{0,2} "};
    if (pick(3) == 0) out += kRepeats[pick(7)];
    if (pick(4) == 0) out += "| ";
  }
  return out;
}

TEST(GrammarGbnf, MatchesWhatANaiveRecogniserMatches) {
  std::mt19937 random(7);
  const TestVocabulary vocabulary({"ab", "aa", "ba", "bb", "aab", "abab", "b", "c", "ac"});
  std::vector<std::string> texts = {""};
  for (size_t i = 0; texts.size() < 127; ++i) texts.push_back(texts[i] + "a"), texts.push_back(texts[i] + "b");
  int grammars = 0, accepted = 0, refused = 0, more = 0, ambiguous = 0;
  while (grammars < 250) {
    const int rules = 1 + int(random() % 3);
    std::string grammar = "root ::= " + random_body(random, 0, rules) + "\n";
    for (int i = 0; i < rules; ++i) grammar += fmt::format("r{} ::= {}\n", i, random_body(random, 0, rules));
    GrammarRules parsed;
    try {
      parsed = parse_gbnf(grammar);
    } catch (const Error&) {
      continue;  // left recursion or no end
    }
    ++grammars;
    GrammarMatcher matcher(grammar, vocabulary.trie);
    if (!error_of([&] {
           for (const std::string& text : texts) matcher.mask(matcher.advance(matcher.start(), text));
         }).empty()) {
      ++ambiguous;
      continue;
    }
    for (const std::string& text : texts) {
      const bool expected = Naive{parsed, text}.matches();
      ASSERT_EQ(matches(matcher, text), expected) << grammar << "on '" << text << "'";
      ++(expected ? accepted : refused);
      // The mask says of each token what advancing by it says.
      const auto state = matcher.advance(matcher.start(), text);
      if (!state) continue;
      const GrammarMask mask = matcher.mask(state);
      bool any = false;
      for (Token t = 0; t < vocabulary.trie->vocab(); ++t) {
        const bool can = bool(matcher.advance(state, t));
        any |= can;
        if (vocabulary.trie->is_end(t)) continue;
        ASSERT_EQ(allows(mask, t), can) << grammar << "after '" << text << "' token " << t;
      }
      ASSERT_EQ(allows(mask, vocabulary.end), matcher.can_end(state) || !any) << grammar << "after '" << text << "'";
      more += any;
    }
  }
  EXPECT_LT(ambiguous, 50);
  EXPECT_GT(accepted, 1000);
  EXPECT_GT(refused, 1000);
  EXPECT_GT(more, 1000);
}

}  // namespace
}  // namespace sx
