// Collects the rows of one pass of the target: trees to be verified, pieces of prompts. Memory is taken once.
#pragma once
#include <span>
#include <vector>

#include "backend/ops.h"
#include "speculative/tree/tree.h"

namespace sx {

class StepBuilder {
 public:
  // Passes have at most `rows` rows, of which the first `outputs` may be wanted as logits, and rows of at most
  // `sequences` sequences.
  StepBuilder(int rows, int outputs, int sequences);

  void clear();
  // The nodes of a tree after `history` committed cells; returns the row of node 0.
  int add_tree(SeqId seq, int history, TokenTree& tree);
  // Tokens of a prompt after `history` committed cells; returns the row of the first.
  int add_prompt(SeqId seq, int history, std::span<const Token> tokens);

  int rows() const { return int(tokens_.size()); }
  bool empty() const { return tokens_.empty(); }
  // The pass, with logits of its first `outputs` rows. `prompt`: all rows are of prompts. Valid until the next change.
  StepInputs step(int outputs, bool prompt) const;

 private:
  std::vector<Token> tokens_;
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
};

}  // namespace sx
