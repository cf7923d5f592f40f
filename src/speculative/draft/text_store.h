// Texts of earlier requests, and one that was there from the beginning, for drafters that copy. What requests leave is
// kept in two halves: the younger grows, and takes the older one's place when it is full. Memory is taken once.
#pragma once
#include <array>
#include <memory>
#include <span>

#include "speculative/draft/suffix_automaton.h"

namespace sx {

class TextStore {
 public:
  // Keeps the last `tokens` tokens of texts, and up to as many more; 0: none. `fixed`: stays for good.
  TextStore(int tokens, std::span<const Token> fixed);

  // Of a text longer than a half only the end is kept.
  void add(std::span<const Token> text);

  struct Match {
    const SuffixAutomaton* automaton;
    SuffixAutomaton::State state;
    int length;  // of the longest end of the text that has come before; 0: none
  };
  // Where the text's last tokens, `most` at most, have come before: younger half, older half, fixed text.
  std::array<Match, 3> find(std::span<const Token> text, int most) const;

 private:
  // Comes after every text; follows nothing that is drafted.
  static constexpr Token kEnd = -2;

  std::unique_ptr<SuffixAutomaton> young_, old_, fixed_;  // or null
};

}  // namespace sx
