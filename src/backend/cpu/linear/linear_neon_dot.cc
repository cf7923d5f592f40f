// Linear layers for Arm cores with dot products but without the 8-bit matrix instructions (layout: linear_lanes.inl).
#define SX_ISA_NAMESPACE neon_dot
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__ARM_FEATURE_DOTPROD)
#include "backend/cpu/simd.h"

namespace sx::cpu::neon_dot {
namespace {

constexpr int kGroup = 8;
constexpr bool kAlwaysWide = false;
using IntVec = int32x4_t;
using Bytes = int8x16_t;
struct ActRegs {
  int8x16_t half[2];
};
SX_INLINE Bytes load_bytes(const uint8_t* p) { return vreinterpretq_s8_u8(vld1q_u8(p)); }
SX_INLINE IntVec int_zero() { return vdupq_n_s32(0); }
SX_INLINE Vec to_float(IntVec x) { return vcvtq_f32_s32(x); }
SX_INLINE ActRegs load_act(const int8_t* p) { return {{vld1q_s8(p), vld1q_s8(p + 16)}}; }
template <int j>
SX_INLINE IntVec dot(IntVec acc, Bytes w, const ActRegs& x) {
  return vdotq_laneq_s32(acc, w, x.half[j / 4], j % 4);
}
SX_INLINE Bytes low_nibbles(Bytes x) { return vandq_s8(x, vdupq_n_s8(15)); }
SX_INLINE Bytes high_nibbles(Bytes x) { return vreinterpretq_s8_u8(vshrq_n_u8(vreinterpretq_u8_s8(x), 4)); }
SX_INLINE Bytes low_nibbles_16(Bytes x) { return vshlq_n_s8(x, 4); }
SX_INLINE Bytes high_nibbles_16(Bytes x) { return vandq_s8(x, vdupq_n_s8(-16)); }

}  // namespace
}  // namespace sx::cpu::neon_dot

#include "backend/cpu/linear/linear_lanes.inl"

namespace sx::cpu {
namespace neon_dot {
namespace {
constexpr LinearKernels kTable = {"neon-dotprod",    layout,   pack, 1, lanes_act_bytes, lanes_quantise,
                                  lanes_panel_bytes, lanes_run};
}
}  // namespace neon_dot
const LinearKernels* linear_kernels_neon_dot() { return &neon_dot::kTable; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_neon_dot() { return nullptr; }
}  // namespace sx::cpu
#endif
