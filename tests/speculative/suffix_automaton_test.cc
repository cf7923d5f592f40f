// The suffix automaton against searching the text.
#include "speculative/draft/suffix_automaton.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>

namespace sx {
namespace {

using Text = std::vector<Token>;
using State = SuffixAutomaton::State;

// Ends of the places where `part` occurs.
std::vector<int> places(const Text& text, const Text& part) {
  std::vector<int> ends;
  for (size_t i = 0; i + part.size() <= text.size(); ++i)
    if (std::equal(part.begin(), part.end(), text.begin() + long(i))) ends.push_back(int(i + part.size()));
  return ends;
}

Text suffix(const Text& text, int length) { return {text.end() - length, text.end()}; }

int longest_earlier_suffix(const Text& text) {
  int length = 0;
  while (length + 1 < int(text.size()) && places(text, suffix(text, length + 1)).size() > 1) ++length;
  return length;
}

State walk(const SuffixAutomaton& automaton, const Text& part) {
  State s = SuffixAutomaton::kRoot;
  for (Token token : part)
    if (s != SuffixAutomaton::kNoState) s = automaton.next(s, token);
  return s;
}

std::map<Token, State> edges(const SuffixAutomaton& automaton, State s) {
  std::map<Token, State> found;
  for (int32_t e = automaton.first_edge(s); e != SuffixAutomaton::kNoEdge; e = automaton.edge(e).next) {
    EXPECT_EQ(automaton.edge(e).from, s);
    EXPECT_EQ(automaton.next(s, automaton.edge(e).token), automaton.edge(e).to);
    EXPECT_TRUE(found.emplace(automaton.edge(e).token, automaton.edge(e).to).second) << "an edge twice in the list";
  }
  return found;
}

void expect_same_as_search(const SuffixAutomaton& automaton, const Text& text, const Text& part) {
  const std::vector<int> ends = places(text, part);
  const State s = walk(automaton, part);
  ASSERT_EQ(s != SuffixAutomaton::kNoState, !ends.empty());
  if (ends.empty()) return;
  EXPECT_EQ(automaton.count(s), int(ends.size()));
  std::map<Token, int> expected, found;
  for (int end : ends)
    if (end < int(text.size())) ++expected[text[size_t(end)]];
  for (const auto& [token, to] : edges(automaton, s)) found[token] = automaton.count(to);
  EXPECT_EQ(found, expected);
}

// The suffixes that end at ever more places, by their lengths.
std::vector<int> suffix_classes(const Text& text) {
  std::vector<int> lengths;
  size_t before = 1;
  for (int length = int(text.size()) - 1; length > 0; --length) {
    const size_t n = places(text, suffix(text, length)).size();
    if (n > before) lengths.push_back(length), before = n;
  }
  return lengths;
}

TEST(SuffixAutomaton, EqualsSearchOnRandomTexts) {
  std::mt19937 random(1);
  for (int repeat = 0; repeat < 60; ++repeat) {
    const int alphabet = 1 + repeat % 5, size = 1 + int(random() % 60);
    SuffixAutomaton automaton(size);
    Text text;
    for (int i = 0; i < size; ++i) {
      text.push_back(Token(random() % unsigned(alphabet)));
      automaton.append(text.back());
      ASSERT_EQ(automaton.size(), i + 1);
      ASSERT_EQ(automaton.length(automaton.link(automaton.last())), longest_earlier_suffix(text));
      std::vector<int> lengths;
      for (State s = automaton.link(automaton.last()); s != SuffixAutomaton::kRoot; s = automaton.link(s))
        lengths.push_back(automaton.length(s));
      ASSERT_EQ(lengths, suffix_classes(text));
      const auto begin = random() % text.size(), length = 1 + random() % (text.size() - begin);
      expect_same_as_search(automaton, text, Text(text.begin() + long(begin), text.begin() + long(begin + length)));
      expect_same_as_search(automaton, text, suffix(text, int(1 + random() % text.size())));
      expect_same_as_search(automaton, text, {Token(random() % 6), Token(random() % 6), Token(random() % 6)});
    }
  }
}

Text degenerate(int kind, int size, std::mt19937& random) {
  Text text;
  for (int i = 0; i < size; ++i) {
    switch (kind) {
      case 0: text.push_back(7); break;
      case 1: text.push_back(i % 2); break;
      case 2: text.push_back(i); break;                                   // nothing twice
      case 3: text.push_back(i == 0 ? 1 : 2); break;                      // most states
      case 4: text.push_back(i == 0 ? 1 : i + 1 == size ? 3 : 2); break;  // most edges
      case 5: text.push_back(i + 1 == size ? 2 : 1); break;
      case 6: text.push_back(Token(random() % 2)); break;
      default: text.push_back(i % 1000 == 999 ? Token(random() % 100) : i % 37);
    }
  }
  return text;
}

// What the memory is taken for: at most 2n states and 3n edges.
TEST(SuffixAutomaton, DegenerateTextsFitTheirMemory) {
  std::mt19937 random(2);
  for (int kind = 0; kind < 8; ++kind) {
    for (int size : {1, 2, 3, 4, 5, 17, 1000, 30000}) {
      const Text text = degenerate(kind, size, random);
      SuffixAutomaton automaton(size);
      for (Token token : text) automaton.append(token);
      size_t made = 0;
      for (State s = 0; s < automaton.states(); ++s)
        for (int32_t e = automaton.first_edge(s); e != SuffixAutomaton::kNoEdge; e = automaton.edge(e).next) ++made;
      EXPECT_LE(automaton.states(), 2 * size);
      EXPECT_LE(made, 3 * size_t(size));
      EXPECT_THROW(automaton.append(0), InternalError);
    }
  }
}

// A run of one token has as many suffix states as tokens: counts are exact for the longest of them and never too large.
TEST(SuffixAutomaton, CountsOfALongRun) {
  const int size = 5000;
  SuffixAutomaton automaton(size);
  for (int i = 0; i < size; ++i) automaton.append(3);
  EXPECT_EQ(automaton.length(automaton.link(automaton.last())), size - 1);
  State s = automaton.last();
  for (int length = size; length > 0; --length, s = automaton.link(s)) {
    ASSERT_EQ(automaton.length(s), length);
    ASSERT_EQ(automaton.count(s), std::min(size - length, SuffixAutomaton::kCountWalk) + 1);
  }
}

TEST(SuffixAutomaton, AClearedOneIsAsGoodAsNew) {
  std::mt19937 random(3);
  SuffixAutomaton used(400);
  for (int repeat = 0; repeat < 40; ++repeat) {
    const int size = 1 + int(random() % 400);
    SuffixAutomaton fresh(400);
    used.clear();
    ASSERT_EQ(used.size(), 0);
    ASSERT_EQ(used.first_edge(SuffixAutomaton::kRoot), SuffixAutomaton::kNoEdge);
    for (int i = 0; i < size; ++i) {
      const Token token = Token(random() % (repeat % 2 ? 3 : 300));
      used.append(token), fresh.append(token);
    }
    ASSERT_EQ(used.states(), fresh.states());
    for (State s = 0; s < used.states(); ++s) {
      ASSERT_EQ(used.length(s), fresh.length(s));
      ASSERT_EQ(used.count(s), fresh.count(s));
      ASSERT_EQ(used.link(s), fresh.link(s));
      int32_t a = used.first_edge(s), b = fresh.first_edge(s);
      while (a != SuffixAutomaton::kNoEdge && b != SuffixAutomaton::kNoEdge) {
        ASSERT_EQ(used.edge(a).token, fresh.edge(b).token);
        ASSERT_EQ(used.edge(a).to, fresh.edge(b).to);
        a = used.edge(a).next, b = fresh.edge(b).next;
      }
      ASSERT_EQ(a, b) << "one list is longer";
    }
  }
}

TEST(SuffixAutomaton, AnyTokenIds) {
  std::mt19937 random(4);
  const Token ids[] = {0, 1, 199999, 262143, 0x7fffffff};
  SuffixAutomaton automaton(50);
  Text text;
  for (int i = 0; i < 50; ++i) {
    text.push_back(ids[random() % 5]);
    automaton.append(text.back());
    for (Token a : ids)
      for (Token b : ids) expect_same_as_search(automaton, text, {a, b});
  }
}

}  // namespace
}  // namespace sx
