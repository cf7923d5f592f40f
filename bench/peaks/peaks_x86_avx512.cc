// Arithmetic peaks of AVX-512 without VNNI. See peaks_x86_avx2.cc; the 4-bit kernels are those of linear_pairs.inl.
#include <immintrin.h>

#include "bench/peaks/peak_kernels.h"

namespace sx::cpu {
namespace {

#include "bench/peaks/peaks_x86_512.inl"

struct Bytes {
  __m512i x;
  static __m512i zero() { return _mm512_setzero_si512(); }
  __m512i operator()(__m512i a) const { return _mm512_add_epi16(_mm512_maddubs_epi16(a, x), x); }
};

}  // namespace

PeakKernels peak_kernels_avx512() { return {bytes_by<Bytes>, floats}; }

}  // namespace sx::cpu
