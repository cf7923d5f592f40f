// Choices of cells for draft caches. They compare keys of score and place in one integer, see kv/chunk_choice.h.
#include "speculative/cache/choice.h"

#include <algorithm>
#include <functional>

#include "base/error.h"
#include "base/rng.h"

namespace sx {
namespace {

bool earlier(uint64_t a, uint64_t b) { return uint32_t(a) < uint32_t(b); }

}  // namespace

void ChunkBorders::resize(int cells) {
  SX_ASSERT(chunk_ >= 1 && cells >= 0);
  if (cells == borders_.back()) return;
  while (borders_.back() > cells) borders_.pop_back();
  if (borders_.back() % chunk_ != 0) borders_.pop_back();  // The last chunk was shorter and may grow.
  while (borders_.back() < cells) borders_.push_back(int(std::min<int64_t>(cells, int64_t(borders_.back()) + chunk_)));
}

void mean_of_rows(std::span<const float> scores, int count, std::span<float> out) {
  const size_t n = out.size();
  SX_ASSERT(count >= 1 && scores.size() == size_t(count) * n);
  std::copy_n(scores.begin(), n, out.begin());
  for (size_t row = 1; row < size_t(count); ++row)
    for (size_t c = 0; c < n; ++c) out[c] += scores[row * n + c];
  for (float& x : out) x /= float(count);
}

void divide_by_length(std::span<const int32_t> borders, std::span<float> scores) {
  SX_ASSERT(borders.size() == scores.size() + 1);
  for (size_t c = 0; c < scores.size(); ++c) scores[c] /= float(borders[c + 1] - borders[c]);
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

  // Of the cells [sink, last) the best ones are chosen, then `spread` of the others.
  const int last = cells - recent, open = budget - sink - recent;
  const int by_score = std::max(0, open - int(std::clamp(uniform, 0.0f, 1.0f) * float(budget)));
  const int64_t spread = open - by_score, others = last - sink - by_score;
  scratch.clear();
  for (int cell = sink; cell < last; ++cell) scratch.push_back(score_key(scores[size_t(cell)], cell));
  const auto best = scratch.begin(), rest = best + by_score;
  std::nth_element(best, rest, scratch.end(), std::greater<>());
  std::sort(best, rest, earlier);

  append_cells(0, sink, out);
  int64_t rank = 0, picks = 0;  // how many of the others were passed, and how many of those were chosen
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
