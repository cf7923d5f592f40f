// What the VNNI and AMX kernels of quantised weights share beside the order of reduction: six bits and the last step.
// Included by linear_vnni.cc and linear_amx.cc, each in its own namespace.
#include <immintrin.h>

#include "backend/cpu/linear/linear_act_tiles.inl"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

constexpr int kOutputs = 16;  // of a group

// Quad 6 or 7 of six bits: the lower two of three vectors.
SX_INLINE __m512i lower_bits(const uint8_t* three) {
  const __m512i a = _mm512_slli_epi16(_mm512_loadu_si512(three), 6);
  const __m512i b = _mm512_slli_epi16(_mm512_loadu_si512(three + 64), 4);
  const __m512i c = _mm512_slli_epi16(_mm512_loadu_si512(three + 128), 2);
  const __m512i upper = _mm512_ternarylogic_epi32(_mm512_set1_epi8(-64), a, b, 0xca);  // a in bits 6 and 7, else b
  return _mm512_and_si512(_mm512_ternarylogic_epi32(_mm512_set1_epi8(-16), upper, c, 0xca), _mm512_set1_epi8(-4));
}

// One row's 16 results: out = acc * unit + bias, then old + that.
SX_INLINE void finish(const LinearJob& job, int group, int row, __m512 acc) {
  float* y = job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + group * kOutputs;
  const int left = job.outputs - group * kOutputs;
  const __mmask16 valid = left < kOutputs ? static_cast<__mmask16>((1u << left) - 1) : static_cast<__mmask16>(0xffff);
  acc = _mm512_mul_ps(acc, _mm512_set1_ps(job.layout->unit));
  if (job.bias) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(valid, job.bias + group * kOutputs));
  if (job.accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(valid, y), acc);
  _mm512_mask_storeu_ps(y, valid, acc);
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
