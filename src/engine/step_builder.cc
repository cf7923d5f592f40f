#include "engine/step_builder.h"

#include <numeric>

namespace sx {

StepBuilder::StepBuilder(int rows, int outputs, int sequences) : outputs_(size_t(outputs)) {
  tokens_.reserve(size_t(rows));
  positions_.reserve(size_t(rows));
  seqs_.reserve(size_t(sequences));
  std::iota(outputs_.begin(), outputs_.end(), 0);
}

void StepBuilder::clear() {
  tokens_.clear();
  positions_.clear();
  seqs_.clear();
}

int StepBuilder::add_tree(SeqId seq, int history, TokenTree& tree) {
  const int first = rows(), size = tree.size();
  const bool chain = size == 1;
  seqs_.push_back({.first_row = first,
                   .rows = size,
                   .slot = seq,
                   .history = history,
                   .ancestors = chain ? nullptr : tree.ancestors(),
                   .words = chain ? 0 : tree.words()});
  for (NodeId n = 0; n < size; ++n) {
    tokens_.push_back(tree.token(n));
    positions_.push_back(history + tree.depth(n));
  }
  return first;
}

int StepBuilder::add_prompt(SeqId seq, int history, std::span<const Token> tokens) {
  const int first = rows(), count = int(tokens.size());
  seqs_.push_back({.first_row = first, .rows = count, .slot = seq, .history = history});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int i = 0; i < count; ++i) positions_.push_back(history + i);
  return first;
}

StepInputs StepBuilder::step(int outputs, bool prompt) const {
  return {.tokens = tokens_,
          .positions = positions_,
          .seqs = seqs_,
          .outputs = std::span(outputs_).first(size_t(outputs)),
          .prompt = prompt};
}

}  // namespace sx
