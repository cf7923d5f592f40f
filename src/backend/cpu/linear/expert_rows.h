// What a mixture does with one row at a time: the router's choice, the gated unit, and the weighted sum. Plain loops in
// one order, so that a row has the same bits in any batch.
#pragma once
#include "backend/ops.h"

namespace sx::cpu {

// choice, weight: [used], best first. logits: [experts].
void route_row(const ExpertsArgs& args, const float* logits, int32_t* choice, float* weight);
// out: [ffn]; gate_up: [2 ffn].
void expert_glu(const ExpertsArgs& args, const float* gate_up, int ffn, float* out);
// out (+)= sum of weight[j] * y[place[j]], y: [.., width].
void combine_row(const ExpertsArgs& args, const float* y, const int32_t* place, const float* weight, int width,
                 float* out);

}  // namespace sx::cpu
