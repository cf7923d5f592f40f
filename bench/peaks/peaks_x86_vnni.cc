// Arithmetic peaks of AVX-512 with VNNI: vpdpbusd, and multiply-adds of 32-bit floats, on 512-bit vectors.
#include <immintrin.h>

#include "bench/peaks/peak_kernels.h"

namespace sx::cpu {
namespace {

#include "bench/peaks/peaks_x86_512.inl"

struct Bytes {
  __m512i x;
  static __m512i zero() { return _mm512_setzero_si512(); }
  __m512i operator()(__m512i a) const { return _mm512_dpbusd_epi32(a, x, x); }
};

}  // namespace

PeakKernels peak_kernels_vnni() { return {bytes_by<Bytes>, floats}; }

}  // namespace sx::cpu
