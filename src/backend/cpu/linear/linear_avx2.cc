// Linear layers for x86-64 with AVX2, FMA and F16C: the primitives of linear_pairs.inl on vectors of 32 bytes.
#define SX_ISA_NAMESPACE avx2
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "backend/cpu/simd.h"

namespace sx::cpu::avx2 {
namespace {

constexpr int kGroup = 8;
constexpr int kMostRows = 4;  // of a tile of two groups: what 16 registers hold
constexpr bool kAlwaysWide = false;
using Ints = __m256i;
using Signs = __m256i;
SX_INLINE Ints load_ints(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
SX_INLINE void store_ints(uint8_t* p, Ints x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
SX_INLINE Ints broadcast(const void* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return _mm256_set1_epi32(four);
}
SX_INLINE Ints pair_sums(Ints u, Ints s) { return _mm256_maddubs_epi16(u, s); }
SX_INLINE Ints add_16(Ints a, Ints b) { return _mm256_add_epi16(a, b); }
SX_INLINE Ints add_32(Ints a, Ints b) { return _mm256_add_epi32(a, b); }
SX_INLINE Ints sum_pairs(Ints x, int factor) {
  return _mm256_madd_epi16(x, _mm256_set1_epi16(static_cast<short>(factor)));
}
SX_INLINE Vec to_float(Ints x) { return _mm256_cvtepi32_ps(x); }
SX_INLINE Ints and_bytes(Ints a, Ints b) { return _mm256_and_si256(a, b); }
SX_INLINE Ints or_bits(Ints a, Ints b) { return _mm256_or_si256(a, b); }
template <int n>
SX_INLINE Ints shift_right(Ints x) {
  return _mm256_srli_epi16(x, n);
}
SX_INLINE Ints bytes_of(int value) { return _mm256_set1_epi8(static_cast<char>(value)); }
SX_INLINE Ints size_of(Ints w) { return _mm256_abs_epi8(w); }
SX_INLINE Signs signs_of(Ints w) { return w; }
SX_INLINE Ints with_signs(Ints x, Signs w) { return _mm256_sign_epi8(x, w); }
// g++ would put all multiplications of a block first and their additions last, and spill; x must be summed by here.
SX_INLINE void unsettled(Ints& x) { __asm__("" : "+x"(x)); }

}  // namespace
}  // namespace sx::cpu::avx2

#include "backend/cpu/linear/linear_pairs.inl"

namespace sx::cpu {
namespace avx2 {
namespace {
constexpr LinearKernels kTable = {"avx2", layout_of, pack, 1, act_bytes, quantise, panel_bytes, run};
}
}  // namespace avx2
const LinearKernels* linear_kernels_avx2() { return &avx2::kTable; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_avx2() { return nullptr; }
}  // namespace sx::cpu
#endif
