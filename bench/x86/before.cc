// Linear layers for x86-64 with AVX-512 and VNNI (layout: linear_lanes.inl; its integer sums are made here). vpdpbusd
// multiplies unsigned by signed bytes and adds four neighbours to 32 bits without saturation. Activations x are the
// signed operand; nibbles are unsigned as they are, signed weights get 128 added by flipping their top bit, which costs
// 128 * (sum of x), paid back as the sum's start. Largest sum of a block: 32 * 255 * 127 + 128 * 32 * 127 < 2^31, so
// each is the exact integer. Low and high halves of a block have their own sums, since the instruction takes 4 to 5
// cycles.
#define SX_ISA_NAMESPACE avx512_before
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#include "backend/cpu/simd.h"

namespace sx::cpu::avx512_before {
namespace {

constexpr int kGroup = 16;
constexpr bool kAlwaysWide = false;
using IntVec = __m512i;
struct ActRegs {
  const int8_t* q;
};  // vpdpbusd broadcasts its signed operand from memory
SX_INLINE Vec to_float(IntVec x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }
SX_INLINE ActRegs load_act(const int8_t* p) { return {p}; }
SX_INLINE __m512i load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
// x[4j..4j+3] for every output.
SX_INLINE __m512i quad(const ActRegs& x, int j) {
  int32_t four;
  memcpy(&four, x.q + 4 * j, 4);
  return _mm512_set1_epi32(four);
}

}  // namespace
}  // namespace sx::cpu::avx512_before

#define SX_OWN_DOTS 1
#include "backend/cpu/linear/linear_lanes.inl"

namespace sx::cpu {
namespace avx512_before {
namespace {

// Quads j and j + 4 of a vector of outputs as unsigned bytes: w for nibbles, w + 128 for bytes, 16 w + 128 for signed
// nibbles.
template <class F>
SX_INLINE void unsigned_quads(const uint8_t* p, int j, __m512i& low, __m512i& high) {
  const __m512i flip = _mm512_set1_epi8(-128), top = _mm512_set1_epi8(-16), bottom = _mm512_set1_epi8(15);
  const __m512i first = load_bytes(p + j * kGroup * 4);
  if constexpr (F::kQuant == Quant::kByte) {
    low = _mm512_xor_si512(first, flip);
    high = _mm512_xor_si512(load_bytes(p + (j + 4) * kGroup * 4), flip);
  } else if constexpr (F::kQuant == Quant::kSignedNibble) {
    low = _mm512_xor_si512(_mm512_and_si512(_mm512_slli_epi16(first, 4), top), flip);
    high = _mm512_xor_si512(_mm512_and_si512(first, top), flip);
  } else {
    low = _mm512_and_si512(first, bottom);
    high = _mm512_and_si512(_mm512_srli_epi16(first, 4), bottom);
  }
}

template <class F, int R>
SX_INLINE void lanes_dots(const uint8_t* quants, int v, const ActRegs* x, IntVec (*s)[R]) {
  constexpr bool kLifted = F::kQuant != Quant::kNibble, kTwo = F::kHalves == 2;
  const uint8_t* p = quants + v * kLanes * 4;
  __m512i a[R], b[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    a[r] = kLifted ? _mm512_set1_epi32(act_lift(x[r].q, kTwo ? 1 : 0)) : _mm512_setzero_si512();
    b[r] = kLifted && kTwo ? _mm512_set1_epi32(act_lift(x[r].q, 2)) : _mm512_setzero_si512();
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    __m512i low, high;
    unsigned_quads<F>(p, j, low, high);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      a[r] = _mm512_dpbusd_epi32(a[r], low, quad(x[r], j));
      b[r] = _mm512_dpbusd_epi32(b[r], high, quad(x[r], j + 4));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    s[0][r] = kTwo ? a[r] : _mm512_add_epi32(a[r], b[r]);
    if constexpr (kTwo) s[1][r] = b[r];
  }
}

constexpr LinearKernels kTable = {"before",          layout,   pack, 1, lanes_act_bytes, lanes_quantise,
                                  lanes_panel_bytes, lanes_run};

}  // namespace
}  // namespace avx512_before
const LinearKernels* linear_kernels_avx512_before() { return &avx512_before::kTable; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_avx512_before() { return nullptr; }
}  // namespace sx::cpu
#endif
