// Picks a token from a row of logits: greedy or an exact sample by Gumbel-max (see Sampling in ops.h). One row is one
// thread's work, so nothing depends on the number of threads.
#pragma once
#include <vector>

#include "backend/ops.h"
#include "base/thread_pool.h"

namespace sx::cpu {

class ChooseScratch {
 public:
  void reserve(int threads, int vocab);

 private:
  friend void choose(const ChooseArgs& args, ThreadPool& pool, ChooseScratch& scratch);
  struct PerThread {
    std::vector<float> adjusted;   // [vocab] logits after bias and penalties
    std::vector<Token> candidates; // [vocab]
  };
  std::vector<PerThread> threads_;
};

void choose(const ChooseArgs& args, ThreadPool& pool, ChooseScratch& scratch);

}  // namespace sx::cpu
