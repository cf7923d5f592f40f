// Looking through rows of logits: the largest of each group of tokens first, and with these the largest token, or the k
// largest, without sorting a vocabulary; and top_k(), the likeliest tokens of each row. One row is one thread's work,
// and nothing depends on the number of threads or rows.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/sampling/top_k_kernels.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace sx::cpu {

// Memory of one thread, for rows of up to `vocab` logits. Token t belongs to group t % kGroups of slab t / kSlab.
struct RowScratch {
  const RowKernels* kernels;
  std::vector<float> copy;    // [vocab] a row that had to be changed
  std::vector<Token> tokens;  // [vocab] those that were picked
  std::vector<float> maxima;  // [slabs, kGroups] the largest logit of each group
  std::vector<float> ranked;  // [slabs, kGroups]
};

class RowScratches {
 public:
  explicit RowScratches(Isa isa) : kernels_(&row_kernels(isa)) {}
  void reserve(int threads, int vocab);  // grows only
  RowScratch& operator[](int thread) { return threads_[static_cast<size_t>(thread)]; }

 private:
  const RowKernels* kernels_;
  std::vector<RowScratch> threads_;
};

// Calls body(row, scratch) for rows 0 .. rows - 1, shared over the pool.
template <class Body>
void share_rows(int rows, ThreadPool& pool, RowScratches& scratch, Body body) {
  if (rows == 1) return void(body(0, scratch[0]));
  pool.run([&](int thread) {
    for (int r = thread; r < rows; r += pool.size()) body(r, scratch[thread]);
  });
}

// Fills scratch.maxima and returns the row's largest. NaN is below everything; -infinity: no logit is above it.
float find_maxima(const float* row, int vocab, RowScratch& scratch);
// The same with everything that is not finite replaced by -infinity, in scratch.copy (where the row may lie already).
float find_maxima_of_finite(const float* row, int vocab, RowScratch& scratch);

// The ones below need the maxima of the same row.
// The first token with this logit, which must be the row's largest; 0 if that is -infinity.
Token first_with(float largest, const float* row, int vocab, const RowScratch& scratch);
// Puts the tokens with logits >= least in scratch.tokens, in no useful order; returns their number.
size_t pick_above(double least, const float* row, int vocab, RowScratch& scratch);
// Puts the k best tokens in scratch.tokens, in no useful order; fewer if fewer have logits above -infinity. k > 0.
size_t pick_best(size_t k, const float* row, int vocab, RowScratch& scratch);
// Best first, ties to the smaller id.
void sort_tokens(std::span<Token> tokens, const float* row);

// Logits that are not finite come last, with a log-probability of -infinity.
void top_k(const TopKArgs& args, ThreadPool& pool, RowScratches& scratch);

}  // namespace sx::cpu
