// Choosing works on keys, see kv/chunk_choice.h.
#include "speculative/cache/choice.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/rng.h"

namespace sx {
namespace {

bool earlier(uint64_t a, uint64_t b) { return uint32_t(a) < uint32_t(b); }

}  // namespace

void ChunkBorders::reserve(int cells) {
  const int shortest = std::max(1, sentences_ ? chunk_ / 2 : chunk_);
  borders_.reserve(size_t(std::max(0, cells) / shortest) + 2);
}

void ChunkBorders::truncate(int cells) {
  SX_ASSERT(cells >= 0);
  if (cells >= borders_.back()) return;
  while (borders_.back() > cells) borders_.pop_back();
  if (borders_.back() < cells) borders_.push_back(cells);
}

void ChunkBorders::extend(int cells, std::span<const int32_t> text, std::span<const uint8_t> ends) {
  SX_ASSERT(chunk_ >= 1 && cells >= borders_.back());
  SX_ASSERT(!sentences_ || text.size() >= size_t(cells));
  // The last chunk may be open: it is cut anew, which changes nothing if it is closed.
  if (chunks() > 0) borders_.pop_back();
  const int64_t most = sentences_ ? int64_t(chunk_) + chunk_ / 2 : chunk_;
  const int least = std::max(1, chunk_ / 2);
  while (borders_.back() < cells) {
    const int start = borders_.back();
    int end = int(std::min<int64_t>(cells, start + most));
    if (sentences_) {
      for (int cell = start + least - 1; cell < end; ++cell) {
        const size_t token = size_t(text[size_t(cell)]);
        if (token < ends.size() && ends[token]) end = cell + 1;
      }
    }
    borders_.push_back(end);
  }
}

void reduce_scores(std::span<const float> scores, int count, std::span<const int32_t> borders, HeadReduce heads,
                   ChunkReduce chunks, std::span<float> out) {
  const size_t n = out.size();
  SX_ASSERT(count >= 1 && borders.size() == n + 1 && scores.size() == size_t(count) * n);
  std::copy_n(scores.begin(), n, out.begin());
  for (size_t row = 1; row < size_t(count); ++row) {
    const float* s = scores.data() + row * n;
    if (heads == HeadReduce::kMean) for (size_t c = 0; c < n; ++c) out[c] += s[c];
    else for (size_t c = 0; c < n; ++c) out[c] = std::max(out[c], s[c]);
  }
  if (heads == HeadReduce::kMean) for (float& x : out) x /= float(count);
  if (chunks == ChunkReduce::kMean) for (size_t c = 0; c < n; ++c) out[c] /= float(borders[c + 1] - borders[c]);
}

void choose_recent(int cells, int budget, int sink, std::vector<int32_t>& out) {
  if (choose_plainly(cells, budget, out)) return;
  choose_ends(cells, budget, sink < budget ? std::max(0, sink) : budget / 2, out);
}

void choose_pruned(std::span<const float> scores, int budget, float uniform, int sink, int recent,
                   std::vector<int32_t>& out, std::vector<uint64_t>& scratch) {
  const int cells = int(scores.size());
  if (choose_plainly(cells, budget, out)) return;
  sink = std::clamp(sink, 0, cells), recent = std::clamp(recent, 0, cells);
  if (sink >= budget - recent) return choose_ends(cells, budget, first_share(budget, sink, recent), out);

  // Cells [sink, last) are open to choice: the best ones, then `spread` of the others.
  const int last = cells - recent, open = budget - sink - recent;
  const int by_score = std::max(0, open - int(std::clamp(uniform, 0.0f, 1.0f) * float(budget)));
  const int64_t spread = open - by_score, others = last - sink - by_score;
  scratch.clear();
  for (int cell = sink; cell < last; ++cell) scratch.push_back(score_key(scores[size_t(cell)], cell));
  const auto best = scratch.begin(), rest = best + by_score;
  std::nth_element(best, rest, scratch.end(), std::greater<>());
  std::sort(best, rest, earlier);

  append_cells(0, sink, out);
  int64_t rank = 0, picks = 0;  // among the others: how many were passed, how many taken
  auto next = best;
  for (int cell = sink; cell < last; ++cell) {
    if (next != rest && place_of(*next) == cell) {
      out.push_back(cell), ++next;
    } else {
      if (picks < spread && rank == (2 * picks + 1) * others / (2 * spread)) out.push_back(cell), ++picks;
      ++rank;
    }
  }
  append_cells(last, cells, out);
}

void smooth(std::span<float> scores, int pool, std::vector<float>& scratch) {
  const int64_t n = int64_t(scores.size()), reach = std::max(0, pool) / 2;
  scratch.assign(scores.begin(), scores.end());
  for (int64_t i = 0; i < n; ++i) {
    const int64_t from = std::max<int64_t>(0, i - reach), to = std::min(n, i + reach + 1);
    float sum = 0;
    for (int64_t j = from; j < to; ++j) sum += scratch[size_t(j)];
    scores[size_t(i)] = sum / float(to - from);
  }
}

void random_scores(uint64_t seed, uint64_t round, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = float(uniform_from(hash_key(seed, round, i)));
}

}  // namespace sx
