#include "backend/cpu/sampling/top_k_kernels.h"

#include "base/error.h"

namespace sx::cpu {

namespace generic {
extern const RowKernels kRowKernels;
}
namespace neon {
extern const RowKernels kRowKernels;
}
namespace avx2 {
extern const RowKernels kRowKernels;
}
namespace avx512 {
extern const RowKernels kRowKernels;
}

const RowKernels& row_kernels(Isa isa) {
#if defined(SX_HAS_GENERIC)
  if (isa == Isa::kGeneric) return generic::kRowKernels;
#endif
#if defined(SX_HAS_NEON_DOT) || defined(SX_HAS_NEON_I8MM)
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) return neon::kRowKernels;
#endif
#if defined(SX_HAS_AVX2)
  if (isa == Isa::kAvx2) return avx2::kRowKernels;
#endif
#if defined(SX_HAS_AVX512)
  if (isa == Isa::kAvx512 || isa == Isa::kVnni || isa == Isa::kAmx) return avx512::kRowKernels;
#endif
  fail("this program has no row kernels for instruction set '{}'", isa_name(isa));
}

}  // namespace sx::cpu
