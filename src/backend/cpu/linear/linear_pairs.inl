// Quantised linear layers for x86 without VNNI. Lanes are outputs. Included by linear_avx2.cc and linear_avx512.cc,
// which differ in the width of a vector and first define, in their namespace,
//   Ints                 a vector of integers; kGroup, its number of 32-bit lanes, is the number of outputs of a group
//   load_ints, broadcast 64 or 32 bytes; the same four bytes in every lane
//   pair_sums(u, s)      unsigned times signed bytes, the terms of neighbours added to 16 bits with saturation
//   add_16, sum_pairs(x, factor)  16-bit sums; factor times the sum of both 16-bit halves of every 32-bit lane
//   add_32, to_float, and_bytes, or_bits, shift_right<n> (16-bit lanes), bytes_of(value), unsettled(x): see there
//   Signs, size_of(w), signs_of(w), with_signs(x, signs): |w|, and x with its sign where that of w is negative
//
// Small weights u, that is the file's plus a centre c: 0..15 with 4 bits and c = 8 or none, 0..31 with 5 bits and c =
// 16, 0..63 with 3 and 6 bits and c = 32. Activations x are at most 127 in size (-128 never occurs). A pair of terms
// is at most 2 * 63 * 127 = 16,002 in size, so it does not saturate. Sums wrap around in 16 bits, which the end takes
// back: a 16-bit lane starts with -c times the sum of its x, so it ends with the sum of its (u - c) x, which fits: 16
// terms of at most 8 * 127 or 16 * 127 (32,512 < 32,768), and 8 of at most 32 * 127 where 16 inner values share a
// scale. Without centre 16 terms of 15 * 127 (30,480). One more instruction makes the two lanes of an output one
// 32-bit integer, times what VNNI's six bits have as a factor. Bytes w: |w| times x with the sign of w, where |-128| is
// 128 as an unsigned byte: a pair is at most 2 * 128 * 127 = 32,512; it is widened at once. So each sum is the exact
// integer.
//
// A group-block is 32 inner values of kGroup outputs: scales [32 / sub][group], offsets likewise (if any), quants
// [8 quads of inner values][group][4]; as nibbles [4][group][4], quad j low and quad j + 4 high; as six bits
// [6][group][4], whose upper two bits are quad 6 (the first three) and 7, lower bits first.
#include <immintrin.h>

#define SX_SUPERS 1
#include "backend/cpu/linear/linear_act_tiles.inl"
#include "backend/cpu/linear/linear_formats.inl"

namespace sx::cpu::SX_ISA_NAMESPACE {
namespace {

template <class F>
constexpr int kShare = F::kQuant == Quant::kByte ? 32 : kSuper;  // inner values per activation scale
template <class F>
constexpr bool kNibbles = F::kQuant == Quant::kNibble || F::kQuant == Quant::kSignedNibble;
template <class F>
constexpr bool kSmall = kNibbles<F> || F::kQuant == Quant::kSix;
constexpr size_t kVector = kGroup * 4;  // bytes of one

LinearLayout layout_of(const LinearShape& shape) {
  LinearLayout l = layout(shape);
  if (l.quantised) with_format(l.format, [&](auto f) { l.act_block = kShare<decltype(f)>; });
  return l;
}

// source: 32 values of kGroup outputs. Those of six bits are centred and times quant_factor(), so 8 times five bits and
// 4 times six; three bits have 32 and become 8 times what they were, in 0..63.
template <class F>
void pack_quants(uint8_t* quants, const int8_t* source, size_t padded) {
  for (int o = 0; o < kGroup; ++o)
    for (int i = 0; i < 32; ++i) {
      const int j = i / 4, q = source[static_cast<size_t>(o) * padded + static_cast<size_t>(i)];
      uint8_t* at = quants + o * 4 + i % 4;
      if (F::kQuant == Quant::kSix) {
        const int bits = (q + 128) >> (F::kHalves == 1 ? 3 : 2);
        if (j < 6) at[kVector * static_cast<size_t>(j)] = static_cast<uint8_t>(bits);  // before quads 6 and 7
        else
          for (int v = 0; v < 3; ++v) {
            uint8_t& byte = at[kVector * static_cast<size_t>(3 * (j - 6) + v)];
            byte = static_cast<uint8_t>(byte | (bits >> 2 * v & 3) << 6);
          }
      } else if (kNibbles<F>) {
        uint8_t& byte = at[kVector * static_cast<size_t>(j % 4)];
        byte = static_cast<uint8_t>(j >= 4 ? byte | q << 4 : q);
      } else {
        at[kVector * static_cast<size_t>(j)] = static_cast<uint8_t>(q);
      }
    }
}

// ---- activations -----------------------------------------------------------------------------------------------------
// Entries of lift are what the 16-bit halves of a sum start with: minus the centre times the sum of the x that the half
// adds up.
enum Start { kFive, kSixFirst, kSixSecond, kFour, kStarts };
constexpr int kCentres[kStarts] = {16, 32, 32, 8};

size_t act_bytes(int in) { return act_row_bytes(in, 32) + act_row_bytes(in, kSuper); }

SX_INLINE __m128i pair_shuffle(__m128i x) {  // the sum of four 32-bit lanes of 16-bit pairs, in each of them
  x = _mm_add_epi16(x, _mm_shuffle_epi32(x, 0x4e));
  return _mm_add_epi16(x, _mm_shuffle_epi32(x, 0xb1));
}
SX_INLINE int32_t both(__m128i pairs) { return _mm_cvtsi128_si32(_mm_madd_epi16(pairs, _mm_set1_epi16(1))); }

// The kValues values of one row that share scale number `scale`; beyond `blocks` blocks they are zeros. With an
// infinity or NaN among them q is 0 and the scale makes the row's results NaN.
template <int kValues>
void quantise_share(const float* x, int blocks, const ActTile& tile, size_t scale, size_t row) {
  const size_t width = static_cast<size_t>(tile.width);
  const __m256 none = _mm256_setzero_ps(), sign = _mm256_set1_ps(-0.0f);
  __m256 v[kValues / 8], high = none, bad = none;
#pragma GCC unroll 8
  for (int i = 0; i < kValues / 8; ++i) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    high = _mm256_max_ps(high, _mm256_andnot_ps(sign, v[i]));
    bad = _mm256_fmadd_ps(v[i], none, bad);
  }
  const bool finite = _mm256_movemask_ps(_mm256_cmp_ps(bad, none, _CMP_EQ_OQ)) == 255;
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(high), _mm256_extractf128_ps(high, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  const float top = _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
  const float dx = finite ? top / 127 : __builtin_nanf("");
  tile.dx[scale * width + row] = dx;
  const __m256 inverse = _mm256_set1_ps(finite && top >= 0x1p-100f ? 127 / top : 0.0f);
  const __m256i keep = _mm256_set1_epi32(finite ? -1 : 0);
  for (int b = 0; b < blocks; ++b) {
    __m256i n[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i)  // to nearest, ties to even
      n[i] = _mm256_and_si256(_mm256_cvtps_epi32(_mm256_mul_ps(v[4 * b + i], inverse)), keep);
    __m256i q = _mm256_packs_epi16(_mm256_packs_epi32(n[0], n[1]), _mm256_packs_epi32(n[2], n[3]));
    q = _mm256_permutevar8x32_epi32(q, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    const size_t block = scale * (kValues / 32) + static_cast<size_t>(b);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(tile.q + (block * width + row) * 32), q);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
    const __m128i first = pair_shuffle(_mm256_castsi256_si128(pairs));
    const __m128i second = pair_shuffle(_mm256_extracti128_si256(pairs, 1)), all = _mm_add_epi16(first, second);
    if (kValues == 32) {
      float* sum = tile.sum + block * 3 * width + row;
      sum[0] = dx * static_cast<float>(both(all));
      sum[width] = dx * static_cast<float>(both(first));
      sum[2 * width] = dx * static_cast<float>(both(second));
      continue;
    }
    tile.sum[block * width + row] = static_cast<float>(both(all));
    int32_t* lift = tile.lift + block * kStarts * width + row;
#pragma GCC unroll 4
    for (int s = 0; s < kStarts; ++s) {
      const __m128i of = s == kSixFirst ? first : s == kSixSecond ? second : all;
      const __m128i start = _mm_mullo_epi16(of, _mm_set1_epi16(static_cast<short>(-kCentres[s])));
      lift[static_cast<size_t>(s) * width] = _mm_cvtsi128_si32(start);
    }
  }
}

template <int kValues>
void quantise_rows(const float* x, int in, int rows, int first, int last, void* act) {
  for (int r = first; r < last; ++r) {
    const ActTile tile = act_tile(act, in, rows, r / kTileRows, kValues);
    const size_t at = static_cast<size_t>(r % kTileRows);
    const float* row = x + static_cast<size_t>(r) * static_cast<size_t>(in);
    int from = 0;
    for (; from + kValues <= in; from += kValues)
      quantise_share<kValues>(row + from, kValues / 32, tile, static_cast<size_t>(from / kValues), at);
    if (from == in) continue;
    float rest[kValues] = {};
    memcpy(rest, row + from, sizeof(float) * static_cast<size_t>(in - from));
    quantise_share<kValues>(rest, (in - from + 31) / 32, tile, static_cast<size_t>(from / kValues), at);
  }
}

void quantise(const float* x, int in, int rows, int first, int last, int act_blocks, void* act) {
  if (act_blocks & 32) quantise_rows<32>(x, in, rows, first, last, act);
  if (act_blocks & kSuper) quantise_rows<kSuper>(x, in, rows, first, last, act);
}

// ---- weights -----------------------------------------------------------------------------------------------------------
// A block as it lies in memory, or in a panel: scales and offsets as floats, small weights a byte each.
template <class F, bool kPanel>
constexpr size_t kQuantsFrom = kPanel ? kVector*(F::kHalves + F::kOffset) : F::kQuantsAt;
template <class F, bool kPanel>
constexpr size_t kBlockBytes = kPanel ? kQuantsFrom<F, true> + 8 * kVector : F::kBytes;
constexpr int kPanelBlocks = 256 / kGroup;  // in a chunk: two groups of them stay in L1, whatever the width of a vector
constexpr size_t kPanelBytes = 2 * kPanelBlocks * 10 * kVector;

// Of the first or second half of a block, or (i = kHalves) the offset.
template <class F, bool kPanel>
SX_INLINE Vec scales_of(const uint8_t* block, int i) {
  if (kPanel) return load(reinterpret_cast<const float*>(block) + i * kGroup);
  const uint8_t* p = block + i * F::kScaleBytes;
  return F::kWide ? load(reinterpret_cast<const float*>(p)) : load_f16(reinterpret_cast<const uint16_t*>(p));
}

// Quad j of small weights.
template <class F, bool kPanel>
SX_INLINE Ints small_quad(const uint8_t* quants, int j) {
  const auto at = [&](int i) { return load_ints(quants + kVector * static_cast<size_t>(i)); };
  if constexpr (kPanel) {
    return at(j);
  } else if constexpr (kNibbles<F>) {
    return and_bytes(j < 4 ? at(j) : shift_right<4>(at(j - 4)), bytes_of(15));
  } else {
    if (j < 6) return and_bytes(at(j), bytes_of(63));
    const int i = 3 * (j - 6);
    const Ints a = and_bytes(shift_right<6>(at(i)), bytes_of(3)),
               b = and_bytes(shift_right<4>(at(i + 1)), bytes_of(12));
    return or_bits(or_bits(a, b), and_bytes(shift_right<2>(at(i + 2)), bytes_of(48)));
  }
}

// The sums of R rows with half h of a block of two groups (with all of it if the format has no halves).
template <class F, int R, bool kPanel>
SX_INLINE void small_dots(const uint8_t* const* w, int h, const int8_t* q, const int32_t* lift, size_t width,
                          Ints (*s)[R]) {
  constexpr bool kCentred = F::kQuant != Quant::kNibble;
  constexpr int kFactor = F::kQuant != Quant::kSix ? 1 : F::kHalves == 1 ? 8 : 4;
  const int which = F::kQuant != Quant::kSix ? kFour : F::kHalves == 1 ? kFive : kSixFirst + h;
  const int32_t* start = lift + static_cast<size_t>(which) * width;
#pragma GCC unroll 4
  for (int i = 0; i < 4 / F::kHalves; ++i) {
    const int j = F::kHalves == 1 ? i : 4 * h + 2 * i, k = F::kHalves == 1 ? i + 4 : j + 1;
    Ints a[2], b[2];
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) a[g] = small_quad<F, kPanel>(w[g], j), b[g] = small_quad<F, kPanel>(w[g], k);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints x = broadcast(q + 32 * r + 4 * j), y = broadcast(q + 32 * r + 4 * k);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        Ints sum = pair_sums(a[g], x);
        if (i > 0) sum = add_16(s[g][r], sum);
        else if (kCentred) sum = add_16(broadcast(start + r), sum);
        s[g][r] = add_16(sum, pair_sums(b[g], y));
        unsettled(s[g][r]);
      }
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < 2 * R; ++i) s[i / R][i % R] = sum_pairs(s[i / R][i % R], kFactor);
}

template <class F, int R>
SX_INLINE void byte_dots(const uint8_t* const* w, int h, const int8_t* q, Ints (*s)[R]) {
  constexpr int kQuads = 8 / F::kHalves;
#pragma GCC unroll 8
  for (int i = 0; i < kQuads; ++i) {
    const int j = h * kQuads + i;
    Ints size[2];
    Signs signs[2];
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      const Ints of = load_ints(w[g] + kVector * static_cast<size_t>(j));
      size[g] = size_of(of), signs[g] = signs_of(of);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const Ints x = broadcast(q + 32 * r + 4 * j);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const Ints sum = sum_pairs(pair_sums(size[g], with_signs(x, signs[g])), 1);
        s[g][r] = i == 0 ? sum : add_32(s[g][r], sum);
        unsettled(s[g][r]);
      }
    }
  }
}

// ---- tiles of rows -----------------------------------------------------------------------------------------------------
// Two groups that are multiplied together. The last group of an odd number of them is also the second, and is written
// once.
struct Two {
  const uint8_t* w[2];  // in memory or in a panel
  int group[2];
  int count;
};

// The blocks [first, first + count) of all, which is all of them unless weights are in a panel. Between chunks the sums
// of a call's rows are kept in memory.
struct Chunk {
  int first, count;  // first is even
  bool last;
  float* kept;  // [rows][2][kGroup]
};

// One row's results: out = acc * unit + bias, then old + that.
SX_INLINE void finish(const LinearJob& job, int group, int row, Vec acc) {
  const int from = group * kGroup, left = job.outputs - from;
  float* y = job.out + static_cast<size_t>(row) * static_cast<size_t>(job.out_stride) + from;
  const float* bias = job.bias ? job.bias + from : nullptr;
  float beyond[2][kGroup] = {}, *to = y;
  if (left < kGroup) {
    const size_t bytes = sizeof(float) * static_cast<size_t>(left);
    if (bias) bias = static_cast<float*>(memcpy(beyond[0], bias, bytes));
    to = beyond[1];
    if (job.accumulate) memcpy(to, y, bytes);
  }
  acc = mul(acc, set1(job.layout->unit));
  if (bias) acc = add(acc, load(bias));
  if (job.accumulate) acc = add(load(to), acc);
  store(to, acc);
  if (left < kGroup) memcpy(y, to, sizeof(float) * static_cast<size_t>(left));
}

// Two groups x R rows from row `row` of the call on, which are in one tile of activations.
template <class F, int R, bool kPanel>
__attribute__((noinline)) void rows_tile(const LinearJob& job, const Two& two, const Chunk& chunk, const ActTile& tile,
                                         int row) {
  constexpr size_t kAhead = 4096;  // prefetch so many bytes of weights ahead
  constexpr size_t kLifts = kShare<F> == 32 ? 3 : 4, kSums = kShare<F> == 32 ? 3 : 1;
  const size_t width = static_cast<size_t>(tile.width), from = static_cast<size_t>(row % kTileRows);
  const size_t block_0 = static_cast<size_t>(chunk.first);
  const int8_t* q = tile.q + 32 * (block_0 * width + from);
  const int32_t* lift = tile.lift + block_0 * kLifts * width + from;
  const float* sum = tile.sum + block_0 * kSums * width + from;
  const float* dx = tile.dx + block_0 / (kShare<F> / 32) * width + from;
  const uint8_t* w[2] = {two.w[0], two.w[1]};
  Vec acc[2][R], p[2][R];
#pragma GCC unroll 16
  for (int i = 0; i < 2 * R; ++i)
    acc[i / R][i % R] = kPanel && chunk.first > 0 ? load(chunk.kept + (i % R * 2 + i / R) * kGroup) : zero();
  for (int left = chunk.count; left > 0; left -= kShare<F> / 32, dx += width) {
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R; ++i) p[i / R][i % R] = zero();
    for (int b = left < kShare<F> / 32 ? left : kShare<F> / 32; b > 0; --b) {
      if constexpr (!kPanel)
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g)
#pragma GCC unroll 12
          for (size_t i = 0; i < F::kBytes; i += 64)
            _mm_prefetch(reinterpret_cast<const char*>(w[g] + kAhead + i), _MM_HINT_T0);
      const uint8_t* const quants[2] = {w[0] + kQuantsFrom<F, kPanel>, w[1] + kQuantsFrom<F, kPanel>};
#pragma GCC unroll 2
      for (int h = 0; h < F::kHalves; ++h) {
        Ints s[2][R];
        if constexpr (kSmall<F>) small_dots<F, R, kPanel>(quants, h, q, lift, width, s);
        else byte_dots<F, R>(quants, h, q, s);
#pragma GCC unroll 2
        for (int g = 0; g < 2; ++g) {
          const Vec d = scales_of<F, kPanel>(w[g], h);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const Vec f = to_float(s[g][r]);
            if constexpr (kShare<F> == 32) acc[g][r] = fma(f, mul(d, set1(dx[r])), acc[g][r]);
            else p[g][r] = fma(f, d, p[g][r]);
          }
          if constexpr (F::kOffset) {
            const Vec m = scales_of<F, kPanel>(w[g], F::kHalves + h);
            const float* part = sum + static_cast<size_t>(F::kHalves == 1 ? 0 : 1 + h) * width;
            Vec* to = kShare<F> == 32 ? acc[g] : p[g];
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) to[r] = fma(m, set1(part[r]), to[r]);
          }
        }
      }
      w[0] += kBlockBytes<F, kPanel>, w[1] += kBlockBytes<F, kPanel>;
      q += 32 * width, lift += kLifts * width, sum += kSums * width;
    }
    if constexpr (kShare<F> != 32)
#pragma GCC unroll 16
      for (int i = 0; i < 2 * R; ++i) acc[i / R][i % R] = fma(p[i / R][i % R], set1(dx[i % R]), acc[i / R][i % R]);
  }
  if (kPanel && !chunk.last) {
#pragma GCC unroll 16
    for (int i = 0; i < 2 * R; ++i) store(chunk.kept + (i % R * 2 + i / R) * kGroup, acc[i / R][i % R]);
    return;
  }
  for (int g = 0; g < two.count; ++g)
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) finish(job, two.group[g], row + r, acc[g][r]);
}

// ---- jobs --------------------------------------------------------------------------------------------------------------
constexpr int kFewRows = 16;     // a panel pays for more
constexpr int kRowsAtOnce = 64;  // rows that share a pass over the groups; their activations stay in L2

// Rows [from, to) of two groups in memory. A tile of activations is cut into tiles of about as many rows each.
template <class F>
void rows_groups(const LinearJob& job, const Two& two, int from, int to) {
  const Chunk all = {.first = 0, .count = job.layout->blocks, .last = true, .kept = nullptr};
  for (int r = from; r < to;) {
    const ActTile tile = act_tile(job.act, job.layout->in, job.rows, r / kTileRows, kShare<F>);
    const int rest = tile.width - r % kTileRows, left = rest < to - r ? rest : to - r;
    const int tiles = (left + kMostRows - 1) / kMostRows, count = (left + tiles - 1) / tiles;
    switch (count) {
      case 4: rows_tile<F, 4, false>(job, two, all, tile, r); break;
      case 3: rows_tile<F, 3, false>(job, two, all, tile, r); break;
      case 2: rows_tile<F, 2, false>(job, two, all, tile, r); break;
      default: rows_tile<F, 1, false>(job, two, all, tile, r); break;
    }
    r += count;
  }
}

Two two_groups(const LinearJob& job, int group, int step) {
  const auto at = [&](int g) {
    return reinterpret_cast<const uint8_t*>(job.weights) + static_cast<size_t>(g) * job.layout->group_bytes;
  };
  return {.w = {at(group), at(group + step)}, .group = {group, group + step}, .count = step ? 2 : 1};
}

// Few rows wait for memory, and two streams of it are read faster than one: two groups far apart.
template <class F>
void run_few(const LinearJob& job) {
  const int half = (job.last - job.first) / 2;
  for (int g = job.first; g < job.first + half; ++g) rows_groups<F>(job, two_groups(job, g, half), 0, job.rows);
  if ((job.last - job.first) % 2) rows_groups<F>(job, two_groups(job, job.last - 1, 0), 0, job.rows);
}

// Writes a group into a panel.
template <class F>
__attribute__((noinline)) void fill_panel(const uint8_t* w, int blocks, uint8_t* panel) {
  for (int b = 0; b < blocks; ++b, w += F::kBytes, panel += kBlockBytes<F, true>) {
#pragma GCC unroll 12
    for (size_t i = 0; i < F::kBytes; i += 64) _mm_prefetch(reinterpret_cast<const char*>(w + 4096 + i), _MM_HINT_T0);
#pragma GCC unroll 3
    for (int i = 0; i < F::kHalves + F::kOffset; ++i)
      store(reinterpret_cast<float*>(panel) + i * kGroup, scales_of<F, false>(w, i));
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j)
      store_ints(panel + kQuantsFrom<F, true> + kVector * static_cast<size_t>(j),
                 small_quad<F, false>(w + F::kQuantsAt, j));
  }
}

// Two groups of small weights x rows [from, to), a panel of them after the other; rows that fill no tile take them from
// memory.
template <class F>
void run_panels(const LinearJob& job, const Two& two, int from, int to) {
  uint8_t* panel = reinterpret_cast<uint8_t*>(job.panel);
  const int full = from + (to - from) / kMostRows * kMostRows;
  Chunk chunk = {.first = 0, .count = 0, .last = false, .kept = nullptr};
  for (; !chunk.last; chunk.first += chunk.count) {
    const int left = job.layout->blocks - chunk.first;
    chunk.last = left <= kPanelBlocks;
    chunk.count = chunk.last ? left : kPanelBlocks;
    chunk.kept = reinterpret_cast<float*>(panel + kPanelBytes);
    Two in_panel = two;
    for (int i = 0; i < 2; ++i) {
      uint8_t* to_group = panel + static_cast<size_t>(i * chunk.count) * kBlockBytes<F, true>;
      fill_panel<F>(two.w[i] + static_cast<size_t>(chunk.first) * F::kBytes, chunk.count, to_group);
      in_panel.w[i] = to_group;
    }
    for (int r = from; r < full; r += kMostRows, chunk.kept += kMostRows * 2 * kGroup) {
      const ActTile tile = act_tile(job.act, job.layout->in, job.rows, r / kTileRows, kShare<F>);
      rows_tile<F, kMostRows, true>(job, in_panel, chunk, tile, r);
    }
  }
  rows_groups<F>(job, two, full, to);
}

template <class F>
void run_format(const LinearJob& job) {
  if (job.rows <= kFewRows) return run_few<F>(job);
  for (int from = 0; from < job.rows; from += kRowsAtOnce) {
    const int to = job.rows - from < kRowsAtOnce ? job.rows : from + kRowsAtOnce;
    for (int g = job.first; g < job.last; g += 2) {
      const Two two = two_groups(job, g, g + 1 < job.last ? 1 : 0);
      if constexpr (kSmall<F>) run_panels<F>(job, two, from, to);
      else rows_groups<F>(job, two, from, to);
    }
  }
}

void run(const LinearJob& job) {
  if (!job.layout->quantised) return float_run(job, kFloatFormats);
  with_format(job.layout->format, [&](auto f) { run_format<decltype(f)>(job); });
}

size_t panel_bytes(int in) {
  const size_t floats = float_panel_bytes(in), panels = kPanelBytes + kRowsAtOnce * 2 * kGroup * sizeof(float);
  return floats > panels ? floats : panels;
}

}  // namespace
}  // namespace sx::cpu::SX_ISA_NAMESPACE
