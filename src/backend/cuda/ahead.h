// Weights on their way before their product is: kernels that leave memory idle have L2 fetch what the next product begins with.
#pragma once
#include <cuda.h>

#include "backend/cuda/views.h"

namespace sx::cuda {

// Weights that the next product will begin with.
struct Ahead {
  const void* data = nullptr;  // 16-bit floats, [out, in]; null: not known
  Half half = Half::kBF16;
  int in = 0, out = 0;
};

// What to fetch of them: of `tiles` tiles of kAheadOuts outputs, `columns` pieces of 64 k each: the first of each of `spread` parts,
// `apart` pieces from part to part, then the second of each part, and so on.
inline constexpr int kAheadOuts = 128;
struct AheadFetch {
  CUtensorMap map{};
  int tiles = 0, columns = 0, spread = 1, apart = 0;
};
// For a product of `rows` rows; nothing where devices cannot do it. linear_rows.cu
AheadFetch ahead_fetch(const Ahead& ahead, int rows);

}  // namespace sx::cuda
