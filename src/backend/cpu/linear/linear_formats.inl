// The formats of quantised weights that kernels are instantiated for, and what of them does not depend on how quants
// lie in memory. Included by linear_neon_i8mm.cc and linear_lanes.inl, in the including set's namespace, after kGroup
// (outputs per group) and kAlwaysWide (never store f16 scales) have been defined there. A set that has kernels of its
// own for nibbles defines SX_BYTES_ONLY: what is left of 4-bit types is then stored as bytes.
#include "backend/cpu/linear/linear_float.inl"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

enum class Quant { kNibble, kSignedNibble, kByte };

// A group-block (32 inner values of kGroup outputs): scales [32 / sub][group], offsets likewise if any, quants.
template <Quant kQuantOf, bool kWideOf, bool kOffsetOf, int kSubOf>
struct Format {
  static constexpr Quant kQuant = kQuantOf;
  static constexpr bool kWide = kWideOf;  // f32 scales and offsets, else f16
  static constexpr bool kOffset = kOffsetOf;
  static constexpr int kHalves = 32 / kSubOf;  // scales per 32 inner values
  static constexpr int kScaleBytes = kGroup * (kWide ? 4 : 2);
  static constexpr int kOffsetsAt = kHalves * kScaleBytes;
  static constexpr int kQuantsAt = kOffsetsAt * (kOffset ? 2 : 1);
  static constexpr int kBytes = kQuantsAt + kGroup * (kQuant == Quant::kByte ? 32 : 16);
};
constexpr int kFloatFormats = 100;  // format numbers of the float kernels start here

// Calls body(Format{}) with the format numbered n: quant + 3 * wide + 6 * offset + 12 * (sub == 16).
template <class Body>
inline void with_format(int n, Body body) {
  [[maybe_unused]] constexpr Quant kN = Quant::kNibble, kS = Quant::kSignedNibble;
  constexpr Quant kB = Quant::kByte;
  constexpr bool kW = kAlwaysWide;
  switch (n) {
#if !defined(SX_BYTES_ONLY)
    case 1:
    case 4: body(Format<kS, kW, false, 32>{}); break;   // Q4_0
    case 6: body(Format<kN, kW, true, 32>{}); break;    // Q4_1, Q4_K
    case 9: body(Format<kN, true, true, 32>{}); break;  // Q4_K with scales that f16 cannot hold
#endif
    case 2: body(Format<kB, kW, false, 32>{}); break;    // Q8_0, Q5_0, tables
    case 5: body(Format<kB, true, false, 32>{}); break;  // tables with scales that f16 cannot hold; all where kW
    case 8: body(Format<kB, kW, true, 32>{}); break;     // Q5_1, Q5_K
    case 11: body(Format<kB, true, true, 32>{}); break;  // Q5_K likewise
    case 14: body(Format<kB, kW, false, 16>{}); break;   // Q6_K, Q3_K
    case 17: body(Format<kB, true, false, 16>{}); break;
    case 20: body(Format<kB, kW, true, 16>{}); break;  // Q2_K
    case 23: body(Format<kB, true, true, 16>{}); break;
    default: __builtin_trap();
  }
}

LinearLayout layout(const LinearShape& shape) {
  LinearLayout l;
  l.type = shape.type;
  l.in = shape.in;
  int quant = 2, offset = 0, sub16 = 0;
  switch (shape.type) {
    case DType::kQ4_0: quant = 1; break;
    case DType::kQ4_1:
    case DType::kQ4_K:
      quant = 0;
      offset = 1;
      break;
    case DType::kQ5_0:
    case DType::kQ8_0:
    case DType::kMXFP4:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS: break;  // tables: see table_groups.h
    case DType::kQ5_1:
    case DType::kQ5_K: offset = 1; break;
    case DType::kQ3_K:
    case DType::kQ6_K: sub16 = 1; break;
    case DType::kQ2_K: offset = sub16 = 1; break;
    default: return float_layout(shape, kFloatFormats);
  }
#if defined(SX_BYTES_ONLY)
  quant = 2;
#endif
  l.format = quant + (shape.f16_scales && !kAlwaysWide ? 0 : 3) + 6 * offset + 12 * sub16;
  l.quantised = true;
  l.group = kGroup;
  l.blocks = (shape.in + 31) / 32;
  with_format(l.format, [&](auto f) {
    using F = decltype(f);
    l.group_bytes = static_cast<size_t>(l.blocks) * F::kBytes;
    l.block_bytes = F::kBytes;
    l.quants_at = F::kQuantsAt;
  });
  return l;
}

template <class F>
void put_scales(uint8_t* out, const float* values, size_t stride) {  // kGroup values, `stride` apart
  for (int o = 0; o < kGroup; ++o) {
    const float value = values[static_cast<size_t>(o) * stride];
    const uint16_t half = scalar_to_f16(value);
    if (F::kWide) memcpy(out + 4 * o, &value, 4);
    else memcpy(out + 2 * o, &half, 2);
  }
}

template <class F>
void pack_quants(uint8_t* quants, const int8_t* q, size_t padded);  // q: 32 values of kGroup outputs, `padded` apart

void pack(const LinearLayout& l, const LinearSource& source, std::byte* group) {
  if (!l.quantised) return float_pack(l, source, group);
  with_format(l.format, [&](auto f) {
    using F = decltype(f);
    const size_t padded = static_cast<size_t>(l.blocks) * 32, scales = padded / static_cast<size_t>(source.sub);
    for (int k = 0; k < l.blocks; ++k) {
      uint8_t* out = reinterpret_cast<uint8_t*>(group) + static_cast<size_t>(k) * F::kBytes;
      for (int h = 0; h < F::kHalves; ++h) {
        const size_t at = static_cast<size_t>(k * F::kHalves + h);
        put_scales<F>(out + h * F::kScaleBytes, source.scale + at, scales);
        if (F::kOffset) put_scales<F>(out + F::kOffsetsAt + h * F::kScaleBytes, source.offset + at, scales);
      }
      pack_quants<F>(out + F::kQuantsAt, source.q + static_cast<size_t>(32 * k), padded);
    }
  });
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
