// Products of one format of quantised weights. Each format is compiled in a file of its own, linear_q*.cu.
#pragma once
#include <specextend/error.h>

#include "backend/cuda/linear_few.cuh"
#include "backend/cuda/linear_packed_sm90.cuh"

namespace sx::cuda {

template <class Format>
void multiply_packed(const LinearTask& task, Way way, cudaStream_t stream) {
  switch (way) {
    case Way::kStream: return launch_packed_stream<Format>(task, stream);
    case Way::kParts1: return launch_packed_parts<Format, 1>(task, false, stream);
    case Way::kParts2: return launch_packed_parts<Format, 2>(task, false, stream);
    case Way::kParts4: return launch_packed_parts<Format, 4>(task, false, stream);
    case Way::kWhole2: return launch_packed_parts<Format, 2>(task, true, stream);
    default: return multiply_few<Format>(task, stream);
  }
}

}  // namespace sx::cuda
