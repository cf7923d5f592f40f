// A mixture's norm, router and choice of experts in one kernel, for a few rows on Hopper.
#pragma once
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "backend/cuda/linear/expert_lists.cuh"
#include "backend/cuda/linear/linear.h"

namespace sx::cuda {

struct RouterCall {
  RouteCall route;             // without logits: they never leave the kernel
  NormCall norm;               // out is not written
  const float *weight, *bias;  // [experts, width]; [experts] or null
};

void route_normed(const RouterCall& call, cudaStream_t stream);

}  // namespace sx::cuda
