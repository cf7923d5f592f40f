// The row kernels on Arm, 4 lanes.
#define SX_ISA_NAMESPACE neon
#include "backend/cpu/top_k_portable.inl"
