// Arithmetic peaks of NEON: 24 independent accumulators, as many as the kernels use.
#include <arm_neon.h>

#include <cstdint>

#include "bench/peaks/peak_kernels.h"

namespace sx::cpu {
namespace {

constexpr int kChains = 24, kRounds = 40000;

template <class V, class Step>
double burn(V zero, Step step, double operations) {
  V acc[kChains];
  for (auto& a : acc) a = zero;
  for (int i = 0; i < kRounds; ++i) {
#pragma GCC unroll 24
    for (auto& a : acc) a = step(a);
  }
  for (auto& a : acc) asm volatile("" ::"w"(a));
  return operations * kChains * kRounds;
}

double smmla() {
  int8x16_t x = vdupq_n_s8(1);
  asm volatile("" : "+w"(x));
  return burn(
      vdupq_n_s32(0), [&](int32x4_t a) { return vmmlaq_s32(a, x, x); }, 64);
}
double sdot() {
  int8x16_t x = vdupq_n_s8(1);
  asm volatile("" : "+w"(x));
  return burn(
      vdupq_n_s32(0), [&](int32x4_t a) { return vdotq_s32(a, x, x); }, 32);
}
double bfmmla() {
  uint16x8_t bits = vdupq_n_u16(0x3F80);
  asm volatile("" : "+w"(bits));
  const bfloat16x8_t x = vreinterpretq_bf16_u16(bits);
  return burn(
      vdupq_n_f32(0), [&](float32x4_t a) { return vbfmmlaq_f32(a, x, x); }, 32);
}
double fmla() {
  float32x4_t x = vdupq_n_f32(1);
  asm volatile("" : "+w"(x));
  return burn(
      vdupq_n_f32(0), [&](float32x4_t a) { return vfmaq_f32(a, x, x); }, 8);
}

}  // namespace

PeakKernels peak_kernels_neon_i8mm() { return {smmla, bfmmla}; }
PeakKernels peak_kernels_neon_dot() { return {sdot, fmla}; }

}  // namespace sx::cpu
