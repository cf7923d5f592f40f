// Earlier texts against a search by hand: the longest end of a text that has come before, and what followed it.
#include "speculative/draft/text_store.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

#include "speculative/draft/drafters.h"

namespace sx {
namespace {

using Text = std::vector<Token>;

Text random_text(std::mt19937& random, int most, int tokens) {
  Text text(1 + random() % unsigned(most));
  for (Token& t : text) t = Token(random() % unsigned(tokens));
  return text;
}

bool contains(const Text& text, std::span<const Token> piece) {
  return std::search(text.begin(), text.end(), piece.begin(), piece.end()) != text.end();
}

// Longest end of `text`, at most `most` tokens, that one of the texts contains.
int longest(const std::vector<Text>& texts, const Text& text, int most) {
  for (int n = std::min(int(text.size()), most); n > 0; --n)
    for (const Text& t : texts)
      if (contains(t, std::span(text).last(size_t(n)))) return n;
  return 0;
}

TEST(TextStore, FindsTheLongestEndThatCameBefore) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    const Text fixed = round % 3 ? random_text(random, 40, 4) : Text{};
    TextStore store(round % 5 ? 5000 : 0, fixed);
    std::vector<Text> texts;
    for (int i = 0; i < 6; ++i) {
      texts.push_back(random_text(random, 30, 4));
      store.add(texts.back());
      const Text asked = random_text(random, 20, 4);
      const int most = 1 + int(random() % 12);
      const auto found = store.find(asked, most);
      EXPECT_EQ(found[0].length, round % 5 ? longest(texts, asked, most) : 0);
      EXPECT_EQ(found[1].length, 0);
      EXPECT_EQ(found[2].length, fixed.empty() ? 0 : longest({fixed}, asked, most));
      // What follows there is what followed in the texts: the state spells the match.
      for (const auto& match : {found[0], found[2]}) {
        if (match.length == 0) continue;
        const auto end = std::span(asked).last(size_t(match.length));
        for (Token next = 0; next < 4; ++next) {
          Text longer(end.begin(), end.end());
          longer.push_back(next);
          const bool expected = match.automaton == found[2].automaton
                                    ? contains(fixed, longer)
                                    : longest(texts, longer, 99) == int(longer.size());
          EXPECT_EQ(match.automaton->next(match.state, next) != SuffixAutomaton::kNoState, expected);
        }
      }
    }
  }
}

TEST(TextStore, OldTextsMakeRoom) {
  TextStore store(100, Text{900, 901, 902});
  const auto text_of = [](int i) {  // no token in two of them
    Text text;
    for (int k = 0; k < 30; ++k) text.push_back(1000 + 30 * i + k);
    return text;
  };
  for (int i = 0; i < 20; ++i) {
    store.add(text_of(i));
    int there = 0;
    for (int k = 0; k <= i; ++k) {
      const auto found = store.find(text_of(k), 64);
      const bool here = found[0].length == 30 || found[1].length == 30;
      if (k == i) { EXPECT_TRUE(here) << "the newest is there"; }
      there += here;
      EXPECT_TRUE(here || (found[0].length == 0 && found[1].length == 0));
    }
    EXPECT_GE(there, std::min(i + 1, 3)) << "a hundred tokens at least";
    EXPECT_LE(there, 6) << "twice that at most";
    EXPECT_EQ(store.find(Text{5, 900, 901}, 64)[2].length, 2) << "the fixed text stays";
  }
}

TEST(TextStore, OfALongTextTheEndIsKept) {
  TextStore store(50, {});
  Text text;
  for (int i = 0; i < 500; ++i) text.push_back(i);
  store.add(text);
  EXPECT_EQ(store.find(text, 64)[0].length, 50);
  EXPECT_EQ(store.find(std::span(text).first(450), 64)[0].length, 0);
  store.add({});
  EXPECT_EQ(store.find(text, 64)[0].length, 50);
}

// Drafts of one sequence whose text ends with `text`.
Text drafted(Drafter& drafter, const Text& text) {
  drafter.open(0);
  TokenTree tree(40);
  tree.reset(text.back());
  DraftTask task;
  const Sampling sampling;
  task.text = text, task.sampling = &sampling, task.tree = &tree, task.limits.nodes = task.limits.depth = 16;
  drafter.draft(std::span(&task, 1));
  drafter.close(0);
  Text out;
  for (NodeId n = tree.first_child(0); n != kNoNode; n = tree.first_child(n)) out.push_back(tree.token(n));
  return out;
}

TEST(TextStore, DraftsAreCopiedFromEarlierAnswers) {
  IndexConfig config;
  config.store = 1000, config.factor = 4;
  TreeConfig tree;
  tree.kind = TreeKind::kBestFirst, tree.nodes = tree.depth = 16;
  const auto drafter = make_suffix_drafter(config, tree, {1, 500, 100}, Text{50, 51, 52, 53, 54});
  const Text question = {1, 2, 3, 4, 5, 6}, answer = {20, 21, 22, 23, 24, 25};
  EXPECT_TRUE(drafted(*drafter, question).empty());
  Text whole = question;
  whole.insert(whole.end(), answer.begin(), answer.end());
  drafter->remember(whole, int(answer.size()));
  EXPECT_EQ(drafted(*drafter, question), answer) << "asked again; nothing is copied beyond the end";
  EXPECT_EQ(drafted(*drafter, {9, 3, 4, 5, 6, 20, 21}), (Text{22, 23, 24, 25}));
  EXPECT_EQ(drafted(*drafter, {7, 51, 52}), (Text{53, 54})) << "of the fixed text";
  EXPECT_TRUE(drafted(*drafter, {7, 8, 25}).empty()) << "the end of an answer is followed by nothing";
  drafter->remember(whole, 0);
}

}  // namespace
}  // namespace sx
