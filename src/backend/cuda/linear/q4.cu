// Skinny GEMM with weights in Q4_0.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<Q4Format<false>>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
