// Plain rounding to the nearest code, operation by operation what training/quantise.py simulates: weights that were
// trained under the simulation become exactly the values they were trained with. Otherwise the search of
// tensor/quantise_search.h is closer to the weights. quantise() of tensor/blocks.h rounds ties as GGUF tools do, which
// is neither.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace sx {

// F32, F16, BF16, Q8_0, Q4_0 and Q4_1.
bool can_quantise_nearest(DType type);
// `count` finite values, whole blocks.
void quantise_nearest(DType type, const float* values, int64_t count, void* out);

}  // namespace sx
