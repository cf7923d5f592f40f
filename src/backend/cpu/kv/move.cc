// kv_move(): copies cells of every layer, inside a store or between two, and rotates their keys to another position.
// With delta 0 the bits are copied; otherwise the stored key is widened to f32, rotated and rounded back. Consecutive
// cells with one delta are moved together, and get the bits that they would get one by one: in a block of keys the
// cells of a tile lie side by side, so the plain loops below run over contiguous elements and the compiler makes
// vectors of them.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include "backend/cpu/attention/attention.h"
#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/kv/rotate.h"
#include "base/error.h"
#include "tensor/half.h"

namespace sx::cpu {
namespace {

constexpr int kMaxRun = 32;          // cells moved together; inside one block at both ends
constexpr int kMaxRuns = 512;        // planned at a time
constexpr int kTableFloats = 16384;  // cos and sin of the planned runs

struct Run {
  int32_t src, dst, cells;
  int32_t table;  // -1: bits are copied
};

// As many of the moves as fit, as runs. Lives on the caller's stack: an op may not allocate.
struct Plan {
  Run runs[kMaxRuns];
  int32_t deltas[kMaxRuns];    // per table
  float tables[kTableFloats];  // [table][dims / 2][cos, sin]
  int count = 0, table_count = 0;
  bool ascending = true;  // destinations

  // Returns how many moves it took.
  size_t fill(const KvMoveArgs& a, std::span<const KvMove> moves) {
    const bool same = a.from == a.to && a.from_slot == a.to_slot;
    count = table_count = 0;
    ascending = true;
    size_t at = 0;
    for (size_t n; at < moves.size() && count < kMaxRuns; at += n) {
      const KvMove& m = moves[at];
      const int distance = std::abs(m.src - m.dst);
      int most = std::min({kMaxRun, kBlock - m.src % kBlock, kBlock - m.dst % kBlock});
      if (same && distance > 0) most = std::min(most, distance);  // a run must not read what it writes
      for (n = 1; n < static_cast<size_t>(most) && at + n < moves.size(); ++n) {
        const KvMove& next = moves[at + n];
        const int i = static_cast<int>(n);
        if (next.src != m.src + i || next.dst != m.dst + i || next.delta != m.delta) break;
      }
      if (same && distance == 0 && m.delta == 0) continue;
      int table = -1;
      if (m.delta != 0) {
        table = table_count > 0 && deltas[table_count - 1] == m.delta ? table_count - 1 : table_count;
        if ((table + 1) * a.dims > kTableFloats) break;
        deltas[table] = m.delta;
        table_count = table + 1;
      }
      ascending = ascending && (count == 0 || runs[count - 1].dst < m.dst);
      runs[count++] = {m.src, m.dst, static_cast<int32_t>(n), table};
    }
    return at;
  }

  // cos and sin of delta * frequency, in double.
  void fill_table(const KvMoveArgs& a, int table) {
    for (int i = 0; i < a.dims / 2; ++i) {
      const double angle = a.frequencies[i] * deltas[table];
      tables[table * a.dims + 2 * i] = static_cast<float>(std::cos(angle));
      tables[table * a.dims + 2 * i + 1] = static_cast<float>(std::sin(angle));
    }
  }
};

// Elements of each type; the same roundings as in layout.cc.
struct F32 {
  using Stored = float;
  static float widen(float x) { return x; }
  static float round(float x) { return x; }
};
struct F16 {
  using Stored = uint16_t;
  static float widen(uint16_t x) { return f16_to_float(x); }
  static uint16_t round(float x) { return float_to_f16(std::clamp(x, -65504.0f, 65504.0f)); }
};
struct BF16 {
  using Stored = uint16_t;
  static float widen(uint16_t x) { return bf16_to_float(x); }
  static uint16_t round(float x) { return float_to_bf16(x); }
};
struct Q8 {
  using Stored = int8_t;
  static float widen(int8_t x) { return static_cast<float>(x); }
  static int8_t round(float x) { return static_cast<int8_t>(static_cast<int>(std::rint(x))); }
};

// Keys of `run` neighbouring elements per cell (1 in the lanes layouts): a tile of 16 cells is [group][16][run]. The
// cells of a Run, widened, are [group][cells][run] in x.
template <class E, int run>
struct Keys {
  using T = typename E::Stored;
  static constexpr bool kScaled = std::is_same_v<E, Q8>;
  const KvLayout& l;

  static const float* scales(const KvLayout& l, const std::byte* block) {
    return reinterpret_cast<const float*>(block + l.scales_at());
  }
  static float* scales(const KvLayout& l, std::byte* block) { return reinterpret_cast<float*>(block + l.scales_at()); }
  size_t place(int p, int group) const {  // of position p in a block, in elements
    return static_cast<size_t>(p / 16 * 16 * l.padded + (group * 16 + p % 16) * run);
  }
  int groups() const { return (l.dim + run - 1) / run; }

  // Calls body(element of p, element of q, cells) for the stretches that lie in one tile at both ends.
  template <class Body>
  void stretches(int p, int q, int cells, Body body) const {
    for (int i = 0, n; i < cells; i += n) {
      n = std::min({cells - i, 16 - (p + i) % 16, 16 - (q + i) % 16});
      body(place(p + i, 0), place(q + i, 0), n);
    }
  }

  void copy(const std::byte* from, int p, std::byte* to, int q, int cells) const {
    const T* a = reinterpret_cast<const T*>(from);
    T* b = reinterpret_cast<T*>(to);
    stretches(p, q, cells, [&](size_t at, size_t into, int n) {
      for (size_t g = 0; g < static_cast<size_t>(groups()); ++g)
        std::memcpy(b + into + g * 16 * run, a + at + g * 16 * run, static_cast<size_t>(n * run) * sizeof(T));
    });
    if constexpr (kScaled) std::copy_n(scales(l, from) + p, cells, scales(l, to) + q);
  }

  void load(const std::byte* from, int p, int cells, float* x) const {
    const T* a = reinterpret_cast<const T*>(from);
    for (int i = 0, n; i < cells; i += n) {
      n = std::min(cells - i, 16 - (p + i) % 16);
      for (int g = 0; g < groups(); ++g) {
        const T* y = a + place(p + i, g);
        float* z = x + (g * cells + i) * run;
        for (int e = 0; e < n * run; ++e) z[e] = E::widen(y[e]);
        if constexpr (kScaled) {
          const float* scale = scales(l, from) + p + i;
          for (int c = 0; c < n; ++c)
            for (int e = 0; e < run; ++e) z[c * run + e] = scale[c] * z[c * run + e];
        }
      }
    }
  }

  void turn(float* x, int cells, const float* table, int dims, RopeStyle style) const {
    const int half = dims / 2;
    if (style == RopeStyle::kHalves && half % run == 0) {
      for (int g = 0; g < half / run; ++g) {
        float c[run], s[run];
        for (int e = 0; e < run; ++e) c[e] = table[2 * (g * run + e)], s[e] = table[2 * (g * run + e) + 1];
        float* __restrict u = x + g * cells * run;
        float* __restrict v = x + (g + half / run) * cells * run;
        for (int i = 0; i < cells * run; i += run)
          for (int e = 0; e < run; ++e) {
            const float a = u[i + e], b = v[i + e];
            u[i + e] = a * c[e] - b * s[e];
            v[i + e] = a * s[e] + b * c[e];
          }
      }
      return;
    }
    const int step = style == RopeStyle::kHalves ? 1 : 2, gap = style == RopeStyle::kHalves ? half : 1;
    for (int i = 0; i < half; ++i) {
      const float c = table[2 * i], s = table[2 * i + 1];
      const int d = i * step, e = d + gap;
      float* u = x + d / run * cells * run + d % run;
      float* v = x + e / run * cells * run + e % run;
      for (int j = 0; j < cells * run; j += run) {
        const float a = u[j], b = v[j];
        u[j] = a * c - b * s;
        v[j] = a * s + b * c;
      }
    }
  }

  void store(const float* x, int cells, std::byte* to, int q) const {
    T* b = reinterpret_cast<T*>(to);
    float inverse[kMaxRun];
    if constexpr (kScaled) {
      float top[kMaxRun] = {};
      for (int g = 0; g < groups(); ++g)
        for (int c = 0; c < cells; ++c)
          for (int e = 0; e < run; ++e) top[c] = std::max(top[c], std::fabs(x[(g * cells + c) * run + e]));
      for (int c = 0; c < cells; ++c) {
        inverse[c] = top[c] > 0 ? 127 / top[c] : 0;
        scales(l, to)[q + c] = top[c] / 127;
      }
    }
    for (int i = 0, n; i < cells; i += n) {
      n = std::min(cells - i, 16 - (q + i) % 16);
      for (int g = 0; g < groups(); ++g) {
        T* y = b + place(q + i, g);
        const float* z = x + (g * cells + i) * run;
        if constexpr (kScaled) {
          for (int c = 0; c < n; ++c)
            for (int e = 0; e < run; ++e) y[c * run + e] = E::round(z[c * run + e] * inverse[i + c]);
        } else {
          for (int e = 0; e < n * run; ++e) y[e] = E::round(z[e]);
        }
      }
    }
  }
};

// Values of the matrix layouts: [channel / 16][word][channel % 16], a word being 8 bytes, `per` positions of a channel.
// Where the two places differ inside a word, each new word is shifted together from two old ones.
template <int per>
void copy_words(const KvLayout& l, const std::byte* from, int p, std::byte* to, int q, int cells) {
  constexpr int kBits = 64 / per, kWords = kBlock / per;
  static constexpr uint64_t kNone[16] = {};
  for (int channel = 0; channel < l.padded; channel += 16) {
    const uint64_t* a = reinterpret_cast<const uint64_t*>(from) + channel * kWords;
    uint64_t* b = reinterpret_cast<uint64_t*>(to) + channel * kWords;
    for (int w = q / per; w * per < q + cells; ++w) {
      const int first = std::max(q - w * per, 0), last = std::min(q + cells - w * per, per);  // positions of the word
      const int source = w * per + p - q + kBlock, place = source / per - kWords, shift = source % per * kBits;
      uint64_t* __restrict out = b + w * 16;
      if (shift == 0 && last - first == per) {
        std::memcpy(out, a + place * 16, 16 * sizeof(uint64_t));
        continue;
      }
      const uint64_t mask = ~uint64_t(0) >> ((per - (last - first)) * kBits) << (first * kBits);
      const uint64_t* low = place >= 0 ? a + place * 16 : kNone;
      const uint64_t* high = shift > 0 && place + 1 < kWords ? a + (place + 1) * 16 : kNone;
      const int rise = shift > 0 ? 64 - shift : 0;
      uint64_t words[16];  // `out` may be one of the old ones
      for (int c = 0; c < 16; ++c) words[c] = low[c] >> shift | high[c] << rise;
      for (int c = 0; c < 16; ++c) out[c] = (out[c] & ~mask) | (words[c] & mask);
    }
  }
}

void copy_values(const KvLayout& l, const std::byte* from, int p, std::byte* to, int q, int cells) {
  if (l.record)
    return void(std::memmove(to + static_cast<size_t>(q) * l.record, from + static_cast<size_t>(p) * l.record,
                             static_cast<size_t>(cells) * l.record));
  const size_t element = l.type == DType::kF32 ? 4 : l.type == DType::kQ8_0 ? 1 : 2;
  const size_t row = static_cast<size_t>(l.padded) * element;
  const size_t first = static_cast<size_t>(p), n = static_cast<size_t>(cells);
  if (l.type == DType::kQ8_0)
    std::memcpy(to + l.scales_at() + static_cast<size_t>(q) * sizeof(float),
                from + l.scales_at() + first * sizeof(float), n * sizeof(float));
  if (!l.matrix) std::memcpy(to + static_cast<size_t>(q) * row, from + first * row, n * row);
  else if (l.type == DType::kQ8_0) copy_words<8>(l, from, p, to, q, cells);
  else copy_words<4>(l, from, p, to, q, cells);
}

template <class E, int run>
void move_keys(const KvMoveArgs& a, const Plan& plan, std::span<const Run> runs, int layer, int head) {
  const auto& from = static_cast<const CpuKvStore&>(*a.from);
  auto& to = static_cast<CpuKvStore&>(*a.to);
  const KvLayout& l = from.key_layout();
  const Keys<E, run> keys{l};
  const TurnCells turn = a.style == RopeStyle::kHalves && a.dims == l.dim ? turn_cells(l) : nullptr;
  alignas(64) float x[kMaxRun * kMaxHeadDim];
  for (const Run& r : runs) {
    const int p = r.src % kBlock, q = r.dst % kBlock;
    const std::byte* k = from.keys(a.from_slot, layer, head, r.src / kBlock);
    std::byte* new_k = to.keys(a.to_slot, layer, head, r.dst / kBlock);
    if (r.table < 0) {
      keys.copy(k, p, new_k, q, r.cells);
    } else if (turn) {
      keys.stretches(p, q, r.cells, [&](size_t at, size_t into, int n) {
        turn(k + at * sizeof(typename E::Stored), new_k + into * sizeof(typename E::Stored), n,
             plan.tables + r.table * a.dims, a.dims / 2);
      });
    } else {
      keys.load(k, p, r.cells, x);
      keys.turn(x, r.cells, plan.tables + r.table * a.dims, a.dims, a.style);
      keys.store(x, r.cells, new_k, q);
    }
  }
}

// Keys that are records, one by one.
void move_record_keys(const KvMoveArgs& a, const Plan& plan, std::span<const Run> runs, int layer, int head) {
  const auto& from = static_cast<const CpuKvStore&>(*a.from);
  auto& to = static_cast<CpuKvStore&>(*a.to);
  const KvLayout& l = from.key_layout();
  for (const Run& r : runs)
    for (int i = 0; i < r.cells; ++i) {
      const int src = r.src + i, dst = r.dst + i, p = src % kBlock, q = dst % kBlock;
      const std::byte* k = from.keys(a.from_slot, layer, head, src / kBlock);
      std::byte* new_k = to.keys(a.to_slot, layer, head, dst / kBlock);
      if (r.table < 0) {
        copy_key(l, k, p, new_k, q);
      } else {
        float x[kMaxHeadDim];
        load_key(l, k, p, x);
        rotate(x, plan.tables + r.table * a.dims, a.dims, a.style);
        store_key(l, new_k, q, x);
      }
    }
}

void move_values(const KvMoveArgs& a, std::span<const Run> runs, int layer, int head) {
  const auto& from = static_cast<const CpuKvStore&>(*a.from);
  auto& to = static_cast<CpuKvStore&>(*a.to);
  for (const Run& r : runs) {
    const int p = r.src % kBlock, q = r.dst % kBlock;
    const std::byte* v = from.values(a.from_slot, layer, head, r.src / kBlock);
    std::byte* new_v = to.values(a.to_slot, layer, head, r.dst / kBlock);
    if (v != new_v || p != q) copy_values(from.value_layout(), v, p, new_v, q, r.cells);
  }
}

void move_head(const KvMoveArgs& a, const Plan& plan, std::span<const Run> runs, int layer, int head) {
  const KvLayout& l = static_cast<const CpuKvStore&>(*a.from).key_layout();
  const bool matrix = l.matrix;
  const auto move = l.record                 ? move_record_keys
                    : l.type == DType::kBF16 ? (matrix ? move_keys<BF16, 4> : move_keys<BF16, 1>)
                    : l.type == DType::kQ8_0 ? (matrix ? move_keys<Q8, 8> : move_keys<Q8, 1>)
                    : l.type == DType::kF16  ? move_keys<F16, 1>
                                             : move_keys<F32, 1>;
  move(a, plan, runs, layer, head);
  move_values(a, runs, layer, head);
}

}  // namespace

void kv_move(const KvMoveArgs& a, Isa, ThreadPool& pool) {
  if (a.moves.empty()) return;
  const KvGeometry &from = a.from->geometry(), &to = a.to->geometry();
  SX_ASSERT(from.layers == to.layers && from.kv_heads == to.kv_heads);
  SX_ASSERT(from.head_dim == to.head_dim && from.type == to.type);
  SX_ASSERT(a.from_slot >= 0 && a.from_slot < from.slots && a.to_slot >= 0 && a.to_slot < to.slots);
  SX_ASSERT(a.dims >= 0 && a.dims <= from.head_dim && a.layer < from.layers && a.head < from.kv_heads);
  for (const KvMove& m : a.moves) {
    SX_ASSERT(m.src >= 0 && m.src < from.capacity && m.dst >= 0 && m.dst < to.capacity);
    SX_ASSERT(m.delta == 0 || (a.frequencies != nullptr && a.dims > 0));
    static_cast<CpuKvStore&>(*a.to).written(a.to_slot, m.dst, m.dst + 1);
  }
  const int first_layer = std::max(a.layer, 0), layers = a.layer < 0 ? from.layers : 1;
  const int first_head = std::max(a.head, 0), per_layer = a.head < 0 ? from.kv_heads : 1;
  const int heads = layers * per_layer, threads = pool.size();
  Plan plan;
  for (size_t done = 0; done < a.moves.size();) {
    done += plan.fill(a, a.moves.subspan(done));
    // Few heads: the runs are shared out as well, if none depends on another and no two threads write to one block.
    const bool apart = (a.from != a.to || a.from_slot != a.to_slot) && plan.ascending;
    const int parts = apart && heads < 4 * threads ? threads : 1;
    const auto cut = [&](int part) {
      int at = plan.count * part / parts;
      while (at > 0 && at < plan.count && plan.runs[at].dst / kBlock == plan.runs[at - 1].dst / kBlock) ++at;
      return at;
    };
    if (plan.table_count > 0)
      pool.run([&](int thread) {
        for (int i = thread; i < plan.table_count; i += threads) plan.fill_table(a, i);
      });
    pool.run([&](int thread) {
      for (int i = heads * parts * thread / threads; i < heads * parts * (thread + 1) / threads; ++i) {
        const int head = i % heads, begin = cut(i / heads), end = cut(i / heads + 1);
        const std::span<const Run> runs(plan.runs + begin, static_cast<size_t>(end - begin));
        move_head(a, plan, runs, first_layer + head / per_layer, first_head + head % per_layer);
      }
    });
  }
}

}  // namespace sx::cpu
