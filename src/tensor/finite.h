// Whether numbers are numbers: weights in any type, and rows of logits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace sx {

// The first of `count` elements (whole blocks) that is NaN or infinite; of quantised types the first of a block whose
// scale is. -1: none, and for types that have no such values.
int64_t first_not_finite(DType type, const void* data, int64_t count);

// Whether a row of logits holds a NaN or +infinity, from which nothing can be chosen. -infinity means "never" and is no
// fault.
bool is_broken_row(const float* logits, size_t count);

}  // namespace sx
