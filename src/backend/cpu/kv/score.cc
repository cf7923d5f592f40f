// One query over the keys of one layer: heads x cells dot products, reduced per chunk. The keys are read once (cells x
// kv_heads x head_dim elements; 3 MB for 8,192 cells of 3 heads of 64 in bf16). Work is cut by KV head and by span of
// cells: an item is the chunks that begin in its span. A chunk's maximum and sum are a left fold over its blocks, at
// absolute multiples, so they depend on nothing but the chunk; the chunks of a head are then weighed against each other
// in ascending order.
#include "backend/cpu/kv/score.h"

#include <algorithm>
#include <cmath>

#include "backend/cpu/kv/records.h"
#include "backend/cpu/kv/score_kernels.h"
#include "backend/cpu/kv/store.h"
#include "base/error.h"

namespace sx::cpu {
namespace {

constexpr float kLn2 = 0.693147181f;
constexpr int kWorthSharingScores = 8192;  // chunks of all heads; below, waking the others for the last step does not pay

struct Call {
  const KvScoreArgs& a;
  const CpuKvStore& store;
  const KvLayout& tile;  // as kernels read blocks
  const UnpackKernels& unpack;
  const ScoreKernels& kernels;
  const ScoreFolds& folds;
  float* maxima;       // [heads, chunks]
  std::byte* queries;  // [kv_heads][lots] packed; kBound: [heads][padded] floats
  int chunks, group, lots, padded;

  bool softmax() const { return a.kind == ScoreKind::kMass || a.kind == ScoreKind::kPeak; }
  std::byte* lot(int kv_head, int i) const {
    return queries + static_cast<size_t>(kv_head * lots + i) * score_query_bytes(padded);
  }
  float* plain(int head) const { return reinterpret_cast<float*>(queries) + head * padded; }

  void pack() const {
    for (int h = 0; h < a.heads; ++h) {
      const float* q = a.q + h * a.head_dim;
      if (a.kind == ScoreKind::kBound) {
        for (int d = 0; d < padded; ++d) plain(h)[d] = d < a.head_dim ? q[d] * a.scale : 0.0f;
      } else {
        const int i = h % group;
        kernels.pack(lot(h / group, i / kScoreHeads), i % kScoreHeads, q, a.head_dim, padded, a.scale);
      }
    }
  }

  // Block b as kernels read it: in place, or unpacked to `room`.
  const std::byte* keys_of(int kv_head, int b, std::byte* room) const {
    const std::byte* keys = store.keys(a.slot, a.layer, kv_head, b);
    if (!store.key_layout().record) return keys;
    unpack.keys(store.key_layout(), keys, tile, room);
    return room;
  }

  // Chunks [first, last) of one KV head, for all query heads that share it.
  void logits(int kv_head, int first, int last) const {
    const int32_t* border = a.borders.data();
    alignas(64) std::byte room[kBlock * kMaxHeadDim * sizeof(uint16_t)];
    int at = first;  // the first chunk that reaches into the block
    for (int b = border[first] / kBlock; b * kBlock < border[last]; ++b) {
      const std::byte* keys = keys_of(kv_head, b, room);
      const bool more = (b + 1) * kBlock < border[last] && !store.key_layout().record;
      const std::byte* next = more ? store.keys(a.slot, a.layer, kv_head, b + 1) : nullptr;
      for (int i = 0; i < lots; ++i) {
        alignas(64) float s[kScoreHeads][kBlock];
        const int heads = std::min(kScoreHeads, group - i * kScoreHeads);
        kernels.logits(lot(kv_head, i), keys, i == 0 ? next : nullptr, heads, padded, s);
        for (int h = 0; h < heads; ++h) fold(kv_head * group + i * kScoreHeads + h, at, last, b * kBlock, s[h]);
      }
      while (at < last && border[at + 1] <= (b + 1) * kBlock) ++at;
    }
  }

  // Logits of the block at cell `start` into the chunks from `at` on.
  void fold(int head, int at, int last, int start, const float* s) const {
    for (int c = at; c < last && a.borders[static_cast<size_t>(c)] < start + kBlock; ++c) {
      const int begin = a.borders[static_cast<size_t>(c)], end = a.borders[static_cast<size_t>(c) + 1];
      const int from = std::max(begin - start, 0), to = std::min(end - start, kBlock);
      const size_t place = static_cast<size_t>(head) * static_cast<size_t>(chunks) + static_cast<size_t>(c);
      float& out = a.out[place];
      if (begin >= start) out = 0;
      if (softmax()) {
        folds.weigh(s, from, to, &maxima[place], &out);
      } else {
        out += folds.sum(s, from, to);
        if (end <= start + kBlock) out = out * kLn2 / static_cast<float>(end - begin);
      }
    }
  }

  void bounds(int kv_head, int first, int last) const {
    alignas(64) float low[kMaxHeadDim], high[kMaxHeadDim];
    alignas(64) std::byte room[kBlock * kMaxHeadDim * sizeof(uint16_t)];
    for (int c = first; c < last; ++c) {
      const int begin = a.borders[static_cast<size_t>(c)], end = a.borders[static_cast<size_t>(c) + 1];
      std::fill_n(low, padded, INFINITY);
      std::fill_n(high, padded, -INFINITY);
      for (int cell = begin, stop; cell < end; cell = stop) {
        const int b = cell / kBlock;
        stop = std::min(end, (b + 1) * kBlock);
        const std::byte* keys = keys_of(kv_head, b, room);
        // widen() strides through a block, which no hardware foresees; a block on is as good as next.
        const size_t bytes = tile.bytes, cells = kBlock;
        for (size_t at = bytes * static_cast<size_t>(cell % kBlock) / cells;
             at < bytes * static_cast<size_t>(stop - b * kBlock) / cells; at += 64)
          __builtin_prefetch(keys + bytes + at, 0, 2);
        kernels.widen(keys, cell - b * kBlock, stop - b * kBlock, padded, low, high);
      }
      for (int h = kv_head * group; h < (kv_head + 1) * group; ++h)
        a.out[static_cast<size_t>(h) * static_cast<size_t>(chunks) + static_cast<size_t>(c)] =
            folds.bound(plain(h), low, high, padded);
    }
  }
};

}  // namespace

void ScoreScratch::reserve(const StepLimits& limits) {
  const auto heads = static_cast<size_t>(limits.heads);
  const size_t maxima = heads * static_cast<size_t>(limits.context) * sizeof(float);
  const size_t queries = heads * score_query_bytes((limits.head_dim + 15) / 16 * 16);
  if (maxima > maxima_.size()) maxima_ = Pages(maxima, "the scores of chunks");
  if (queries > queries_.size()) queries_ = Pages(queries, "the queries of scores");
}

void kv_score(const KvScoreArgs& a, Isa isa, ThreadPool& pool, ScoreScratch& scratch) {
  const auto& store = static_cast<const CpuKvStore&>(*a.kv);
  const KvGeometry& g = store.geometry();
  SX_ASSERT(a.kv_heads == g.kv_heads && a.head_dim == g.head_dim && a.heads % a.kv_heads == 0);
  SX_ASSERT(a.layer >= 0 && a.layer < g.layers && a.slot >= 0 && a.slot < g.slots);
  if (a.borders.size() < 2) return;
  SX_ASSERT(a.borders.front() >= 0 && a.borders.back() <= g.capacity);
  for (size_t c = 1; c < a.borders.size(); ++c) SX_ASSERT(a.borders[c - 1] < a.borders[c]);
  const int chunks = static_cast<int>(a.borders.size()) - 1, group = a.heads / a.kv_heads;
  const int lots = (group + kScoreHeads - 1) / kScoreHeads, padded = store.key_layout().padded;
  const KvLayout tile = tile_layout(store.key_layout(), store.value_layout(), isa);
  const Call call{a,
                  store,
                  tile,
                  unpack_kernels(isa),
                  score_kernels(tile, isa),
                  score_folds(isa),
                  scratch.maxima_.as<float>(),
                  scratch.queries_.data(),
                  chunks,
                  group,
                  lots,
                  padded};
  SX_ASSERT(static_cast<size_t>(a.heads) * static_cast<size_t>(chunks) * sizeof(float) <= scratch.maxima_.size());
  SX_ASSERT(static_cast<size_t>(a.kv_heads * lots) * score_query_bytes(padded) <= scratch.queries_.size());
  call.pack();

  const int first_span = a.borders.front() / kSpan, spans = (a.borders.back() - 1) / kSpan + 1 - first_span;
  const auto chunk_from = [&](int cell) {  // the first chunk that begins at `cell` or behind
    const auto all = a.borders.first(static_cast<size_t>(chunks));
    return static_cast<int>(std::lower_bound(all.begin(), all.end(), cell) - all.begin());
  };
  pool.each(a.kv_heads * spans, [&](int item) {
    const int head = item / spans, start = (first_span + item % spans) * kSpan;
    const int first = chunk_from(start), last = chunk_from(start + kSpan);
    if (first == last) return;
    if (a.kind == ScoreKind::kBound) call.bounds(head, first, last);
    else call.logits(head, first, last);
  });
  if (!call.softmax()) return;
  const auto share = [&](int h) {
    const size_t at = static_cast<size_t>(h) * static_cast<size_t>(chunks);
    call.folds.share(call.maxima + at, a.out + at, chunks, a.kind == ScoreKind::kMass);
  };
  if (a.heads * chunks >= kWorthSharingScores) pool.each(a.heads, share);
  else
    for (int h = 0; h < a.heads; ++h) share(h);
}

}  // namespace sx::cpu
