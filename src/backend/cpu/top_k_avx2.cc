// The row kernels on x86-64 with AVX2 and FMA, 8 lanes.
#define SX_ISA_NAMESPACE avx2
#include "backend/cpu/top_k_portable.inl"
