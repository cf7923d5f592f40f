// The feed-forward of a mixture as its definition reads (ExpertsArgs), in double.
#pragma once
#include "backend/backend.h"

namespace sx {

// gate_up, down: the weights as f32, [experts, out, in].
void reference_experts(const ExpertsArgs& args, const float* gate_up, const float* down);

}  // namespace sx
