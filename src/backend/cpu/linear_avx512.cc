// Linear layers for avx512: none yet on this architecture.
#include "backend/cpu/linear_kernels.h"

namespace sx::cpu {
const LinearKernels* linear_kernels_avx512() { return nullptr; }
}  // namespace sx::cpu
