// Skinny GEMM with weights in Q8_0 and Q5_0.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<Q8Format<false, 32>>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
