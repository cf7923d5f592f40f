#include "backend/cpu/linear/table_groups.h"

#include <cstring>

#include "base/error.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#elif defined(__x86_64__)
#include <immintrin.h>
#endif

namespace sx::cpu {
namespace {

size_t code_bytes(const LinearLayout& layout) { return size_t(layout.group) * 16; }

// `count` pieces of 16 bytes of codes, each 32 values.
using Expand = void (*)(const int8_t* table, const uint8_t* codes, uint8_t* values, size_t count);

#if defined(__aarch64__)
void expand(const int8_t* table, const uint8_t* codes, uint8_t* values, size_t count) {
  const uint8x16_t t = vld1q_u8(reinterpret_cast<const uint8_t*>(table)), mask = vdupq_n_u8(15);
  for (size_t i = 0; i < count; ++i) {
    const uint8x16_t c = vld1q_u8(codes + 16 * i);
    vst1q_u8(values + 32 * i, vqtbl1q_u8(t, vandq_u8(c, mask)));
    vst1q_u8(values + 32 * i + 16, vqtbl1q_u8(t, vshrq_n_u8(c, 4)));
  }
}
Expand chosen() { return expand; }
#else
void expand_plain(const int8_t* table, const uint8_t* codes, uint8_t* values, size_t count) {
  for (size_t i = 0; i < count; ++i)
    for (size_t j = 0; j < 16; ++j) {
      values[32 * i + j] = uint8_t(table[codes[16 * i + j] & 15]);
      values[32 * i + 16 + j] = uint8_t(table[codes[16 * i + j] >> 4]);
    }
}
#if defined(__x86_64__)
__attribute__((target("ssse3"))) void expand_ssse3(const int8_t* table, const uint8_t* codes, uint8_t* values,
                                                   size_t count) {
  const __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table)), mask = _mm_set1_epi8(15);
  for (size_t i = 0; i < count; ++i) {
    const __m128i c = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + 16 * i));
    const __m128i low = _mm_shuffle_epi8(t, _mm_and_si128(c, mask));
    const __m128i high = _mm_shuffle_epi8(t, _mm_and_si128(_mm_srli_epi16(c, 4), mask));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 32 * i), low);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(values + 32 * i + 16), high);
  }
}
Expand chosen() {
  static const Expand found = __builtin_cpu_supports("ssse3") ? expand_ssse3 : expand_plain;
  return found;
}
#else
Expand chosen() { return expand_plain; }
#endif
#endif

}  // namespace

size_t table_group_bytes(const LinearLayout& layout) {
  SX_ASSERT(layout.block_bytes == layout.quants_at + 32 * layout.group);
  return size_t(layout.blocks) * (size_t(layout.quants_at) + code_bytes(layout));
}

void pack_table_group(const LinearLayout& layout, const int8_t* table, const std::byte* group, std::byte* packed) {
  uint8_t code_of[256] = {};  // what is no value of the table fills up a group; its scale is 0
  for (int code = 15; code >= 0; --code) code_of[uint8_t(table[code])] = uint8_t(code);
  const auto scales = size_t(layout.quants_at);
  for (int k = 0; k < layout.blocks; ++k) {
    std::memcpy(packed, group, scales);
    const std::byte* values = group + scales;
    for (size_t i = 0; i < code_bytes(layout); ++i) {
      const size_t at = i / 16 * 32 + i % 16;
      const auto code = [&](size_t j) { return code_of[uint8_t(values[j])]; };
      packed[scales + i] = std::byte(code(at) | code(at + 16) << 4);
    }
    packed += scales + code_bytes(layout);
    group += layout.block_bytes;
  }
}

void expand_table_group(const LinearLayout& layout, const int8_t* table, const std::byte* packed, std::byte* group) {
  const Expand expand_codes = chosen();
  const size_t scales = size_t(layout.quants_at), pieces = size_t(layout.group), codes = code_bytes(layout);
  for (int k = 0; k < layout.blocks; ++k, packed += scales + codes, group += layout.block_bytes) {
    std::memcpy(group, packed, scales);
    expand_codes(table, reinterpret_cast<const uint8_t*>(packed + scales), reinterpret_cast<uint8_t*>(group + scales),
                 pieces);
  }
}

}  // namespace sx::cpu
