// Which two elements of a head rotate together.
#pragma once

namespace sx {
enum class RopeStyle {
  kInterleaved,
  kHalves
};  // pairs (2i, 2i+1) as in GGUF llama files | (i, i + d/2) as in HF weights
}  // namespace sx
