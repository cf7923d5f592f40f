// The arithmetic peaks of AVX-512, with VNNI or without. Included in the namespace of one instruction set, which then
// says what a step on bytes is (struct Bytes).
#include "bench/peaks/peaks_x86.inl"

struct Floats {
  __m512 x;
  static __m512 zero() { return _mm512_setzero_ps(); }
  __m512 operator()(__m512 a) const { return _mm512_fmadd_ps(x, x, a); }
};

double floats() {
  Floats step{_mm512_set1_ps(1)};
  asm volatile("" : "+v"(step.x));
  return burn<24>(step, 32);
}

template <class Bytes>
double bytes_by() {
  Bytes step{_mm512_set1_epi8(1)};
  asm volatile("" : "+v"(step.x));
  return burn<24>(step, 128);
}
