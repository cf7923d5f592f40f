// Turns a drafter's logits into candidates: the likeliest tokens after the request's own bias, penalties, filters and
// temperature, ranked with the Gumbel noise that the target will use when it samples; or draws from the distribution,
// which is then kept for the acceptance rule.
#pragma once
#include <span>
#include <vector>

#include "backend/backend.h"
#include "speculative/draft/drafter.h"

namespace sx {

struct CandidateOptions {
  DrawMode draws = DrawMode::kBest;
  bool couple = true;  // kBest: rank with the target's noise when it samples
};

class CandidateFinder {
 public:
  // `width`: candidates per node; `rows`: rows of logits of one pass; `vocab`: tokens that may be proposed; `stride`:
  // floats from one row of logits to the next; `map`: the target's token for each of the drafter's, empty: they are the
  // same.
  CandidateFinder(Backend& backend, const CandidateOptions& options, int width, int rows, int vocab, int stride,
                  std::span<const Token> map = {});

  // The candidates after a node, from its row of logits; they stay until the next call for the same place (0..rows-1).
  // `position`: of the proposed token.
  std::span<const Candidate> guess(const DraftTask& task, NodeId node, uint64_t position, const float* logits,
                                   int place);
  // The same for a node of a level whose nodes share one row of logits: the likeliest tokens are found once and serve
  // them all, whatever a grammar allows after each (the tree is pruned later); draws are each node's own. `place`: 0,
  // 1, ... for nodes that are kept together.
  std::span<const Candidate> guess_level(const DraftTask& task, NodeId node, const float* logits, int row, int place);
  // Shows the policy the candidates of the nodes that were run, `next` (none: node 0), from rows [row, row + count) of
  // a pass's logits. The policy grows the task's tree; `next` then holds the nodes to run now.
  void grow(DraftTask& task, const float* logits, int row, int count, TreePolicy& policy,
            std::vector<NodeCandidates>& distributions, std::vector<NodeId>& next);
  // Finds the top candidates of all rows of a pass at once, before the calls of guess for its rows.
  void prepare(const float* logits, int rows);
  // Whether a backend can find a task's candidates by itself, and how.
  bool by_backend(const DraftTask& task, TreeGrowthSampling& how) const;

 private:
  std::span<const Candidate> best(const DraftTask& task, NodeId node, uint64_t position, int place);
  std::span<const Candidate> drawn(const DraftTask& task, NodeId node, uint64_t position, const float* logits,
                                   int place);

  const uint32_t* allowed(const DraftTask& task, NodeId node);

  Backend& backend_;
  CandidateOptions options_;
  Token target_token(Token own) const { return map_.empty() ? own : map_[size_t(own)]; }

  int width_, pool_, vocab_, stride_;
  std::span<const Token> map_;
  std::vector<Candidate> candidates_;              // [rows, pool]
  std::vector<std::span<const Candidate>> found_;  // [rows] what guess_level() has found since prepare()
  std::vector<double> distribution_;               // [vocab]
  std::vector<uint32_t> allowed_;  // [vocab / 32, rounded up]: what a grammar allows, by the drafter's own tokens
};

}  // namespace sx
