// Skinny GEMM with weights in Q4_1 and Q4_K.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<Q4Format<true>>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
