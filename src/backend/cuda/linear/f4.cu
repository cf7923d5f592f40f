// Skinny GEMM with weights in MXFP4.
#include "backend/cuda/linear/packed.cuh"

namespace sx::cuda {
template void multiply_packed<F4Format>(const LinearTask&, Way, cudaStream_t);
}  // namespace sx::cuda
