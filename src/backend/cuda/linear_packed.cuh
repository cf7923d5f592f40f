// Products of one format of quantised weights. Each format is compiled in a file of its own, linear_q*.cu.
#pragma once
#include "backend/cuda/linear_packed_few.cuh"
#include "backend/cuda/linear_packed_sm90.cuh"

namespace sx::cuda {

extern int packed_try;

// The kernel for a number of rows and a shape; the bits are the same in all of them.
template <class Format>
void multiply_packed(const LinearTask& task, Way way, cudaStream_t stream) {
  constexpr int kNear = Format::kAhead, kFar = Format::kFarAhead;
  switch (way) {
    case Way::kStream: return launch_packed_rows<Format, 2, false>(task, stream);
    case Way::kParts4: return launch_packed_rows<Format, 1, false>(task, stream);
    case Way::kWhole2: return launch_packed_rows<Format, 1, true>(task, stream);
    case Way::kParts1: return launch_packed_rows<Format, 2, true>(task, stream);
    default: break;
  }
  if (task.rows > 16) return launch_packed_few<Format, 1, 4, kNear, 2>(task, stream);
  if (task.rows > 8) {
    if (packed_try == 0) return launch_packed_few<Format, 1, 2, kNear, 2>(task, stream);
    if (packed_try == 1) return launch_packed_few<Format, 2, 2, kNear, 2>(task, stream);
    if (packed_try == 2) return launch_packed_few<Format, 1, 2, kFar, 2>(task, stream);
    if (packed_try == 3) return launch_packed_few<Format, 2, 2, kNear, 2>(task, stream, true);
    return launch_packed_few<Format, 1, 2, kNear, 2>(task, stream, true);
  }
  if (packed_try == 0) return launch_packed_few<Format, 1, 1, kFar, 2>(task, stream);
  if (packed_try == 1) return launch_packed_few<Format, 1, 1, kNear, 3>(task, stream);
  if (packed_try == 2) return launch_packed_few<Format, 2, 1, kNear, 2>(task, stream);
  if (packed_try == 3) return launch_packed_few<Format, 2, 1, kNear, 2>(task, stream, true);
  if (packed_try == 4) return launch_packed_few<Format, 1, 1, kNear, 3>(task, stream, true);
  launch_packed_few<Format, 1, 1, kFar, 2>(task, stream, true);
}

}  // namespace sx::cuda
