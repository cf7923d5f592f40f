// Blocks with records unpacked to bf16 lanes (records.h) in vectors of x86; the other sets have what records.cc has.
// The numbers are the same on every set: scale * code + least in f32, a product and a sum, rounded to bf16.
//
// Include from one translation unit per instruction set with SX_ISA_NAMESPACE defined and that set's flags; nothing
// here has external linkage except portable_unpack().
#include "backend/cpu/kv/records.h"
#include "backend/cpu/simd.h"

namespace sx::cpu::SX_ISA_NAMESPACE {

const UnpackKernels* portable_unpack();

#if defined(SX_SIMD_AVX2) || defined(SX_SIMD_AVX512)
namespace {

constexpr int kGroup = 32, kCodes = kGroup / 2;  // elements of a group; its bytes of codes

// out[i] = scale[i] * codes[i] + least[i], 16 of them.
SX_INLINE void write_numbers(__m128i codes, const float* scale, const float* least, uint16_t* out) {
#if defined(SX_SIMD_AVX512)
  const __m512 x = _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(codes)), _mm512_loadu_ps(scale)),
                                 _mm512_loadu_ps(least));
  const __m512i u = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(u, odd), _mm512_set1_epi32(0x7fff));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16)));
#else
  __m256i half[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i wide = _mm256_cvtepu8_epi32(i == 0 ? codes : _mm_srli_si128(codes, 8));
    const __m256 x = _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_loadu_ps(scale + 8 * i)),
                                   _mm256_loadu_ps(least + 8 * i));
    const __m256i u = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    half[i] = _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7fff)), 16);
  }
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      _mm256_permute4x64_epi64(_mm256_packus_epi32(half[0], half[1]), 0xd8));
#endif
}

SX_INLINE __m128i low_codes(__m128i bytes) { return _mm_and_si128(bytes, _mm_set1_epi8(15)); }
SX_INLINE __m128i high_codes(__m128i bytes) { return _mm_and_si128(_mm_srli_epi16(bytes, 4), _mm_set1_epi8(15)); }

struct Group {
  float scale, least;
  __m128i bytes;
};
SX_INLINE Group load_group(const KvLayout& l, const std::byte* record, int g) {
  const size_t head = l.type == DType::kQ4_1 ? 4 : 2;
  record += static_cast<size_t>(g) * (head + kCodes);
  uint16_t bits[2] = {};
  memcpy(bits, record, head);
  const float scale = scalar_f16(bits[0]);
  return {scale, head == 4 ? scalar_f16(bits[1]) : -8 * scale,
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(record + head))};
}

// Byte j of vector i becomes byte i of vector j: four perfect shuffles.
SX_INLINE void transpose(__m128i (&x)[16]) {
  for (int round = 0; round < 4; ++round) {
    __m128i y[16];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
      y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = y[i];
  }
}

// K [pos/16][d][pos%16]: 16 positions at a time.
void keys(const KvLayout& l, const std::byte* block, const KvLayout& tile, std::byte* out) {
  for (int p = 0; p < kBlock; p += 16) {
    auto* to = reinterpret_cast<uint16_t*>(out) + p * tile.padded;
    for (int d = 0; d < tile.padded; d += kGroup) {
      __m128i bytes[16];
      float scale[16], least[16];
      for (int i = 0; i < 16; ++i) {
        const Group group = load_group(l, block + static_cast<size_t>(p + i) * l.record, d / kGroup);
        bytes[i] = group.bytes, scale[i] = group.scale, least[i] = group.least;
      }
      transpose(bytes);
      for (int j = 0; j < kCodes; ++j) write_numbers(low_codes(bytes[j]), scale, least, to + (d + j) * 16);
      if (d + kCodes >= tile.padded) break;
      for (int j = 0; j < kCodes; ++j) write_numbers(high_codes(bytes[j]), scale, least, to + (d + kCodes + j) * 16);
    }
  }
}

// V [pos][c].
void values(const KvLayout& l, const std::byte* block, const KvLayout& tile, std::byte* out) {
  auto* to = reinterpret_cast<uint16_t*>(out);
  for (int p = 0; p < kBlock; ++p, to += tile.padded)
    for (int c = 0; c < tile.padded; c += kGroup) {
      const Group group = load_group(l, block + static_cast<size_t>(p) * l.record, c / kGroup);
      float scale[16], least[16];
      for (int i = 0; i < 16; ++i) scale[i] = group.scale, least[i] = group.least;
      write_numbers(low_codes(group.bytes), scale, least, to + c);
      if (c + kCodes < tile.padded) write_numbers(high_codes(group.bytes), scale, least, to + c + kCodes);
    }
}

constexpr UnpackKernels kUnpack = {keys, values};

}  // namespace

const UnpackKernels* portable_unpack() { return &kUnpack; }
#else
const UnpackKernels* portable_unpack() { return nullptr; }
#endif

}  // namespace sx::cpu::SX_ISA_NAMESPACE
