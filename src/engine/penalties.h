// Counts of the tokens that penalties look at: a sliding window over the text, updated in constant time per token.
#pragma once
#include <span>
#include <vector>

#include "backend/ops.h"

namespace sx {

class PenaltyWindow {
 public:
  // last_n: window in tokens, -1: everything, 0: none.
  PenaltyWindow(int vocab, int last_n);

  void push(Token token);
  std::span<const TokenCount> counts() const { return counts_; }

 private:
  void remove(Token token);

  int last_n_;
  std::vector<TokenCount> counts_;  // distinct tokens in the window
  std::vector<int32_t> place_;      // [vocab] index in counts_ or -1
  std::vector<Token> ring_;         // the window, when it is bounded
  size_t next_ = 0;
};

}  // namespace sx
