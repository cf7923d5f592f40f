// Queries of a draft head into keys and values that a layer of the target keeps anyway: LongSpec's second attention and
// every attention of a Gemma 4 assistant. The head has no cells for it. What it reads are cells of committed tokens,
// and all rows of a draft see the same ones, so that a row's result does not depend on the tree it stands in.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/heads/head_file.h"
#include "model/model.h"
#include "model/rope.h"

namespace sx {

// A part of the head that attends to a layer of the target.
struct TargetAttentionOptions {
  std::string
      name;  // of its tensors: NAME.q_proj.weight, .q_proj.bias, .q_norm.weight; those behind the first are optional
  int layer = 0;       // of the target
  int heads = 0;       // of the queries
  float norm_eps = 0;  // of q_norm
  float scale = 0;     // of q k before the softmax
  int window = 0;      // the last so many of the cells that are shown are seen; 0: all
  int max_rows = 0;    // of one step
};

class TargetAttention {
 public:
  // `target` must live as long as this.
  TargetAttention(const HeadFile& file, const Model& target, Backend& backend, const TargetAttentionOptions& options);

  int layer() const { return options_.layer; }
  int width() const { return shape_.q_width(); }  // of a row of queries, and of what attention gives
  int stride() const { return shape_.qkv_width(); }
  size_t bytes() const { return query_->bytes(); }

  // Inside a step: queries of its rows, from x [rows, in], rotated as the target's keys are, in `queries()` with
  // stride(). Nothing is read from `scratch`; zeros are written into its layer, in the places of the rows.
  void project(const float* x, const StepInputs& step, KvStore& scratch, int scratch_layer);
  const float* queries() const { return qkv_; }
  // out [rows, width()] of queries with this stride, over the cells that `seqs` show (SharedSight).
  void attend(float* out, const float* queries, int stride, const KvStore& target, std::span<const SeqRows> seqs) const;

 private:
  const Model& target_;
  Backend& backend_;
  TargetAttentionOptions options_;
  AttentionShape shape_;  // the target's cells, the head's queries
  RopeFrequencies rope_;
  std::unique_ptr<Matrix> query_;
  const float *bias_ = nullptr, *norm_ = nullptr;  // or null
  float* table_ = nullptr;                         // [rows, dims]
  float* qkv_ = nullptr;                           // [rows, stride()]; keys and values stay 0
};

// The step of rows that all see the same cells of one sequence, the first `seen`.
class SharedSight {
 public:
  explicit SharedSight(int max_rows);
  // Valid until the next call. The store must have room for as many cells as rows behind those that are seen.
  StepInputs step(int rows, int slot, int seen);

 private:
  static constexpr int kWords = 8;  // of ancestor bits
  std::vector<uint64_t> bits_;      // [rows][kWords]: those of node 0
  std::vector<Token> tokens_;       // [rows], not read
  std::vector<int32_t> positions_, outputs_;
  std::vector<SeqRows> seqs_;
};

}  // namespace sx
