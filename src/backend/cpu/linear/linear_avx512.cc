// Linear layers for x86-64 with AVX-512 (F, BW, DQ, VL) but no VNNI: the primitives of linear_pairs.inl on vectors of
// 64 bytes.
#define SX_ISA_NAMESPACE avx512
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#include "backend/cpu/simd.h"

namespace sx::cpu::avx512 {
namespace {

constexpr int kGroup = 16;
constexpr int kMostRows = 4;  // of a tile of two groups: what 32 registers hold
constexpr bool kAlwaysWide = false;
using Ints = __m512i;
using Signs = __mmask64;
SX_INLINE Ints load_ints(const uint8_t* p) { return _mm512_loadu_si512(p); }
SX_INLINE void store_ints(uint8_t* p, Ints x) { _mm512_storeu_si512(p, x); }
SX_INLINE Ints broadcast(const void* p) {
  int32_t four;
  memcpy(&four, p, 4);
  return _mm512_set1_epi32(four);
}
SX_INLINE Ints pair_sums(Ints u, Ints s) { return _mm512_maddubs_epi16(u, s); }
SX_INLINE Ints add_16(Ints a, Ints b) { return _mm512_add_epi16(a, b); }
SX_INLINE Ints add_32(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
SX_INLINE Ints sum_pairs(Ints x, int factor) {
  return _mm512_madd_epi16(x, _mm512_set1_epi16(static_cast<short>(factor)));
}
SX_INLINE Vec to_float(Ints x) {
  return _mm512_maskz_cvtepi32_ps(0xffff, x);
}  // the plain form trips g++ 12's warnings
SX_INLINE Ints and_bytes(Ints a, Ints b) { return _mm512_and_si512(a, b); }
SX_INLINE Ints or_bits(Ints a, Ints b) { return _mm512_or_si512(a, b); }
template <int n>
SX_INLINE Ints shift_right(Ints x) {
  return _mm512_srli_epi16(x, n);
}
SX_INLINE Ints bytes_of(int value) { return _mm512_set1_epi8(static_cast<char>(value)); }
SX_INLINE Ints size_of(Ints w) { return _mm512_abs_epi8(w); }
SX_INLINE Signs signs_of(Ints w) { return _mm512_movepi8_mask(w); }
SX_INLINE Ints with_signs(Ints x, Signs w) { return _mm512_mask_sub_epi8(x, w, _mm512_setzero_si512(), x); }
// See linear_avx2.cc.
SX_INLINE void unsettled(Ints& x) { __asm__("" : "+v"(x)); }

}  // namespace
}  // namespace sx::cpu::avx512

#include "backend/cpu/linear/linear_pairs.inl"

namespace sx::cpu {
namespace avx512 {
namespace {
constexpr LinearKernels kTable = {"avx512", layout_of, pack, 1, act_bytes, quantise, panel_bytes, run};
}
}  // namespace avx512
const LinearKernels* linear_kernels_avx512() { return &avx512::kTable; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_avx512() { return nullptr; }
}  // namespace sx::cpu
#endif
