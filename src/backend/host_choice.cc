#include "backend/host_choice.h"

#include <algorithm>

#include "base/error.h"

namespace sx {
namespace {

// The mean over layers and heads, as kv_score() gives it, without memory of its own.
void mean_scores(Backend& backend, const KvRetrieveArgs& a, std::span<float> mean) {
  const size_t heads = size_t(a.score.heads), chunks = mean.size(), rows = a.score.layers.size() * heads;
  KvScoreArgs score = a.score;
  if (backend.traits().mean_scores) {  // a device averages better than it hands out rows
    score.out = mean.data(), score.mean = true;
    backend.kv_score(score);
    return;
  }
  SX_ASSERT(a.scores.size() >= rows * chunks);
  score.layers = {}, score.mean = false;
  for (size_t i = 0; i < a.score.layers.size(); ++i) {
    score.out = a.scores.data() + i * heads * chunks;
    score.q = a.score.q + i * heads * size_t(a.score.head_dim);
    score.layer = a.score.layers[i];
    backend.kv_score(score);
  }
  std::copy_n(a.scores.begin(), chunks, mean.begin());
  for (size_t row = 1; row < rows; ++row)
    for (size_t c = 0; c < chunks; ++c) mean[c] += a.scores[row * chunks + c];
  for (float& x : mean) x /= float(rows);
}

int position_of(const KvRetrieveArgs& a, int place, int cell, int shift) {
  return a.compact ? std::clamp(place - shift, 0, a.top) : cell;
}

void move_cells(Backend& backend, const KvRetrieveArgs& a, int layer = -1, int head = -1) {
  if (!a.moves->empty())
    backend.kv_move({a.from, a.to, a.slot, a.slot, *a.moves, a.frequencies, a.dims, a.style, layer, head});
}

// Each layer and key/value head for itself.
void retrieve_heads(Backend& backend, const KvRetrieveArgs& a, HostChoice& choice) {
  const auto borders = a.score.borders;
  const size_t chunks = borders.size() - 1, heads = size_t(a.score.heads), kv_heads = size_t(a.score.kv_heads),
               group = heads / kv_heads;
  SX_ASSERT(a.scores.size() >= heads * chunks);
  const auto mean = a.reduced.first(chunks);
  KvScoreArgs score = a.score;
  score.layers = {}, score.mean = false, score.out = a.scores.data();
  choice.chosen.clear();
  for (size_t i = 0; i < a.score.layers.size(); ++i) {
    score.q = a.score.q + i * heads * size_t(a.score.head_dim);
    score.layer = a.score.layers[i];
    backend.kv_score(score);
    for (size_t g = 0; g < kv_heads; ++g) {
      const float* rows = a.scores.data() + g * group * chunks;
      std::copy_n(rows, chunks, mean.begin());
      for (size_t row = 1; row < group; ++row)
        for (size_t c = 0; c < chunks; ++c) mean[c] += rows[row * chunks + c];
      for (size_t c = 0; c < chunks; ++c) {
        mean[c] /= float(group);
        if (a.per_cell) mean[c] /= float(borders[c + 1] - borders[c]);
      }
      choose_chunks(borders, mean, a.budget, a.sink, a.recent, choice.before, *a.order);
      SX_ASSERT(int(choice.before.size()) == a.plan.count);
      a.moves->clear();
      for (int place = 0; place < a.plan.count; ++place) {
        const int cell = choice.before[size_t(place)];
        a.moves->push_back({cell, place, position_of(a, place, cell, a.shift) - cell});
      }
      move_cells(backend, a, score.layer, int(g));
      choice.chosen.insert(choice.chosen.end(), choice.before.begin(), choice.before.end());
    }
  }
}

}  // namespace

void retrieve_on_host(Backend& backend, const KvRetrieveArgs& a, HostChoice& choice) {
  const auto borders = a.score.borders;
  const size_t chunks = borders.size() - 1;
  SX_ASSERT(a.reduced.size() >= chunks && a.order && a.moves);
  if (a.each_head) return retrieve_heads(backend, a, choice);
  const auto scores = a.reduced.first(chunks);
  mean_scores(backend, a, scores);
  if (a.per_cell)
    for (size_t c = 0; c < chunks; ++c) scores[c] /= float(borders[c + 1] - borders[c]);
  std::swap(choice.before, choice.chosen);
  choose_chunks(borders, scores, a.budget, a.sink, a.recent, choice.chosen, *a.order);
  SX_ASSERT(int(choice.chosen.size()) == a.plan.count);
  const int listed = int(choice.before.size());
  a.moves->clear();
  for (int i = 0; i < int(choice.chosen.size()); ++i) {
    const int cell = choice.chosen[size_t(i)], old = i < listed ? choice.before[size_t(i)] : a.since + i - listed;
    const int position = position_of(a, i, cell, a.shift);
    if (i < a.held && old == cell && position_of(a, i, cell, a.shift_before) == position) continue;
    a.moves->push_back({cell, i, position - cell});
  }
  move_cells(backend, a);
}

void Backend::gather(const GatherArgs&) { fail("a backend that is alone has no columns to gather"); }

std::unique_ptr<KvChoice> Backend::make_choice(int most_cells) { return std::make_unique<HostChoice>(most_cells); }

void Backend::kv_retrieve(const KvRetrieveArgs& args, KvChoice& choice) {
  retrieve_on_host(*this, args, static_cast<HostChoice&>(choice));
}

}  // namespace sx
