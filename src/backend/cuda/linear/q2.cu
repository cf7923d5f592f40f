// Skinny GEMM with weights in Q2_K.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<Q8Format<true, 16>>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
