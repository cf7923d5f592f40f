// Counts of the tokens that penalties look at: a sliding window over the text, updated in constant time per token. The
// last tokens can be taken back again, so that a walk through a tree sees the window of each node's own path.
#pragma once
#include <span>
#include <vector>

#include "backend/ops.h"

namespace sx {

class PenaltyWindow {
 public:
  // last_n: window in tokens, -1: everything, 0: none. Up to `undo` pushes can be taken back.
  PenaltyWindow(int vocab, int last_n, int undo = 512);

  void push(Token token);
  void pop();  // takes back the last push
  bool active() const { return last_n_ != 0; }
  std::span<const TokenCount> counts() const { return counts_; }

 private:
  void add(Token token);
  void remove(Token token);
  Token& at(size_t place) { return ring_[place % ring_.size()]; }

  int last_n_;
  size_t pushed_ = 0;
  std::vector<TokenCount> counts_;  // distinct tokens in the window
  std::vector<int32_t> place_;      // [vocab] index in counts_ or -1
  std::vector<Token> ring_;         // the last tokens pushed: the window and as many before it as can be taken back
};

}  // namespace sx
