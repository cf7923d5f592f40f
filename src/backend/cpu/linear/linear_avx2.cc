// Linear layers for x86-64 with AVX2, FMA and F16C (layout: linear_lanes.inl; its integer sums are made here). AVX2
// multiplies unsigned by signed bytes and adds neighbouring pairs to 16 bits with saturation (maddubs). Nothing below
// can saturate or wrap, because a quantised activation x is at most 127 in size (-128 never occurs):
//   nibbles         0 <= w <= 15:    the sum of a pair is at most 2 * 15 * 127 = 3,810; the 8 pairs that a 16-bit lane sums
//                                    over a block make 30,480 < 32,768, so widening to 32 bits waits for the end of the block
//   signed nibbles  as above with w + 8, and 16 times the sum; 16 * 8 * (sum of x) is paid back in 32 bits
//   bytes           -128 <= w <= 127: |w| * sign(w) x, where |-128| is 128 as an unsigned byte: a pair is at most
//                                    2 * 128 * 127 = 32,512 < 32,768; widened at once
// A block's sum in 32 bits is at most 16 * 32 * 15 * 127 + 128 * 32 * 127. So each is the exact integer.
#define SX_ISA_NAMESPACE avx2
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "backend/cpu/simd.h"

namespace sx::cpu::avx2 {
namespace {

constexpr int kGroup = 8;
constexpr bool kAlwaysWide = false;
using IntVec = __m256i;
struct ActRegs {
  const int8_t* q;
};  // a broadcast from memory costs no arithmetic unit
SX_INLINE Vec to_float(IntVec x) { return _mm256_cvtepi32_ps(x); }
SX_INLINE ActRegs load_act(const int8_t* p) { return {p}; }
SX_INLINE __m256i load_bytes(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
// x[4j..4j+3] for every output.
SX_INLINE __m256i quad(const ActRegs& x, int j) {
  int32_t four;
  memcpy(&four, x.q + 4 * j, 4);
  return _mm256_set1_epi32(four);
}
// g++ would put all multiplications of a block first and their additions last, and spill; x must be summed by here.
SX_INLINE void summed(__m256i& x) { __asm__("" : "+x"(x)); }

}  // namespace
}  // namespace sx::cpu::avx2

#define SX_OWN_DOTS 1
#include "backend/cpu/linear/linear_lanes.inl"

namespace sx::cpu {
namespace avx2 {
namespace {

// Nibbles, stored plainly or (signed) as two's complement: flipping bit 3 adds 8.
template <class F, int R>
SX_INLINE void nibble_dots(const uint8_t* p, const ActRegs* x, IntVec (*s)[R]) {
  static_assert(F::kHalves == 1);
  constexpr bool kSigned = F::kQuant == Quant::kSignedNibble;
  const __m256i mask = _mm256_set1_epi8(15);
  __m256i sum[R];  // 16 bits
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m256i both = load_bytes(p + j * kGroup * 4);
    if constexpr (kSigned) both = _mm256_xor_si256(both, _mm256_set1_epi8(static_cast<char>(0x88)));
    const __m256i low = _mm256_and_si256(both, mask), high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i a = _mm256_maddubs_epi16(low, quad(x[r], j)), b = _mm256_maddubs_epi16(high, quad(x[r], j + 4));
      sum[r] = j == 0 ? _mm256_add_epi16(a, b) : _mm256_add_epi16(_mm256_add_epi16(sum[r], a), b);
      summed(sum[r]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    s[0][r] = _mm256_madd_epi16(sum[r], _mm256_set1_epi16(kSigned ? 16 : 1));
    if constexpr (kSigned) s[0][r] = _mm256_add_epi32(s[0][r], _mm256_set1_epi32(act_lift(x[r].q, 0)));
  }
}

template <class F, int R>
SX_INLINE void byte_dots(const uint8_t* p, const ActRegs* x, IntVec (*s)[R]) {
  const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int j = 0; j < 8; ++j) {
    const int h = F::kHalves == 1 ? 0 : j / 4;
    const __m256i w = load_bytes(p + j * kGroup * 4), size = _mm256_abs_epi8(w);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(quad(x[r], j), w));
      const __m256i wide = _mm256_madd_epi16(pairs, ones);
      s[h][r] = j % (8 / F::kHalves) == 0 ? wide : _mm256_add_epi32(s[h][r], wide);
      summed(s[h][r]);
    }
  }
}

template <class F, int R>
SX_INLINE void lanes_dots(const uint8_t* quants, int v, const ActRegs* x, IntVec (*s)[R]) {
  const uint8_t* p = quants + v * kLanes * 4;
  if constexpr (F::kQuant == Quant::kByte) byte_dots<F, R>(p, x, s);
  else nibble_dots<F, R>(p, x, s);
}

constexpr LinearKernels kTable = {"avx2",   layout, pack, 1, lanes_act_bytes, lanes_quantise, lanes_panel_bytes,
                                  lanes_run};

}  // namespace
}  // namespace avx2
const LinearKernels* linear_kernels_avx2() { return &avx2::kTable; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_avx2() { return nullptr; }
}  // namespace sx::cpu
#endif
