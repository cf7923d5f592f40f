// A token id: an index into the vocabulary.
#pragma once
#include <cstdint>

namespace sx {
using Token = int32_t;
inline constexpr Token kNoToken = -1;
}  // namespace sx
