// The row kernels on x86-64 with AVX-512, 16 lanes.
#define SX_ISA_NAMESPACE avx512
#include "backend/cpu/top_k_portable.inl"
