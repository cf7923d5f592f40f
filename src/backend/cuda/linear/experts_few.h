// The experts of a few rows in two kernels: what a mixture decodes and verifies short drafts with. The rows share no
// lists of who goes where; where they share an expert, its weights come from memory once and from L2 then.
#pragma once
#include "backend/cuda/linear/experts.h"

namespace sx::cuda {

inline constexpr int kFewExpertRows = 4;  // rows as launched

struct FewExpertsCall {
  const CudaExperts *gate_up, *down;
  const ExpertsArgs& args;
  const int32_t* choice;  // [rows, used] experts, or -1 where the row is padding
  const float* weight;    // [rows, used]
  const uint16_t* x16;    // [rows, width]
  uint16_t* inner16;      // [rows, used, ffn]: activation(gate_up(x))
};
// Whether they can: quantised experts of few rows, with all columns here and tokens that fit into shared memory.
bool few_experts_serve(const CudaExperts& gate_up, const CudaExperts& down, const ExpertsArgs& args);
void few_experts(const FewExpertsCall& call, cudaStream_t stream);

}  // namespace sx::cuda
