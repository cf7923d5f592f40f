// Skinny GEMM with weights in Q5_1 and Q5_K.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<Q8Format<true, 32>>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
