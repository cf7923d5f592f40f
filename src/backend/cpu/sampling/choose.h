// Picks a token from a row of logits, greedy or as an exact sample by Gumbel-max (see Sampling in ops.h), and gives the
// distribution that it picks from. One row is one thread's work, so nothing depends on the number of threads; and only
// exact comparisons and double precision of one order decide, so nothing depends on the instruction set.
#pragma once
#include "backend/cpu/sampling/top_k.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace sx::cpu {

void choose(const ChooseArgs& args, ThreadPool& pool, RowScratches& scratch);
void probabilities(const ProbabilitiesArgs& args, RowScratch& scratch);

}  // namespace sx::cpu
