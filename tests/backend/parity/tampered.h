// Backends with a known mistake, made of the reference. They show that the comparisons can fail: each mistake is small
// and of the kind that real kernels make (a position too many, a forgotten term, another order of summation).
#pragma once
#include <memory>

#include "backend/backend.h"
#include "table.h"

namespace sx::parity {

// One op is slightly wrong.
std::unique_ptr<Backend> make_wrong_backend(Op op);
// One element of each op's output has another last bit when the call has more than one row.
std::unique_ptr<Backend> make_variant_backend();

}  // namespace sx::parity
