// Copies a cell of every layer from `src` to `dst` and rotates its keys by `delta` positions (0: bits are copied).
#pragma once
#include <cstdint>

namespace sx {

struct KvMove {
  int32_t src, dst, delta;
};

}  // namespace sx
