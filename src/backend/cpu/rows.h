// The ops that work on one row at a time: embedding, norms, RoPE table, activations, soft cap. They are plain loops
// with a fixed number of partial sums, so every row has the same bits in any batch; the compiler vectorises them for
// the baseline.
#pragma once
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace sx::cpu {

void embed(const EmbedArgs& args, ThreadPool& pool);
void norm(const NormArgs& args, ThreadPool& pool);
void rope_table(const RopeTableArgs& args, ThreadPool& pool);
void glu(const GluArgs& args, ThreadPool& pool);
void soft_cap(const SoftCapArgs& args, ThreadPool& pool);

}  // namespace sx::cpu
