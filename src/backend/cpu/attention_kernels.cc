#include "backend/cpu/attention_kernels.h"

#include "backend/cpu/kv_score_kernels.h"
#include "base/error.h"

namespace sx::cpu {

namespace generic {
const AttentionKernels* portable_attention(DType type);
const ScoreKernels* portable_scores(DType type);
const ScoreFolds* portable_folds();
}
#if defined(__aarch64__)
namespace neon {
const AttentionKernels* portable_attention(DType type);
const ScoreKernels* portable_scores(DType type);
const ScoreFolds* portable_folds();
}
namespace neon_i8mm {
extern const AttentionKernels kAttentionBf16, kAttentionQ8;
extern const ScoreKernels kScoreBf16, kScoreQ8;
void turn_cells_bf16(const std::byte* from, std::byte* to, int cells, const float* table, int half);
}
#elif defined(__x86_64__)
namespace avx2 {
const AttentionKernels* portable_attention(DType type);
const ScoreKernels* portable_scores(DType type);
const ScoreFolds* portable_folds();
}
namespace avx512 {
const AttentionKernels* portable_attention(DType type);
const ScoreKernels* portable_scores(DType type);
const ScoreFolds* portable_folds();
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

TurnCells turn_cells([[maybe_unused]] const KvLayout& layout) {
#if defined(__aarch64__)
  if (layout.matrix && layout.type == DType::kBF16 && layout.dim % 8 == 0) return neon_i8mm::turn_cells_bf16;
#endif
  return nullptr;
}

const ScoreKernels& score_kernels(const KvLayout& layout, Isa isa) {
  const ScoreKernels* found = nullptr;
#if defined(__aarch64__)
  if (layout.matrix) return layout.type == DType::kBF16 ? neon_i8mm::kScoreBf16 : neon_i8mm::kScoreQ8;
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) found = neon::portable_scores(layout.type);
#elif defined(__x86_64__)
  if (isa == Isa::kAvx2) found = avx2::portable_scores(layout.type);
  if (isa == Isa::kAvx512) found = avx512::portable_scores(layout.type);
#endif
  if (isa == Isa::kGeneric) found = generic::portable_scores(layout.type);
  SX_ASSERT(found != nullptr);
  return *found;
}

const ScoreFolds& score_folds(Isa isa) {
  const ScoreFolds* found = nullptr;
#if defined(__aarch64__)
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) found = neon::portable_folds();
#elif defined(__x86_64__)
  if (isa == Isa::kAvx2) found = avx2::portable_folds();
  if (isa == Isa::kAvx512) found = avx512::portable_folds();
#endif
  if (isa == Isa::kGeneric) found = generic::portable_folds();
  SX_ASSERT(found != nullptr);
  return *found;
}

}  // namespace sx::cpu
