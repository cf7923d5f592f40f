// The row kernels for any machine; also what the other sets are tested against.
#define SX_ISA_NAMESPACE generic
#define SX_SIMD_GENERIC 1
#include "backend/cpu/top_k_portable.inl"
