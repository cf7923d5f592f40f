// The ops that work on one row at a time: embedding, norms, RoPE table, activations, soft cap. Their loops
// (rows_kernels.h) have a fixed number of partial sums, so every row has the same bits in any batch and on any
// instruction set.
#pragma once
#include "backend/cpu/isa.h"
#include "backend/ops.h"
#include "base/thread_pool.h"

namespace sx::cpu {

void embed(const EmbedArgs& args, ThreadPool& pool);
void norm(const NormArgs& args, Isa isa, ThreadPool& pool);
void rope_table(const RopeTableArgs& args, ThreadPool& pool);
void glu(const GluArgs& args, Isa isa, ThreadPool& pool);
void soft_cap(const SoftCapArgs& args, Isa isa, ThreadPool& pool);

}  // namespace sx::cpu
