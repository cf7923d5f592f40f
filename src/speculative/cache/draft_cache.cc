// Lengths, positions and stores of a draft cache.
#include "speculative/cache/draft_cache.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "backend/kv_stream.h"
#include "base/clock.h"
#include "base/error.h"
#include "speculative/cache/retrieval_layers.h"

namespace sx {
namespace {

constexpr int kDefaultWindow = 512;
constexpr int kRoom = DraftCache::kSlack + 32;  // positions kept for what comes between two refreshes

}  // namespace

bool DraftCache::two_stores(const CacheConfig& config, int context, int trained) {
  return config.chooses() || (config.positions == CachePositions::kCompact && context > trained - kRoom);
}

int DraftCache::work_cells(const CacheConfig& config, int context) {
  return (config.chooses() ? std::min(config.budget_for(context), context) : context) + kSlack;
}

std::vector<int> DraftCache::target_layers(const CacheConfig& config, int layers) {
  std::vector<int> result;
  if (!config.reads_target()) return result;
  if (config.every_layer()) {
    result.resize(size_t(layers));
    std::iota(result.begin(), result.end(), 0);
  } else if (config.layers.empty()) {
    result = likely_retrieval_layers(layers);
  } else {
    for (int layer : config.layers) {
      const int place = layer < 0 ? layers + layer : layer;
      if (place < 0 || place >= layers)
        fail("draft cache: layer {} does not exist, the target has layers 0 to {}", layer, layers - 1);
      result.push_back(place);
    }
    std::sort(result.begin(), result.end());
    result.erase(std::unique(result.begin(), result.end()), result.end());
  }
  return result;
}

DraftCache::DraftCache(const CacheConfig& config, const DraftCacheParts& parts)
    : config_(config), budgets_(config), parts_(parts), trained_(parts.draft->context), slots_(size_t(parts.slots)) {
  SX_ASSERT(parts.work && (parts.full != nullptr) == two_stores(config, parts.context, parts.draft->context));
  if (!config_.chooses()) config_.budget = parts_.context;
  if (!parts.draft->one_rope()) config_.positions = CachePositions::kOriginal;  // a move rotates all layers alike
  capacity_ = work_cells(config_, parts_.context);
  if (!moving()) return;
  moves_.reserve(size_t(capacity_));
  for (Slot& s : slots_) s.cell.resize(size_t(capacity_) + 1);
  make_choosing();
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
  if (s.noted > (reads_target() ? tokens : cells)) {  // The query belongs to a text that no longer exists.
    if (reads_draft()) cells = std::max(0, cells - most_queries());
    s.noted = s.queries = 0;
  }
  s.ended = tokens;
  // Memory may have been asked for before anything was written (hold).
  if (moving() && cells == 0) forget_cells(*parts_.backend, *parts_.work, seq, 0, 0);
  if (parts_.writes_full && (cells == 0 || cells < s.length))
    forget_cells(*parts_.backend, prompt_store(), seq, cells, s.length);
  if (cells >= s.length) return;
  s.length = cells;
  if (!moving()) {
    s.work = cells;
    return;
  }
  s.stale = true;
  s.work = s.unread = s.drafted = 0;
  if (cells < s.chosen_once) s.chosen_once = 0;
  if (cells == 0) s.rounds = s.refreshes = s.shift = 0;
}

int DraftCache::covered(SeqId seq) const {
  const Slot& s = at(seq);
  return !reads_target() || s.noted >= s.ended ? std::numeric_limits<int>::max() : s.ended - 1;
}

void DraftCache::prepare(SeqId seq, std::span<const Token> text, int rows) {
  Slot& s = at(seq);
  if (!moving()) return;
  SX_ASSERT(rows <= kSlack);
  // More was decoded plainly than can be run at once.
  if (!parts_.writes_full && int(text.size()) - s.length > rows) s.stale = true;
  const bool due = config_.policy->refresh == CacheRefresh::kInterval && s.rounds >= config_.interval;
  const bool no_room = s.work + rows > capacity_;
  const bool compact = config_.positions == CachePositions::kCompact;
  const bool no_positions = compact && s.work - s.shift + rows > trained_ - (kRoom - kSlack);
  if (!s.stale && !no_room && !no_positions && !due) return;
  if (!parts_.writes_full) s.length = int(text.size()) - 1, s.drafted = 0;  // what the target has committed
  refresh(seq);
}

void DraftCache::refresh(SeqId seq) {
  const double start = now_ms();
  Slot& s = at(seq);
  s.borders.resize(s.length);
  if (config_.chooses()) config_.budget = config_.share > 0 ? budgets_.budget_for(s.length) : config_.budget;
  std::optional<EvenPlan> plan;
  if (on_backend_) on_backend_->budget = config_.budget;
  if (on_backend_ && s.noted > 0)
    plan = plan_even_chunks(s.borders.borders(), on_backend_->budget, on_backend_->sink, on_backend_->recent);
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

// Scores, choice and gathering in one op, so that a device does not hand the scores to the host.
void DraftCache::retrieve(SeqId seq, const EvenPlan& plan) {
  Slot& s = at(seq);
  const ModelConfig& d = *parts_.draft;
  SX_ASSERT(plan.count <= capacity_);
  const int before = s.shift;
  s.shift = shift_for(plan.count);
  KvRetrieveArgs args{};
  args.score = score_args(*parts_.target, parts_.target_kv, seq);
  args.score.q = s.query, args.score.layers = layers_;
  args.per_cell = on_backend_->per_cell, args.each_head = config_.each_head();
  args.budget = on_backend_->budget, args.sink = on_backend_->sink, args.recent = on_backend_->recent, args.plan = plan;
  args.from = parts_.full, args.to = parts_.work, args.slot = seq;
  args.compact = config_.positions == CachePositions::kCompact, args.shift = s.shift, args.top = trained_ - 1;
  args.held = s.follows ? s.work : 0, args.since = s.since, args.shift_before = before;
  args.frequencies = parts_.frequencies.data(), args.dims = d.rope.dims, args.style = d.rope.style;
  args.scores = scores_, args.reduced = reduced_, args.order = &scratch_.order, args.moves = &moves_;
  parts_.backend->kv_retrieve(args, *s.retrieved);
  s.work = s.unread = plan.count;
  s.follows = true, s.since = s.length;
}

// Reads the cells that kv_retrieve() chose, only when they are needed.
void DraftCache::read_cells(const Slot& s) {
  if (s.unread == 0) return;
  const auto cells = s.retrieved->cells();
  SX_ASSERT(int(cells.size()) >= s.unread);  // where each head chooses: those of all, head 0 of layer 0 first
  std::copy_n(cells.begin(), s.unread, s.cell.begin());
  s.unread = 0;
}

std::span<const int32_t> DraftCache::cells(SeqId seq) const {
  const Slot& s = at(seq);
  if (s.work > 0) read_cells(s);
  return std::span(s.cell).first(size_t(s.work));
}

// Carries out moves_, keys rotated by their deltas.
void DraftCache::move(SeqId seq, const KvStore& from, KvStore& to, int layer, int head) {
  if (moves_.empty()) return;
  const RopeConfig& rope = parts_.draft->rope;
  parts_.backend->kv_move({.from = &from,
                           .to = &to,
                           .from_slot = seq,
                           .to_slot = seq,
                           .moves = moves_,
                           .frequencies = parts_.frequencies.data(),
                           .dims = rope.dims,
                           .style = rope.style,
                           .layer = layer,
                           .head = head});
}

// Fills the working cache with the chosen cells. Cells that are already at their place and position stay.
void DraftCache::gather(SeqId seq) {
  Slot& s = at(seq);
  const int size = int(s.choice[0].size()), kv_heads = parts_.draft->kv_heads;
  SX_ASSERT(size <= capacity_);
  const int before = s.shift;
  s.shift = shift_for(size);
  if (s.work > 0) read_cells(s);
  for (size_t h = 0; h < s.choice.size(); ++h) {
    moves_.clear();
    for (int i = 0; i < size; ++i) {
      const int cell = s.choice[h][size_t(i)];
      const int position = wanted_position(s.shift, i, cell);
      const bool there = !config_.per_head() && i < s.work && s.cell[size_t(i)] == cell;
      if (there && wanted_position(before, i, cell) == position) continue;
      moves_.push_back({cell, i, position - cell});
    }
    if (config_.per_head()) move(seq, *parts_.full, *parts_.work, int(h) / kv_heads, int(h) % kv_heads);
    else move(seq, *parts_.full, *parts_.work, parts_.layer);
  }
  std::copy(s.choice[0].begin(), s.choice[0].end(), s.cell.begin());
  s.work = size;
  s.unread = 0, s.follows = false;
}

void DraftCache::appended(SeqId seq, int rows) {
  append(seq, rows);
  if (moving() && !parts_.writes_full) at(seq).drafted += rows;
}

void DraftCache::append(SeqId seq, int rows) {
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
  if (parts_.writes_full) move(seq, *parts_.work, *parts_.full, -1);
  s.work += rows;
  s.length += rows;
  ms_ += now_ms() - start;
}

void DraftCache::follow(SeqId seq, std::span<const Token> text) {
  Slot& s = at(seq);
  SX_ASSERT(moving() && !parts_.writes_full);
  s.work -= s.drafted, s.length -= s.drafted, s.drafted = 0;
  prepare(seq, text, std::min(kSlack, int(text.size()) - s.length));
  const int rows = int(text.size()) - 1 - s.length;
  if (rows <= 0) return;
  moves_.clear();
  for (int i = 0; i < rows; ++i) moves_.push_back({s.length + i, s.work + i, position(seq, i) - (s.length + i)});
  move(seq, *parts_.full, *parts_.work, parts_.layer);
  append(seq, rows);
}

}  // namespace sx
