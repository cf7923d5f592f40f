// Linear layers for x86-64 with AVX-512 and VNNI, and with AMX for many rows (linear_amx.cc). vpdpbusd multiplies
// unsigned by signed bytes and adds four neighbours to 32 bits without saturation. Activations x are the signed
// operand; what was added to a weight to make it unsigned is paid back as the sum's start, so each sum is the exact
// integer.
//   4-bit weights   activations with one scale per 256 values, order of reduction as in linear_wide.inl; nibbles are stored as
//                   the file has them (Q4_0: weight + 8, which costs 8 * (sum of x))
//   other weights   one scale per 32, layout and order of linear_lanes.inl; flipping the top bit adds 128, which costs
//                   128 * (sum of x). Low and high halves of a block have their own sums, since vpdpbusd takes 4 to 5 cycles.
// Largest sum of a block: 32 * 255 * 127 + 128 * 32 * 127 < 2^31.
#define SX_ISA_NAMESPACE avx512
#include "backend/cpu/linear/linear_amx.h"
#include "backend/cpu/linear/linear_kernels.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) && \
    defined(__AVX512VNNI__)
#include "backend/cpu/linear/linear_wide.inl"

namespace sx::cpu::avx512 {
namespace {

constexpr int kGroup = 16;
constexpr bool kAlwaysWide = false;
using IntVec = __m512i;
struct ActRegs {
  const int8_t* q;
};  // vpdpbusd broadcasts its signed operand from memory
SX_INLINE Vec to_float(IntVec x) { return _mm512_maskz_cvtepi32_ps(0xffff, x); }
SX_INLINE ActRegs load_act(const int8_t* p) { return {p}; }
SX_INLINE __m512i load_bytes(const uint8_t* p) { return _mm512_loadu_si512(p); }
// x[4j..4j+3] for every output.
SX_INLINE __m512i quad(const ActRegs& x, int j) {
  int32_t four;
  memcpy(&four, x.q + 4 * j, 4);
  return _mm512_set1_epi32(four);
}

}  // namespace
}  // namespace sx::cpu::avx512

#define SX_OWN_DOTS 1
#define SX_OWN_RUN 1
#include "backend/cpu/linear/linear_lanes.inl"

namespace sx::cpu {
namespace avx512 {
namespace {

template <class F, int R>
SX_INLINE void lanes_dots(const uint8_t* quants, int v, const ActRegs* x, IntVec (*s)[R]) {
  static_assert(F::kQuant == Quant::kByte);
  constexpr bool kTwo = F::kHalves == 2;
  const __m512i flip = _mm512_set1_epi8(-128);
  const uint8_t* p = quants + v * kLanes * 4;
  __m512i a[R], b[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    a[r] = _mm512_set1_epi32(act_lift(x[r].q, kTwo ? 1 : 0));
    b[r] = kTwo ? _mm512_set1_epi32(act_lift(x[r].q, 2)) : _mm512_setzero_si512();
  }
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const __m512i low = _mm512_xor_si512(load_bytes(p + j * kGroup * 4), flip);
    const __m512i high = _mm512_xor_si512(load_bytes(p + (j + 4) * kGroup * 4), flip);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      a[r] = _mm512_dpbusd_epi32(a[r], low, quad(x[r], j));
      b[r] = _mm512_dpbusd_epi32(b[r], high, quad(x[r], j + 4));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    s[0][r] = kTwo ? a[r] : _mm512_add_epi32(a[r], b[r]);
    if constexpr (kTwo) s[1][r] = b[r];
  }
}

// ---- activations with one scale per 256 values -------------------------------------------------------------------------
// Activations of a call lie row by row in the form of linear_lanes.inl, then tile by tile in the form of
// linear_wide.inl.
size_t lanes_bytes(int in, int rows) { return lanes_act_bytes(in) * static_cast<size_t>(rows); }
size_t act_bytes(int in) { return lanes_act_bytes(in) + wide_row_bytes(in); }

SX_INLINE __mmask16 first_lanes(int count) {
  return static_cast<__mmask16>(count >= 16 ? 0xffffu : count <= 0 ? 0u : (1u << count) - 1);
}

// A super-block of up to 256 values of row `row` of a tile. One with an infinity or NaN gets q = 0 and a scale that
// makes its row's results NaN.
void wide_quantise_super(const float* x, int count, const WideTile& tile, size_t super, int row) {
  const size_t width = static_cast<size_t>(tile.width), at = static_cast<size_t>(row);
  Vec high = zero(), bad = zero();
  for (int i = 0; i < count; i += 16) {
    const Vec v = _mm512_maskz_loadu_ps(first_lanes(count - i), x + i);
    high = max(high, abs(v));
    bad = add(bad, mul(v, zero()));
  }
  const float top = reduce_max(high), poison = reduce_add(bad);
  const_cast<float*>(tile.dx)[super * width + at] = top / 127 + poison;
  const bool good = poison == 0 && top >= 0x1p-100f;
  const Vec inverse = set1(good ? 127 / top : 0.0f);
  for (int i = 0; i < count; i += 32) {
    const size_t cell = (super * 8 + static_cast<size_t>(i / 32)) * width + at;
    __m512i n[2];
    for (int h = 0; h < 2; ++h) {
      const int from = i + 16 * h;
      const Vec v = _mm512_maskz_loadu_ps(good ? first_lanes(count - from) : first_lanes(0), x + from);
      n[h] = _mm512_maskz_cvtps_epi32(0xffff, mul(v, inverse));  // to nearest, ties to even
      _mm_storeu_si128(reinterpret_cast<__m128i*>(const_cast<int8_t*>(tile.q) + cell * 32 + 16 * h),
                       _mm512_maskz_cvtepi32_epi8(0xffff, n[h]));
    }
    const __m512i both = _mm512_add_epi32(n[0], n[1]);
    const __m256i q =
        _mm256_add_epi32(_mm512_maskz_extracti64x4_epi64(0xf, both, 0), _mm512_maskz_extracti64x4_epi64(0xf, both, 1));
    __m128i h = _mm_add_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_add_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    const int32_t sum = _mm_cvtsi128_si32(h);
    const_cast<int32_t*>(tile.lift)[cell] = -8 * sum;
    const_cast<float*>(tile.sum)[cell] = static_cast<float>(sum);
  }
}

void quantise(const float* x, int in, int rows, int first, int last, int act_blocks, void* act) {
  if (act_blocks & 32) lanes_quantise(x, in, rows, first, last, 32, act);
  if (!(act_blocks & kSuper)) return;
  const void* wide = static_cast<char*>(act) + lanes_bytes(in, rows);
  for (int r = first; r < last; ++r) {
    const WideTile tile = wide_tile_at(wide, in, rows, r / kTileRows);
    const float* row = x + static_cast<size_t>(r) * static_cast<size_t>(in);
    for (int from = 0; from < in; from += kSuper)
      wide_quantise_super(row + from, in - from < kSuper ? in - from : kSuper, tile, static_cast<size_t>(from / kSuper),
                          r % kTileRows);
  }
}

// ---- 4-bit weights -----------------------------------------------------------------------------------------------------
LinearLayout wide_layout(const LinearShape& shape) {
  LinearLayout l = layout(shape);
  if (l.quantised)
    with_format(l.format, [&](auto f) { l.act_block = decltype(f)::kQuant == Quant::kByte ? 32 : kSuper; });
  return l;
}

void wide_pack(const LinearLayout& l, const LinearSource& source, std::byte* group) {
  pack(l, source, group);
  if (!l.quantised) return;
  with_format(l.format, [&](auto f) {
    using F = decltype(f);
    if (F::kQuant != Quant::kSignedNibble) return;  // those are packed as two's complement; flipping bit 3 adds 8
    for (int k = 0; k < l.blocks; ++k)
      for (int i = F::kQuantsAt; i < F::kBytes; ++i) group[k * F::kBytes + i] ^= std::byte{0x88};
  });
}

// s + w (unsigned) * x[0..3] for every output. g++ 12 does not find the form of the instruction that broadcasts from
// memory.
SX_INLINE __m512i dot_quad(__m512i s, __m512i w, const int8_t* x) {
#if defined(__x86_64__)
  using Four [[gnu::may_alias]] = int32_t;
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(s) : "v"(w), "m"(*reinterpret_cast<const Four*>(x)));
  return s;
#else
  return _mm512_dpbusd_epi32(s, w, quad({x}, 0));
#endif
}

// G groups, `step` apart, x R rows from row `first` of a tile on.
template <class F, int G, int R>
__attribute__((noinline)) void wide_rows(const LinearJob& job, int group, int step, const WideTile& tile, int first,
                                         int row) {
  constexpr bool kCentred = F::kQuant == Quant::kSignedNibble;
  constexpr int kAhead = 2048;  // bytes of weights; the hardware's own look-ahead stops at page borders
  const __m512i mask = _mm512_set1_epi8(15);
  const uint8_t* w =
      reinterpret_cast<const uint8_t*>(job.weights) + static_cast<size_t>(group) * job.layout->group_bytes;
  const size_t apart = static_cast<size_t>(step) * job.layout->group_bytes, width = static_cast<size_t>(tile.width);
  const int8_t* q = tile.q + 32 * first;
  const int32_t* lift = tile.lift + first;
  const float* sum = tile.sum + first;
  const float* dx = tile.dx + first;
  __m512 acc[G][R], p[G][R];
#pragma GCC unroll 16
  for (int i = 0; i < G * R; ++i) acc[i / R][i % R] = _mm512_setzero_ps();
  for (int left = job.layout->blocks; left > 0; left -= 8, dx += width) {
#pragma GCC unroll 16
    for (int i = 0; i < G * R; ++i) p[i / R][i % R] = _mm512_setzero_ps();
    for (int b = left < 8 ? left : 8; b > 0; --b, w += F::kBytes, q += 32 * width, lift += width, sum += width) {
#pragma GCC unroll 2
      for (int g = 0; g < G; ++g) {
        const uint8_t* wg = w + static_cast<size_t>(g) * apart;
        if (R <= 2)
#pragma GCC unroll 8
          for (int i = 0; i < F::kBytes; i += 64)
            _mm_prefetch(reinterpret_cast<const char*>(wg + kAhead + i), _MM_HINT_T0);
        __m512i s[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] = kCentred ? _mm512_set1_epi32(lift[r]) : _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const __m512i both = load_bytes(wg + F::kQuantsAt + 64 * j);
          const __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[r] = dot_quad(s[r], low, q + 32 * r + 4 * j);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[r] = dot_quad(s[r], high, q + 32 * r + 4 * j + 16);
        }
        const Vec d = lanes_scale<F>(wg, 0), m = F::kOffset ? lanes_scale<F>(wg + F::kOffsetsAt, 0) : zero();
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          p[g][r] = _mm512_fmadd_ps(to_float(s[r]), d, p[g][r]);
          if constexpr (F::kOffset) p[g][r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[r]), p[g][r]);
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < G * R; ++i)
      acc[i / R][i % R] = _mm512_fmadd_ps(p[i / R][i % R], _mm512_set1_ps(dx[i % R]), acc[i / R][i % R]);
  }
#pragma GCC unroll 16
  for (int i = 0; i < G * R; ++i) wide_finish(job, group + i / R * step, row + i % R, acc[i / R][i % R]);
}

constexpr int kRowsAtOnce = 64;  // rows that share a pass over the groups; their activations stay in L2

// Rows [from, to) of one group; from is a multiple of 16.
template <class F>
void wide_group(const LinearJob& job, const void* act, int group, int from, int to) {
  for (int r = from; r < to;) {
    const WideTile tile = wide_tile_at(act, job.layout->in, job.rows, r / kTileRows);
    const int first = r % kTileRows, rest = tile.width - first, left = rest < to - r ? rest : to - r;
    const int count = left > 8 ? (left + 1) / 2 : left;
    switch (count) {
      case 8: wide_rows<F, 1, 8>(job, group, 0, tile, first, r); break;
      case 7: wide_rows<F, 1, 7>(job, group, 0, tile, first, r); break;
      case 6: wide_rows<F, 1, 6>(job, group, 0, tile, first, r); break;
      case 5: wide_rows<F, 1, 5>(job, group, 0, tile, first, r); break;
      case 4: wide_rows<F, 1, 4>(job, group, 0, tile, first, r); break;
      case 3: wide_rows<F, 1, 3>(job, group, 0, tile, first, r); break;
      case 2: wide_rows<F, 1, 2>(job, group, 0, tile, first, r); break;
      default: wide_rows<F, 1, 1>(job, group, 0, tile, first, r); break;
    }
    r += count;
  }
}

// One or two rows: two groups far apart at once, since two streams of memory are read faster than one.
template <class F, int R>
void wide_few(const LinearJob& job, const void* act) {
  const WideTile tile = wide_tile_at(act, job.layout->in, job.rows, 0);
  const int half = (job.last - job.first) / 2;
  for (int g = job.first; g < job.first + half; ++g) wide_rows<F, 2, R>(job, g, half, tile, 0, 0);
  if ((job.last - job.first) % 2) wide_rows<F, 1, R>(job, job.last - 1, 0, tile, 0, 0);
}

constexpr int kAmxRows = 9;  // tiles with so many rows are multiplied by AMX where it may be used

template <class F, bool kAmx>
void wide_run(const LinearJob& job) {
  const void* act = static_cast<const char*>(job.act) + lanes_bytes(job.layout->in, job.rows);
  if (job.rows == 1) return wide_few<F, 1>(job, act);
  if (job.rows == 2) return wide_few<F, 2>(job, act);
  int from = 0;
  if constexpr (kAmx) {
    const int tiles = (job.rows + kTileRows - kAmxRows) / kTileRows;
    const AmxWeights weights = {F::kQuant == Quant::kSignedNibble, F::kWide, act};
    if (tiles > 0) amx_run(job, weights, tiles);
    from = tiles * kTileRows;
  }
  for (; from < job.rows; from += kRowsAtOnce) {
    const int to = job.rows - from < kRowsAtOnce ? job.rows : from + kRowsAtOnce;
    for (int g = job.first; g < job.last; ++g) wide_group<F>(job, act, g, from, to);
  }
}

template <bool kAmx>
void run(const LinearJob& job) {
  if (!job.layout->quantised) return float_run(job, kFloatFormats);
  with_format(job.layout->format, [&](auto f) {
    using F = decltype(f);
    if constexpr (F::kQuant == Quant::kByte) lanes_run_format<F>(job);
    else wide_run<F, kAmx>(job);
  });
}

template <bool kAmx>
size_t panel_bytes(int in) {
  const size_t lanes = lanes_panel_bytes(in), tiles = kAmx ? amx_panel_bytes() : 0;
  return lanes > tiles ? lanes : tiles;
}

template <bool kAmx>
constexpr LinearKernels kTable = {.name = kAmx ? "avx512-amx" : "avx512-vnni",
                                  .layout = wide_layout,
                                  .pack = wide_pack,
                                  .act_rows = 1,
                                  .act_bytes = act_bytes,
                                  .quantise = quantise,
                                  .panel_bytes = panel_bytes<kAmx>,
                                  .run = run<kAmx>};

}  // namespace
}  // namespace avx512
const LinearKernels* linear_kernels_avx512() { return &avx512::kTable<false>; }
const LinearKernels* linear_kernels_amx() { return amx_built() ? &avx512::kTable<true> : nullptr; }
}  // namespace sx::cpu
#else
namespace sx::cpu {
const LinearKernels* linear_kernels_avx512() { return nullptr; }
const LinearKernels* linear_kernels_amx() { return nullptr; }
}  // namespace sx::cpu
#endif
