// The draft cache against a second statement of it: keys are known before rotation, so every score, every choice and every key
// the drafter should find can be computed here in a straightforward way, in double precision.
#include "spec/draft_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>

#include "backend/registry.h"
#include "base/error.h"
#include "base/rng.h"

namespace sx {
namespace {

constexpr int kHeads = 4, kKvHeads = 2, kDim = 16, kContext = 1200, kSlots = 2;
using Cells = std::vector<int32_t>;

ModelConfig shape(int layers, int trained, RopeStyle style) {
  ModelConfig c;
  c.layers = layers, c.heads = kHeads, c.kv_heads = kKvHeads, c.head_dim = kDim, c.context = trained;
  c.rope.style = style, c.rope.dims = kDim;
  return c;
}

// A cache, the two models' shapes and stores around it, and the keys of one text per sequence.
class Bench {
 public:
  const RopeStyle style = RopeStyle::kHalves;
  ModelConfig target, draft;
  std::vector<double> frequencies;
  std::unique_ptr<Backend> backend = make_reference_backend();
  std::unique_ptr<KvStore> target_kv, work, full;
  std::unique_ptr<DraftCache> cache;
  std::vector<std::vector<Token>> texts{kSlots};

  Bench(const CacheConfig& config, int trained = 2048, RopeStyle rope = RopeStyle::kHalves, DType type = DType::kF32)
      : style(rope), target(shape(3, 4096, rope)), draft(shape(2, trained, rope)) {
    for (int i = 0; i < kDim / 2; ++i) frequencies.push_back(std::pow(100.0, -2.0 * i / kDim));
    backend->reserve({kContext, kDim * kHeads, kHeads, kKvHeads, kDim, kContext, 64});
    target_kv = backend->make_kv({target.layers, kKvHeads, kDim, kSlots, kContext, DType::kF32});
    work = backend->make_kv({draft.layers, kKvHeads, kDim, kSlots, DraftCache::work_cells(config, kContext), type});
    if (DraftCache::two_stores(config, kContext, trained)) full = backend->make_kv({draft.layers, kKvHeads, kDim, kSlots, kContext, type});
    DraftCacheParts parts;
    parts.backend = backend.get(), parts.draft = &draft, parts.frequencies = frequencies, parts.work = work.get(), parts.full = full.get();
    parts.target = &target, parts.target_kv = target_kv.get(), parts.slots = kSlots, parts.context = kContext;
    cache = std::make_unique<DraftCache>(config, parts);
  }

  // A random number that belongs to a place; the same text has the same keys.
  static double noise(uint64_t a, uint64_t b, uint64_t c) { return 2 * double(uniform_from(hash_key(a, b, c))) - 1; }
  std::vector<double> raw_key(bool of_target, SeqId seq, int layer, int head, int cell) const {
    std::vector<double> key(kDim);
    const uint64_t place = uint64_t(texts[size_t(seq)][size_t(cell)]) * 100000 + uint64_t(cell);
    for (int d = 0; d < kDim; ++d) key[size_t(d)] = noise(uint64_t(of_target) * 64 + uint64_t(layer * kKvHeads + head), place, uint64_t(d));
    return key;
  }
  std::vector<double> rotated(std::vector<double> x, double position) const {
    for (int i = 0; i < kDim / 2; ++i) {
      const size_t a = size_t(style == RopeStyle::kHalves ? i : 2 * i), b = size_t(style == RopeStyle::kHalves ? i + kDim / 2 : 2 * i + 1);
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
      backend->rope_store({qkv.data(), table.data(), nullptr, nullptr, 0, kHeads, kKvHeads, kDim, kDim, style, &kv, layer, std::span(&seqs, 1)});
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
  void prepare(SeqId seq) { cache->prepare(seq, texts[size_t(seq)], int(texts[size_t(seq)].size()) - cache->length(seq)); }
  // A round that accepts `tokens` - 1 tokens.
  void round(SeqId seq, int tokens, unsigned seed) {
    add_text(seq, tokens, seed);
    if (cache->reads_target()) note_target(seq, seed);
    cache->observe(seq, tokens - 1);
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
      for (int c = 0; c < cells; ++c) out[size_t(c)][size_t(d)] = double(scores[size_t(head * (kHeads / kKvHeads) * cells + c)]);
    }
    return out;
  }
  // Every key of the working cache is that of its cell at its place, and the full cache holds the text's at theirs.
  void expect_keys(SeqId seq, double tolerance, const std::vector<Cells>& chosen = {}) {
    const int n = cache->work(seq), length = cache->length(seq);
    const bool compact = cache->config().positions == CachePositions::kCompact;
    const int shift = n - cache->position(seq, 0);
    if (compact && n <= draft.context - DraftCache::kSlack - 32) EXPECT_EQ(shift, 0);
    else if (compact) EXPECT_GT(shift, 0);
    double worst = 0;
    for (int layer = 0; layer < draft.layers; ++layer)
      for (int head = 0; head < kKvHeads; ++head) {
        const Cells cells = chosen.empty() ? Cells(cache->cells(seq).begin(), cache->cells(seq).end()) : chosen[size_t(layer * kKvHeads + head)];
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

std::vector<double> dots(const Bench& b, bool of_target, SeqId seq, int layer, int head, const std::vector<double>& q, int cells) {
  std::vector<double> out;
  for (int c = 0; c < cells; ++c) {
    const auto key = b.rotated(b.raw_key(of_target, seq, layer, head / (kHeads / kKvHeads), c), c);
    double sum = 0;
    for (size_t d = 0; d < kDim; ++d) sum += q[d] * key[d];
    out.push_back(sum / std::sqrt(double(kDim)));
  }
  return out;
}
std::vector<double> softmax(std::vector<double> x) {
  double sum = 0;
  for (double& v : x) sum += v = std::exp(v);
  for (double& v : x) v /= sum;
  return x;
}
std::vector<std::pair<int, int>> chunks_of(int cells, int chunk) {
  std::vector<std::pair<int, int>> out;
  for (int c = 0; c < cells; c += chunk) out.push_back({c, std::min(cells, c + chunk)});
  return out;
}
// Chunks with sink or recent cells first, then by score while they fit.
Cells choose_naively(const std::vector<std::pair<int, int>>& chunks, const std::vector<double>& score, const CacheConfig& c, int recent) {
  const int cells = chunks.back().second;
  std::vector<size_t> order(chunks.size());
  std::iota(order.begin(), order.end(), size_t(0));
  const auto must = [&](size_t i) { return chunks[i].first < c.sink || chunks[i].second > cells - recent; };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return must(a) != must(b) ? must(a) : score[a] > score[b]; });
  Cells out;
  for (const size_t i : order)
    if (int(out.size()) + chunks[i].second - chunks[i].first <= c.budget)
      for (int cell = chunks[i].first; cell < chunks[i].second; ++cell) out.push_back(cell);
  std::sort(out.begin(), out.end());
  return out;
}

Cells target_choice(const Bench& b, SeqId seq, const CacheConfig& c, int cells) {
  const auto layers = DraftCache::target_layers(c, b.target.layers);
  const auto chunks = c.kind == CacheKind::kPrune ? chunks_of(cells, 1) : chunks_of(cells, c.chunk);
  std::vector<double> score(chunks.size(), c.head_reduce == HeadReduce::kMax ? -1 : 0);
  int count = 0;
  for (size_t l = 0; l < layers.size(); ++l)
    for (int h = 0; h < kHeads; ++h) {
      if (!c.heads.empty() && std::find(c.heads.begin(), c.heads.end(), h) == c.heads.end()) continue;
      ++count;
      const std::vector<double> q(b.queries[l].begin() + h * kDim, b.queries[l].begin() + (h + 1) * kDim);
      const auto attention = softmax(dots(b, true, seq, layers[l], h, q, cells));
      for (size_t i = 0; i < chunks.size(); ++i) {
        const auto from = attention.begin() + chunks[i].first, to = attention.begin() + chunks[i].second;
        const double one = c.chunk_reduce == ChunkReduce::kMax    ? *std::max_element(from, to)
                           : c.chunk_reduce == ChunkReduce::kMean ? std::accumulate(from, to, 0.0) / double(to - from)
                                                                  : std::accumulate(from, to, 0.0);
        score[i] = c.head_reduce == HeadReduce::kMax ? std::max(score[i], one) : score[i] + one;
      }
    }
  EXPECT_GT(count, 0);
  return choose_naively(chunks, score, c, c.recent);
}

CacheConfig config_of(CacheKind kind) {
  CacheConfig c;
  c.kind = kind, c.budget = 64, c.chunk = 8, c.recent = 12, c.interval = 3, c.observe = 5, c.pool = 5;
  return c;
}

TEST(DraftCache, ChoosesWhatTheTargetAttendsTo) {
  std::map<Cells, int> different;
  int cases = 0;
  for (const CacheKind kind : {CacheKind::kRetrieval, CacheKind::kPrune})
    for (int variant = 0; variant < 10; ++variant) {
      CacheConfig c = config_of(kind);
      c.uniform = 0;
      c.head_reduce = variant % 2 ? HeadReduce::kMax : HeadReduce::kMean;
      c.chunk_reduce = ChunkReduce(variant % 3);
      if (variant == 4) c.layers = {0};
      if (variant == 5) c.layers = {-1, 1, 2};
      if (variant == 6) c.all_layers = true;
      if (variant == 7) c.heads = {3, 1};
      if (variant == 8) c.chunk = 1;
      if (variant == 9) c.budget = 67, c.chunk = 13, c.sink = 20;
      if (kind == CacheKind::kPrune) c.chunk_reduce = ChunkReduce::kMean;  // of single cells: all are the same
      for (const int length : {65, 200, 333}) {
        Bench b(c);
        b.prompt(1, length, unsigned(length));
        b.note_target(1, unsigned(variant));
        b.add_text(1, 1, 3);
        b.prepare(1);
        const Cells right = target_choice(b, 1, c, length);
        EXPECT_EQ(b.cells(1), right) << "variant " << variant << ", " << length << " cells";
        ++different[right], ++cases;
        if (variant % 4 == 0) b.expect_keys(1, 1e-4);
      }
    }
  EXPECT_GT(int(different.size()), cases * 3 / 4) << "the variants choose almost the same";
}

// The draft's own queries are given as they were run, at compact positions, and count as if run at their place in the text.
TEST(DraftCache, ChoosesByItsOwnQueries) {
  for (const CacheKind kind : {CacheKind::kOnce, CacheKind::kQuest, CacheKind::kSnap})
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved})
      for (const int length : {70, 240})
        for (const int behind : {0, 17}) {
          const CacheConfig c = config_of(kind);
          Bench b(c, 2048, style);
          b.prompt(0, length, 5);
          const int rows = kind == CacheKind::kSnap ? 7 : 2, most = kind == CacheKind::kSnap ? c.observe : 1;
          std::vector<std::vector<float>> tapped(2);
          std::vector<const float*> pointers;
          const auto raw = [&](int layer, int row, int head) {
            std::vector<double> q(kDim);
            for (int d = 0; d < kDim; ++d) q[size_t(d)] = 2 * Bench::noise(uint64_t(700 + layer), uint64_t(row), uint64_t(head * kDim + d));
            return q;
          };
          for (int layer = 0; layer < 2; ++layer) {
            for (int r = 0; r < rows; ++r)
              for (int h = 0; h < kHeads; ++h)
                for (const double x : b.rotated(raw(layer, r, h), length - rows + r - behind)) tapped[size_t(layer)].push_back(float(x));
            pointers.push_back(tapped[size_t(layer)].data());
          }
          // In two calls, so that those noted before count as well.
          b.cache->note_own(0, pointers, 0, 1, length - rows - behind, length - rows);
          b.cache->note_own(0, pointers, 1, rows - 1, length - 1 - behind, length - 1);
          b.add_text(0, 1, 6);
          b.prepare(0);
          std::vector<Cells> right;
          for (int layer = 0; layer < 2; ++layer)
            for (int g = 0; g < kKvHeads; ++g) {
              const auto chunks = chunks_of(length, kind == CacheKind::kSnap ? 1 : c.chunk);
              std::vector<double> score(chunks.size());
              for (int h = 2 * g; h < 2 * g + 2; ++h)
                for (int r = rows - most; r < rows; ++r) {
                  const auto q = b.rotated(raw(layer, r, h), length - rows + r);
                  auto logits = dots(b, false, 0, layer, h, q, length);
                  if (kind == CacheKind::kSnap) logits = softmax(logits);
                  for (size_t i = 0; i < chunks.size(); ++i) {
                    const auto [from, to] = chunks[i];
                    double one = std::accumulate(logits.begin() + from, logits.begin() + to, 0.0) / double(to - from);
                    if (kind == CacheKind::kQuest) {
                      one = 0;
                      for (size_t d = 0; d < kDim; ++d) {
                        double least = 1e9, greatest = -1e9;
                        for (int cell = from; cell < to; ++cell) {
                          const double k = b.rotated(b.raw_key(false, 0, layer, g, cell), cell)[d];
                          least = std::min(least, k), greatest = std::max(greatest, k);
                        }
                        one += std::max(q[d] * least, q[d] * greatest);
                      }
                    }
                    score[i] += one;
                  }
                }
              if (kind == CacheKind::kSnap) {
                const auto votes = score;
                for (int i = 0; i < length; ++i) {
                  const int from = std::max(0, i - c.pool / 2), to = std::min(length, i + c.pool / 2 + 1);
                  score[size_t(i)] = std::accumulate(votes.begin() + from, votes.begin() + to, 0.0) / (to - from);
                }
              }
              right.push_back(choose_naively(chunks, score, c, std::max(c.recent, kind == CacheKind::kSnap ? c.observe : 1)));
            }
          EXPECT_EQ(b.cells(0), right[0]);
          b.expect_keys(0, 1e-4, right);  // of every head
          EXPECT_NE(right[0], right[3]) << "heads that choose alike show nothing";
        }
}

// --- What is gathered, and where RoPE sees it.

TEST(DraftCache, KeysAreThoseOfTheirPlaces) {
  for (const CachePositions positions : {CachePositions::kCompact, CachePositions::kOriginal})
    for (const RopeStyle style : {RopeStyle::kHalves, RopeStyle::kInterleaved})
      for (const CacheKind kind : {CacheKind::kStreaming, CacheKind::kRetrieval, CacheKind::kRandom})
        for (const int trained : {2048, 340}) {  // 340: with 288 kept for new cells, the oldest of 64 share a position
          CacheConfig c = config_of(kind);
          c.positions = positions;
          Bench b(c, trained, style);
          b.prompt(0, 190, 1);
          b.prompt(1, 90, 2);
          for (unsigned round = 0; round < 9; ++round) b.round(0, 1 + int(round % 4), 10 + round), b.round(1, 2, 40 + round);
          b.expect_keys(0, 1e-4);
          b.expect_keys(1, 1e-4);
          EXPECT_EQ(b.cache->refreshes(0), 3);
        }
}

TEST(DraftCache, PositionsStayWithinTheTrainedLength) {
  for (const CacheKind kind : {CacheKind::kFull, CacheKind::kStreaming, CacheKind::kRandom})
    for (const int trained : {320, 400, 700}) {
      CacheConfig c = config_of(kind);
      c.interval = 1 << 20, c.budget = kind == CacheKind::kFull ? c.budget : 300;
      Bench b(c, trained);
      b.prompt(0, 330, 1);
      for (int round = 0; round < 160; ++round) {
        b.round(0, 1 + round % 6, unsigned(round));
        // New cells follow one another, and there is room for a tree of 32 levels.
        for (int ahead = -4; ahead < 32; ++ahead) {
          EXPECT_LT(b.cache->position(0, ahead), trained);
          EXPECT_EQ(b.cache->position(0, ahead), b.cache->position(0, ahead - 1) + 1) << round << " " << ahead;
        }
        EXPECT_EQ(b.cache->position(0, 500), trained - 1) << "deeper levels share the last position";
        if (kind == CacheKind::kFull) { EXPECT_EQ(b.cache->work(0), b.cache->length(0)); }
      }
      b.expect_keys(0, 1e-4);
      EXPECT_GT(b.cache->length(0), 800);
    }
}

// --- When it is refreshed.

TEST(DraftCache, NoTokenIsLostAtABorder) {
  for (const uint32_t faults : {0u, uint32_t(kFaultHole)})
    for (int step = 2; step <= 9; ++step) {
      CacheConfig c = config_of(CacheKind::kRetrieval);
      c.interval = 1 << 20, c.faults = faults;
      Bench b(c);
      b.prompt(0, 203, 1);
      b.note_target(0, 4);
      Cells lost;
      for (unsigned round = 0; round < 20; ++round) {
        const Cells before = b.cells(0);
        const int from = b.cache->length(0);
        b.round(0, step, round);
        const Cells now = b.cells(0);
        if (round == 0) continue;  // the first choice
        for (const int32_t cell : before)
          if (!std::binary_search(now.begin(), now.end(), cell)) lost.push_back(cell);
        for (int cell = from; cell < from + step; ++cell) EXPECT_TRUE(std::binary_search(now.begin(), now.end(), cell));
      }
      EXPECT_EQ(b.cache->refreshes(0), 1);
      if (faults == 0) { EXPECT_TRUE(lost.empty()) << step; continue; }
      // Lost are the cells that filled a chunk in a round that went beyond it, except those of the last round.
      Cells right;
      for (int from = 203; from < 203 + 19 * step; from += step)
        for (int cell = from; cell < from + step; ++cell)
          if (from / 8 * 8 + 8 < from + step && from % 8 != 0 && cell < from / 8 * 8 + 8) right.push_back(cell);
      EXPECT_EQ(lost, right) << step;
      EXPECT_FALSE(right.empty());
    }
}

TEST(DraftCache, RefreshesFollowTheInterval) {
  for (const int interval : {1, 2, 5}) {
    CacheConfig c = config_of(CacheKind::kStreaming);
    c.interval = interval;
    Bench b(c);
    b.prompt(0, 150, 1);
    b.add_text(0, 1, 1);
    b.prepare(0);
    b.run(0);
    EXPECT_EQ(b.cache->refreshes(0), 1);
    for (int round = 1; round <= 20; ++round) {
      b.round(0, 2, unsigned(round));
      EXPECT_EQ(b.cache->refreshes(0), 1 + round / interval) << interval;
    }
  }
}

TEST(DraftCache, AdaptiveRefreshesFollowTheAcceptance) {
  CacheConfig c = config_of(CacheKind::kStreaming);
  c.adaptive = true, c.interval = 1, c.interval_min = 3, c.interval_max = 12;
  Bench b(c);
  b.prompt(0, 150, 1);
  std::vector<int> rounds_of_refreshes;
  const auto rounds = [&](int count, int tokens) {
    rounds_of_refreshes.clear();
    for (int i = 1; i <= count; ++i) {
      const int before = b.cache->refreshes(0);
      b.round(0, tokens, unsigned(i));
      if (b.cache->refreshes(0) > before) rounds_of_refreshes.push_back(i);
    }
  };
  rounds(37, 5);  // as good as ever: as seldom as possible
  EXPECT_EQ(rounds_of_refreshes, (std::vector<int>{1, 13, 25, 37}));
  rounds(10, 1);  // the acceptance falls: as soon as allowed, and again
  EXPECT_EQ(rounds_of_refreshes, (std::vector<int>{3, 6, 9}));
}

// kFaultOrder: a refresh that is due waits until the cells have been run.
TEST(DraftCache, RefreshesComeBeforeTheCellsAreRun) {
  for (const bool late : {false, true}) {
    CacheConfig c = config_of(CacheKind::kRetrieval);
    c.interval = 1, c.faults = late ? uint32_t(kFaultOrder) : 0;
    Bench b(c);
    b.prompt(0, 150, 1);
    b.note_target(0, 1);
    b.add_text(0, 1, 1);
    b.prepare(0);
    Cells recent(static_cast<size_t>(c.budget));
    std::iota(recent.begin(), recent.begin() + c.sink, 0);
    std::iota(recent.begin() + c.sink, recent.end(), 150 - c.budget + c.sink);
    EXPECT_EQ(b.cells(0), late ? recent : target_choice(b, 0, c, 150)) << "the first choice";
    b.run(0);
    b.cache->refresh_late(0, b.texts[0]);
    EXPECT_EQ(b.cache->refreshes(0), 1);
    b.add_text(0, 2, 2);
    b.note_target(0, 3);
    b.cache->observe(0, 1);
    b.prepare(0);
    EXPECT_EQ(b.cache->refreshes(0), late ? 1 : 2);
    b.run(0);
    b.cache->refresh_late(0, b.texts[0]);
    EXPECT_EQ(b.cache->refreshes(0), 2);
    Cells right = target_choice(b, 0, c, late ? 153 : 151);
    if (!late) right.push_back(151), right.push_back(152);
    EXPECT_EQ(b.cells(0), right);
  }
}

// --- What is forgotten.

TEST(DraftCache, NothingSurvivesItsText) {
  for (const CacheKind kind : {CacheKind::kFull, CacheKind::kWindow, CacheKind::kStreaming, CacheKind::kRetrieval, CacheKind::kPrune, CacheKind::kRandom}) {
    CacheConfig c = config_of(kind);
    c.faults = kind == CacheKind::kRetrieval ? uint32_t(kFaultHole) : 0;
    c.adaptive = true;
    Bench used(c, 340), fresh(c, 340);
    used.prompt(0, 400, 1);
    if (used.cache->reads_target()) used.note_target(0, 9);
    for (unsigned round = 0; round < 11; ++round) used.round(0, 1 + int(round) % 5, round);
    used.cache->truncate(0, 0, 0);
    used.texts[0].clear();
    EXPECT_EQ(used.cache->length(0), 0);
    EXPECT_EQ(used.cache->refreshes(0), 0);
    EXPECT_TRUE(used.cells(0).empty());
    for (Bench* b : {&used, &fresh}) {
      b->prompt(0, 130, 2);
      if (kind == CacheKind::kRetrieval) b->note_target(0, 3);
    }
    for (unsigned round = 0; round < 30; ++round) {
      for (Bench* b : {&used, &fresh}) b->round(0, round < 15 ? 4 : 1, 50 + round);
      EXPECT_EQ(used.cells(0), fresh.cells(0)) << round;
      EXPECT_EQ(used.cache->refreshes(0), fresh.cache->refreshes(0)) << round;
      EXPECT_EQ(used.cache->position(0, 0), fresh.cache->position(0, 0)) << round;
    }
    used.expect_keys(0, 1e-4);
  }
}

// A cut that takes the query's token takes the query: the target has to show it again. One that does not, does not.
TEST(DraftCache, QueriesGoWithTheirTokens) {
  Bench b(config_of(CacheKind::kRetrieval));
  EXPECT_EQ(b.cache->covered(0), 0);
  b.prompt(0, 150, 1);
  b.note_target(0, 1);
  EXPECT_GE(b.cache->covered(0), 150);
  b.cache->truncate(0, 150, 150);
  EXPECT_GE(b.cache->covered(0), 150);
  b.cache->truncate(0, 140, 140);
  EXPECT_EQ(b.cache->covered(0), 139);
  b.texts[0].resize(140);
  b.note_target(0, 2);
  EXPECT_GE(b.cache->covered(0), 140);

  // Its own queries come from running cells: those are given back.
  for (const CacheKind kind : {CacheKind::kOnce, CacheKind::kQuest, CacheKind::kSnap}) {
    const CacheConfig c = config_of(kind);
    Bench own(c);
    own.prompt(0, 150, 1);
    const std::vector<float> q(size_t(kHeads * kDim), 0.1f);
    const std::vector<const float*> pointers = {q.data(), q.data()};
    own.cache->note_own(0, pointers, 0, 1, 149, 149);
    own.cache->truncate(0, 150, 150);
    EXPECT_EQ(own.cache->length(0), 150);
    own.cache->truncate(0, 140, 140);
    EXPECT_EQ(own.cache->length(0), 140 - (kind == CacheKind::kSnap ? c.observe : 1));
    EXPECT_EQ(own.cache->covered(0), std::numeric_limits<int>::max()) << "the target has nothing to show";
  }
}

// A choice made once stands, also when what was generated since is cut; a cut into what it was made from takes it.
TEST(DraftCache, ChoicesMadeOnceStand) {
  CacheConfig c = config_of(CacheKind::kOnce);
  Bench b(c);
  b.prompt(0, 300, 1);
  std::vector<float> q;
  for (int i = 0; i < kHeads * kDim; ++i) q.push_back(float(Bench::noise(5, 5, uint64_t(i))));
  const std::vector<const float*> pointers = {q.data(), q.data()};
  b.cache->note_own(0, pointers, 0, 1, 299, 299);
  b.add_text(0, 1, 2);
  b.prepare(0);
  const Cells chosen = b.cells(0);
  b.run(0);
  b.cache->note_own(0, pointers, 0, 1, b.cache->position(0, -1), 300);
  const auto expect_chosen = [&](int first_new, int end) {
    Cells right = chosen;
    for (int cell = first_new; cell < end; ++cell) right.push_back(cell);
    EXPECT_EQ(b.cells(0), right);
  };
  for (unsigned round = 0; round < 5; ++round) b.round(0, 3, round);
  expect_chosen(300, 316);
  b.cache->note_own(0, pointers, 0, 1, b.cache->position(0, -1), 315);
  b.cache->truncate(0, 310, 310);  // into what was generated
  b.texts[0].resize(310);
  b.add_text(0, 1, 3);
  b.prepare(0);
  b.run(0);
  expect_chosen(300, 311);
  EXPECT_NE(chosen[c.sink + 4], 300 - c.budget + c.sink + 4) << "the most recent ones were chosen anyway";
  for (unsigned round = 0; round < 50; ++round) b.round(0, 5, round);  // and when there is no room left
  EXPECT_GT(b.cache->refreshes(0), 2);
  EXPECT_TRUE(std::equal(chosen.begin(), chosen.end(), b.cells(0).begin()));
  EXPECT_EQ(b.cells(0).back(), b.cache->length(0) - 1);
}

}  // namespace
}  // namespace sx
