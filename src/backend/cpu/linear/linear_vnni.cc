// Linear layers for x86-64 with AVX-512 and VNNI, and with AMX for many rows (linear_amx.cc). Lanes are outputs.
// vpdpbusd multiplies unsigned by signed bytes and adds four neighbours to 32 bits without saturation. Activations x
// are the signed operand. What makes a weight unsigned is paid back as the sum's start: Q4_0 stores w + 8, which costs
// 8 * (sum of x); flipping the top bit of a byte adds 128. The largest sum of a block is 32 * 255 * 127 + 128 * 32 *
// 127 < 2^31, so each is the exact integer. Order of reduction: linear_act_tiles.inl.
//
// A group-block is 32 inner values of 16 outputs: scales [32 / sub][16], offsets likewise (if any), quants
// [8 quads of inner values][16][4]; as nibbles [4][16][4], quad j low and quad j + 4 high; as six bits [6][16][4], each
// the upper six bits of a byte with the top bit flipped. Their lower two bits are quad 6 (the first three) and 7.
#define SX_ISA_NAMESPACE vnni
#define SX_SUPERS 1
#include "backend/cpu/linear/linear_amx.h"
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#include "backend/cpu/linear/linear_wide.inl"

namespace sx::cpu::vnni {
namespace {
constexpr int kGroup = kOutputs;
constexpr bool kAlwaysWide = false;
}  // namespace
}  // namespace sx::cpu::vnni

#include "backend/cpu/linear/linear_formats.inl"

namespace sx::cpu {
namespace vnni {
namespace {

template <class F>
constexpr int kShare = F::kQuant == Quant::kByte ? 32 : kSuper;  // inner values per activation scale
template <class F>
constexpr bool kNibbles = F::kQuant == Quant::kNibble || F::kQuant == Quant::kSignedNibble;

LinearLayout layout_of(const LinearShape& shape) {
  LinearLayout l = layout(shape);
  if (l.quantised) with_format(l.format, [&](auto f) { l.act_block = kShare<decltype(f)>; });
  return l;
}

template <class F>
void pack_quants(uint8_t* quants, const int8_t* source, size_t padded) {
  for (int o = 0; o < kGroup; ++o)
    for (int i = 0; i < 32; ++i) {
      const int j = i / 4, q = source[static_cast<size_t>(o) * padded + static_cast<size_t>(i)];
      if (!kNibbles<F> && F::kQuant != Quant::kSix) {
        quants[(j * kGroup + o) * 4 + i % 4] = static_cast<uint8_t>(q);
        continue;
      }
      if (F::kQuant == Quant::kSix) {
        const int bits = (q & 255) ^ 128;
        uint8_t* at = quants + o * 4 + i % 4;
        if (j < 6) at[64 * j] = static_cast<uint8_t>(bits);  // before quads 6 and 7 of the same byte
        else
          for (int v = 0; v < 3; ++v) {
            uint8_t& byte = at[64 * (3 * (j - 6) + v)];
            byte = static_cast<uint8_t>(byte | (bits >> (6 - 2 * v) & 3));
          }
        continue;
      }
      uint8_t& byte = quants[(j % 4 * kGroup + o) * 4 + i % 4];
      byte = static_cast<uint8_t>(j >= 4 ? byte | q << 4 : q);
    }
}

// ---- activations -----------------------------------------------------------------------------------------------------
size_t act_bytes(int in) { return act_row_bytes(in, 32) + act_row_bytes(in, kSuper); }

SX_INLINE __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1);
}

SX_INLINE int32_t reduce_sum(__m512i x) {
  const __m256i q =
      _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, x, 0), _mm512_maskz_extracti64x4_epi64(0xf, x, 1));
  __m128i h = _mm_add_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
  h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1)));
}

// quantise_share() for 64 values: the sums of each 16 of them come from one dot product with ones.
SX_INLINE void quantise_64(const float* x, const ActTile& tile, size_t scale, size_t row) {
  const size_t width = static_cast<size_t>(tile.width);
  Vec v[4], high = zero(), bad = zero();
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    v[i] = load(x + 16 * i);
    high = max(high, abs(v[i]));
    bad = fma(v[i], zero(), bad);
  }
  const bool finite = _mm512_cmp_ps_mask(bad, zero(), _CMP_EQ_OQ) == 0xffff;
  const float top = reduce_max(high);
  tile.dx[scale * width + row] = finite ? top / 127 : __builtin_nanf("");
  const Vec inverse = set1(finite && top >= 0x1p-100f ? 127 / top : 0.0f);
  __m128i q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)  // what is not finite times 0 becomes 0x80000000 and so 0
    q[i] = _mm512_maskz_cvtepi32_epi8(0xffff, _mm512_maskz_cvtps_epi32(0xffff, mul(v[i], inverse)));
  __m512i all = _mm512_zextsi128_si512(q[0]);
  all = _mm512_maskz_inserti64x2(0xff, all, q[1], 1);
  all = _mm512_maskz_inserti64x2(0xff, all, q[2], 2);
  all = _mm512_maskz_inserti64x2(0xff, all, q[3], 3);
  __m512i four = _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), all);
  four = _mm512_add_epi32(four, _mm512_maskz_shuffle_epi32(0xffff, four, _MM_PERM_BADC));
  four = _mm512_add_epi32(four, _mm512_maskz_shuffle_epi32(0xffff, four, _MM_PERM_CDAB));
  alignas(64) int32_t sums[16];
  _mm512_store_si512(sums, four);
#pragma GCC unroll 2
  for (size_t h = 0; h < 2; ++h) {
    const size_t block = 2 * scale + h;
    int8_t* to = tile.q + (block * width + row) * 32;
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), q[2 * h]);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 16), q[2 * h + 1]);
    const int32_t first = sums[8 * h], second = sums[8 * h + 4], sum = first + second;
    int32_t* lift = tile.lift + block * 4 * width + row;
    lift[0] = -128 * sum;
    lift[width] = -128 * first;
    lift[2 * width] = -128 * second;
    lift[3 * width] = -8 * sum;
    tile.sum[block * width + row] = static_cast<float>(sum);
  }
}

// The values of one row that share scale number `scale`. With an infinity or NaN among them q is 0 and the scale makes
// the row's results NaN.
template <int kValues>
void quantise_share(const float* x, int count, const ActTile& tile, size_t scale, size_t row) {
  if (kValues == kSuper && count == kSuper) return quantise_64(x, tile, scale, row);
  const size_t width = static_cast<size_t>(tile.width);
  Vec high = zero(), bad = zero();
  for (int i = 0; i < count; i += 16) {
    const Vec v = _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    high = max(high, abs(v));
    bad = add(bad, mul(v, zero()));
  }
  const float top = reduce_max(high), poison = reduce_add(bad), dx = top / 127 + poison;
  tile.dx[scale * width + row] = dx;
  const bool good = poison == 0 && top >= 0x1p-100f;
  const Vec inverse = set1(good ? 127 / top : 0.0f);
  for (int i = 0; i < count; i += 32) {
    const size_t block = scale * (kValues / 32) + static_cast<size_t>(i / 32);
    __m512i n[2];
    for (int h = 0; h < 2; ++h) {
      const int from = i + 16 * h;
      const Vec v = _mm512_maskz_loadu_ps(good ? first_lanes(count - from) : first_lanes(0), x + from);
      n[h] = _mm512_maskz_cvtps_epi32(0xffff, mul(v, inverse));  // to nearest, ties to even
      _mm_storeu_si128(reinterpret_cast<__m128i*>(tile.q + (block * width + row) * 32 + static_cast<size_t>(16 * h)),
                       _mm512_maskz_cvtepi32_epi8(0xffff, n[h]));
    }
    if (kValues == 32) {
      const int32_t first = reduce_sum(n[0]), second = reduce_sum(n[1]);
      const int32_t sums[3] = {first + second, first, second};
      for (size_t e = 0; e < 3; ++e) {
        tile.lift[(block * 3 + e) * width + row] = -128 * sums[e];
        tile.sum[(block * 3 + e) * width + row] = dx * static_cast<float>(sums[e]);
      }
    } else {
      const int32_t first = reduce_sum(n[0]), second = reduce_sum(n[1]), sum = first + second;
      const int32_t lifts[4] = {-128 * sum, -128 * first, -128 * second, -8 * sum};
      for (size_t e = 0; e < 4; ++e) tile.lift[(block * 4 + e) * width + row] = lifts[e];
      tile.sum[block * width + row] = static_cast<float>(sum);
    }
  }
}

template <int kValues>
void quantise_rows(const float* x, int in, int rows, int first, int last, void* act) {
  for (int r = first; r < last; ++r) {
    const ActTile tile = act_tile(act, in, rows, r / kTileRows, kValues);
    const float* row = x + static_cast<size_t>(r) * static_cast<size_t>(in);
    for (int from = 0; from < in; from += kValues)
      quantise_share<kValues>(row + from, in - from < kValues ? in - from : kValues, tile,
                              static_cast<size_t>(from / kValues), static_cast<size_t>(r % kTileRows));
  }
}

void quantise(const float* x, int in, int rows, int first, int last, int act_blocks, void* act) {
  if (act_blocks & 32) quantise_rows<32>(x, in, rows, first, last, act);
  if (act_blocks & kSuper) quantise_rows<kSuper>(x, in, rows, first, last, act);
}

// ---- tiles of rows -----------------------------------------------------------------------------------------------------
template <class F>
SX_INLINE Vec scales_at(const uint8_t* p) {
  return F::kWide ? load(reinterpret_cast<const float*>(p)) : load_f16(reinterpret_cast<const uint16_t*>(p));
}

// s + w (unsigned) * x[0..3] for every output. g++ 12 does not find the form of the instruction that broadcasts from
// memory.
SX_INLINE __m512i dot_quad(__m512i s, __m512i w, const int8_t* x) {
#if defined(__x86_64__)
  using Quad [[gnu::may_alias]] = int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(s) : "v"(w), "m"(*reinterpret_cast<const Quad*>(x)));
  return s;
#else
  int32_t four;
  memcpy(&four, x, 4);
  return _mm512_dpbusd_epi32(s, w, _mm512_set1_epi32(four));
#endif
}
SX_INLINE Vec int_to_float(__m512i x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }

// Quad j of a block, unsigned.
template <class F>
SX_INLINE __m512i byte_quad(const uint8_t* quants, int j) {
  if constexpr (F::kQuant == Quant::kSix) {
    if (j >= 6) return lower_bits(quants + 192 * (j - 6));
    return _mm512_and_si512(_mm512_loadu_si512(quants + 64 * j), _mm512_set1_epi8(-4));
  } else {
    return _mm512_xor_si512(_mm512_loadu_si512(quants + 64 * j), _mm512_set1_epi8(-128));
  }
}

// Sums of R rows with half `h` of a block of bytes or six bits (all of it if the format has no halves).
template <class F, int R>
SX_INLINE void byte_dots(const uint8_t* quants, int h, const int8_t* q, const int32_t* lift, size_t width, __m512i* s) {
  constexpr int kQuads = 8 / F::kHalves;
  const int32_t* start = lift + static_cast<size_t>(F::kHalves == 1 ? 0 : 1 + h) * width;
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) s[r] = _mm512_set1_epi32(start[r]);
#pragma GCC unroll 8
  for (int j = h * kQuads; j < (h + 1) * kQuads; ++j) {
    const __m512i w = byte_quad<F>(quants, j);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) s[r] = dot_quad(s[r], w, q + 32 * r + 4 * j);
  }
}

template <class F, int R>
SX_INLINE void nibble_dots(const uint8_t* quants, const int8_t* q, const int32_t* lift, size_t width, __m512i* s) {
  const __m512i mask = _mm512_set1_epi8(15);
#pragma GCC unroll 8
  for (size_t r = 0; r < R; ++r)
    s[r] = F::kQuant == Quant::kSignedNibble ? _mm512_set1_epi32(lift[3 * width + r]) : _mm512_setzero_si512();
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i both = _mm512_loadu_si512(quants + 64 * j);
    const __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) s[r] = dot_quad(s[r], low, q + 32 * r + 4 * j);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) s[r] = dot_quad(s[r], high, q + 32 * r + 4 * j + 16);
  }
}

// G groups, `step` apart, x R rows from row `first` of a tile on, which is row `row` of the call.
template <class F, int G, int R>
__attribute__((noinline)) void rows_tile(const LinearJob& job, int group, int step, const ActTile& tile, int first,
                                         int row) {
  constexpr bool kPer32 = F::kQuant == Quant::kByte;
  constexpr int kAhead = 4096;  // prefetch so many bytes of weights ahead
  const size_t lifts = act_lifts(kShare<F>), sums = act_sums(kShare<F>);
  const uint8_t* w =
      reinterpret_cast<const uint8_t*>(job.weights) + static_cast<size_t>(group) * job.layout->group_bytes;
  const size_t apart = static_cast<size_t>(step) * job.layout->group_bytes, width = static_cast<size_t>(tile.width);
  const int8_t* q = tile.q + 32 * first;
  const int32_t* lift = tile.lift + first;
  const float* sum = tile.sum + first;
  const float* dx = tile.dx + first;
  Vec acc[G][R], p[G][R];
#pragma GCC unroll 16
  for (int i = 0; i < G * R; ++i) acc[i / R][i % R] = zero();
  for (int left = job.layout->blocks; left > 0; left -= kShare<F> / 32, dx += width) {
#pragma GCC unroll 16
    for (int i = 0; i < G * R; ++i) p[i / R][i % R] = zero();
    for (int b = left < kShare<F> / 32 ? left : kShare<F> / 32; b > 0; --b) {
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        const uint8_t* wg = w + static_cast<size_t>(g) * apart;
#pragma GCC unroll 10
        for (int i = 0; i < F::kBytes; i += 64)
          _mm_prefetch(reinterpret_cast<const char*>(wg + kAhead + i), _MM_HINT_T0);
        __m512i s[R];
        if constexpr (!kPer32) {
#pragma GCC unroll 2
          for (int h = 0; h < F::kHalves; ++h) {
            if constexpr (kNibbles<F>) nibble_dots<F, R>(wg + F::kQuantsAt, q, lift, width, s);
            else byte_dots<F, R>(wg + F::kQuantsAt, h, q, lift, width, s);
            const Vec d = scales_at<F>(wg + h * F::kScaleBytes);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) p[g][r] = fma(int_to_float(s[r]), d, p[g][r]);
          }
          if constexpr (F::kOffset) {
            const Vec m = scales_at<F>(wg + F::kOffsetsAt);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) p[g][r] = fma(m, set1(sum[r]), p[g][r]);
          }
        } else {
#pragma GCC unroll 2
          for (int h = 0; h < F::kHalves; ++h) {
            byte_dots<F, R>(wg + F::kQuantsAt, h, q, lift, width, s);
            const Vec d = scales_at<F>(wg + h * F::kScaleBytes);
            const Vec m = F::kOffset ? scales_at<F>(wg + F::kOffsetsAt + h * F::kScaleBytes) : zero();
            const float* part = sum + static_cast<size_t>(F::kHalves == 1 ? 0 : 1 + h) * width;
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
              acc[g][r] = fma(int_to_float(s[r]), mul(d, set1(dx[r])), acc[g][r]);
              if constexpr (F::kOffset) acc[g][r] = fma(m, set1(part[r]), acc[g][r]);
            }
          }
        }
      }
      w += F::kBytes, q += 32 * width, lift += lifts * width, sum += sums * width;
    }
    if constexpr (!kPer32)
#pragma GCC unroll 16
      for (int i = 0; i < G * R; ++i) acc[i / R][i % R] = fma(p[i / R][i % R], set1(dx[i % R]), acc[i / R][i % R]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < G * R; ++i) finish(job, group + i / R * step, row + i % R, acc[i / R][i % R]);
}

// ---- jobs --------------------------------------------------------------------------------------------------------------
constexpr int kFewRows = 8;
constexpr int kRowsAtOnce = 64;  // rows that share a pass over the groups; their activations stay in L2
constexpr int kAmxRows = 9;      // where AMX may be used it serves all tiles with at least so many

// Rows [from, to) of G groups, `step` apart; from is a multiple of 16.
template <class F, int G>
void rows_groups(const LinearJob& job, int group, int step, int from, int to) {
  for (int r = from; r < to;) {
    const ActTile tile = act_tile(job.act, job.layout->in, job.rows, r / kTileRows, kShare<F>);
    const int first = r % kTileRows, rest = tile.width - first, left = rest < to - r ? rest : to - r;
    const int count = left > 8 ? (left + 1) / 2 : left;
    switch (count) {
      case 8: rows_tile<F, G, 8>(job, group, step, tile, first, r); break;
      case 7: rows_tile<F, G, 7>(job, group, step, tile, first, r); break;
      case 6: rows_tile<F, G, 6>(job, group, step, tile, first, r); break;
      case 5: rows_tile<F, G, 5>(job, group, step, tile, first, r); break;
      case 4: rows_tile<F, G, 4>(job, group, step, tile, first, r); break;
      case 3: rows_tile<F, G, 3>(job, group, step, tile, first, r); break;
      case 2: rows_tile<F, G, 2>(job, group, step, tile, first, r); break;
      default: rows_tile<F, G, 1>(job, group, step, tile, first, r); break;
    }
    r += count;
  }
}

// Up to eight rows wait for memory, and two streams of it are read faster than one: two groups far apart at once. More
// rows are bound by arithmetic, and by registers.
template <class F>
void rows_few(const LinearJob& job) {
  const int half = (job.last - job.first) / 2;
  for (int g = job.first; g < job.first + half; ++g) rows_groups<F, 2>(job, g, half, 0, job.rows);
  if ((job.last - job.first) % 2) rows_groups<F, 1>(job, job.last - 1, 0, 0, job.rows);
}

template <class F, bool kAmx>
void run_format(const LinearJob& job) {
  if (job.rows <= kFewRows) return rows_few<F>(job);
  int from = 0;
  if constexpr (kAmx) {
    const int tiles = (job.rows + kTileRows - kAmxRows) / kTileRows;
    if (tiles > 0)
      amx_run(job,
              {.store = kNibbles<F>                 ? AmxStore::kNibbles
                        : F::kQuant == Quant::kSix  ? AmxStore::kSix
                        : F::kQuant == Quant::kByte ? AmxStore::kBytes
                                                    : AmxStore::kSuperBytes,
               .centred = F::kQuant == Quant::kSignedNibble,
               .wide = F::kWide,
               .offset = F::kOffset,
               .halves = F::kHalves == 2},
              tiles);
    from = tiles * kTileRows;
  }
  for (; from < job.rows; from += kRowsAtOnce) {
    const int to = job.rows - from < kRowsAtOnce ? job.rows : from + kRowsAtOnce;
    for (int g = job.first; g < job.last; ++g) rows_groups<F, 1>(job, g, 0, from, to);
  }
}

template <bool kAmx>
void run(const LinearJob& job) {
  if (!job.layout->quantised) return float_run(job, kFloatFormats);
  with_format(job.layout->format, [&](auto f) { run_format<decltype(f), kAmx>(job); });
}

template <bool kAmx>
size_t panel_bytes(int in) {
  const size_t floats = float_panel_bytes(in), tiles = kAmx ? amx_panel_bytes() : 0;
  return floats > tiles ? floats : tiles;
}

template <bool kAmx>
constexpr LinearKernels kTable = {.name = kAmx ? "avx512-amx" : "avx512-vnni",
                                  .layout = layout_of,
                                  .pack = pack,
                                  .act_rows = 1,
                                  .act_bytes = act_bytes,
                                  .quantise = quantise,
                                  .panel_bytes = panel_bytes<kAmx>,
                                  .run = run<kAmx>};

}  // namespace
}  // namespace vnni
const LinearKernels* linear_kernels_vnni() { return &vnni::kTable<false>; }
const LinearKernels* linear_kernels_amx() { return amx_built() ? &vnni::kTable<true> : nullptr; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_vnni() { return nullptr; }
const LinearKernels* linear_kernels_amx() { return nullptr; }
}  // namespace sx::cpu
#endif
