// Linear layers with one activation scale per 64 inner values (a super-block of two blocks; the last one of a row may
// be a single block). Included by linear_neon_i8mm.cc inside its namespace.
//
// A sub-block is what has a scale in the file: 32 inner values, or 16. q are its weights as they are stored, centred
// around 0, d_b its scale, m_b the offset of block b, W the factor that fills a byte: 32 for 3 bits, 16 for 4, 8 for 5,
// 4 for 6, 1 for 8. M = 1.5 * 2^23. The order of reduction, for every output and row:
//   acc = 0; for each super-block in order, every fourth of which begins with S = bits(M):
//     p = float(S) d_0
//     for each sub-block b in order: S += integer dot of W q and x;  p = fma(-float(S), d_b - d_(b+1), p)
//     with offsets, after each block: p = fma(-m_b, f16(16 * sum of the block's x), p)
//     acc = fma(-p, dx / 16, acc)
//   result = acc * unit
// d is 0 after the super-block's last sub-block, so by summation by parts -p ends as the sum of d_b times the dot of b.
// S is an integer that counts from the bits of M over 256 values, so its bits read as a float are M + S: no conversion.
// |S| <= 256 * 128 * 127 < 2^22 keeps it within M's binade: exact. Rounding p adds about 1e-4 of a result's size, the
// rounding of activations 50 times as much.
//
// Scales are f16. Those of K types are a number times an integer and may be too small for that: they are stored times
// 2^shift (LinearShape), and offsets times W / 16 as well; unit takes both back, exactly.
//
// A group-block is [1 or 2][8 f16 scales][8 f16 offsets, if any][4 pairs of outputs][operands]. Operands of 2 outputs x
// 32 inner values:
//   nibbles  [2 vectors], two's complement, 16h..16h+7 low and 16h+8..16h+15 high. 4-bit types; as many bytes as in the
//            file. Types with offsets count from 8, too: their offset is stored as m + 8 d.
//   six      [3 vectors]: the first three operands are their upper six bits, the fourth is their lower two: those of the
//            first vector on top. Types of 5 and 6 bits, and of 3; 5 bits with offsets count from 16.
//   bytes    [4 vectors]. Q8_0.

constexpr int kSuperBlocks = 2, kSuper = 32 * kSuperBlocks;
constexpr int kRestart = 256 / kSuper;  // S starts anew every so many super-blocks
constexpr float kMagic = 12582912;
// Constants that are loaded, not computed: this core runs an instruction in the half of the vector unit that computed
// its operands, and loaded ones are in both.
alignas(16) constexpr float kMagicBits[4] = {kMagic, kMagic, kMagic, kMagic};
alignas(16) constexpr float kMagicPair[4] = {kMagic, 0, kMagic, 0};
alignas(16) constexpr uint8_t kHighNibbles[16] = {0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0,
                                                  0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0, 0xf0};

alignas(16) constexpr uint8_t kUpperSix[16] = {0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc,
                                               0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc, 0xfc};

enum class Store { kNibble, kSix, kByte };
template <Store kStoreOf, bool kOffsetOf, int kHalvesOf>
struct SuperFormat {
  static constexpr Store kStore = kStoreOf;
  static constexpr bool kOffset = kOffsetOf;
  static constexpr int kHalves = kHalvesOf;  // scales of a block
  static constexpr int kCentre = !kOffset ? 0 : kStore == Store::kNibble ? 8 : 16;
  static constexpr int kOffsetsAt = 16 * kHalves, kQuantsAt = kOffsetsAt + 16 * kOffset;
  static constexpr int kPairBytes = kStore == Store::kNibble ? 32 : kStore == Store::kSix ? 48 : 64;
  static constexpr int kBytes = kQuantsAt + 4 * kPairBytes;
  static constexpr int kLines = (2 * kBytes + 63) / 64;  // of two blocks, which are prefetched in turn
  static constexpr int kAheadEven = (kLines + 1) / 2, kAheadOdd = kLines / 2;
};

// A super-block of two rows: operands of 8 inner values each, [row][8]; scales and sums as [r0 r1 r0 r1 ...].
struct alignas(16) ActUnit {
  int8_t q[kSuperBlocks][4][16];
  float dx[4];                     // scale / 16
  float16_t sum[kSuperBlocks][8];  // 16 * the sum of a block's q
};
// The same of a lone row.
struct alignas(16) RowUnit {
  int8_t q[kSuperBlocks][32];
  float16_t sum[kSuperBlocks];
  float dx;
};

// A group's super-block unpacked: operands as they are multiplied, scales as [o0 o0 o1 o1].
template <bool kOffset>
struct PanelOffsets {
  float16_t m[2][8];  // [o0 o0 o1 o1 o2 o2 o3 o3]
};
template <>
struct PanelOffsets<false> {};
template <class F>
struct alignas(32) PanelBlock {
  int8_t q[4][4][16];         // [operand][pair of outputs]
  float e[F::kHalves][4][4];  // d_b - d_(b+1)
  [[no_unique_address]] PanelOffsets<F::kOffset> offsets;
};
template <class F>
struct alignas(64) PanelSuper {
  PanelBlock<F> block[kSuperBlocks];
  float first[4][4];  // d_0
};

constexpr int kTilePairs = 3;  // pairs of rows of the largest tile
constexpr int kTileRows = 2 * kTilePairs;
constexpr int kChunk = 1024 / kSuper;  // super-blocks of a panel: 10 KB, and 192 rows of activations stay in L2
constexpr int kRowBlock = 192;         // rows that use a panel before the next group
constexpr int kBatch = 8;              // groups that use a chunk of activations before the next chunk
constexpr int kUnitsAhead = 2048;      // bytes of activations likewise
constexpr int kStreamAhead = 2304;     // bytes of weights to prefetch ahead

#include "backend/cpu/linear/linear_i8mm_super_tiles.inl"

// ---- layout ----------------------------------------------------------------------------------------------------------
constexpr int kSuperFormats = 200;  // format numbers start here

// Calls body(SuperFormat{}) with the format numbered n.
template <class Body>
inline void with_super(int n, Body body) {
  switch (n - kSuperFormats) {
    case 0: return body(SuperFormat<Store::kNibble, false, 1>{});  // Q4_0
    case 1: return body(SuperFormat<Store::kNibble, true, 1>{});   // Q4_1, Q4_K
    case 2: return body(SuperFormat<Store::kSix, false, 2>{});     // Q6_K, Q3_K
    case 3: return body(SuperFormat<Store::kSix, true, 1>{});      // Q5_1, Q5_K
    case 4: return body(SuperFormat<Store::kSix, false, 1>{});     // Q5_0
    case 5: return body(SuperFormat<Store::kByte, false, 1>{});    // Q8_0
    default: __builtin_trap();
  }
}

// The number of a shape's format, or -1: none.
int super_format(const LinearShape& shape) {
  switch (shape.type) {
    case DType::kQ4_0: return kSuperFormats;
    case DType::kQ4_1: return shape.f16_centred ? kSuperFormats + 1 : -1;
    case DType::kQ4_K: return shape.f16_shifted ? kSuperFormats + 1 : -1;
    case DType::kQ3_K:
    case DType::kQ6_K: return shape.f16_shifted ? kSuperFormats + 2 : -1;
    case DType::kQ5_1:
    case DType::kQ5_K: return shape.f16_shifted ? kSuperFormats + 3 : -1;
    case DType::kQ5_0: return kSuperFormats + 4;
    case DType::kQ8_0: return shape.in >= kSuperByteInputs ? kSuperFormats + 5 : -1;
    default: return -1;
  }
}

LinearLayout super_layout(const LinearShape& shape) {
  LinearLayout l;
  l.type = shape.type;
  l.format = super_format(shape);
  l.quantised = true;
  l.act_block = kSuper;
  l.in = shape.in;
  l.blocks = (shape.in + 31) / 32;
  l.shift = shape.shift;
  with_super(l.format, [&](auto f) {
    using F = decltype(f);
    l.group_bytes = static_cast<size_t>(l.blocks) * F::kBytes;
    l.unit = 16.0f / static_cast<float>(quant_factor(shape.type)) * power_of_two(-shape.shift);
  });
  return l;
}

template <class F>
void super_pack(const LinearLayout& l, const LinearSource& source, std::byte* group) {
  const size_t blocks = static_cast<size_t>(l.blocks);
  const int factor = quant_factor(l.type);
  const float shifted = power_of_two(l.shift);
  memset(group, 0, l.group_bytes);
  for (size_t b = 0; b < blocks; ++b) {
    uint8_t* out = reinterpret_cast<uint8_t*>(group) + b * F::kBytes;
    for (int o = 0; o < 8; ++o) {
      const size_t at = static_cast<size_t>(o) * blocks + b;
      for (size_t h = 0; h < F::kHalves; ++h) {
        const uint16_t d = scalar_to_f16(source.scale[at * F::kHalves + h] * shifted);
        memcpy(out + 16 * h + 2 * static_cast<size_t>(o), &d, 2);
      }
      if (F::kOffset) {
        const float m = source.offset[at] + F::kCentre * source.scale[at];
        const uint16_t stored = scalar_to_f16(m * shifted * (static_cast<float>(factor) / 16));
        memcpy(out + F::kOffsetsAt + 2 * o, &stored, 2);
      }
      uint8_t* pair = out + F::kQuantsAt + F::kPairBytes * (o / 2) + 8 * (o % 2);
      for (int i = 0; i < 32; ++i) {  // a padded value's activation is 0, so any weight does
        const int operand = i / 8, q = source.q[at * 32 + static_cast<size_t>(i)];
        auto put = [&](int vector, int bits) {
          uint8_t& byte = pair[16 * vector + i % 8];
          byte = static_cast<uint8_t>(byte | bits);
        };
        if constexpr (F::kStore == Store::kByte) {
          put(operand, q & 255);
        } else if constexpr (F::kStore == Store::kNibble) {
          put(operand / 2, ((q - 8) & 15) << (operand % 2 ? 4 : 0));
        } else {
          const int byte = (q - F::kCentre) * factor & 255;  // a multiple of 4
          if (operand < 3) put(operand, byte);
          else put(0, byte >> 6), put(1, byte >> 4 & 3), put(2, byte >> 2 & 3);
        }
      }
    }
  }
}

// ---- activations -----------------------------------------------------------------------------------------------------
// Units lie [super][pair] for up to kFewRows rows. For more: [chunk of super-blocks][tile of 3 pairs][super][pair], so
// that what a tile reads is contiguous.
constexpr int kFewRows = 16;

size_t supers_of(int in) { return static_cast<size_t>((in + kSuper - 1) / kSuper); }
size_t super_act_bytes(int in) { return supers_of(in) * kTilePairs * sizeof(ActUnit); }  // of kTileRows rows

size_t unit_at(size_t supers, int rows, size_t super, size_t pair) {
  if (rows <= kFewRows) return super * static_cast<size_t>((rows + 1) / 2) + pair;
  const size_t tiles = static_cast<size_t>((rows + kTileRows - 1) / kTileRows), first = super / kChunk * kChunk;
  const size_t count = supers - first < kChunk ? supers - first : kChunk;
  return (first * tiles + pair / kTilePairs * count + super - first) * kTilePairs + pair % kTilePairs;
}

// A row of a unit, or a RowUnit. A super-block with an infinity or NaN gets q = 0 and a scale that spoils its
// row's results.
template <class Unit>
SX_ALWAYS void quantise_unit(const float* x, int blocks, int row, Unit* out) {
  constexpr bool kLone = sizeof(Unit) == sizeof(RowUnit);
  float32x4_t top[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
  for (int i = 0; i < 32 * blocks; i += 16)
    for (int j = 0; j < 4; ++j) top[j] = vmaxq_f32(top[j], vabsq_f32(vld1q_f32(x + i + 4 * j)));
  const float most = vmaxvq_f32(vmaxq_f32(vmaxq_f32(top[0], top[1]), vmaxq_f32(top[2], top[3])));
  const float inverse = most >= 0x1p-100f ? 127 / most : 0, dx = most / 127 * 0.0625f;
  if constexpr (kLone) out->dx = dx;
  else out->dx[row] = out->dx[row + 2] = dx;
  for (int b = 0; b < blocks; ++b, x += 32) {
    int32x4_t sums = vdupq_n_s32(0);
    for (int h = 0; h < 2; ++h) {
      int16x8_t v[4];
      for (int j = 0; j < 4; ++j)
        v[j] = vreinterpretq_s16_s32(vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * h + 4 * j), inverse)));
      const int8x16_t q =
          vuzp1q_s8(vreinterpretq_s8_s16(vuzp1q_s16(v[0], v[1])), vreinterpretq_s8_s16(vuzp1q_s16(v[2], v[3])));
      sums = vdotq_s32(sums, q, vdupq_n_s8(16));
      if constexpr (kLone) {
        vst1q_s8(out->q[b] + 16 * h, q);
      } else {
        vst1_s8(out->q[b][2 * h] + 8 * row, vget_low_s8(q));
        vst1_s8(out->q[b][2 * h + 1] + 8 * row, vget_high_s8(q));
      }
    }
    const float16_t sum = static_cast<float16_t>(static_cast<float>(vaddvq_s32(sums)));
    if constexpr (kLone) out->sum[b] = sum;
    else out->sum[b][row] = out->sum[b][row + 2] = out->sum[b][row + 4] = out->sum[b][row + 6] = sum;
  }
}

template <class Unit>
SX_ALWAYS void quantise_part(const float* x, int in, int row, Unit* out) {  // up to kSuper values
  if (in >= kSuper) return quantise_unit(x, kSuperBlocks, row, out);
  float tail[kSuper] = {};
  memcpy(tail, x, static_cast<size_t>(in) * 4);
  quantise_unit(tail, (in + 31) / 32, row, out);
}

SX_KERNEL void super_quantise(const float* x, int in, int rows, int first, int last, void* act) {  // rows
  const size_t supers = supers_of(in);
  if (rows == 1) {
    for (size_t s = 0; s < supers; ++s)
      quantise_part(x + s * kSuper, in - static_cast<int>(s) * kSuper, 0, static_cast<RowUnit*>(act) + s);
    return;
  }
  ActUnit* units = static_cast<ActUnit*>(act);
  for (int r = first; r < last; ++r)
    for (size_t s = 0; s < supers; ++s)
      quantise_part(x + static_cast<size_t>(r) * static_cast<size_t>(in) + s * kSuper,
                    in - static_cast<int>(s) * kSuper, r % 2,
                    units + unit_at(supers, rows, s, static_cast<size_t>(r / 2)));
  if (last != rows || rows % 2 == 0) return;
  for (size_t s = 0; s < supers; ++s) {  // the missing second row of the last pair
    ActUnit* out = units + unit_at(supers, rows, s, static_cast<size_t>(rows / 2));
    for (int b = 0; b < kSuperBlocks; ++b) {
      for (int j = 0; j < 4; ++j) vst1_s8(out->q[b][j] + 8, vdup_n_s8(0));
      for (int i = 1; i < 8; i += 2) out->sum[b][i] = 0;
    }
    out->dx[1] = out->dx[3] = 0;
  }
}

// ---- a job -----------------------------------------------------------------------------------------------------------
template <class F>
SX_KERNEL void unpack_supers(PanelSuper<F>* panel, const uint8_t* g, int blocks) {
  const int8x16_t mask = load_mask<F>();
  for (; blocks > 0; blocks -= kSuperBlocks, ++panel) {
    const int count = blocks < kSuperBlocks ? blocks : kSuperBlocks;
    float32x4_t d[2];
    convert_halves<2>(d, g);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) vst1q_f32(panel->first[i], twice(d[i / 2], i % 2));
    for (int b = 0; b < count; ++b, g += F::kBytes) {
      PanelBlock<F>& out = panel->block[b];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        const Operands w = load_operands<F>(g + F::kQuantsAt + F::kPairBytes * (i / 2), i % 2, mask);
        vst1q_s8(out.q[i % 2 * 2][i / 2], first_operand<F>(w));
        vst1q_s8(out.q[i % 2 * 2 + 1][i / 2], second_operand<F>(w, mask));
      }
#pragma GCC unroll 2
      for (int h = 0; h < F::kHalves; ++h) {
        float32x4_t next[2] = {vdupq_n_f32(0), vdupq_n_f32(0)};
        if (h + 1 < F::kHalves) convert_halves<2>(next, g + 16);
        else if (b + 1 < count) convert_halves<2>(next, g + F::kBytes);
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) vst1q_f32(out.e[h][i], twice(vsubq_f32(d[i / 2], next[i / 2]), i % 2));
        d[0] = next[0], d[1] = next[1];
      }
      if constexpr (F::kOffset) {
        float16x8_t m[2];
        load_offsets<2>(m, g + F::kOffsetsAt);
        vst1q_f16(out.offsets.m[0], m[0]), vst1q_f16(out.offsets.m[1], m[1]);
      }
    }
  }
}

constexpr size_t kPanelSuper = sizeof(PanelSuper<SuperFormat<Store::kSix, false, 2>>);  // the largest
size_t super_panel_bytes() { return kPanelSuper * kChunk + static_cast<size_t>(kRowBlock) * kBatch * 32; }

// keep: [4 pairs of outputs][pairs of rows] vectors.
SX_ALWAYS void finish_tile(const Output& output, const float* keep, int pairs, int rows) {
  for (int r = 0; r < pairs; ++r) {
    float32x4_t k[4];
    for (int i = 0; i < 4; ++i) k[i] = vld1q_f32(keep + 4 * (i * pairs + r));
    finish(output, static_cast<size_t>(2 * r), vuzp1q_f32(k[0], k[1]), vuzp1q_f32(k[2], k[3]));
    if (2 * r + 1 < rows)
      finish(output, static_cast<size_t>(2 * r + 1), vuzp2q_f32(k[0], k[1]), vuzp2q_f32(k[2], k[3]));
  }
}

template <class F>
void super_row(const LinearJob& job, const uint8_t* weights, const RowUnit* x) {
  const size_t bytes = job.layout->group_bytes;
  const int part = (job.last - job.first) / 2;
  for (int g = job.first; g < job.first + part; ++g) {
    const Output outputs[2] = {output_of(job, g, 0), output_of(job, g + part, 0)};
    row_tile<F, 2>(outputs, weights + static_cast<size_t>(g) * bytes, static_cast<size_t>(part) * bytes, x,
                   job.layout->blocks);
  }
  for (int g = job.first + 2 * part; g < job.last; ++g) {
    const Output output = output_of(job, g, 0);
    row_tile<F, 1>(&output, weights + static_cast<size_t>(g) * bytes, 0, x, job.layout->blocks);
  }
}

// 2 to kFewRows rows.
template <class F>
void super_few(const LinearJob& job, const uint8_t* weights, const ActUnit* x) {
  const size_t bytes = job.layout->group_bytes, pairs = static_cast<size_t>((job.rows + 1) / 2);
  const int blocks = job.layout->blocks;
  alignas(64) float keep[64];
  int g = job.first;
  if (job.rows == 2) {  // two streams of memory, as for one row
    const int part = (job.last - job.first) / 2;
    for (; g < job.first + part; ++g) {
      const uint8_t* w = weights + static_cast<size_t>(g) * bytes;
      memset(keep, 0, 128);
      direct_tile<F, 4, 1, 2>(keep, w, w + F::kQuantsAt, static_cast<size_t>(part) * bytes, x, pairs, blocks);
      finish_tile(output_of(job, g, 0), keep, 1, 2);
      finish_tile(output_of(job, g + part, 0), keep + 16, 1, 2);
    }
    g = job.first + 2 * part;
  }
  for (; g < job.last; ++g) {
    const uint8_t *w = weights + static_cast<size_t>(g) * bytes, *q = w + F::kQuantsAt;
    for (int r = 0; r < job.rows;) {
      const int left = job.rows - r, tile = left > 6 ? 4 : (left + 1) / 2;
      const ActUnit* a = x + r / 2;
      memset(keep, 0, 64 * static_cast<size_t>(tile));
      if (tile == 1) direct_tile<F, 4, 1, 1>(keep, w, q, 0, a, pairs, blocks);
      if (tile == 2) direct_tile<F, 4, 2, 1>(keep, w, q, 0, a, pairs, blocks);
      for (int half = 0; half < 2 && tile > 2; ++half) {
        float* k = keep + 8 * half * tile;
        if (tile == 3) direct_tile<F, 2, 3, 1>(k, w + 8 * half, q + 2 * F::kPairBytes * half, 0, a, pairs, blocks);
        else direct_tile<F, 2, 4, 1>(k, w + 8 * half, q + 2 * F::kPairBytes * half, 0, a, pairs, blocks);
      }
      finish_tile(output_of(job, g, r), keep, tile, left);
      r += 2 * tile;
    }
  }
}

template <class F>
void super_many(const LinearJob& job, const uint8_t* weights, const ActUnit* x) {
  const int blocks = job.layout->blocks, rows = job.rows;
  const size_t supers = supers_of(job.layout->in), bytes = job.layout->group_bytes;
  auto* panel = reinterpret_cast<PanelSuper<F>*>(job.panel);
  float* keeps = reinterpret_cast<float*>(job.panel + kPanelSuper * kChunk);
  for (int from = 0; from < rows; from += kRowBlock) {
    const int to = rows < from + kRowBlock ? rows : from + kRowBlock;
    for (int g0 = job.first; g0 < job.last; g0 += kBatch) {
      const int g1 = job.last < g0 + kBatch ? job.last : g0 + kBatch;
      memset(keeps, 0, static_cast<size_t>(g1 - g0) * kRowBlock * 32);
      for (int b = 0; b < blocks; b += kChunk * kSuperBlocks) {
        const int count = blocks - b < kChunk * kSuperBlocks ? blocks - b : kChunk * kSuperBlocks;
        for (int g = g0; g < g1; ++g) {
          unpack_supers<F>(panel, weights + static_cast<size_t>(g) * bytes + b * F::kBytes, count);
          float* keep = keeps + (g - g0) * kRowBlock * 8;
          for (int r = from; r < to; r += kTileRows, keep += 8 * kTileRows) {
            const ActUnit* a =
                x + unit_at(supers, rows, static_cast<size_t>(b / kSuperBlocks), static_cast<size_t>(r / 2));
            if (to - r > 4) panel_tile<F, 3>(keep, panel, a, count);
            else if (to - r > 2) panel_tile<F, 2>(keep, panel, a, count);
            else panel_tile<F, 1>(keep, panel, a, count);
          }
        }
      }
      for (int g = g0; g < g1; ++g) {
        const float* keep = keeps + (g - g0) * kRowBlock * 8;
        for (int r = from; r < to; r += kTileRows, keep += 8 * kTileRows)
          finish_tile(output_of(job, g, r), keep, to - r > 4 ? 3 : (to - r + 1) / 2, to - r);
      }
    }
  }
}

template <class F>
void super_run(const LinearJob& job) {
  const ActUnit* x = static_cast<const ActUnit*>(job.act);
  const uint8_t* weights = reinterpret_cast<const uint8_t*>(job.weights);
  if (job.rows == 1) super_row<F>(job, weights, static_cast<const RowUnit*>(job.act));
  else if (job.rows <= kFewRows) super_few<F>(job, weights, x);
  else super_many<F>(job, weights, x);
}
