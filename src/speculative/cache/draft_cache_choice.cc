// What a draft cache chooses: it keeps queries, lets the backend score the text with them, and asks the policy.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error.h"
#include "speculative/cache/draft_cache.h"

namespace sx {
namespace {

// Rotates a query by `delta` positions.
void rotate(float* x, int heads, int head_dim, const RopeConfig& rope, std::span<const double> frequencies, int delta) {
  const int half = rope.dims / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = frequencies[size_t(i)] * delta;
    const float c = float(std::cos(angle)), s = float(std::sin(angle));
    const bool halves = rope.style == RopeStyle::kHalves;
    const int a = halves ? i : 2 * i, b = halves ? i + half : 2 * i + 1;
    for (int h = 0; h < heads; ++h) {
      float* v = x + size_t(h) * size_t(head_dim);
      const float va = v[a], vb = v[b];
      v[a] = va * c - vb * s;
      v[b] = va * s + vb * c;
    }
  }
}

}  // namespace

// Allocates what scores and choices need, so that rounds allocate nothing.
void DraftCache::make_choosing() {
  const ModelConfig& draft = *parts_.draft;
  const CachePolicy& policy = *config_.policy;
  size_t parts = size_t(parts_.context) / size_t(config_.chunk) + 2, rows = 0, query = 0;
  if (policy.scores.single_cells) {
    parts = size_t(parts_.context) + 1;
    each_.resize(parts + 1);
    std::iota(each_.begin(), each_.end(), 0);
  }
  if (reads_target()) {
    layers_ = target_layers(config_, parts_.target->layers);
    rows = layers_.size() * size_t(parts_.target->heads);
    query = rows * size_t(parts_.target->head_dim);
    if (config_.each_head()) rows = size_t(parts_.target->heads);  // one layer after another
    SX_ASSERT(!config_.each_head() || (policy.on_backend && &draft == parts_.target));
  } else if (reads_draft()) {
    rows = size_t(draft.heads);
    query = size_t(most_queries()) * size_t(draft.layers) * rows * size_t(draft.head_dim);
    summed_.resize(rows * parts);
  }
  const bool one_op = policy.on_backend && reads_target() && !config_.once() && parts_.layer < 0;
  if (one_op) on_backend_ = policy.on_backend(config_);
  SX_ASSERT(!on_backend_ || !policy.scores.single_cells);
  scores_.resize(rows * parts);
  reduced_.resize(parts);
  scratch_.scores.resize(parts);
  scratch_.order.reserve(choice_scratch(parts));
  for (Slot& s : slots_) {
    s.choice.resize(config_.per_head() ? size_t(draft.layers * draft.kv_heads) : 1);
    for (auto& c : s.choice) c.reserve(size_t(capacity_));
    s.borders = ChunkBorders(config_.chunk);
    s.borders.reserve(parts_.context);
    const int lists = config_.each_head() ? draft.layers * draft.kv_heads : 1;
    if (on_backend_)
      s.retrieved = parts_.backend->make_choice(std::min(config_.budget_for(parts_.context), parts_.context) * lists);
    if (query > 0) s.query = parts_.backend->allocate(query, "queries of the draft cache");
    if (reads_draft()) s.own.resize(query);
  }
}

std::span<const int32_t> DraftCache::borders_of(const Slot& s) const {
  if (config_.policy->scores.single_cells) return std::span(each_).first(size_t(s.length) + 1);
  return s.borders.borders();
}

KvScoreArgs DraftCache::score_args(const ModelConfig& model, const KvStore* kv, SeqId seq) const {
  KvScoreArgs args{};
  args.heads = model.heads, args.kv_heads = model.kv_heads, args.head_dim = model.head_dim;
  args.scale = 1.0f / std::sqrt(float(model.head_dim));
  args.kv = kv, args.slot = seq, args.borders = borders_of(at(seq)), args.kind = config_.policy->scores.kind;
  return args;
}

void DraftCache::choose(SeqId seq) {
  Slot& s = at(seq);
  const CachePolicy& policy = *config_.policy;
  if (s.length <= config_.budget) {
    for (auto& c : s.choice) {
      c.resize(size_t(s.length));
      std::iota(c.begin(), c.end(), 0);
    }
    return;
  }
  if (config_.once() && s.chosen_once > 0) return keep_choice(s);
  const bool scored = policy.scores.query != CacheScores::Query::kNone;
  if (scored && s.noted == 0) {  // There is no query yet.
    for (auto& c : s.choice) choose_recent(s.length, config_.budget, config_.sink, c);
    return;
  }
  if (reads_target()) choose_by_target(seq);
  else if (reads_draft()) choose_by_draft(seq);
  else ask_policy(s, s.choice[0]);
  if (config_.once()) s.chosen_once = s.length;
}

// A policy from outside may be wrong: what would break the working cache is reported with its name.
void DraftCache::ask_policy(const Slot& s, std::vector<int32_t>& cells) {
  const auto borders = borders_of(s);
  const CacheText text{.cells = s.length, .borders = borders, .scores = std::span(reduced_).first(borders.size() - 1)};
  cells.clear();
  config_.policy->choose(config_, text, scratch_, cells);
  const bool rising = std::adjacent_find(cells.begin(), cells.end(), std::greater_equal<>()) == cells.end();
  if (cells.empty() || int(cells.size()) > config_.budget || !rising || cells.front() < 0 || cells.back() >= s.length)
    fail("draft-cache policy '{}' must choose between 1 and {} cells below {}, ascending; it chose {} cells",
         config_.policy->name, config_.budget, s.length, cells.size());
}

// The choice stays, and the cells since then share the room behind it.
void DraftCache::keep_choice(Slot& s) const {
  for (auto& c : s.choice) {
    c.erase(std::lower_bound(c.begin(), c.end(), s.chosen_once), c.end());
    for (int cell = std::max(s.chosen_once, s.length - kSlack / 2); cell < s.length; ++cell) c.push_back(cell);
  }
}

void DraftCache::choose_by_target(SeqId seq) {
  Slot& s = at(seq);
  if (config_.each_head()) {  // Only the ends fit into the budget (see plan_even_chunks()): scores do not matter.
    std::fill(reduced_.begin(), reduced_.end(), 0.0f);
    for (auto& cells : s.choice) ask_policy(s, cells);
    return;
  }
  const ModelConfig& t = *parts_.target;
  KvScoreArgs args = score_args(t, parts_.target_kv, seq);
  const size_t parts = args.borders.size() - 1, heads = size_t(t.heads), rows = layers_.size() * heads;
  const auto mean = std::span(reduced_).first(parts);
  if (parts_.backend->traits().mean_scores) {  // A device computes the mean faster than it hands out rows.
    args.out = mean.data(), args.q = s.query, args.layers = layers_, args.mean = true;
    parts_.backend->kv_score(args);
  } else {
    for (size_t i = 0; i < layers_.size(); ++i) {
      args.out = scores_.data() + i * heads * parts;
      args.q = s.query + i * heads * size_t(t.head_dim), args.layer = layers_[i];
      parts_.backend->kv_score(args);
    }
    mean_of_rows(std::span(scores_).first(rows * parts), int(rows), mean);
  }
  ask_policy(s, s.choice[0]);
}

void DraftCache::choose_by_draft(SeqId seq) {
  Slot& s = at(seq);
  const ModelConfig& d = *parts_.draft;
  KvScoreArgs args = score_args(d, parts_.full, seq);
  args.out = scores_.data();
  const size_t parts = args.borders.size() - 1, heads = size_t(d.heads), kv_heads = size_t(d.kv_heads);
  const size_t group = heads / kv_heads;
  for (args.layer = 0; args.layer < d.layers; ++args.layer) {
    std::fill_n(summed_.begin(), heads * parts, 0.0f);
    for (int r = 0; r < s.queries; ++r) {
      args.q = s.query + (size_t(r) * size_t(d.layers) + size_t(args.layer)) * heads * size_t(d.head_dim);
      parts_.backend->kv_score(args);
      for (size_t i = 0; i < heads * parts; ++i) summed_[i] += scores_[i];
    }
    for (size_t g = 0; g < kv_heads; ++g) {
      const auto rows = std::span(summed_).subspan(g * group * parts, group * parts);
      mean_of_rows(rows, int(group), std::span(reduced_).first(parts));
      ask_policy(s, s.choice[size_t(args.layer) * kv_heads + g]);
    }
  }
  size_t least = s.choice[0].size();
  for (const auto& c : s.choice) least = std::min(least, c.size());
  for (auto& c : s.choice) c.erase(c.begin(), c.end() - ptrdiff_t(least));  // Attention needs one length for all heads.
}

void DraftCache::note_target(SeqId seq, std::span<const float* const> query, int row, int tokens) {
  Slot& s = at(seq);
  const size_t size = size_t(parts_.target->heads) * size_t(parts_.target->head_dim);
  SX_ASSERT(query.size() == layers_.size());
  const int width = int(size), layers = int(layers_.size());
  // The target keeps them in one block, so that all layers' are one copy.
  const ptrdiff_t apart = layers > 1 ? query[1] - query[0] : width;
  bool block = layers > 0 && apart >= width && apart == int(apart);
  for (size_t i = 1; i < query.size(); ++i) block = block && query[i] - query[i - 1] == apart;
  if (block)
    parts_.backend->copy_rows({.to = s.query,
                               .from = query[0] + size_t(row) * size,
                               .rows = layers,
                               .width = width,
                               .to_stride = width,
                               .from_stride = int(apart),
                               .launched = true});
  for (size_t i = 0; !block && i < layers_.size(); ++i)
    parts_.backend->copy_rows({s.query + i * size, query[i] + size_t(row) * size, 1, width, width, width});
  s.noted = tokens;
}

void DraftCache::note_own(SeqId seq, std::span<const float* const> query, int first, int rows, int position, int cell) {
  Slot& s = at(seq);
  const ModelConfig& d = *parts_.draft;
  const size_t size = size_t(d.heads) * size_t(d.head_dim), layers = size_t(d.layers);
  SX_ASSERT(query.size() == layers);
  const int most = most_queries(), take = std::min(rows, most);
  const int keep = std::min(s.queries, most - take);  // The last of the queries noted before stay.
  std::memmove(s.own.data(), s.own.data() + size_t(s.queries - keep) * layers * size,
               size_t(keep) * layers * size * sizeof(float));
  for (int r = 0; r < take; ++r)
    for (size_t l = 0; l < layers; ++l) {
      float* to = s.own.data() + (size_t(keep + r) * layers + l) * size;
      parts_.backend->download(to, query[l] + size_t(first + rows - take + r) * size, size);
      if (position != cell) rotate(to, d.heads, d.head_dim, d.rope, parts_.frequencies, cell - position);
    }
  s.queries = keep + take;
  parts_.backend->upload(s.query, s.own.data(), size_t(s.queries) * layers * size);
  s.noted = cell + 1;
}

}  // namespace sx
