// The formats of quantised weights that kernels are instantiated for, and what of them does not depend on how quants
// lie in memory. Included by linear_neon_i8mm.cc, linear_lanes.inl and the x86 kernels, in the including set's
// namespace, after kGroup (outputs per group) and kAlwaysWide (never store f16 scales) have been defined there. A set
// that has kernels of its own for nibbles defines SX_BYTES_ONLY: what is left of 4-bit types is then stored as bytes.
// One that has kernels for six bits and bytes with a scale per 64 activations, and multiplies sums with the layout's
// unit, defines SX_SUPERS.
#include "backend/cpu/linear/linear_float.inl"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

// The last two have one activation scale per 64 inner values. Six bits: quants centred around 0, times quant_factor().
enum class Quant { kNibble, kSignedNibble, kByte, kSix, kSuperByte };
constexpr int quant_bytes(Quant quant) {  // of 32 inner values
  return quant == Quant::kByte || quant == Quant::kSuperByte ? 32 : quant == Quant::kSix ? 24 : 16;
}

// What fills a byte: centred quants are multiplied with it.
inline int quant_factor(DType type) {
  switch (type) {
    case DType::kQ3_K: return 32;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K: return 8;
    case DType::kQ6_K: return 4;
    case DType::kQ8_0: return 1;
    default: return 16;
  }
}
// The quant that is stored as 0 by layouts with centred quants.
inline int quant_centre(DType type) {
  switch (type) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K: return 8;
    case DType::kQ5_1:
    case DType::kQ5_K: return 16;
    default: return 0;
  }
}
// Q8_0 of fewer inputs keeps a scale per 32 activations.
constexpr int kSuperByteInputs = 1024;

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
  static constexpr int kBytes = kQuantsAt + kGroup * quant_bytes(kQuant);
};
constexpr int kFloatFormats = 100;                 // format numbers of the float kernels start here
[[maybe_unused]] constexpr int kSuperQuants = 40;  // and of those with SX_SUPERS

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
#if defined(SX_SUPERS)
    case kSuperQuants: body(Format<Quant::kSix, false, false, 32>{}); break;            // Q5_0
    case kSuperQuants + 1: body(Format<Quant::kSix, false, true, 32>{}); break;         // Q5_1, Q5_K
    case kSuperQuants + 2: body(Format<Quant::kSix, false, false, 16>{}); break;        // Q3_K, Q6_K
    case kSuperQuants + 3: body(Format<Quant::kSuperByte, false, false, 32>{}); break;  // Q8_0
#endif
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
    case DType::kIQ4_XS:  // tables: see table_groups.h
    case DType::kIQ2_XXS:
    case DType::kIQ3_XXS:
    case DType::kIQ3_S: break;
    case DType::kQ5_1:
    case DType::kQ5_K: offset = 1; break;
    case DType::kQ3_K:
    case DType::kQ6_K:
    case DType::kIQ2_XS:
    case DType::kIQ2_S: sub16 = 1; break;
    case DType::kQ2_K: offset = sub16 = 1; break;
    default: return float_layout(shape, kFloatFormats);
  }
#if defined(SX_BYTES_ONLY)
  quant = 2;
#endif
  l.format = quant + (shape.f16_scales && !kAlwaysWide ? 0 : 3) + 6 * offset + 12 * sub16;
#if defined(SX_SUPERS)
  const bool small = shape.type == DType::kQ5_0 || shape.type == DType::kQ5_1 || shape.type == DType::kQ5_K ||
                     shape.type == DType::kQ3_K || shape.type == DType::kQ6_K;
  if (small && (shape.type == DType::kQ5_0 || shape.f16_shifted)) {
    l.format = kSuperQuants + (sub16 ? 2 : offset);
    l.shift = shape.shift - (offset ? 3 : 0);  // offsets are stored times quant_factor()
    l.unit = power_of_two(-l.shift) / static_cast<float>(quant_factor(shape.type));
  } else if (shape.type == DType::kQ4_K && shape.f16_shifted) {
    l.format = 6;
    l.shift = shape.shift;
    l.unit = power_of_two(-shape.shift);
  } else if (shape.type == DType::kQ8_0 && shape.in >= kSuperByteInputs) {
    l.format = kSuperQuants + 3;
  }
#endif
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
void put_scale(uint8_t* out, int output, float value) {
  const uint16_t half = scalar_to_f16(value);
  if (F::kWide) memcpy(out + 4 * output, &value, 4);
  else memcpy(out + 2 * output, &half, 2);
}

template <class F>
void pack_quants(uint8_t* quants, const int8_t* q, size_t padded);  // q: 32 values of kGroup outputs, `padded` apart

void pack(const LinearLayout& l, const LinearSource& source, std::byte* group) {
  if (!l.quantised) return float_pack(l, source, group);
  with_format(l.format, [&](auto f) {
    using F = decltype(f);
    constexpr bool kSix = F::kQuant == Quant::kSix;
    const int factor = kSix ? quant_factor(l.type) : 1, centre = kSix ? quant_centre(l.type) : 0;
    const float shifted = power_of_two(l.shift);
    const size_t padded = static_cast<size_t>(l.blocks) * 32, scales = padded / static_cast<size_t>(source.sub);
    for (int k = 0; k < l.blocks; ++k) {
      uint8_t* out = reinterpret_cast<uint8_t*>(group) + static_cast<size_t>(k) * F::kBytes;
      for (int h = 0; h < F::kHalves; ++h)
        for (int o = 0; o < kGroup; ++o) {
          const size_t at = static_cast<size_t>(o) * scales + static_cast<size_t>(k * F::kHalves + h);
          const float d = source.scale[at] * shifted;
          put_scale<F>(out + h * F::kScaleBytes, o, d);
          if (!F::kOffset) continue;
          float m = source.offset[at] * shifted;
          if (kSix) m = (m + static_cast<float>(centre) * d) * static_cast<float>(factor);
          put_scale<F>(out + F::kOffsetsAt + h * F::kScaleBytes, o, m);
        }
      const int8_t* q = source.q + static_cast<size_t>(32 * k);
      if constexpr (kSix) {
        int8_t bytes[kGroup * 32];
        for (int i = 0; i < kGroup * 32; ++i)
          bytes[i] = static_cast<int8_t>(
              (q[static_cast<size_t>(i / 32) * padded + static_cast<size_t>(i % 32)] - centre) * factor);
        pack_quants<F>(out + F::kQuantsAt, bytes, 32);
      } else {
        pack_quants<F>(out + F::kQuantsAt, q, padded);
      }
    }
  });
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
