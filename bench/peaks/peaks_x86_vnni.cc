// Arithmetic peaks of AVX-512 with VNNI: vpdpbusd, and multiply-adds of 32-bit floats, on 512-bit vectors.
#include <immintrin.h>

#include "bench/peaks/peak_kernels.h"

namespace sx::cpu {
namespace {

#include "bench/peaks/peaks_x86.inl"

struct Bytes {
  __m512i x;
  static __m512i zero() { return _mm512_setzero_si512(); }
  __m512i operator()(__m512i a) const { return _mm512_dpbusd_epi32(a, x, x); }
};
struct Floats {
  __m512 x;
  static __m512 zero() { return _mm512_setzero_ps(); }
  __m512 operator()(__m512 a) const { return _mm512_fmadd_ps(x, x, a); }
};

double bytes() {
  Bytes step{_mm512_set1_epi8(1)};
  asm volatile("" : "+v"(step.x));
  return burn<24>(step, 128);
}
double floats() {
  Floats step{_mm512_set1_ps(1)};
  asm volatile("" : "+v"(step.x));
  return burn<24>(step, 32);
}

}  // namespace

PeakKernels peak_kernels_vnni() { return {bytes, floats}; }

}  // namespace sx::cpu
