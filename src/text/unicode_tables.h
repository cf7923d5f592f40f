// Layout of the generated Unicode tables (tools/make_unicode_tables.py). Flat arrays of integers, sorted by the first
// of each group.
#pragma once
#include <cstdint>
#include <span>

namespace sx {

// Canonical decompositions: code, first, second (0: none; negative: decomposes into -second but never composes back).
extern const std::span<const int32_t> kDecompositions;
// Combining classes other than 0: first code, last code, class.
extern const std::span<const int32_t> kCombiningClasses;
// Lower case: first code, last code, step between codes, what to add to the code.
extern const std::span<const int32_t> kLowerCase;

}  // namespace sx
