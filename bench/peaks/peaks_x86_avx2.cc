// Arithmetic peaks of AVX2. Its 8-bit dot product is a multiply-add of byte pairs to 16 bits and an addition of 16-bit
// sums, which is how the 4-bit kernels of linear_pairs.inl use it; 8-bit weights need three to four instructions for
// the same work.
#include <immintrin.h>

#include "bench/peaks/peak_kernels.h"

namespace sx::cpu {
namespace {

#include "bench/peaks/peaks_x86.inl"

struct Bytes {
  __m256i x;
  static __m256i zero() { return _mm256_setzero_si256(); }
  __m256i operator()(__m256i a) const { return _mm256_add_epi16(_mm256_maddubs_epi16(a, x), x); }
};
struct Floats {
  __m256 x;
  static __m256 zero() { return _mm256_setzero_ps(); }
  __m256 operator()(__m256 a) const { return _mm256_fmadd_ps(x, x, a); }
};

double bytes() {
  Bytes step{_mm256_set1_epi8(1)};
  asm volatile("" : "+x"(step.x));
  return burn<12>(step, 64);
}
double floats() {
  Floats step{_mm256_set1_ps(1)};
  asm volatile("" : "+x"(step.x));
  return burn<12>(step, 16);
}

}  // namespace

PeakKernels peak_kernels_avx2() { return {bytes, floats}; }

}  // namespace sx::cpu
