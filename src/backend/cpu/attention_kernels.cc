#include "backend/cpu/attention_kernels.h"

#include "base/error.h"

namespace sx::cpu {

namespace generic {
const AttentionKernels* portable_attention(DType type);
}
#if defined(__aarch64__)
namespace neon {
const AttentionKernels* portable_attention(DType type);
}
namespace neon_i8mm {
extern const AttentionKernels kAttentionBf16, kAttentionQ8;
}
#elif defined(__x86_64__)
namespace avx2 {
const AttentionKernels* portable_attention(DType type);
}
namespace avx512 {
const AttentionKernels* portable_attention(DType type);
}
#endif

const AttentionKernels& attention_kernels(const KvLayout& layout, Isa isa) {
  const AttentionKernels* found = nullptr;
#if defined(__aarch64__)
  if (layout.matrix) return layout.type == DType::kBF16 ? neon_i8mm::kAttentionBf16 : neon_i8mm::kAttentionQ8;
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) found = neon::portable_attention(layout.type);
#elif defined(__x86_64__)
  if (isa == Isa::kAvx2) found = avx2::portable_attention(layout.type);
  if (isa == Isa::kAvx512) found = avx512::portable_attention(layout.type);
#endif
  if (isa == Isa::kGeneric) found = generic::portable_attention(layout.type);
  SX_ASSERT(found != nullptr);
  return *found;
}

}  // namespace sx::cpu
