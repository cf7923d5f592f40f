// Linear layers of quantised weights for many rows with AMX: tdpbssd multiplies 16 rows x 32 activations by 32 x 16
// weights into 16 x 16 exact 32-bit sums (order of reduction: linear_wide.inl). The tile unit takes 16 cycles for that;
// sums leave it through memory only, and folding them into floats takes 32 vector instructions. So
//   - two tiles of rows and two groups of outputs are multiplied at once: each tile loaded is used twice;
//   - sums are stored one sub-block late, when the tile unit has long finished them;
//   - sums of kUnit sub-blocks are folded while the next kUnit sub-blocks are multiplied, one 16 x 16 tile after the
//     other, so that 16 registers hold the chains;
//   - weights are unpacked once into a panel for up to kMostTiles tiles of rows.
// A sub-block is what has a scale of its own: 32 inner values, or 16, which cost the tile unit as much.
#define SX_ISA_NAMESPACE amx
#include "backend/cpu/linear/linear_amx.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "backend/cpu/linear/linear_wide.inl"

namespace sx::cpu {
namespace amx {
namespace {

constexpr int kUnit = 4;              // sub-blocks whose sums are folded together
constexpr int kPanel = 16;            // sub-blocks in a panel; with one scale per 256, whole super-blocks
constexpr int kGroups = 2;            // groups of outputs in a panel
constexpr int kMostTiles = 32;        // tiles of 16 rows that use a panel
constexpr size_t kActs = 768 * 1024;  // bytes of activations that should stay in L2
constexpr int kSums = 256;            // of a tile

template <bool kNibblesOf, bool kCentredOf, bool kWideOf, bool kOffsetOf, bool kHalvesOf>
struct Kind {
  static constexpr bool kNibbles = kNibblesOf, kCentred = kCentredOf, kWide = kWideOf, kOffset = kOffsetOf;
  static constexpr int kHalves = kHalvesOf ? 2 : 1;
  static constexpr int kShare = kNibbles ? kSuper : 32;
  static constexpr int kScaleBytes = kOutputs * (kWide ? 4 : 2), kOffsetsAt = kHalves * kScaleBytes;
  static constexpr int kQuantsAt = kOffsetsAt * (kOffset ? 2 : 1);
  static constexpr int kBytes = kQuantsAt + kOutputs * (kNibbles ? 16 : 32);  // of a group-block
};

struct alignas(64) PanelBlock {
  int8_t q[8][64];  // [quad of inner values][16 outputs][4]
  float d[16], m[16];
};

struct alignas(64) Scratch {
  PanelBlock panel[kGroups][kPanel];
  int32_t sums[2][kUnit][4][kSums];
  float p[4][kSums];
  float acc[kMostTiles][kGroups][kSums];
};

// The tiles' shapes: 0-3 sums of 16 x 16, 4 and 5 activations of 16 rows, 6 and 7 weights of 16 outputs. They are set
// for one call and released after it, so that a thread that does something else has no state to be saved.
struct alignas(64) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig tile_config(int inner) {
  const auto bytes = static_cast<uint16_t>(inner);
  const auto quads = static_cast<uint8_t>(inner / 4);
  return {.palette = 1,
          .start = 0,
          .reserved = {},
          .bytes = {64, 64, 64, 64, bytes, bytes, 64, 64},
          .rows = {16, 16, 16, 16, 16, 16, quads, quads}};
}
constexpr TileConfig kWhole = tile_config(32), kHalf = tile_config(16);

// `blocks` group-blocks into the panel.
template <class K>
__attribute__((noinline)) void unpack(PanelBlock* to, const uint8_t* from, int blocks) {
  const auto scale = [](const uint8_t* p) {
    return K::kWide ? load(reinterpret_cast<const float*>(p)) : load_f16(reinterpret_cast<const uint16_t*>(p));
  };
  const __m512i mask = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  for (int b = 0; b < blocks; ++b, to += K::kHalves, from += K::kBytes) {
#pragma GCC unroll 2
    for (int h = 0; h < K::kHalves; ++h) {
      store(to[h].d, scale(from + h * K::kScaleBytes));
      if (K::kOffset) store(to[h].m, scale(from + K::kOffsetsAt + h * K::kScaleBytes));
    }
    const uint8_t* quants = from + K::kQuantsAt;
    if constexpr (K::kNibbles) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i both = _mm512_loadu_si512(quants + 64 * j);
        __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        if (K::kCentred) low = _mm512_sub_epi8(low, eight), high = _mm512_sub_epi8(high, eight);
        _mm512_store_si512(to->q[j], low);
        _mm512_store_si512(to->q[j + 4], high);
      }
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j)
        _mm512_store_si512(to[j * K::kHalves / 8].q[j % (8 / K::kHalves)], _mm512_loadu_si512(quants + 64 * j));
    }
  }
}

// Up to kUnit sub-blocks (of one super-block, where activations have a scale for 256) of one or two tiles of rows.
struct Unit {
  const PanelBlock* w;  // of the first group; the next one's are kPanel further
  const int8_t* q[2];   // of the tiles of rows
  const float* sum[2];
  const float* dx[2];
  int width[2];
  int count;         // sub-blocks
  bool first, last;  // of a chain
  float* acc;        // [tiles][kGroups][kSums]
  int32_t (*sums)[4][kSums];
};

// Activations of tile t for sub-block j of a unit.
template <class K>
SX_INLINE const int8_t* rows_at(const Unit& u, int t, int j) {
  return u.q[t] + static_cast<size_t>(j / K::kHalves * u.width[t]) * 32 + static_cast<size_t>(j % K::kHalves * 16);
}

// Stores the last sub-block's sums, multiplies sub-block j of the unit.
template <class K, int kTiles, int kCount>
SX_INLINE void multiply(const Unit& u, int j, int32_t (*late)[kSums]) {
  const int8_t* a = rows_at<K>(u, 0, j);
  _tile_loadd(4, a, 32);
  _tile_loadd(6, u.w[j].q, 64);
  _tile_stored(0, late[0], 64);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  if constexpr (kCount == 2) {
    _tile_loadd(7, u.w[kPanel + j].q, 64);
    _tile_stored(1, late[1], 64);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 7);
  }
  if constexpr (kTiles == 2) {
    const int8_t* b = rows_at<K>(u, 1, j);
    _tile_loadd(5, b, 32);
    _tile_stored(2, late[2], 64);
    _tile_zero(2);
    _tile_dpbssd(2, 5, 6);
    if constexpr (kCount == 2) {
      _tile_stored(3, late[3], 64);
      _tile_zero(3);
      _tile_dpbssd(3, 5, 7);
    }
  }
}

// Stores the last sub-block's sums.
template <int kTiles, int kCount>
SX_INLINE void store_late(int32_t (*late)[kSums]) {
  _tile_stored(0, late[0], 64);
  if constexpr (kCount == 2) _tile_stored(1, late[1], 64);
  if constexpr (kTiles == 2) {
    _tile_stored(2, late[2], 64);
    if constexpr (kCount == 2) _tile_stored(3, late[3], 64);
  }
}

// Folds the sums of one tile of rows (t) and one group (g). Chains are super-blocks, kept in `p` from unit to unit, or
// with one scale per 32 the results themselves.
template <class K>
__attribute__((noinline)) void fold(const Unit& u, int t, int g, float* p) {
  const size_t width = static_cast<size_t>(u.width[t]);
  const PanelBlock* w = u.w + g * kPanel;
  float* acc = u.acc + (t * kGroups + g) * kSums;
  if (!K::kNibbles) p = acc;
  const bool fresh = K::kNibbles && u.first;
  Vec c[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) c[r] = fresh ? zero() : _mm512_load_ps(p + 16 * r);
  for (int j = 0; j < u.count; ++j, ++w) {
    const int32_t* s = u.sums[j][2 * t + g];
    const size_t block = static_cast<size_t>(j / K::kHalves);
    const size_t entry = K::kNibbles ? block : block * 3 + static_cast<size_t>(K::kHalves == 1 ? 0 : 1 + j % 2);
    const float* sum = u.sum[t] + entry * width;
    const float* dx = u.dx[t] + block * width;
    const Vec d = _mm512_load_ps(w->d), m = K::kOffset ? _mm512_load_ps(w->m) : zero();
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      const Vec dot = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_load_si512(s + 16 * r));
      c[r] = fma(dot, K::kNibbles ? d : mul(d, set1(dx[r])), c[r]);
      if constexpr (K::kOffset) c[r] = fma(m, set1(sum[r]), c[r]);
    }
  }
  if (K::kNibbles && u.last) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      _mm512_store_ps(acc + 16 * r, fma(c[r], set1(u.dx[t][r]), _mm512_load_ps(acc + 16 * r)));
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_store_ps(p + 16 * r, c[r]);
  }
}

// Multiplies unit `next` and folds `before` meanwhile; either may be empty.
template <class K, int kTiles, int kCount>
SX_INLINE void step(const Unit& next, const Unit& before, int32_t (*&late)[kSums], Scratch& s) {
  constexpr int kParts = kTiles * kCount;
#pragma GCC unroll 1
  for (int j = 0; j < kUnit; ++j) {
    if (j < next.count) {
      multiply<K, kTiles, kCount>(next, j, late);
      late = next.sums[j];
    }
    if (before.count)
      for (int c = j * kParts / kUnit; c < (j + 1) * kParts / kUnit; ++c)
        fold<K>(before, c / kCount, c % kCount, s.p[c]);
  }
}

// `count` sub-blocks from the panel (they start at block `from` of the rows), tiles of rows [first, last), kTiles at
// once.
template <class K, int kTiles, int kCount>
__attribute__((noinline)) void panel_rows(const LinearJob& job, int first, int last, int from, int count, float* acc,
                                          Scratch& s) {
  constexpr int kChain = K::kShare / 32 * K::kHalves;  // sub-blocks
  Unit before = {};
  int32_t(*late)[kSums] = s.sums[0][0];  // the first store writes nothing of interest there
  int parity = 0;
  for (int t = first; t < last; t += kTiles, acc += kTiles * kGroups * kSums) {
    ActTile rows[2];
    for (int i = 0; i < kTiles; ++i) rows[i] = act_tile(job.act, job.layout->in, job.rows, t + i, K::kShare);
    for (int b = 0; b < count; b += kUnit) {
      Unit next = {};
      for (int i = 0; i < kTiles; ++i) {
        const size_t width = static_cast<size_t>(rows[i].width), block = static_cast<size_t>(from + b / K::kHalves);
        next.width[i] = rows[i].width;
        next.q[i] = rows[i].q + block * width * 32;
        next.sum[i] = rows[i].sum + block * width * (K::kNibbles ? 1 : 3);
        next.dx[i] = rows[i].dx + block / (K::kShare / 32) * width;
      }
      next.w = s.panel[0] + b;
      next.count = count - b < kUnit ? count - b : kUnit;
      next.first = b % kChain == 0;
      next.last = b % kChain + kUnit >= kChain || b + kUnit >= count;
      next.acc = acc;
      next.sums = s.sums[parity];
      parity ^= 1;
      step<K, kTiles, kCount>(next, before, late, s);
      before = next;
    }
  }
  store_late<kTiles, kCount>(late);
  step<K, kTiles, kCount>(Unit{}, before, late, s);
}

template <class K, int kCount>
void panel_all(const LinearJob& job, int first, int last, int from, int count, Scratch& s) {
  const int even = first + (last - first) / 2 * 2;
  if (even > first) panel_rows<K, 2, kCount>(job, first, even, from, count, s.acc[0][0], s);
  if (even < last) panel_rows<K, 1, kCount>(job, even, last, from, count, s.acc[even - first][0], s);
}

template <class K>
void run(const LinearJob& job, int tiles) {
  constexpr int kBlocks = kPanel / K::kHalves;  // of the panel
  Scratch& s = *reinterpret_cast<Scratch*>(job.panel);
  const int blocks = job.layout->blocks;
  int most = static_cast<int>(kActs / (static_cast<size_t>(blocks) * 32 * kTileRows)) / 2 * 2;
  most = most < 4 ? 4 : most < kMostTiles ? most : kMostTiles;
  for (int t = 0; t < tiles; t += most) {
    const int end = t + most < tiles ? t + most : tiles;
    for (int g = job.first; g < job.last; g += kGroups) {
      const int groups = job.last - g < kGroups ? 1 : kGroups;
      memset(s.acc, 0, sizeof(s.acc[0]) * static_cast<size_t>(end - t));
      for (int from = 0; from < blocks; from += kBlocks) {
        const int count = blocks - from < kBlocks ? blocks - from : kBlocks;
        for (int i = 0; i < groups; ++i) {
          const std::byte* group = job.weights + static_cast<size_t>(g + i) * job.layout->group_bytes;
          unpack<K>(s.panel[i], reinterpret_cast<const uint8_t*>(group) + static_cast<size_t>(from) * K::kBytes, count);
        }
        if (groups == 2) panel_all<K, 2>(job, t, end, from, count * K::kHalves, s);
        else panel_all<K, 1>(job, t, end, from, count * K::kHalves, s);
      }
      for (int i = t; i < end; ++i)
        for (int c = 0; c < groups; ++c)
          for (int r = 0; r < kTileRows && i * kTileRows + r < job.rows; ++r)
            finish(job, g + c, i * kTileRows + r, _mm512_load_ps(s.acc[i - t][c] + 16 * r));
    }
  }
}

template <bool kHalves>
void run_bytes(const LinearJob& job, const AmxFormat& f, int tiles) {
  if (f.offset && f.wide) run<Kind<false, false, true, true, kHalves>>(job, tiles);
  else if (f.offset) run<Kind<false, false, false, true, kHalves>>(job, tiles);
  else if (f.wide) run<Kind<false, false, true, false, kHalves>>(job, tiles);
  else run<Kind<false, false, false, false, kHalves>>(job, tiles);
}

}  // namespace
}  // namespace amx

void amx_run(const LinearJob& job, const AmxFormat& f, int tiles) {
  using amx::Kind;
  _tile_loadconfig(f.halves ? &amx::kHalf : &amx::kWhole);
  if (!f.nibbles && f.halves) amx::run_bytes<true>(job, f, tiles);
  else if (!f.nibbles) amx::run_bytes<false>(job, f, tiles);
  else if (f.centred) amx::run<Kind<true, true, false, false, false>>(job, tiles);
  else if (f.wide) amx::run<Kind<true, false, true, true, false>>(job, tiles);
  else amx::run<Kind<true, false, false, true, false>>(job, tiles);
  _tile_release();
}
size_t amx_panel_bytes() { return sizeof(amx::Scratch); }
bool amx_built() { return true; }

}  // namespace sx::cpu
#else
namespace sx::cpu {
void amx_run(const LinearJob&, const AmxFormat&, int) {}
size_t amx_panel_bytes() { return 0; }
bool amx_built() { return false; }
}  // namespace sx::cpu
#endif
