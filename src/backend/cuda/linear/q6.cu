// Skinny GEMM with weights in Q6_K and Q3_K.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<Q8Format<false, 16>>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
