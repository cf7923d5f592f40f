// Linear layers of quantised weights for many rows with AMX: tdpbssd multiplies 16 rows x 32 activations by 32 x 16
// weights into 16 x 16 exact 32-bit sums (order of reduction: linear_wide.inl). The tile unit takes 16 cycles for that;
// sums leave it through memory only, and folding them into floats takes 32 vector instructions or more. Measured on an
// Emerald Rapids, the stores are what costs most: 12 ns per 16 x 16 x 32 without them, 28 with sums in buffers of 32
// KB. So the sums' buffer is small (4 KB, always in L1), a sub-block's sums are stored when four more have been
// multiplied and folded one step later, with the chains of a tile in 16 registers; the pipeline runs on from tile to
// tile of rows. Weights are unpacked once into a panel for up to kMostTiles tiles of rows. A sub-block is what has a
// scale of its own: 32 inner values, or 16, which cost the tile unit as much.
#define SX_ISA_NAMESPACE amx
#include "backend/cpu/linear/linear_amx.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "backend/cpu/linear/linear_wide.inl"

namespace sx::cpu {
namespace amx {
namespace {

constexpr int kPanel = 32;            // sub-blocks in a panel: whole super-blocks
constexpr int kMostTiles = 32;        // tiles of 16 rows that use a panel
constexpr size_t kActs = 768 * 1024;  // bytes of activations that should stay in L2
constexpr int kSums = 256;            // of a tile

template <AmxStore kStoreOf, bool kCentredOf, bool kWideOf, bool kOffsetOf, bool kHalvesOf>
struct Kind {
  static constexpr AmxStore kStore = kStoreOf;
  static constexpr bool kCentred = kCentredOf, kWide = kWideOf, kOffset = kOffsetOf;
  static constexpr bool kPer64 = kStore != AmxStore::kBytes;
  static constexpr int kHalves = kHalvesOf ? 2 : 1;
  static constexpr int kShare = kPer64 ? kSuper : 32;
  static constexpr int kQuantBytes = kStore == AmxStore::kNibbles ? 16 : kStore == AmxStore::kSix ? 24 : 32;
  static constexpr int kScaleBytes = kOutputs * (kWide ? 4 : 2), kOffsetsAt = kHalves * kScaleBytes;
  static constexpr int kQuantsAt = kOffsetsAt * (kOffset ? 2 : 1);
  static constexpr int kBytes = kQuantsAt + kOutputs * kQuantBytes;  // of a group-block
};

struct alignas(64) PanelBlock {
  int8_t q[8][64];  // [quad of inner values][16 outputs][4]
  float d[16], m[16];
};

struct alignas(64) Scratch {
  PanelBlock panel[kPanel];
  int32_t sums[4][kSums];
  float acc[kMostTiles][kSums];
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
    if constexpr (K::kStore == AmxStore::kNibbles) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i both = _mm512_loadu_si512(quants + 64 * j);
        __m512i low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        if (K::kCentred) low = _mm512_sub_epi8(low, eight), high = _mm512_sub_epi8(high, eight);
        _mm512_store_si512(to->q[j], low);
        _mm512_store_si512(to->q[j + 4], high);
      }
    } else if constexpr (K::kStore == AmxStore::kSix) {
      const __m512i upper = _mm512_set1_epi8(-4), flip = _mm512_set1_epi8(-128);
      const __m512i low[2] = {lower_bits(quants), lower_bits(quants + 192)};
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j) {
        const __m512i w = j < 6 ? _mm512_loadu_si512(quants + 64 * j) : low[j % 2];
        _mm512_store_si512(to[j * K::kHalves / 8].q[j % (8 / K::kHalves)],
                           _mm512_xor_si512(_mm512_and_si512(w, upper), flip));
      }
    } else {
#pragma GCC unroll 8
      for (int j = 0; j < 8; ++j)
        _mm512_store_si512(to[j * K::kHalves / 8].q[j % (8 / K::kHalves)], _mm512_loadu_si512(quants + 64 * j));
    }
  }
}

// Where the multiplication is: a sub-block of a tile of rows.
template <class K>
struct MultiplyCursor {
  const LinearJob& job;
  const int first_block, count;  // of the panel, and its sub-blocks
  int tile, at = 0;              // sub-block
  const int8_t* q = nullptr;
  size_t step = 0;  // bytes of a block

  SX_INLINE void open(MultiplyCursor& c) {
    const ActTile rows = act_tile(c.job.act, c.job.layout->in, c.job.rows, c.tile, K::kShare);
    c.step = static_cast<size_t>(rows.width) * 32;
    c.q = rows.q + static_cast<size_t>(c.first_block) * c.step;
  }
  SX_INLINE void next(MultiplyCursor& c) {
    if (K::kHalves == 2) c.q += c.at % 2 == 0 ? size_t(16) : c.step - 16;
    else c.q += c.step;
    if (++c.at < c.count) return;
    c.at = 0;
    ++c.tile;
  }
};

// Where the folding is.
template <class K>
struct FoldCursor {
  const LinearJob& job;
  const int first_block, count;
  int tile, at = 0;
  const float* sum = nullptr;
  const float* dx = nullptr;
  float* acc;  // of the tile
  size_t width = 0;

  SX_INLINE void open(FoldCursor& c) {
    const ActTile rows = act_tile(c.job.act, c.job.layout->in, c.job.rows, c.tile, K::kShare);
    const size_t block = static_cast<size_t>(c.first_block);
    c.width = static_cast<size_t>(rows.width);
    c.sum = rows.sum + block * c.width * act_sums(K::kShare);
    c.dx = rows.dx + block / (K::kShare / 32) * c.width;
  }
};

// Folds the sums of one sub-block into the chains p; a chain is a super-block, or with one scale per 32 all of the
// panel.
template <class K>
SX_INLINE void fold(FoldCursor<K>& c, const PanelBlock* panel, const int32_t* s, Vec (&p)[16]) {
  constexpr int kChain = K::kPer64 ? kSuper / 32 * K::kHalves : 1;
  if (c.at == 0) FoldCursor<K>::open(c);
  const PanelBlock& w = panel[c.at];
  if (K::kPer64 && c.at % kChain == 0) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) p[r] = zero();
  }
  if (!K::kPer64 && c.at == 0) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) p[r] = _mm512_load_ps(c.acc + 16 * r);
  }
  const size_t block = static_cast<size_t>(c.at / K::kHalves);
  const size_t entry = K::kPer64 ? block : block * 3 + static_cast<size_t>(K::kHalves == 1 ? 0 : 1 + c.at % 2);
  const float* sum = c.sum + entry * c.width;
  const float* dx = c.dx + (K::kPer64 ? block / (kSuper / 32) : block) * c.width;
  const Vec d = _mm512_load_ps(w.d), m = K::kOffset ? _mm512_load_ps(w.m) : zero();
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    const Vec dot = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_load_si512(s + 16 * r));
    p[r] = fma(dot, K::kPer64 ? d : mul(d, set1(dx[r])), p[r]);
    if constexpr (K::kOffset) p[r] = fma(m, set1(sum[r]), p[r]);
  }
  const bool end = ++c.at == c.count;
  if (K::kPer64 && (end || c.at % kChain == 0)) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r)
      _mm512_store_ps(c.acc + 16 * r, fma(p[r], set1(dx[r]), _mm512_load_ps(c.acc + 16 * r)));
  }
  if (!K::kPer64 && end) {
#pragma GCC unroll 16
    for (int r = 0; r < 16; ++r) _mm512_store_ps(c.acc + 16 * r, p[r]);
  }
  if (end) c.at = 0, ++c.tile, c.acc += kSums;
}

// One step of the pipeline, for tile registers n (sums), 4 + n % 2 (activations) and 6 + n % 2 (weights): stores the
// sums of the sub-block four before, multiplies one, folds the one five before.
#define SX_AMX_STEP(n, A, B)                                                   \
  {                                                                            \
    if (i < total) {                                                           \
      if (to.at == 0) MultiplyCursor<K>::open(to);                             \
      _tile_loadd(A, to.q, 32);                                                \
      _tile_loadd(B, panel[to.at].q, 64);                                      \
      MultiplyCursor<K>::next(to);                                             \
    }                                                                          \
    _tile_stored(n, s.sums[n], 64);                                            \
    _tile_zero(n);                                                             \
    if (i < total) _tile_dpbssd(n, A, B);                                      \
    if (i >= 5 && i - 5 < total) fold<K>(from, panel, s.sums[(n + 3) % 4], p); \
    ++i;                                                                       \
  }

// The panel's `count` sub-blocks (the first belongs to block `block` of the rows) times tiles of rows [first, last).
template <class K>
__attribute__((noinline)) void panel_rows(const LinearJob& job, int first, int last, int block, int count, Scratch& s) {
  const PanelBlock* panel = s.panel;
  const int total = (last - first) * count;
  MultiplyCursor<K> to = {.job = job, .first_block = block, .count = count, .tile = first};
  FoldCursor<K> from = {.job = job, .first_block = block, .count = count, .tile = first, .acc = s.acc[0]};
  Vec p[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) p[r] = zero();
  for (int i = 0; i < total + 5;) {
    SX_AMX_STEP(0, 4, 6)
    SX_AMX_STEP(1, 5, 7)
    SX_AMX_STEP(2, 4, 6)
    SX_AMX_STEP(3, 5, 7)
  }
}
#undef SX_AMX_STEP

template <class K>
void run(const LinearJob& job, int tiles) {
  constexpr int kBlocks = kPanel / K::kHalves;  // of the panel
  Scratch& s = *reinterpret_cast<Scratch*>(job.panel);
  const int blocks = job.layout->blocks;
  int most = static_cast<int>(kActs / (static_cast<size_t>(blocks) * 32 * kTileRows));
  most = most < 4 ? 4 : most < kMostTiles ? most : kMostTiles;
  for (int t = 0; t < tiles; t += most) {
    const int end = t + most < tiles ? t + most : tiles;
    for (int g = job.first; g < job.last; ++g) {
      const std::byte* group = job.weights + static_cast<size_t>(g) * job.layout->group_bytes;
      memset(s.acc, 0, sizeof(s.acc[0]) * static_cast<size_t>(end - t));
      for (int b = 0; b < blocks; b += kBlocks) {
        const int count = blocks - b < kBlocks ? blocks - b : kBlocks;
        unpack<K>(s.panel, reinterpret_cast<const uint8_t*>(group) + static_cast<size_t>(b) * K::kBytes, count);
        panel_rows<K>(job, t, end, b, count * K::kHalves, s);
      }
      for (int i = t; i < end; ++i)
        for (int r = 0; r < kTileRows && i * kTileRows + r < job.rows; ++r)
          finish(job, g, i * kTileRows + r, _mm512_load_ps(s.acc[i - t] + 16 * r));
    }
  }
}

template <bool kHalves>
void run_bytes(const LinearJob& job, const AmxFormat& f, int tiles) {
  if (f.offset && f.wide) run<Kind<AmxStore::kBytes, false, true, true, kHalves>>(job, tiles);
  else if (f.offset) run<Kind<AmxStore::kBytes, false, false, true, kHalves>>(job, tiles);
  else if (f.wide) run<Kind<AmxStore::kBytes, false, true, false, kHalves>>(job, tiles);
  else run<Kind<AmxStore::kBytes, false, false, false, kHalves>>(job, tiles);
}

}  // namespace
}  // namespace amx

void amx_run(const LinearJob& job, const AmxFormat& f, int tiles) {
  using amx::Kind;
  _tile_loadconfig(f.halves ? &amx::kHalf : &amx::kWhole);
  using enum AmxStore;
  switch (f.store) {
    case kBytes: f.halves ? amx::run_bytes<true>(job, f, tiles) : amx::run_bytes<false>(job, f, tiles); break;
    case kNibbles:
      if (f.centred) amx::run<Kind<kNibbles, true, false, false, false>>(job, tiles);
      else if (f.wide) amx::run<Kind<kNibbles, false, true, true, false>>(job, tiles);
      else amx::run<Kind<kNibbles, false, false, true, false>>(job, tiles);
      break;
    case kSix:
      if (f.halves) amx::run<Kind<kSix, false, false, false, true>>(job, tiles);
      else if (f.offset) amx::run<Kind<kSix, false, false, true, false>>(job, tiles);
      else amx::run<Kind<kSix, false, false, false, false>>(job, tiles);
      break;
    case kSuperBytes: amx::run<Kind<kSuperBytes, false, false, false, false>>(job, tiles); break;
  }
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
