// The activation of mixtures, for one gate and its factor: see ExpertsArgs.
#pragma once
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {

__device__ __forceinline__ float activate_expert(float gate, float up, float limit, float alpha) {
  if (limit == 0) return silu_times(gate, up);
  gate = gate > limit ? limit : gate;  // a NaN stays one
  up = up < -limit ? -limit : up;
  up = up > limit ? limit : up;
  const float silu = __fdiv_rn(gate, __fadd_rn(1.0f, expf(__fmul_rn(-alpha, gate))));
  return __fmul_rn(silu, __fadd_rn(up, 1.0f));
}

}  // namespace sx::cuda
