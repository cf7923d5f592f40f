// The rows of one pass of a draft network: tokens, positions, which rows want logits. All memory is taken in the
// constructor.
#pragma once
#include <vector>

#include "base/error.h"
#include "speculative/draft/draft_model.h"

namespace sx {

class DraftStep {
 public:
  DraftStep(int rows, int outputs, int sequences) : tokens_(size_t(rows)), positions_(size_t(rows)) {
    outputs_.reserve(size_t(outputs));
    seqs_.reserve(size_t(sequences));
  }

  void clear() {
    outputs_.clear();
    seqs_.clear();
  }
  int rows() const { return seqs_.empty() ? 0 : seqs_.back().first_row + seqs_.back().rows; }
  int outputs() const { return int(outputs_.size()); }
  int first_row(size_t sequence) const { return seqs_[sequence].first_row; }
  int position(int row) const { return positions_[size_t(row)]; }

  // Adds the rows of a sequence behind those there are; returns the first of them.
  int add(SeqRows rows) {
    rows.first_row = this->rows();
    SX_ASSERT(size_t(rows.first_row + rows.rows) <= tokens_.size());
    seqs_.push_back(rows);
    return rows.first_row;
  }
  void set(int row, Token token, int position) {
    tokens_[size_t(row)] = token;
    positions_[size_t(row)] = position;
  }
  void want(int row) { outputs_.push_back(row); }
  // More rows of the last sequence.
  void extend(int rows) { seqs_.back().rows += rows; }

  // Adds the nodes of a level behind `history` cells. position(depth): of a node at that depth.
  template <class Position>
  void add_level(const DraftRows& level, int history, const Position& position) {
    const TokenTree& tree = *level.task->tree;
    const int count = int(level.nodes.size());
    const int first =
        add({0, count, level.task->seq, history, level.tail->ancestors(level.first), DraftTail::kWords, level.first});
    for (int i = 0; i < count; ++i) {
      const NodeId node = level.nodes[size_t(i)];
      set(first + i, tree.token(node), position(tree.depth(node)));
      want(first + i);
    }
  }

  // Long chains are run as prompts: what a draft computes need not be the same to the bit.
  StepInputs inputs() const {
    const size_t n = size_t(rows());
    bool prompt = false;
    for (const SeqRows& s : seqs_) prompt |= !s.ancestors && s.rows > kMaxChain;
    return {std::span(tokens_).first(n), std::span(positions_).first(n), seqs_, outputs_, prompt};
  }

 private:
  std::vector<Token> tokens_;
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
};

}  // namespace sx
