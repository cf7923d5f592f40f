// Conversions between float and the two 16-bit formats, round to nearest even, exact and the same on every machine.
// The portable versions are always there; machines with a conversion instruction use it, and tests compare the two.
#pragma once
#include <bit>
#include <cstdint>

namespace sx {

inline float bf16_to_float(uint16_t h) { return std::bit_cast<float>(uint32_t(h) << 16); }

inline uint16_t float_to_bf16(float x) {
  uint32_t u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);  // keep NaN a NaN
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

namespace portable {

inline float f16_to_float(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 31) {
    const uint32_t quiet = mantissa ? 0x400000u : 0u;  // a NaN comes out quiet, as from the instruction
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  if (exponent) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float tiny = static_cast<float>(mantissa) * 5.9604644775390625e-08f;  // 2^-24: subnormal or zero
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(tiny));
}

inline uint16_t float_to_f16(float x) {
  const uint32_t u = std::bit_cast<uint32_t>(x), a = u & 0x7fffffffu;
  const uint16_t sign = uint16_t((u >> 16) & 0x8000u);
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u | ((a >> 13) & 0x3ffu));
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // 65520 and above round to infinity
  if (a >= 0x38800000u) return uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
  const float shifted = std::bit_cast<float>(a) + 0.5f;  // adds in units of 2^-24, rounding to nearest even
  return uint16_t(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
}

}  // namespace portable

#if defined(__aarch64__) && defined(__ARM_FP16_FORMAT_IEEE)
inline float f16_to_float(uint16_t h) { return static_cast<float>(std::bit_cast<__fp16>(h)); }
inline uint16_t float_to_f16(float x) { return std::bit_cast<uint16_t>(static_cast<__fp16>(x)); }
#else
using portable::f16_to_float;
using portable::float_to_f16;
#endif

}  // namespace sx
