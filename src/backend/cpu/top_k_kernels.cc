#include "backend/cpu/top_k_kernels.h"

#include "base/error.h"

namespace sx::cpu {

namespace generic {
extern const RowKernels kRowKernels;
}
#if defined(__aarch64__)
namespace neon {
extern const RowKernels kRowKernels;
}
#elif defined(__x86_64__)
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}
#endif

const RowKernels& row_kernels(Isa isa) {
#if defined(__aarch64__)
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) return neon::kRowKernels;
#elif defined(__x86_64__)
  if (isa == Isa::kAvx2) return avx2::kRowKernels;
  if (isa == Isa::kAvx512) return avx512::kRowKernels;
#endif
  SX_ASSERT(isa == Isa::kGeneric);
  return generic::kRowKernels;
}

}  // namespace sx::cpu
