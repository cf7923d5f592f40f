// Floats to blocks with the least squared error that a search over scales finds: for files, where time is no matter and
// every bit counts. quantise() of blocks.h is the fast one that takes scales from extreme values.
#pragma once
#include <cstdint>

#include "tensor/dtype.h"

namespace sx {

// F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, MXFP4 and IQ4_NL.
bool can_quantise_search(DType type);
// `count` finite values, whole blocks. Never a larger squared error per block than quantise(); blocks of zeros become
// bytes of zeros. Deterministic.
void quantise_search(DType type, const float* values, int64_t count, void* out);

}  // namespace sx
