// Linear layers of 4-bit weights for many rows with AMX: tdpbssd multiplies 16 rows x 32 activations by 32 x 16 weights
// into 16 x 16 exact 32-bit sums (order of reduction: linear_wide.inl). The tile unit takes 16 cycles for that; sums
// leave it through memory only, and folding them into floats takes 32 vector instructions. So
//   - two tiles of rows and two groups of outputs are multiplied at once: each tile loaded is used twice;
//   - sums are stored one block late, when the tile unit has long finished them;
//   - sums of kUnit blocks are folded while the next kUnit blocks are multiplied, one 16 x 16 tile after the other, so
//     that 16 registers hold the chains;
//   - weights are unpacked once into a panel for up to kMostTiles tiles of rows.
#define SX_ISA_NAMESPACE amx
#include "backend/cpu/linear/linear_amx.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "backend/cpu/linear/linear_wide.inl"

namespace sx::cpu {
namespace amx {
namespace {

constexpr int kUnit = 4;              // blocks of 32 whose sums are folded together
constexpr int kSupers = 2;            // super-blocks in a panel
constexpr int kGroups = 2;            // groups of outputs in a panel
constexpr int kMostTiles = 32;        // tiles of 16 rows that use a panel
constexpr size_t kActs = 768 * 1024;  // bytes of activations that should stay in L2
constexpr int kSums = 256;            // of a tile

struct alignas(64) PanelBlock {
  int8_t q[8][64];  // [quad of inner values][16 outputs][4]
  float d[16], m[16];
};

struct alignas(64) Scratch {
  PanelBlock panel[kGroups][kSupers * 8];
  int32_t sums[2][kUnit][4][kSums];
  float p[4][kSums];
  float acc[kMostTiles][kGroups][kSums];
};

// The tiles' shapes: 0-3 sums of 16 x 16, 4 and 5 activations of 16 rows x 32, 6 and 7 weights of 8 quads x 16 outputs.
// They are set for one call and released after it, so that a thread that does something else has no state to be saved.
struct alignas(64) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
constexpr TileConfig kConfig = {.palette = 1,
                                .start = 0,
                                .reserved = {},
                                .bytes = {64, 64, 64, 64, 32, 32, 64, 64},
                                .rows = {16, 16, 16, 16, 16, 16, 8, 8}};
static_assert(sizeof(TileConfig) == 64);

template <bool kCentred, bool kWide>
__attribute__((noinline)) void unpack(PanelBlock* to, const uint8_t* from, int blocks) {
  constexpr int kScaleBytes = kOutputs * (kWide ? 4 : 2), kQuantsAt = kScaleBytes * (kCentred ? 1 : 2);
  const __m512i mask = _mm512_set1_epi8(15), eight = _mm512_set1_epi8(8);
  for (int b = 0; b < blocks; ++b, ++to, from += kQuantsAt + 256) {
    const auto scale = [](const uint8_t* p) {
      return kWide ? load(reinterpret_cast<const float*>(p)) : load_f16(reinterpret_cast<const uint16_t*>(p));
    };
    store(to->d, scale(from));
    if (!kCentred) store(to->m, scale(from + kScaleBytes));
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i both = _mm512_loadu_si512(from + kQuantsAt + 64 * j);
      __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
      if (kCentred) low = _mm512_sub_epi8(low, eight), high = _mm512_sub_epi8(high, eight);
      _mm512_store_si512(to->q[j], low);
      _mm512_store_si512(to->q[j + 4], high);
    }
  }
}

// Up to kUnit blocks of one super-block, of `tiles` tiles of rows by `groups` groups.
struct Unit {
  const PanelBlock* w;  // of the first group; the next one's are kSupers * 8 further
  const int8_t* q[2];   // of the tiles of rows
  const float* sum[2];
  const float* dx[2];
  int width[2];
  int blocks;
  bool first, last;  // of the super-block
  float* acc;        // [tiles][kGroups][kSums]
  int32_t (*sums)[4][kSums];
};

// Stores the last block's sums, multiplies block j of the unit.
template <int kTiles, int kCount>
SX_INLINE void multiply(const Unit& u, int j, int32_t (*late)[kSums]) {
  const int8_t* a = u.q[0] + static_cast<size_t>(j * u.width[0]) * 32;
  _tile_loadd(4, a, 32);
  _tile_loadd(6, u.w[j].q, 64);
  _tile_stored(0, late[0], 64);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  if constexpr (kCount == 2) {
    _tile_loadd(7, u.w[kSupers * 8 + j].q, 64);
    _tile_stored(1, late[1], 64);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 7);
  }
  if constexpr (kTiles == 2) {
    const int8_t* b = u.q[1] + static_cast<size_t>(j * u.width[1]) * 32;
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

// Stores the last block's sums.
template <int kTiles, int kCount>
SX_INLINE void store_late(int32_t (*late)[kSums]) {
  _tile_stored(0, late[0], 64);
  if constexpr (kCount == 2) _tile_stored(1, late[1], 64);
  if constexpr (kTiles == 2) {
    _tile_stored(2, late[2], 64);
    if constexpr (kCount == 2) _tile_stored(3, late[3], 64);
  }
}

// Folds the sums of one tile of rows (t) and one group (g).
template <bool kOffset>
__attribute__((noinline)) void fold(const Unit& u, int t, int g, float* chains) {
  const size_t width = static_cast<size_t>(u.width[t]);
  const int c = 2 * t + g;
  const PanelBlock* w = u.w + g * kSupers * 8;
  const float* sum = u.sum[t];
  __m512 p[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) p[r] = u.first ? _mm512_setzero_ps() : _mm512_load_ps(chains + 16 * r);
  for (int b = 0; b < u.blocks; ++b, ++w, sum += width) {
    const int32_t* s = u.sums[b][c];
    const __m512 d = _mm512_load_ps(w->d), m = kOffset ? _mm512_load_ps(w->m) : _mm512_setzero_ps();
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) {
      p[r] = _mm512_fmadd_ps(_mm512_maskz_cvtepi32_ps(0xffff, _mm512_load_si512(s + 16 * r)), d, p[r]);
      if constexpr (kOffset) p[r] = _mm512_fmadd_ps(m, _mm512_set1_ps(sum[r]), p[r]);
    }
  }
  if (u.last) {
    float* acc = u.acc + (t * kGroups + g) * kSums;
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      _mm512_store_ps(acc + 16 * r, _mm512_fmadd_ps(p[r], _mm512_set1_ps(u.dx[t][r]), _mm512_load_ps(acc + 16 * r)));
  } else {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_store_ps(chains + 16 * r, p[r]);
  }
}

// Multiplies unit `next` and folds `before` meanwhile; either may have no blocks.
template <bool kOffset, int kTiles, int kCount>
SX_INLINE void step(const Unit& next, const Unit& before, int32_t (*&late)[kSums], Scratch& s) {
  constexpr int kParts = kTiles * kCount;
#pragma GCC unroll 1
  for (int j = 0; j < kUnit; ++j) {
    if (j < next.blocks) {
      multiply<kTiles, kCount>(next, j, late);
      late = next.sums[j];
    }
    if (before.blocks)
      for (int c = j * kParts / kUnit; c < (j + 1) * kParts / kUnit; ++c)
        fold<kOffset>(before, c / kCount, c % kCount, s.p[c]);
  }
}

// `blocks` blocks from the panel (they start at block `from` of the rows), tiles of rows [first, last), kTiles at once.
template <bool kOffset, int kTiles, int kCount>
__attribute__((noinline)) void panel_rows(const LinearJob& job, const void* act, int first, int last, int from,
                                          int blocks, float* acc, Scratch& s) {
  Unit before = {};
  int32_t(*late)[kSums] = s.sums[0][0];  // the first store writes nothing of interest there
  int parity = 0;
  for (int t = first; t < last; t += kTiles, acc += kTiles * kGroups * kSums) {
    WideTile rows[2];
    for (int i = 0; i < kTiles; ++i) rows[i] = wide_tile_at(act, job.layout->in, job.rows, t + i);
    for (int b = 0; b < blocks; b += kUnit) {
      Unit next = {};
      for (int i = 0; i < kTiles; ++i) {
        const size_t width = static_cast<size_t>(rows[i].width), at = static_cast<size_t>(from + b) * width;
        next.width[i] = rows[i].width;
        next.q[i] = rows[i].q + at * 32;
        next.sum[i] = rows[i].sum + at;
        next.dx[i] = rows[i].dx + static_cast<size_t>((from + b) / 8) * width;
      }
      next.w = s.panel[0] + b;
      next.blocks = blocks - b < kUnit ? blocks - b : kUnit;
      next.first = b % 8 == 0;
      next.last = b % 8 + kUnit == 8 || b + kUnit >= blocks;
      next.acc = acc;
      next.sums = s.sums[parity];
      parity ^= 1;
      step<kOffset, kTiles, kCount>(next, before, late, s);
      before = next;
    }
  }
  store_late<kTiles, kCount>(late);
  step<kOffset, kTiles, kCount>(Unit{}, before, late, s);
}

template <bool kOffset, int kCount>
void panel_all(const LinearJob& job, const void* act, int first, int last, int from, int blocks, Scratch& s) {
  const int even = first + (last - first) / 2 * 2;
  if (even > first) panel_rows<kOffset, 2, kCount>(job, act, first, even, from, blocks, s.acc[0][0], s);
  if (even < last) panel_rows<kOffset, 1, kCount>(job, act, even, last, from, blocks, s.acc[even - first][0], s);
}

template <bool kCentred, bool kWide>
void run(const LinearJob& job, const void* act, int tiles) {
  constexpr size_t kBlock = kOutputs * (kWide ? 4 : 2) * (kCentred ? 1 : 2) + 256;
  Scratch& s = *reinterpret_cast<Scratch*>(job.panel);
  const int blocks = job.layout->blocks;
  int most = static_cast<int>(kActs / (static_cast<size_t>(blocks) * 32 * kTileRows)) / 2 * 2;
  most = most < 4 ? 4 : most < kMostTiles ? most : kMostTiles;
  for (int t = 0; t < tiles; t += most) {
    const int end = t + most < tiles ? t + most : tiles;
    for (int g = job.first; g < job.last; g += kGroups) {
      const int count = job.last - g < kGroups ? 1 : kGroups;
      memset(s.acc, 0, sizeof(s.acc[0]) * static_cast<size_t>(end - t));
      for (int from = 0; from < blocks; from += kSupers * 8) {
        const int size = blocks - from < kSupers * 8 ? blocks - from : kSupers * 8;
        for (int i = 0; i < count; ++i)
          unpack<kCentred, kWide>(s.panel[i],
                                  reinterpret_cast<const uint8_t*>(job.weights) +
                                      static_cast<size_t>(g + i) * job.layout->group_bytes +
                                      static_cast<size_t>(from) * kBlock,
                                  size);
        if (count == 2) panel_all<!kCentred, 2>(job, act, t, end, from, size, s);
        else panel_all<!kCentred, 1>(job, act, t, end, from, size, s);
      }
      for (int i = t; i < end; ++i)
        for (int c = 0; c < count; ++c)
          for (int r = 0; r < kTileRows && i * kTileRows + r < job.rows; ++r)
            wide_finish(job, g + c, i * kTileRows + r, _mm512_load_ps(s.acc[i - t][c] + 16 * r));
    }
  }
}

}  // namespace
}  // namespace amx

void amx_run(const LinearJob& job, const AmxWeights& weights, int tiles) {
  _tile_loadconfig(&amx::kConfig);
  if (weights.centred) amx::run<true, false>(job, weights.act, tiles);
  else if (weights.wide) amx::run<false, true>(job, weights.act, tiles);
  else amx::run<false, false>(job, weights.act, tiles);
  _tile_release();
}
size_t amx_panel_bytes() { return sizeof(amx::Scratch); }
bool amx_built() { return true; }

}  // namespace sx::cpu
#else
namespace sx::cpu {
void amx_run(const LinearJob&, const AmxWeights&, int) {}
size_t amx_panel_bytes() { return 0; }
bool amx_built() { return false; }
}  // namespace sx::cpu
#endif
