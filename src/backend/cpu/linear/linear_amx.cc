// Linear layers of quantised weights for many rows with AMX: tdpbssd multiplies 16 rows x 32 activations by 32 x 16
// weights into 16 x 16 exact 32-bit sums (order of reduction: linear_act_tiles.inl). The tile unit takes 16 cycles for
// that, fewer for fewer rows; sums leave it through memory only, and folding them into floats takes 32 vector
// instructions or more. So two tiles of rows times two groups are one step: results are stored a step late, when they
// are finished, and activations' sums and scales are read once for both groups. The tile unit keeps one of the two
// ports of 512-bit instructions busy, so folding and multiplying hardly overlap. Weights are unpacked once into a
// panel, small enough for L1, for up to kMostTiles tiles of rows; the next panel's are fetched while it is multiplied.
// A sub-block is what has a scale of its own: 32 inner values, or 16, which cost the tile unit as much.
#define SX_ISA_NAMESPACE amx
#include "backend/cpu/linear/linear_amx.h"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "backend/cpu/linear/linear_wide.inl"

namespace sx::cpu {
namespace amx {
namespace {

constexpr int kPanel = 8;             // sub-blocks in a panel: whole super-blocks; all that a step reads stays in L1
constexpr int kMostTiles = 32;        // tiles of 16 rows that use a panel
constexpr size_t kActs = 768 * 1024;  // bytes of activations that should stay in L2
constexpr int kSums = 256;            // of a tile

template <AmxStore kStoreOf, bool kCentredOf, bool kWideOf, bool kOffsetOf, bool kHalvesOf>
struct Kind {
  static constexpr AmxStore kStore = kStoreOf;
  static constexpr bool kCentred = kCentredOf, kWide = kWideOf, kOffset = kOffsetOf;
  static constexpr bool kPer64 = kStore != AmxStore::kBytes;
  static constexpr int kHalves = kHalvesOf ? 2 : 1;
  static constexpr int kSubs = 2 * kHalves;  // sub-blocks of a super-block
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
  PanelBlock panel[2 * kPanel];      // of two groups
  int32_t sums[2 * 4 * 4 * kSums];   // [one of two super-blocks][sub-block][tile of rows][group][16 rows][16 outputs]
  float acc[2 * kMostTiles][kSums];  // [tile of rows][group]
};

// The tiles' shapes: 0-3 sums of 16 x 16, 4 and 5 activations of 16 rows, 6 and 7 weights of 16 outputs. They are set
// for one call and released after it, so that a thread that does something else has no state to be saved.
struct alignas(64) TileConfig {
  uint8_t palette, start, reserved[14];
  uint16_t bytes[16];
  uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64);
constexpr TileConfig tile_config(int inner, int rows) {
  const auto bytes = static_cast<uint16_t>(inner);
  const auto quads = static_cast<uint8_t>(inner / 4), r = static_cast<uint8_t>(rows);
  return {.palette = 1,
          .start = 0,
          .reserved = {},
          .bytes = {64, 64, 64, 64, bytes, bytes, 64, 64},
          .rows = {r, r, r, r, r, r, quads, quads}};
}
// By rows of a tile. Constants: g++ 12 does not know that a configuration is read and drops stores to it.
struct TileConfigs {
  TileConfig of[kTileRows + 1];
};
constexpr TileConfigs tile_configs(int inner) {
  TileConfigs c = {};
  for (int rows = 1; rows <= kTileRows; ++rows) c.of[rows] = tile_config(inner, rows);
  return c;
}
constexpr TileConfigs kWhole = tile_configs(32), kHalf = tile_configs(16);

// `blocks` group-blocks into the panel.
template <class K>
__attribute__((noinline)) void unpack(PanelBlock* to, const uint8_t* from, int blocks) {
  const auto scale = [](const uint8_t* p) {
    return K::kWide ? load(reinterpret_cast<const float*>(p)) : load_f16(reinterpret_cast<const uint16_t*>(p));
  };
  const __m512i mask = _mm512_set1_epi8(K::kCentred ? -16 : 15), flip = _mm512_set1_epi8(-128);
  const Vec unit = set1(K::kCentred ? 0x1p-4f : 1.0f);
  for (int b = 0; b < blocks; ++b, to += K::kHalves, from += K::kBytes) {
#pragma GCC unroll 2
    for (int h = 0; h < K::kHalves; ++h) {
      const Vec d = scale(from + h * K::kScaleBytes);
      store(to[h].d, K::kCentred ? mul(d, unit) : d);
      if (K::kOffset) store(to[h].m, scale(from + K::kOffsetsAt + h * K::kScaleBytes));
    }
    const uint8_t* quants = from + K::kQuantsAt;
    if constexpr (K::kStore == AmxStore::kNibbles) {
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i both = _mm512_loadu_si512(quants + 64 * j);
        __m512i low, high;
        if constexpr (K::kCentred) {  // w in the upper four bits ^ 0x80 is 16 * (w - 8); d takes the 16 back
          low = _mm512_ternarylogic_epi32(_mm512_slli_epi16(both, 4), mask, flip, 0x6a);
          high = _mm512_ternarylogic_epi32(both, mask, flip, 0x6a);
        } else {
          low = _mm512_and_si512(both, mask), high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        }
        _mm512_store_si512(to->q[j], low);
        _mm512_store_si512(to->q[j + 4], high);
      }
    } else if constexpr (K::kStore == AmxStore::kSix) {
      const __m512i upper = _mm512_set1_epi8(-4);
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

// A tile of 16 rows from a block on, and its sums so far.
struct RowTile {
  const int8_t* q;
  const float* sum;
  const float* dx;
  float* acc;  // [groups][16 rows][16 outputs]
  size_t width;
};

template <class K>
SX_INLINE RowTile row_tile(const LinearJob& job, int tile, int block, float* acc) {
  const ActTile rows = act_tile(job.act, job.layout->in, job.rows, tile, K::kShare);
  const size_t width = static_cast<size_t>(rows.width), b = static_cast<size_t>(block);
  return {.q = rows.q + b * width * 32,
          .sum = rows.sum + b * width * act_sums(K::kShare),
          .dx = rows.dx + b / (K::kShare / 32) * width,
          .acc = acc,
          .width = width};
}

// Folds the sums of `kCount` sub-blocks (all of a super-block, or its first half) of rows [first, last) of a tile.
template <class K, int kGroups, int kCount>
SX_INLINE void fold(const RowTile& t, int super, const PanelBlock* panel, const int32_t* sums, int first, int last) {
  const size_t at = static_cast<size_t>(super), block = 2 * at;
  Vec d[kGroups][kCount], m[kGroups][kCount];
#pragma GCC unroll 8
  for (int i = 0; i < kGroups * kCount; ++i) {
    const PanelBlock& w = panel[i / kCount * kPanel + super * K::kSubs + i % kCount];
    d[i / kCount][i % kCount] = _mm512_load_ps(w.d);
    if (K::kOffset) m[i / kCount][i % kCount] = _mm512_load_ps(w.m);
  }
  const float* sum = t.sum + block * act_sums(K::kShare) * t.width;
  const float* dx = t.dx + (K::kPer64 ? at : block) * t.width;
#pragma GCC unroll 1
  for (int r = first; r < last; ++r) {
    Vec p[kGroups];
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) p[g] = K::kPer64 ? zero() : _mm512_load_ps(t.acc + g * kSums + 16 * r);
#pragma GCC unroll 4
    for (int k = 0; k < kCount; ++k) {
      const size_t b = static_cast<size_t>(k / K::kHalves);
      const size_t entry = K::kPer64 ? b : b * 3 + static_cast<size_t>(K::kHalves == 1 ? 0 : 1 + k % 2);
      const Vec share = K::kPer64 ? zero() : set1(dx[b * t.width + static_cast<size_t>(r)]);
      const Vec part = K::kOffset ? set1(sum[entry * t.width + static_cast<size_t>(r)]) : zero();
#pragma GCC unroll 2
      for (int g = 0; g < kGroups; ++g) {
        const Vec dot = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_load_si512(sums + (k * 4 + g) * kSums + 16 * r));
        p[g] = fma(dot, K::kPer64 ? d[g][k] : mul(d[g][k], share), p[g]);
        if constexpr (K::kOffset) p[g] = fma(m[g][k], part, p[g]);
      }
    }
    const Vec share = K::kPer64 ? set1(dx[r]) : zero();
#pragma GCC unroll 2
    for (int g = 0; g < kGroups; ++g) {
      float* acc = t.acc + g * kSums + 16 * r;
      _mm512_store_ps(acc, K::kPer64 ? fma(p[g], share, _mm512_load_ps(acc)) : p[g]);
    }
  }
}

// Tile registers 2 * tile + group: the product of sub-block `at` of kTiles tiles of rows times kGroups groups. What a
// register held, the product of the sub-block before, goes to `sums` first (if not null): a register's product is
// stored after three others have been started, when it is finished.
template <class K, int kTiles, int kGroups>
SX_INLINE void multiply(const RowTile* t, const PanelBlock* panel, int at, int32_t* sums) {
  const size_t block = static_cast<size_t>(at / K::kHalves), half = static_cast<size_t>(at % K::kHalves) * 16;
  _tile_loadd(4, t[0].q + block * t[0].width * 32 + half, 32);
  _tile_loadd(6, panel[at].q, 64);
  if (sums) _tile_stored(0, sums, 64);
  _tile_zero(0);
  _tile_dpbssd(0, 4, 6);
  if constexpr (kGroups == 2) {
    _tile_loadd(7, panel[kPanel + at].q, 64);
    if (sums) _tile_stored(1, sums + kSums, 64);
    _tile_zero(1);
    _tile_dpbssd(1, 4, 7);
  }
  if constexpr (kTiles == 2) {
    _tile_loadd(5, t[1].q + block * t[1].width * 32 + half, 32);
    if (sums) _tile_stored(2, sums + 2 * kSums, 64);
    _tile_zero(2);
    _tile_dpbssd(2, 5, 6);
    if constexpr (kGroups == 2) {
      if (sums) _tile_stored(3, sums + 3 * kSums, 64);
      _tile_zero(3);
      _tile_dpbssd(3, 5, 7);
    }
  }
}

// The last results.
template <int kTiles, int kGroups>
SX_INLINE void store_last(int32_t* sums) {
  _tile_stored(0, sums, 64);
  if constexpr (kGroups == 2) _tile_stored(1, sums + kSums, 64);
  if constexpr (kTiles == 2) _tile_stored(2, sums + 2 * kSums, 64);
  if constexpr (kTiles == 2 && kGroups == 2) _tile_stored(3, sums + 3 * kSums, 64);
}

// The weights of the next panel, which are fetched bit by bit while this one is multiplied: a burst of requests when
// they are needed would wait for memory.
struct Ahead {
  const char* at;
  size_t apart;  // of the groups
  int lines;     // left
};

// The panel's `count` sub-blocks (the first belongs to block `block` of the rows) times tiles of rows. Step s starts
// the tile instructions of sub-block s, stores the results of s - 1 and folds a share of the super-block before that.
template <class K, int kTiles, int kGroups>
__attribute__((noinline)) void panel_rows(const LinearJob& job, int tile, int block, int count, float* acc, Scratch& s,
                                          Ahead ahead) {
  constexpr int kSubs = K::kSubs, kShareRows = kTileRows * kTiles / kSubs;  // rows folded per step
  RowTile t[kTiles];
  for (int i = 0; i < kTiles; ++i) t[i] = row_tile<K>(job, tile + i, block, acc + i * 2 * kSums);
  const int supers = (count + kSubs - 1) / kSubs;
  const auto sums_of = [&](int step) __attribute__((always_inline)) { return s.sums + step % (2 * kSubs) * 4 * kSums; };
  const auto fold_share = [&](int super, int share) __attribute__((always_inline)) {
    const int of = share * kShareRows / kTileRows, first = share * kShareRows % kTileRows;
    const int width = static_cast<int>(t[of].width), last = first + kShareRows < width ? first + kShareRows : width;
    const int32_t* sums = sums_of(super * kSubs) + 2 * of * kSums;
    if (count - super * kSubs >= kSubs) fold<K, kGroups, kSubs>(t[of], super, s.panel, sums, first, last);
    else fold<K, kGroups, kSubs / 2>(t[of], super, s.panel, sums, first, last);
  };
  multiply<K, kTiles, kGroups>(t, s.panel, 0, nullptr);
  const int lines = (ahead.lines + count - 1) / count;
  const auto fetch = [&]() __attribute__((always_inline)) {
    for (int i = 0; i < lines && ahead.lines > 0; ++i, --ahead.lines, ahead.at += 64) {
      _mm_prefetch(ahead.at, _MM_HINT_T1);
      if (kGroups == 2) _mm_prefetch(ahead.at + ahead.apart, _MM_HINT_T1);
    }
  };
#pragma GCC unroll 1
  for (int step = 1; step <= kSubs * (supers + 1); ++step) {
    fetch();
    if (step < count) multiply<K, kTiles, kGroups>(t, s.panel, step, sums_of(step - 1));
    else if (step == count) store_last<kTiles, kGroups>(sums_of(step - 1));
    if (step > kSubs) fold_share((step - 1) / kSubs - 1, (step - 1) % kSubs);
  }
}

// Results are written to lines that are in no cache near: they are asked for before the last sums are computed.
SX_INLINE void prefetch_results(const LinearJob& job, int group, int row, int rows) {
  for (int r = row; r < row + rows && r < job.rows; ++r)
    __builtin_prefetch(job.out + static_cast<size_t>(r) * static_cast<size_t>(job.out_stride) + group * kOutputs, 1);
}

// kGroups groups from `group` on times tiles [first, last) of rows.
template <class K, int kGroups>
void run_groups(const LinearJob& job, int group, int first, int last, Scratch& s) {
  constexpr int kBlocks = kPanel / K::kHalves;  // of the panel
  const int blocks = job.layout->blocks, pairs = (last - first + 1) / 2;
  const size_t apart = job.layout->group_bytes;
  const auto weights = [&](int of, int block) {
    return reinterpret_cast<const uint8_t*>(job.weights) + static_cast<size_t>(of) * apart +
           static_cast<size_t>(block) * K::kBytes;
  };
  const auto acc = [&](int tile) { return s.acc[(tile - first) * 2]; };
  memset(s.acc, 0, sizeof(s.acc[0]) * 2 * static_cast<size_t>(last - first));
  for (int b = 0; b < blocks; b += kBlocks) {
    const int count = blocks - b < kBlocks ? blocks - b : kBlocks;
    for (int g = 0; g < kGroups; ++g) unpack<K>(s.panel + g * kPanel, weights(group + g, b), count);
    const bool more = b + kBlocks < blocks;
    const uint8_t* next = more ? weights(group, b + kBlocks) : weights(group + kGroups, 0);
    const int next_blocks = more ? (blocks - b - kBlocks < kBlocks ? blocks - b - kBlocks : kBlocks)
                            : group + 2 * kGroups <= job.last ? (blocks < kBlocks ? blocks : kBlocks)
                                                              : 0;
    const int lines = (next_blocks * K::kBytes + 63) / 64;
    for (int t = first, pair = 0; t < last; t += 2, ++pair) {
      if (!more)
        for (int g = 0; g < kGroups; ++g) prefetch_results(job, group + g, t * kTileRows, 2 * kTileRows);
      const int from = lines * pair / pairs;
      const Ahead ahead = {.at = reinterpret_cast<const char*>(next) + from * 64,
                           .apart = apart,
                           .lines = lines * (pair + 1) / pairs - from};
      if (t + 2 <= last) panel_rows<K, 2, kGroups>(job, t, b, count * K::kHalves, acc(t), s, ahead);
      else panel_rows<K, 1, kGroups>(job, t, b, count * K::kHalves, acc(t), s, ahead);
    }
  }
  for (int t = first; t < last; ++t)
    for (int r = 0; r < kTileRows && t * kTileRows + r < job.rows; ++r)
      for (int g = 0; g < kGroups; ++g)
        finish(job, group + g, t * kTileRows + r, _mm512_load_ps(acc(t) + g * kSums + 16 * r));
}

template <class K>
void run(const LinearJob& job, int tiles) {
  Scratch& s = *reinterpret_cast<Scratch*>(job.panel);
  int most = static_cast<int>(kActs / (static_cast<size_t>(job.layout->blocks) * 32 * kTileRows));
  most = most < 4 ? 4 : most < kMostTiles ? most / 2 * 2 : kMostTiles;
  for (int t = 0; t < tiles; t += most) {
    const int end = t + most < tiles ? t + most : tiles;
    int g = job.first;
    for (; g + 2 <= job.last; g += 2) run_groups<K, 2>(job, g, t, end, s);
    if (g < job.last) run_groups<K, 1>(job, g, t, end, s);
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
  const int rows = job.rows < amx::kTileRows ? job.rows : amx::kTileRows;  // fewer take the tile unit less time
  _tile_loadconfig((f.halves ? amx::kHalf : amx::kWhole).of + rows);
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
