#include "speculative/cache/draft_cache.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/clock.h"
#include "base/error.h"
#include "speculative/cache/retrieval_layers.h"

namespace sx {
namespace {

constexpr int kDefaultWindow = 512;
constexpr int kRoom = DraftCache::kSlack + 32;  // positions kept for what comes between two refreshes
constexpr float kFastMean = 0.3f, kSlowMean = 0.05f, kDrop = 0.8f;  // of accepted tokens, for adaptive refreshes

// Turns a query by `delta` positions.
void rotate(float* x, int heads, int head_dim, const RopeConfig& rope, std::span<const double> frequencies, int delta) {
  const int half = rope.dims / 2;
  for (int i = 0; i < half; ++i) {
    const double angle = frequencies[size_t(i)] * delta;
    const float c = float(std::cos(angle)), s = float(std::sin(angle));
    const int a = rope.style == RopeStyle::kHalves ? i : 2 * i, b = rope.style == RopeStyle::kHalves ? i + half : 2 * i + 1;
    for (int h = 0; h < heads; ++h) {
      float* v = x + size_t(h) * size_t(head_dim);
      const float va = v[a], vb = v[b];
      v[a] = va * c - vb * s;
      v[b] = va * s + vb * c;
    }
  }
}

}  // namespace

bool DraftCache::two_stores(const CacheConfig& config, int context, int trained) {
  return config.chooses() || (config.positions == CachePositions::kCompact && context > trained - kRoom);
}

int DraftCache::work_cells(const CacheConfig& config, int context) {
  return (config.chooses() ? std::min(config.budget, context) : context) + kSlack;
}

std::vector<int> DraftCache::target_layers(const CacheConfig& config, int layers) {
  std::vector<int> result;
  if (!config.reads_target()) return result;
  if (config.all_layers) {
    result.resize(size_t(layers));
    std::iota(result.begin(), result.end(), 0);
  } else if (config.layers.empty()) {
    result = likely_retrieval_layers(layers);
  } else {
    for (int layer : config.layers) {
      const int place = layer < 0 ? layers + layer : layer;
      if (place < 0 || place >= layers) fail("draft cache: layer {} does not exist, the target has layers 0 to {}", layer, layers - 1);
      result.push_back(place);
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
  }
  return result;
}

DraftCache::DraftCache(const CacheConfig& config, const DraftCacheParts& parts)
    : config_(config), parts_(parts), trained_(parts.draft->context), slots_(size_t(parts.slots)) {
  SX_ASSERT(parts.work && (parts.full != nullptr) == two_stores(config, parts.context, parts.draft->context));
  if (!config_.chooses()) config_.budget = parts_.context;
  capacity_ = work_cells(config_, parts_.context);
  if (!moving()) return;
  const ModelConfig& draft = *parts_.draft;
  size_t rows = 0, chunks = size_t(parts_.context) / size_t(std::max(1, config_.chunk / 2)) + 2, query = 0;
  if (reads_target()) {
    layers_ = target_layers(config_, parts_.target->layers);
    for (int head : config_.heads)
      if (head < 0 || head >= parts_.target->heads)
        fail("draft cache: head {} does not exist, the target has heads 0 to {}", head, parts_.target->heads - 1);
    rows = layers_.size() * size_t(parts_.target->heads);
    query = rows * size_t(parts_.target->head_dim);
  } else if (reads_draft()) {
    rows = size_t(draft.heads);
    query = size_t(draft.layers) * size_t(draft.heads) * size_t(draft.head_dim) * size_t(most_queries());
  }
  const bool by_cell = config_.kind == CacheKind::kPrune || config_.kind == CacheKind::kSnap;
  if (by_cell) {
    chunks = size_t(parts_.context) + 1;
    each_.resize(chunks + 1);
    std::iota(each_.begin(), each_.end(), 0);
  }
  retrieves_ = config_.kind == CacheKind::kRetrieval && config_.heads.empty() && config_.head_reduce == HeadReduce::kMean &&
               !config_.sentences && config_.recent > 0 && parts_.layer < 0;
  scores_.resize(rows * chunks);
  if (reads_draft()) picked_.resize(rows * chunks);
  reduced_.resize(chunks);
  scratch_.resize(chunks);
  order_.reserve(choice_scratch(chunks));
  moves_.reserve(size_t(capacity_));
  for (Slot& s : slots_) {
    s.cell.resize(size_t(capacity_) + 1);
    s.choice.resize(config_.per_head() ? size_t(draft.layers * draft.kv_heads) : 1);
    for (auto& c : s.choice) c.reserve(size_t(capacity_));
    s.borders = ChunkBorders(config_.chunk, config_.sentences);
    s.borders.reserve(parts_.context);
    if (retrieves_) s.retrieved = parts_.backend->make_choice(std::min(config_.budget, parts_.context));
    if (query > 0) s.query = parts_.backend->allocate(query, "queries of the draft cache");
    if (reads_draft()) s.own.resize(query);
  }
}

int DraftCache::shift_for(int cells) const { return std::max(0, cells - std::max(1, trained_ - kRoom)); }

int DraftCache::wanted_position(int shift, int place, int cell) const {
  if (!moving() || config_.positions == CachePositions::kOriginal) return cell;
  return std::clamp(place - shift, 0, trained_ - 1);
}

int DraftCache::position(SeqId seq, int ahead) const {
  const Slot& s = at(seq);
  return wanted_position(s.shift, s.work + ahead, s.length + ahead);
}

int DraftCache::prompt_window() const {
  if (config_.window >= 0) return config_.window;
  return !moving() ? 0 : config_.chooses() ? kDefaultWindow : trained_;
}

void DraftCache::prompted(SeqId seq, int rows) {
  Slot& s = at(seq);
  s.length += rows;
  if (moving()) s.stale = true, s.chosen_once = 0;
  else s.work = s.length;
}

void DraftCache::truncate(SeqId seq, int cells, int tokens) {
  Slot& s = at(seq);
  if (s.noted > (reads_target() ? tokens : cells)) {  // the query belongs to a text that is gone
    if (reads_draft()) cells = std::max(0, cells - most_queries());
    s.noted = s.queries = 0;
  }
  s.ended = tokens;
  if (cells >= s.length) return;
  s.length = cells;
  if (!moving()) {
    s.work = cells;
    return;
  }
  s.borders.truncate(cells);
  s.stale = true;
  s.work = s.unread = 0;
  s.fast = s.slow = 0;
  if (cells < s.chosen_once) s.chosen_once = 0;
  if (cells == 0) s.rounds = s.refreshes = s.shift = 0;
}

int DraftCache::covered(SeqId seq) const {
  const Slot& s = at(seq);
  return !reads_target() || s.noted >= s.ended ? std::numeric_limits<int>::max() : s.ended - 1;
}

bool DraftCache::due(const Slot& s) const {
  if (config_.once() || !config_.chooses()) return false;
  if (!config_.adaptive) return s.rounds >= config_.interval;
  return s.rounds >= config_.interval_max || (s.rounds >= config_.interval_min && s.fast < kDrop * s.slow);
}

void DraftCache::prepare(SeqId seq, std::span<const Token> text, int rows) {
  Slot& s = at(seq);
  if (!moving()) return;
  SX_ASSERT(rows <= kSlack);
  if (!parts_.writes_full && int(text.size()) - s.length > rows) s.stale = true;  // more was decoded plainly than can be run at once
  if (!parts_.writes_full && s.stale) s.length = int(text.size()) - 1;            // what the target has committed
  const bool no_room = s.work + rows > capacity_;
  const bool compact = config_.positions == CachePositions::kCompact;
  const bool no_positions = compact && s.work - s.shift + rows > trained_ - (kRoom - kSlack);
  if (s.stale || no_room || no_positions || due(s)) refresh(seq, text);
}

void DraftCache::refresh(SeqId seq, std::span<const Token> text) {
  const double start = now_ms();
  Slot& s = at(seq);
  s.borders.extend(s.length, text, parts_.sentence_ends);
  std::optional<EvenPlan> plan;
  if (retrieves_ && s.noted > 0) plan = plan_even_chunks(s.borders.borders(), config_.budget, config_.sink, config_.recent);
  if (plan) {
    retrieve(seq, *plan);
  } else {
    choose(seq);
    gather(seq);
  }
  s.rounds = 0, s.stale = false;
  ++s.refreshes;
  ms_ += now_ms() - start;
}

// The common case in one op: a device need not hand the scores to the host.
void DraftCache::retrieve(SeqId seq, const EvenPlan& plan) {
  Slot& s = at(seq);
  const ModelConfig &t = *parts_.target, &d = *parts_.draft;
  SX_ASSERT(plan.count <= capacity_);
  const int before = s.shift;
  s.shift = shift_for(plan.count);
  KvRetrieveArgs args{};
  args.score = {nullptr, s.query, t.heads, t.kv_heads, t.head_dim, 1.0f / std::sqrt(float(t.head_dim)), parts_.target_kv, 0, seq,
                s.borders.borders(), config_.chunk_reduce == ChunkReduce::kMax ? ScoreKind::kPeak : ScoreKind::kMass, layers_};
  args.per_cell = config_.chunk_reduce == ChunkReduce::kMean;
  args.budget = config_.budget, args.sink = config_.sink, args.recent = config_.recent, args.plan = plan;
  args.from = parts_.full, args.to = parts_.work, args.slot = seq;
  args.compact = config_.positions == CachePositions::kCompact, args.shift = s.shift, args.top = trained_ - 1;
  args.held = s.follows ? s.work : 0, args.since = s.since, args.shift_before = before;
  args.frequencies = parts_.frequencies.data(), args.dims = d.rope.dims, args.style = d.rope.style;
  args.scores = scores_, args.reduced = reduced_, args.order = &order_, args.moves = &moves_;
  parts_.backend->kv_retrieve(args, *s.retrieved);
  s.work = s.unread = plan.count;
  s.follows = true, s.since = s.length;
}

// The first cells are asked for only where somebody wants to know them.
void DraftCache::read_cells(const Slot& s) {
  if (s.unread == 0) return;
  const auto cells = s.retrieved->cells();
  SX_ASSERT(int(cells.size()) == s.unread);
  std::copy(cells.begin(), cells.end(), s.cell.begin());
  s.unread = 0;
}

std::span<const int32_t> DraftCache::cells(SeqId seq) const {
  const Slot& s = at(seq);
  if (s.work > 0) read_cells(s);
  return std::span(s.cell).first(size_t(s.work));
}

void DraftCache::choose(SeqId seq) {
  Slot& s = at(seq);
  if (s.length <= config_.budget) {
    for (auto& c : s.choice) {
      c.resize(size_t(s.length));
      std::iota(c.begin(), c.end(), 0);
    }
    return;
  }
  switch (config_.kind) {
    case CacheKind::kWindow: choose_recent(s.length, config_.budget, 0, s.choice[0]); return;
    case CacheKind::kRandom: {
      const size_t n = size_t(s.borders.chunks());
      random_scores(0, uint64_t(s.length), std::span(reduced_).first(n));
      choose_chunks(s.borders.borders(), std::span(reduced_).first(n), config_.budget, config_.sink, config_.recent, s.choice[0], order_);
      return;
    }
    case CacheKind::kRetrieval:
    case CacheKind::kPrune:
      if (s.noted > 0) return choose_by_target(seq);
      break;
    case CacheKind::kOnce:
    case CacheKind::kSnap:
    case CacheKind::kQuest:
      if (s.noted > 0 || s.chosen_once > 0) return choose_by_draft(seq);
      break;
    case CacheKind::kStreaming:
    case CacheKind::kFull: break;
  }
  for (auto& c : s.choice) choose_recent(s.length, config_.budget, config_.sink, c);  // nothing to go by yet
}

void DraftCache::choose_by_target(SeqId seq) {
  Slot& s = at(seq);
  const ModelConfig& t = *parts_.target;
  const bool by_cell = config_.kind == CacheKind::kPrune;
  const auto borders = by_cell ? std::span<const int32_t>(each_).first(size_t(s.length) + 1) : s.borders.borders();
  const size_t chunks = borders.size() - 1, heads = size_t(t.heads), head_dim = size_t(t.head_dim);
  const auto kind = config_.chunk_reduce == ChunkReduce::kMax && !by_cell ? ScoreKind::kPeak : ScoreKind::kMass;
  const auto reduced = std::span(reduced_).first(chunks);
  // A device averages better than it hands out rows.
  const bool mean = parts_.backend->traits().mean_scores && config_.heads.empty() && config_.head_reduce == HeadReduce::kMean;
  if (mean) {
    parts_.backend->kv_score({reduced.data(), s.query, t.heads, t.kv_heads, t.head_dim, 1.0f / std::sqrt(float(t.head_dim)), parts_.target_kv, 0,
                              seq, borders, kind, layers_, true});
    reduce_scores(reduced, 1, borders, HeadReduce::kMean, by_cell ? ChunkReduce::kSum : config_.chunk_reduce, reduced);
  }
  for (size_t i = 0; !mean && i < layers_.size(); ++i)
    parts_.backend->kv_score({scores_.data() + i * heads * chunks, s.query + i * heads * head_dim, t.heads, t.kv_heads, t.head_dim,
                              1.0f / std::sqrt(float(t.head_dim)), parts_.target_kv, layers_[i], seq, borders, kind});
  size_t count = layers_.size() * heads;
  if (!config_.heads.empty()) {  // the chosen heads' rows move to the front
    count = 0;
    for (size_t i = 0; i < layers_.size(); ++i)
      for (size_t h = 0; h < heads; ++h)
        if (std::find(config_.heads.begin(), config_.heads.end(), int(h)) != config_.heads.end())
          std::copy_n(scores_.begin() + ptrdiff_t((i * heads + h) * chunks), chunks, scores_.begin() + ptrdiff_t(count++ * chunks));
  }
  if (!mean)
    reduce_scores(std::span(scores_).first(count * chunks), int(count), borders, config_.head_reduce, by_cell ? ChunkReduce::kSum : config_.chunk_reduce,
                  reduced);
  if (config_.kind == CacheKind::kPrune) {
    choose_pruned(reduced, config_.budget, config_.uniform, config_.sink, config_.recent, s.choice[0], order_);
    return;
  }
  choose_chunks(borders, reduced, config_.budget, config_.sink, config_.recent, s.choice[0], order_);
}

void DraftCache::choose_by_draft(SeqId seq) {
  Slot& s = at(seq);
  if (config_.once() && s.chosen_once > 0) {  // the choice stands; what came since shares the room behind it
    for (auto& c : s.choice) {
      c.erase(std::lower_bound(c.begin(), c.end(), s.chosen_once), c.end());
      for (int cell = std::max(s.chosen_once, s.length - kSlack / 2); cell < s.length; ++cell) c.push_back(cell);
    }
    return;
  }
  const ModelConfig& d = *parts_.draft;
  const bool snap = config_.kind == CacheKind::kSnap;
  const auto borders = snap ? std::span<const int32_t>(each_).first(size_t(s.length) + 1) : s.borders.borders();
  const size_t chunks = borders.size() - 1, heads = size_t(d.heads), group = heads / size_t(d.kv_heads), head_dim = size_t(d.head_dim);
  const auto kind = snap ? ScoreKind::kMass : config_.kind == CacheKind::kOnce ? ScoreKind::kLogit : ScoreKind::kBound;
  const int queries = snap ? s.queries : 1;
  size_t least = size_t(capacity_);
  for (int layer = 0; layer < d.layers; ++layer) {
    std::fill_n(picked_.begin(), heads * chunks, 0.0f);
    for (int r = 0; r < queries; ++r) {
      const float* q = s.query + (size_t(r) * size_t(d.layers) + size_t(layer)) * heads * head_dim;
      parts_.backend->kv_score({scores_.data(), q, d.heads, d.kv_heads, d.head_dim, 1.0f / std::sqrt(float(d.head_dim)), parts_.full, layer, seq,
                                borders, kind});
      for (size_t i = 0; i < heads * chunks; ++i) picked_[i] += scores_[i];
    }
    for (size_t g = 0; g < size_t(d.kv_heads); ++g) {
      const auto mean = std::span(reduced_).first(chunks);
      reduce_scores(std::span(picked_).subspan(g * group * chunks, group * chunks), int(group), borders, HeadReduce::kMean, ChunkReduce::kSum, mean);
      auto& choice = s.choice[size_t(layer) * size_t(d.kv_heads) + g];
      if (snap) {
        smooth(mean, config_.pool, scratch_);
        choose_pruned(mean, config_.budget, 0, config_.sink, std::max(config_.recent, config_.observe), choice, order_);
      } else {
        choose_chunks(borders, mean, config_.budget, config_.sink, std::max(1, config_.recent), choice, order_);
      }
      least = std::min(least, choice.size());
    }
  }
  for (auto& c : s.choice) c.erase(c.begin(), c.end() - ptrdiff_t(least));  // one length for all
  if (config_.once()) s.chosen_once = s.length;
}

void DraftCache::gather(SeqId seq) {
  Slot& s = at(seq);
  const ModelConfig& d = *parts_.draft;
  const int size = int(s.choice[0].size());
  SX_ASSERT(size <= capacity_);
  const int before = s.shift;
  s.shift = shift_for(size);
  if (s.work > 0) read_cells(s);
  for (size_t h = 0; h < s.choice.size(); ++h) {
    moves_.clear();
    for (int i = 0; i < size; ++i) {
      const int cell = s.choice[h][size_t(i)];
      const int position = wanted_position(s.shift, i, cell);
      if (!config_.per_head() && i < s.work && s.cell[size_t(i)] == cell && wanted_position(before, i, cell) == position) continue;
      moves_.push_back({cell, i, position - cell});
    }
    KvMoveArgs args{parts_.full, parts_.work, seq, seq, moves_, parts_.frequencies.data(), d.rope.dims, d.rope.style};
    args.layer = parts_.layer;
    if (config_.per_head()) args.layer = int(h) / d.kv_heads, args.head = int(h) % d.kv_heads;
    if (!moves_.empty()) parts_.backend->kv_move(args);
  }
  std::copy(s.choice[0].begin(), s.choice[0].end(), s.cell.begin());
  s.work = size;
  s.unread = 0, s.follows = false;
}

void DraftCache::appended(SeqId seq, int rows) {
  Slot& s = at(seq);
  if (!moving()) {
    s.work = s.length += rows;
    return;
  }
  const double start = now_ms();
  SX_ASSERT(s.work + rows <= capacity_);
  moves_.clear();
  for (int i = 0; i < rows; ++i) {
    s.cell[size_t(s.work + i)] = s.length + i;
    moves_.push_back({s.work + i, s.length + i, s.length + i - position(seq, i)});
  }
  if (parts_.writes_full)
    parts_.backend->kv_move({parts_.work, parts_.full, seq, seq, moves_, parts_.frequencies.data(), parts_.draft->rope.dims, parts_.draft->rope.style});
  s.work += rows;
  s.length += rows;
  ms_ += now_ms() - start;
}

void DraftCache::follow(SeqId seq, std::span<const Token> text) {
  Slot& s = at(seq);
  SX_ASSERT(moving() && !parts_.writes_full);
  prepare(seq, text, std::min(kSlack, int(text.size()) - s.length));
  const int rows = int(text.size()) - 1 - s.length;
  if (rows <= 0) return;
  moves_.clear();
  for (int i = 0; i < rows; ++i) moves_.push_back({s.length + i, s.work + i, position(seq, i) - (s.length + i)});
  KvMoveArgs args{parts_.full, parts_.work, seq, seq, moves_, parts_.frequencies.data(), parts_.draft->rope.dims, parts_.draft->rope.style};
  args.layer = parts_.layer;
  parts_.backend->kv_move(args);
  appended(seq, rows);
}

void DraftCache::note_target(SeqId seq, std::span<const float* const> query, int row, int tokens) {
  Slot& s = at(seq);
  const size_t size = size_t(parts_.target->heads) * size_t(parts_.target->head_dim);
  SX_ASSERT(query.size() == layers_.size());
  const int width = int(size);
  for (size_t i = 0; i < layers_.size(); ++i)
    parts_.backend->copy_rows({s.query + i * size, query[i] + size_t(row) * size, 1, width, width, width});
  s.noted = tokens;
}

void DraftCache::note_own(SeqId seq, std::span<const float* const> query, int first, int rows, int position, int cell) {
  Slot& s = at(seq);
  const ModelConfig& d = *parts_.draft;
  const size_t size = size_t(d.heads) * size_t(d.head_dim), layers = size_t(d.layers);
  SX_ASSERT(query.size() == layers);
  const int most = most_queries(), take = std::min(rows, most);
  const int keep = std::min(s.queries, most - take);  // of those noted before, the last ones
  std::memmove(s.own.data(), s.own.data() + size_t(s.queries - keep) * layers * size, size_t(keep) * layers * size * sizeof(float));
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

void DraftCache::observe(SeqId seq, int accepted) {
  Slot& s = at(seq);
  ++s.rounds;
  s.fast += kFastMean * (float(accepted) - s.fast);
  s.slow += kSlowMean * (float(accepted) - s.slow);
}

}  // namespace sx
