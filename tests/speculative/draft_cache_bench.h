// A draft cache and what is around it, with keys that are known before rotation: every score, every choice and every
// key the drafter should find can be computed a second time, in a straightforward way and in double precision.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "backend/registry.h"
#include "base/rng.h"
#include "speculative/cache/draft_cache.h"
#include "support/reference_backend.h"

namespace sx::testing {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 16, kContext = 1200, kSlots = 2;
using Cells = std::vector<int32_t>;

inline ModelConfig shape(int layers, int trained, RopeStyle style) {
  ModelConfig c;
  c.layers = layers, c.heads = kHeads, c.kv_heads = kKvHeads, c.head_dim = kDim, c.context = trained;
  c.rope.style = style, c.rope.dims = kDim;
  return c;
}

// A cache, the two models' shapes and stores around it, and the keys of one text per sequence.
class CacheBench {
 public:
  const RopeStyle style = RopeStyle::kHalves;
  ModelConfig target, draft;
  std::vector<double> frequencies;
  std::unique_ptr<Backend> backend;  // one whose memory is the host's
  std::unique_ptr<KvStore> target_kv, work, full;
  std::unique_ptr<DraftCache> cache;
  std::vector<std::vector<Token>> texts{kSlots};

  CacheBench(const CacheConfig& config, int trained = 2048, RopeStyle rope = RopeStyle::kHalves,
             DType type = DType::kF32, std::unique_ptr<Backend> on = make_reference_backend())
      : style(rope), target(shape(3, 4096, rope)), draft(shape(2, trained, rope)), backend(std::move(on)) {
    for (int i = 0; i < kDim / 2; ++i) frequencies.push_back(std::pow(100.0, -2.0 * i / kDim));
    backend->reserve({kContext, kDim * kHeads, kHeads, kKvHeads, kDim, kContext, 64});
    target_kv = backend->make_kv({target.layers, kKvHeads, kDim, kSlots, kContext, DType::kF32});
    work = backend->make_kv({draft.layers, kKvHeads, kDim, kSlots, DraftCache::work_cells(config, kContext), type});
    if (DraftCache::two_stores(config, kContext, trained))
      full = backend->make_kv({draft.layers, kKvHeads, kDim, kSlots, kContext, type});
    DraftCacheParts parts;
    parts.backend = backend.get(), parts.draft = &draft, parts.frequencies = frequencies, parts.work = work.get(),
    parts.full = full.get();
    parts.target = &target, parts.target_kv = target_kv.get(), parts.slots = kSlots, parts.context = kContext;
    cache = std::make_unique<DraftCache>(config, parts);
  }

  // A random number that belongs to a place; the same text has the same keys.
  static double noise(uint64_t a, uint64_t b, uint64_t c) { return 2 * double(uniform_from(hash_key(a, b, c))) - 1; }
  std::vector<double> raw_key(bool of_target, SeqId seq, int layer, int head, int cell) const {
    std::vector<double> key(kDim);
    const uint64_t place = uint64_t(texts[size_t(seq)][size_t(cell)]) * 100000 + uint64_t(cell);
    for (int d = 0; d < kDim; ++d)
      key[size_t(d)] = noise(uint64_t(of_target) * 64 + uint64_t(layer * kKvHeads + head), place, uint64_t(d));
    return key;
  }
  std::vector<double> rotated(std::vector<double> x, double position) const {
    for (int i = 0; i < kDim / 2; ++i) {
      const size_t a = size_t(style == RopeStyle::kHalves ? i : 2 * i),
                   b = size_t(style == RopeStyle::kHalves ? i + kDim / 2 : 2 * i + 1);
      const double angle = frequencies[size_t(i)] * position, va = x[a], vb = x[b];
      x[a] = va * std::cos(angle) - vb * std::sin(angle), x[b] = va * std::sin(angle) + vb * std::cos(angle);
    }
    return x;
  }

  // As a forward pass does: the keys of cells [cell, cell + rows) of the text go behind `history` at these positions.
  void store(KvStore& kv, bool of_target, SeqId seq, int cell, const std::vector<int32_t>& positions, int history) {
    const int rows = int(positions.size()), stride = (kHeads + 2 * kKvHeads) * kDim;
    std::vector<float> qkv(size_t(rows * stride)), table(size_t(rows * kDim));
    backend->rope_table({table.data(), positions.data(), rows, frequencies.data(), kDim, 1});
    const SeqRows seqs{0, rows, seq, history};
    for (int layer = 0; layer < kv.geometry().layers; ++layer) {
      for (int r = 0; r < rows; ++r)
        for (int h = 0; h < kKvHeads; ++h) {
          const auto key = raw_key(of_target, seq, layer, h, cell + r);
          std::copy(key.begin(), key.end(), qkv.begin() + r * stride + (kHeads + h) * kDim);
        }
      backend->rope_store({qkv.data(),
                           table.data(),
                           nullptr,
                           nullptr,
                           0,
                           {kHeads, kKvHeads, kDim},
                           kDim,
                           style,
                           &kv,
                           layer,
                           std::span(&seqs, 1)});
    }
  }
  void add_text(SeqId seq, int tokens, unsigned seed) {
    std::mt19937 random(seed);
    auto& text = texts[size_t(seq)];
    const int before = int(text.size());
    std::vector<int32_t> positions(static_cast<size_t>(tokens));
    for (int i = 0; i < tokens; ++i) text.push_back(Token(random() % 50)), positions[size_t(i)] = before + i;
    store(*target_kv, true, seq, before, positions, before);
  }
  void prompt(SeqId seq, int tokens, unsigned seed) {
    add_text(seq, tokens, seed);
    const int known = cache->length(seq), rows = int(texts[size_t(seq)].size()) - known;
    std::vector<int32_t> positions(static_cast<size_t>(rows));
    std::iota(positions.begin(), positions.end(), known);
    store(cache->prompt_store(), false, seq, known, positions, known);
    cache->prompted(seq, rows);
  }
  // The cells of the text that are not there yet are run behind the working cache.
  void run(SeqId seq) {
    const int rows = int(texts[size_t(seq)].size()) - cache->length(seq);
    std::vector<int32_t> positions;
    for (int i = 0; i < rows; ++i) positions.push_back(cache->position(seq, i));
    store(*work, false, seq, cache->length(seq), positions, cache->work(seq));
    cache->appended(seq, rows);
  }
  void prepare(SeqId seq) {
    cache->prepare(seq, texts[size_t(seq)], int(texts[size_t(seq)].size()) - cache->length(seq));
  }
  // A round that accepts `tokens` - 1 tokens.
  void round(SeqId seq, int tokens, unsigned seed) {
    add_text(seq, tokens, seed);
    if (cache->reads_target()) note_target(seq, seed);
    cache->observe(seq);
    prepare(seq);
    run(seq);
  }

  std::vector<std::vector<float>> queries;  // as noted last, per layer: [kHeads * kDim]
  void note_target(SeqId seq, unsigned seed) {
    const auto layers = DraftCache::target_layers(cache->config(), target.layers);
    std::vector<const float*> rows;
    queries.assign(layers.size(), std::vector<float>(2 * kHeads * kDim));
    for (size_t l = 0; l < layers.size(); ++l) {
      for (size_t i = 0; i < queries[l].size(); ++i) queries[l][i] = float(3 * noise(1000 + seed, l, i));
      rows.push_back(queries[l].data());
    }
    cache->note_target(seq, rows, 1, int(texts[size_t(seq)].size()));
    for (auto& q : queries) q.erase(q.begin(), q.begin() + kHeads * kDim);
  }

  // What the store holds for one key/value head: [cells][kDim]. A query of ones and zeros reads it through scores.
  std::vector<std::vector<double>> keys(const KvStore& kv, SeqId seq, int layer, int head, int cells) {
    std::vector<std::vector<double>> out(static_cast<size_t>(cells), std::vector<double>(kDim));
    std::vector<int32_t> each(size_t(cells) + 1);
    std::iota(each.begin(), each.end(), 0);
    std::vector<float> scores(size_t(kHeads * cells));
    for (int d = 0; d < kDim; ++d) {
      std::vector<float> q(kHeads * kDim);
      for (int h = 0; h < kHeads; ++h) q[size_t(h * kDim + d)] = 1;
      backend->kv_score({scores.data(), q.data(), kHeads, kKvHeads, kDim, 1, &kv, layer, seq, each, ScoreKind::kLogit});
      for (int c = 0; c < cells; ++c)
        out[size_t(c)][size_t(d)] = double(scores[size_t(head * (kHeads / kKvHeads) * cells + c)]);
    }
    return out;
  }
  // Every key of the working cache is that of its cell at its place, and the full cache holds the text's at theirs.
  void expect_keys(SeqId seq, double tolerance, const std::vector<Cells>& chosen = {}) {
    const int n = cache->work(seq), length = cache->length(seq);
    const bool compact = cache->config().positions == CachePositions::kCompact;
    const int shift = n - cache->position(seq, 0);
    const bool fits = n <= draft.context - DraftCache::kSlack - 32;
    if (compact) { EXPECT_TRUE(fits ? shift == 0 : shift > 0) << n << " cells, shifted by " << shift; }
    double worst = 0;
    for (int layer = 0; layer < draft.layers; ++layer)
      for (int head = 0; head < kKvHeads; ++head) {
        const Cells cells = chosen.empty() ? Cells(cache->cells(seq).begin(), cache->cells(seq).end())
                                           : chosen[size_t(layer * kKvHeads + head)];
        ASSERT_EQ(int(cells.size()), n);
        const auto found = keys(*work, seq, layer, head, n), kept = keys(*full, seq, layer, head, length);
        for (int i = 0; i < n; ++i) {
          const int cell = cells[size_t(i)];
          const auto right = rotated(raw_key(false, seq, layer, head, cell), compact ? std::max(0, i - shift) : cell);
          for (size_t d = 0; d < kDim; ++d) worst = std::max(worst, std::abs(found[size_t(i)][d] - right[d]));
        }
        for (int c = 0; c < length; ++c) {
          const auto right = rotated(raw_key(false, seq, layer, head, c), c);
          for (size_t d = 0; d < kDim; ++d) worst = std::max(worst, std::abs(kept[size_t(c)][d] - right[d]));
        }
      }
    EXPECT_LT(worst, tolerance);
  }
  Cells cells(SeqId seq) const { return {cache->cells(seq).begin(), cache->cells(seq).end()}; }
};

// --- The second statement: attention, chunks, choice.

inline std::vector<double> dots(const CacheBench& b, bool of_target, SeqId seq, int layer, int head,
                                const std::vector<double>& q, int cells) {
  std::vector<double> out;
  for (int c = 0; c < cells; ++c) {
    const auto key = b.rotated(b.raw_key(of_target, seq, layer, head / (kHeads / kKvHeads), c), c);
    double sum = 0;
    for (size_t d = 0; d < kDim; ++d) sum += q[d] * key[d];
    out.push_back(sum / std::sqrt(double(kDim)));
  }
  return out;
}
inline std::vector<double> softmax(std::vector<double> x) {
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v);
  for (double& v : x) v /= sum;
  return x;
}
inline std::vector<std::pair<int, int>> chunks_of(int cells, int chunk) {
  std::vector<std::pair<int, int>> out;
  for (int c = 0; c < cells; c += chunk) out.push_back({c, std::min(cells, c + chunk)});
  return out;
}
// Chunks with sink or recent cells first, then by score while they fit.
inline Cells choose_naively(const std::vector<std::pair<int, int>>& chunks, const std::vector<double>& score,
                            const CacheConfig& c, int recent) {
  const int cells = chunks.back().second;
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t(0));
  const auto must = [&](size_t i) { return chunks[i].first < c.sink || chunks[i].second > cells - recent; };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return must(a) != must(b) ? must(a) : score[a] > score[b]; });
  Cells out;
  for (const size_t i : order)
    if (int(out.size()) + chunks[i].second - chunks[i].first <= c.budget)
      for (int cell = chunks[i].first; cell < chunks[i].second; ++cell) out.push_back(cell);
  std::sort(out.begin(), out.end());
  return out;
}

inline Cells target_choice(const CacheBench& b, SeqId seq, const CacheConfig& c, int cells) {
  const auto layers = DraftCache::target_layers(c, b.target.layers);
  const auto chunks = c.policy->scores.single_cells ? chunks_of(cells, 1) : chunks_of(cells, c.chunk);
  std::vector<double> score(chunks.size());
  for (size_t l = 0; l < layers.size(); ++l)
    for (int h = 0; h < kHeads; ++h) {
      const std::vector<double> q(b.queries[l].begin() + h * kDim, b.queries[l].begin() + (h + 1) * kDim);
      const auto attention = softmax(dots(b, true, seq, layers[l], h, q, cells));
      for (size_t i = 0; i < chunks.size(); ++i) {
        const auto from = attention.begin() + chunks[i].first, to = attention.begin() + chunks[i].second;
        score[i] += std::accumulate(from, to, 0.0) / double(to - from);
      }
    }
  EXPECT_FALSE(layers.empty());
  if (c.policy->scores.single_cells) {  // a fifth is spread evenly; choose_pruned() has tests of its own
    Cells out;
    std::vector<uint64_t> scratch;
    choose_pruned(std::vector<float>(score.begin(), score.end()), c.budget, 0.2f, c.sink, c.recent, out, scratch);
    return out;
  }
  return choose_naively(chunks, score, c, c.recent);
}

inline CacheConfig config_of(std::string_view kind) {
  CacheConfig c;
  c.policy = &cache_policy(kind), c.budget = 64, c.chunk = 8, c.recent = 12, c.interval = 3;
  return c;
}

}  // namespace sx::testing
