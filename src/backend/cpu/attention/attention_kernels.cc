#include "backend/cpu/attention/attention_kernels.h"

#include "backend/cpu/kv/records.h"
#include "backend/cpu/kv/score_kernels.h"
#include "base/error.h"

namespace sx::cpu {
namespace {

// What every instruction set has, for stores of any layout.
struct Portable {
  const AttentionKernels* (*attention)(DType keys, DType values);
  const ScoreKernels* (*scores)(DType type);
  const ScoreFolds* (*folds)();
  const UnpackKernels* (*unpack)();  // null: none of its own
};

}  // namespace

#define SX_DECLARE_PORTABLE(set)                                                                         \
  namespace set {                                                                                        \
  const AttentionKernels* portable_attention(DType keys, DType values);                                  \
  const ScoreKernels* portable_scores(DType type);                                                       \
  const ScoreFolds* portable_folds();                                                                    \
  const UnpackKernels* portable_unpack();                                                                \
  constexpr Portable kPortable = {portable_attention, portable_scores, portable_folds, portable_unpack}; \
  }
#if defined(SX_HAS_GENERIC)
SX_DECLARE_PORTABLE(generic)
#endif
#if defined(SX_HAS_NEON_DOT) || defined(SX_HAS_NEON_I8MM)
SX_DECLARE_PORTABLE(neon)
#endif
#if defined(SX_HAS_AVX2)
SX_DECLARE_PORTABLE(avx2)
#endif
#if defined(SX_HAS_AVX512)
SX_DECLARE_PORTABLE(avx512)
#endif
#undef SX_DECLARE_PORTABLE
#if defined(SX_HAS_NEON_I8MM)
namespace neon_i8mm {
extern const AttentionKernels kAttentionBf16, kAttentionQ8;
extern const ScoreKernels kScoreBf16, kScoreQ8;
void turn_cells_bf16(const std::byte* from, std::byte* to, int cells, const float* table, int half);
}  // namespace neon_i8mm
#endif

#if defined(SX_HAS_AMX)
namespace amx {
extern const AttentionKernels kAttentionBf16;
}
#endif

namespace {

const Portable& portable(Isa isa) {
#if defined(SX_HAS_GENERIC)
  if (isa == Isa::kGeneric) return generic::kPortable;
#endif
#if defined(SX_HAS_NEON_DOT) || defined(SX_HAS_NEON_I8MM)
  if (isa == Isa::kNeonI8mm || isa == Isa::kNeonDot) return neon::kPortable;
#endif
#if defined(SX_HAS_AVX2)
  if (isa == Isa::kAvx2) return avx2::kPortable;
#endif
#if defined(SX_HAS_AVX512)
  if (isa == Isa::kAvx512 || isa == Isa::kVnni || isa == Isa::kAmx) return avx512::kPortable;
#endif
  fail("attention: this program has no kernels for instruction set '{}'", isa_name(isa));
}

}  // namespace

const AttentionKernels& attention_kernels(const KvLayout& keys, const KvLayout& values, Isa isa) {
  SX_ASSERT(keys.matrix == values.matrix && (!keys.matrix || keys.type == values.type));
#if defined(SX_HAS_NEON_I8MM)
  if (keys.matrix) return keys.type == DType::kBF16 ? neon_i8mm::kAttentionBf16 : neon_i8mm::kAttentionQ8;
#endif
#if defined(SX_HAS_AMX)
  if (isa == Isa::kAmx && keys.type == DType::kBF16 && values.type == DType::kBF16) return amx::kAttentionBf16;
#endif
  const AttentionKernels* found = portable(isa).attention(keys.type, values.type);
  SX_ASSERT(found != nullptr);
  return *found;
}

TurnCells turn_cells([[maybe_unused]] const KvLayout& layout) {
#if defined(SX_HAS_NEON_I8MM)
  if (layout.matrix && layout.type == DType::kBF16 && layout.dim % 8 == 0) return neon_i8mm::turn_cells_bf16;
#endif
  return nullptr;
}

const ScoreKernels& score_kernels(const KvLayout& layout, Isa isa) {
#if defined(SX_HAS_NEON_I8MM)
  if (layout.matrix) return layout.type == DType::kBF16 ? neon_i8mm::kScoreBf16 : neon_i8mm::kScoreQ8;
#endif
  const ScoreKernels* found = portable(isa).scores(layout.type);
  SX_ASSERT(found != nullptr);
  return *found;
}

const ScoreFolds& score_folds(Isa isa) { return *portable(isa).folds(); }

const UnpackKernels& unpack_kernels(Isa isa) {
  static constexpr UnpackKernels kPlain = {unpack_keys, unpack_values};
  const UnpackKernels* own = portable(isa).unpack();
  return own ? *own : kPlain;
}

}  // namespace sx::cpu
