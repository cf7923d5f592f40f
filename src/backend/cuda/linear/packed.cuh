// Skinny GEMM with one format of quantised weights. Each format is compiled in a file of its own, q*.cu.
#pragma once
#include "backend/cuda/linear/skinny_packed.cuh"
#include "backend/cuda/linear/skinny_packed_sm90.cuh"

namespace sx::cuda {

// The kernel for a number of rows and a shape; the bits are the same in all of them.
template <class Format>
void multiply_packed(const LinearTask& task, Way way, cudaStream_t stream) {
  constexpr int kNear = Format::kAhead, kFar = Format::kFarAhead;
  const int tiles = (task.out + kTileOut - 1) / kTileOut;
  if (way == Way::kParts4) return launch_packed_rows<Format, 2, true>(task, stream);
  if (way == Way::kStream) {
    if (task.rows > 32) return launch_packed_rows<Format, 2, false>(task, stream);
    return launch_packed_rows<Format, 1, false>(task, stream);
  }
  if (task.rows > 8) {
    if (tiles > 2 * kDevice) return launch_packed_few<Format, 2, 2, kNear, 2, 2>(task, stream);
    return launch_packed_few<Format, 1, 2, kNear, 2, 2>(task, stream);
  }
  if (tiles <= 2 * kDevice)
    return launch_packed_few<Format, 1, 1, kFar, 2, 4>(task, stream);  // all at once, as here below
  if (tiles <= 3 * kDevice) return launch_packed_few<Format, 1, 1, kNear, 3, 2>(task, stream);
  launch_packed_few<Format, 2, 1, kNear, 2, 2>(task, stream);
}

}  // namespace sx::cuda
