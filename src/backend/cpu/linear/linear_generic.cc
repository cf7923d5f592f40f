// Linear layers in plain C++ for any machine (layout: linear_lanes.inl); the compiler may vectorise what it sees.
#define SX_ISA_NAMESPACE generic
#define SX_SIMD_GENERIC 1
#include "backend/cpu/linear/linear_kernels.h"

#if defined(SX_HAS_GENERIC)
#include "backend/cpu/simd.h"

namespace sx::cpu::generic {
namespace {

constexpr int kGroup = 8;
constexpr bool kAlwaysWide = true;  // converting f16 without hardware costs more than reading f32
struct IntVec {
  int32_t v[kLanes];
};
struct Bytes {
  int8_t v[4 * kLanes];
};
struct ActRegs {
  const int8_t* q;
};
SX_INLINE Bytes load_bytes(const uint8_t* p) {
  Bytes b;
  memcpy(b.v, p, sizeof b.v);
  return b;
}
SX_INLINE IntVec int_zero() { return {}; }
SX_INLINE Vec to_float(IntVec x) {
  Vec r;
  for (int i = 0; i < kLanes; ++i) r.v[i] = static_cast<float>(x.v[i]);
  return r;
}
SX_INLINE ActRegs load_act(const int8_t* p) { return {p}; }
template <int j>
SX_INLINE IntVec dot(IntVec acc, const Bytes& w, const ActRegs& x) {
  for (int i = 0; i < kLanes; ++i)
    for (int e = 0; e < 4; ++e) acc.v[i] += w.v[4 * i + e] * x.q[4 * j + e];
  return acc;
}
#define SX_BYTES(expression)                                                     \
  Bytes r;                                                                       \
  for (int i = 0; i < 4 * kLanes; ++i) r.v[i] = static_cast<int8_t>(expression); \
  return r
SX_INLINE Bytes low_nibbles(const Bytes& x) { SX_BYTES(x.v[i] & 15); }
SX_INLINE Bytes high_nibbles(const Bytes& x) { SX_BYTES(static_cast<uint8_t>(x.v[i]) >> 4); }
SX_INLINE Bytes low_nibbles_16(const Bytes& x) { SX_BYTES(static_cast<uint8_t>(x.v[i]) << 4); }
SX_INLINE Bytes high_nibbles_16(const Bytes& x) { SX_BYTES(x.v[i] & 0xf0); }
#undef SX_BYTES

}  // namespace
}  // namespace sx::cpu::generic

#include "backend/cpu/linear/linear_lanes.inl"

namespace sx::cpu {
namespace generic {
namespace {
constexpr LinearKernels kTable = {"generic",         layout,   pack, 1, lanes_act_bytes, lanes_quantise,
                                  lanes_panel_bytes, lanes_run};
}
}  // namespace generic
const LinearKernels* linear_kernels_generic() { return &generic::kTable; }
}  // namespace sx::cpu

#else

namespace sx::cpu {
const LinearKernels* linear_kernels_generic() { return nullptr; }
}  // namespace sx::cpu

#endif
