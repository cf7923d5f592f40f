// Skinny GEMM with 16-bit float weights: which kernel serves a task.
#include "backend/cuda/linear/small_batch_mma.cuh"

namespace sx::cuda {
namespace {

// Rows of a length that is no multiple of 8 are not aligned: element by element, 8 tokens per block, slow.
template <Half kHalf>
void multiply_half(const LinearTask& task, Way way, cudaStream_t stream) {
  if (task.in % 8 != 0) return launch_few<HalfFormat<kHalf, true>, 1, 1, 1>(task, stream);
  switch (way) {
    case Way::kStream: return multiply_stream(task, kHalf, stream);
    default:
      if (way >= Way::kWhole2) return multiply_parts(task, kHalf, way, stream);
      return multiply_rows<HalfFormat<kHalf>>(task, way, stream);
  }
}

}  // namespace

void multiply_bf16(const LinearTask& task, Way way, cudaStream_t stream) {
  multiply_half<Half::kBF16>(task, way, stream);
}
void multiply_f16(const LinearTask& task, Way way, cudaStream_t stream) {
  multiply_half<Half::kF16>(task, way, stream);
}

}  // namespace sx::cuda
