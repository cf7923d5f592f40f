#include "speculative/draft/eagle.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "speculative/draft/draft_step.h"
#include "speculative/draft/registry.h"

namespace sx {
namespace {

constexpr int kMostParallel = 16;  // levels of a P-EAGLE head; published ones were trained for fewer

class EagleDraft final : public DraftModel {
 public:
  EagleDraft(const EagleDrafterOptions& options, OwnedEagle owned);

  DraftShape shape() const override;
  DraftCache* cache() const override { return options_.cache; }
  std::string fingerprint() const override {
    return cells_fingerprint(options_.cache->store().geometry().type, options_.head->rope_frequencies(), 1);
  }
  int cells(int tokens) const override { return std::max(0, tokens - 1); }
  void truncate(SeqId seq, int length) override;
  bool reads_states() const override { return true; }
  bool follows(SeqId seq, int tokens) const override { return covered(seq) == tokens; }
  // States that wait are neither copied nor saved: the target runs the last tokens again.
  int covered(SeqId seq) const override { return pairs(seq) + slots_[size_t(seq)].waiting; }
  void read_prompt(const PromptChunk& chunk) override;
  bool ready(const DraftTask& task) const override {
    return slots_[size_t(task.seq)].waiting > 0 && follows(task.seq, int(task.text.size()) - 1);
  }
  DraftLogits run_text(std::span<DraftRows> rows) override;
  DraftLogits run_level(std::span<const DraftRows> level) override;
  bool grow(const DraftTask& task, TreeGrowthArgs& args) override;
  void accept(const Outcome& outcome, const DraftTail&) override;

 private:
  struct Slot {
    int waiting = 0;            // states after the pairs in the cache
    float* features = nullptr;  // [kEagleWaiting, feature_width()] of these: they become states when they are run
    float* tail_states =
        nullptr;    // [kMaxTreeNodes + 1, width] what the head gave for each node of the tail, and last for the root
    int root = -1;  // the pair of the root: its states are there while it is the last one
  };
  int width() const { return options_.head->state_width(); }
  int pairs(SeqId seq) const { return options_.cache->length(seq); }
  float* row(float* rows, int i) const { return rows + size_t(i) * size_t(width()); }
  void flush(SeqId seq, std::span<const Token> text, int masks = 0);
  void add_masks(SeqId seq, int rows, int masks);
  int masks() const { return options_.levels > 0 ? options_.levels - 1 : 0; }
  void forward(KvStore& kv, int window = 0, bool cells_only = false, int depth = 0);
  void follow(SeqId seq);
  void keep_root(Slot& s, int row, int pair);
  DraftLogits run_nodes(const DraftRows& level);

  OwnedEagle owned_;
  EagleDrafterOptions options_;
  std::vector<Slot> slots_;
  DraftStep step_;
  std::vector<int32_t> which_;  // rows to be copied
  float* states_ = nullptr;     // [rows, width] of the pass
  const Token* map_ = nullptr;  // the head's own tokens as the target's, where the backend grows trees; backend memory
  EagleOutputs result_;         // of the last pass
  float* level_logits_ = nullptr;  // several MTP blocks: of a level whose nodes are of several depths
  int level_first_ = 0,
      level_rows_ = 0;  // its rows on the tail, where it ran a level; their states are kept before the next one
};

EagleDraft::EagleDraft(const EagleDrafterOptions& options, OwnedEagle owned)
    : owned_(std::move(owned)),
      options_(options),
      slots_(size_t(options.slots)),
      step_(options.head->options().max_rows, options.head->options().max_outputs, 1) {
  Backend& backend = *options.backend;
  const size_t rows = size_t(options.head->options().max_rows), width = size_t(this->width());
  which_.reserve(std::max(rows, size_t(kMaxTreeNodes)));
  states_ = backend.allocate(rows * width, "states of the draft head");
  for (Slot& s : slots_) {
    s.features = backend.allocate(kEagleWaiting * options.head->feature_width(), "states of the draft head");
    s.tail_states = backend.allocate(size_t(kMaxTreeNodes + 1) * width, "states of the draft head");
  }
  if (options.head->blocks() > 1)
    level_logits_ = backend.allocate(size_t(options.head->options().max_outputs) * size_t(shape().vocab), "logits");
  if (const auto map = options.head->token_map(); backend.level_rows() > 0 && !map.empty()) {
    float* placed = backend.allocate(map.size(), "tokens of the draft head");  // whatever they are, they are 4 bytes
    static_assert(sizeof(Token) == sizeof(float));
    backend.upload(placed, reinterpret_cast<const float*>(map.data()), map.size());
    map_ = reinterpret_cast<const Token*>(placed);
  }
}

DraftShape EagleDraft::shape() const {
  const int vocab = options_.head->config().draft_vocab;
  return {.vocab = vocab,
          .stride = vocab,
          .map = options_.head->token_map(),
          .outputs = options_.head->options().max_outputs,
          .parallel_levels = options_.levels,
          .grows = options_.head->blocks() == 1 && options_.levels == 0};
}

// Pair j holds token j + 1, so the pair of the last kept token's state goes; its state is gone too unless it waits.
void EagleDraft::truncate(SeqId seq, int length) {
  Slot& s = slots_[size_t(seq)];
  const int known = pairs(seq), seen = std::min(known + s.waiting, length), kept = std::min(known, cells(length));
  options_.cache->truncate(seq, kept, length);
  if (pairs(seq) < known) s.root = -1;
  s.waiting = pairs(seq) < known ? 0 : std::max(0, std::min(seen, options_.cache->covered(seq)) - kept);
}

void EagleDraft::forward(KvStore& kv, int window, bool cells_only, int depth) {
  timer_.time([&] {
    EagleStep step{step_.inputs(), states_};
    step.window = window, step.cells_only = cells_only, step.depth = depth;
    result_ = options_.head->forward(step, kv);
  });
}

// Several MTP blocks read what they gave for the pair before. It is not kept where a text was cut: the first pair
// behind the cut is drafted from without it.
void EagleDraft::follow(SeqId seq) {
  const Slot& s = slots_[size_t(seq)];
  const bool known = s.root >= 0 && s.root == pairs(seq) - 1;
  options_.head->follow(known ? row(s.tail_states, kMaxTreeNodes) : nullptr);
}

// What the head gave for the last pair of the text, which is in `row` of the pass.
void EagleDraft::keep_root(Slot& s, int row, int pair) {
  const int w = width();
  options_.backend->copy_rows(
      {this->row(s.tail_states, kMaxTreeNodes), result_.states + size_t(row) * size_t(w), 1, w, w, w});
  s.root = pair;
}

// P-EAGLE: rows of masks behind the last pair stand for tokens that are not known yet. Their cells are not kept.
void EagleDraft::add_masks(SeqId seq, int rows, int masks) {
  const int w = width();
  for (int i = 0; i < masks; ++i) {
    step_.set(rows + i, Token(options_.head->config().mask_token), options_.cache->position(seq, rows + i));
    step_.want(rows + i);
  }
  which_.assign(size_t(masks), 0);
  if (masks > 0)
    options_.backend->copy_rows({row(states_, rows), options_.head->mask_state(), masks, w, w, w, which_.data()});
}

// Runs the waiting states whose tokens `text` has; the others go on waiting.
void EagleDraft::flush(SeqId seq, std::span<const Token> text, int masks) {
  Slot& s = slots_[size_t(seq)];
  DraftCache& cache = *options_.cache;
  const int rows = std::min(s.waiting, int(text.size()) - 1 - pairs(seq)), last = rows - 1;
  if (rows <= 0) return;
  cache.prepare(seq, text, rows);
  step_.clear();
  step_.add({0, rows + masks, seq, cache.work(seq)});
  timer_.time([&] { options_.head->fuse(s.features, rows, states_); });
  for (int i = 0; i < rows; ++i) step_.set(i, text[size_t(pairs(seq) + i + 1)], cache.position(seq, i));
  step_.want(last);
  add_masks(seq, rows, masks);
  follow(seq);
  forward(cache.store());
  cache.appended(seq, rows);
  if (cache.reads_draft()) cache.note_own(seq, result_.query, last, 1, step_.position(last), pairs(seq) - 1);
  const int features = int(options_.head->feature_width());
  keep_root(s, last, pairs(seq) - 1);
  s.waiting -= rows;
  for (int i = 0; i < s.waiting; ++i)  // those left over move to the front
    options_.backend->copy_rows({s.features + size_t(i) * size_t(features),
                                 s.features + size_t(rows + i) * size_t(features), 1, features, features, features});
}

void EagleDraft::read_prompt(const PromptChunk& chunk) {
  Slot& s = slots_[size_t(chunk.seq)];
  DraftCache& cache = *options_.cache;
  const int known = pairs(chunk.seq), rows = s.waiting + chunk.rows - 1,
            last = known + rows - 1;  // the last state waits for its token
  step_.clear();
  step_.add({0, rows, chunk.seq, known});
  if (s.waiting > 0) options_.head->fuse(s.features, s.waiting, states_);
  which_.resize(size_t(chunk.rows));
  std::iota(which_.begin(), which_.end(), chunk.first_row);
  if (chunk.rows > 1)
    options_.head->fuse(chunk.outputs->hidden, std::span(which_).first(which_.size() - 1),
                        states_ + size_t(s.waiting) * size_t(options_.head->config().cell.width));
  for (int i = 0; i < rows; ++i) step_.set(i, chunk.text[size_t(known + i + 1)], known + i);
  options_.head->take(chunk.outputs->hidden, std::span(which_).last(1), s.features);
  if (rows > 0) {
    follow(chunk.seq);
    forward(cache.prompt_store(), cache.prompt_window(), true);
    if (options_.head->blocks() > 1) keep_root(s, rows - 1, last);
    if (cache.reads_draft()) cache.note_own(chunk.seq, result_.query, 0, rows, last, last);
    cache.prompted(chunk.seq, rows);
  }
  s.waiting = 1;
}

DraftLogits EagleDraft::run_text(std::span<DraftRows> rows) {
  flush(rows[0].task->seq, rows[0].task->text, masks());
  level_rows_ = 0;
  return {result_.logits, 1 + masks()};
}

// Each node is fed the state that the head gave for its parent.
DraftLogits EagleDraft::run_level(std::span<const DraftRows> level) {
  const DraftRows& r = level[0];
  Slot& s = slots_[size_t(r.task->seq)];
  DraftCache& cache = *options_.cache;
  if (options_.head->blocks() > 1) return run_nodes(r);
  const int rows = int(r.nodes.size()), w = width();
  if (level_rows_ > 0)
    options_.backend->copy_rows({row(s.tail_states, level_first_), result_.states, level_rows_, w, w, w});
  level_first_ = r.first, level_rows_ = rows;
  step_.clear();
  step_.add_level(r, cache.work(r.task->seq), [&](int depth) { return cache.position(r.task->seq, depth - 1); });
  which_.resize(size_t(rows));
  for (int i = 0; i < rows; ++i) {
    const int parent = r.tail->parent(r.first + i);
    which_[size_t(i)] = parent < 0 ? kMaxTreeNodes : parent;
  }
  options_.backend->copy_rows({states_, s.tail_states, rows, w, w, w, which_.data()});
  forward(cache.store());
  return {result_.logits, rows};
}

// Several MTP blocks: nodes of one depth go through the same blocks. A level of several depths is run node by node.
DraftLogits EagleDraft::run_nodes(const DraftRows& level) {
  Slot& s = slots_[size_t(level.task->seq)];
  DraftCache& cache = *options_.cache;
  const TokenTree& tree = *level.task->tree;
  const int w = width(), vocab = shape().vocab, count = int(level.nodes.size());
  const bool one = std::all_of(level.nodes.begin(), level.nodes.end(),
                               [&](NodeId node) { return tree.depth(node) == tree.depth(level.nodes[0]); });
  for (int done = 0, rows = one ? count : 1; done < count; done += rows) {
    DraftRows part = level;
    part.nodes = level.nodes.subspan(size_t(done), size_t(rows)), part.first = level.first + done;
    step_.clear();
    step_.add_level(part, cache.work(level.task->seq),
                    [&](int depth) { return cache.position(level.task->seq, depth - 1); });
    which_.resize(size_t(rows));
    for (int i = 0; i < rows; ++i) {
      const int parent = level.tail->parent(part.first + i);
      which_[size_t(i)] = parent < 0 ? kMaxTreeNodes : parent;
    }
    options_.backend->copy_rows({states_, s.tail_states, rows, w, w, w, which_.data()});
    forward(cache.store(), 0, false, tree.depth(part.nodes[0]));
    options_.backend->copy_rows({row(s.tail_states, part.first), result_.states, rows, w, w, w});
    options_.backend->copy_rows(
        {level_logits_ + size_t(done) * size_t(vocab), result_.logits, rows, vocab, vocab, vocab});
  }
  return {level_logits_, count};
}

bool EagleDraft::grow(const DraftTask& task, TreeGrowthArgs& args) {
  const int w = width();
  args.map = map_;
  args.states = states_;
  which_.assign(size_t(args.rules.rows), kMaxTreeNodes);  // the first level hangs below the root
  options_.backend->copy_rows({states_, slots_[size_t(task.seq)].tail_states, args.rules.rows, w, w, w, which_.data()});
  return options_.head->levels(args, options_.cache->store());
}

// The pass gave the states of the committed nodes. Cells of drafted nodes are not kept: the head was fed its own
// states.
void EagleDraft::accept(const Outcome& o, const DraftTail&) {
  Slot& s = slots_[size_t(o.seq)];
  for (size_t first = 0; first < o.path.size();) {
    if (s.waiting == kEagleWaiting) flush(o.seq, o.text);
    SX_ASSERT(s.waiting < kEagleWaiting);
    const size_t end = std::min(o.path.size(), first + size_t(kEagleWaiting - s.waiting));
    which_.clear();
    for (; first < end; ++first) which_.push_back(o.first_row + o.path[first]);
    options_.head->take(o.outputs->hidden, which_, s.features + size_t(s.waiting) * options_.head->feature_width());
    s.waiting += int(which_.size());
  }
}

std::unique_ptr<Drafter> make_eagle(const DraftContext& context) {
  EagleOptions options;
  const bool parallel = context.source.head->config().mask_token >= 0;
  const int levels = parallel ? std::min(context.tree.depth, kMostParallel) : 0;
  options.max_outputs = std::max(tree_drafter_rows(context.tree, 1), levels);
  options.max_rows = std::max(context.chunk, options.max_outputs) + kEagleWaiting;
  options.context = context.context + kMaxTreeNodes;
  options.queries = context.cache.reads_draft();
  OwnedEagle owned;
  owned.head = EagleHead::load(context.source.head, *context.target, *context.backend, options);
  owned.stores = make_draft_stores(context, owned.head->kv_geometry(context.slots, 0, draft_kv_type(context)),
                                   owned.head->config().cell, owned.head->rope_frequencies());
  EagleDrafterOptions drafter;
  static_cast<TreeDrafterOptions&>(drafter) = tree_options(context);
  drafter.levels = levels;
  drafter.head = owned.head.get(), drafter.cache = owned.stores.cache.get();
  return make_eagle_drafter(drafter, std::move(owned));
}

bool claims_eagle(const DraftSource& source) {
  using Kind = HeadConfig::Kind;
  return source.kind == DrafterKind::kModel && source.head &&
         (source.head->config().kind == Kind::kEagle1 || source.head->config().kind == Kind::kEagle3);
}

bool claims_mtp(const DraftSource& source) { return source.kind == DrafterKind::kMtp && source.head; }

}  // namespace

std::unique_ptr<Drafter> make_eagle_drafter(const EagleDrafterOptions& options, OwnedEagle owned) {
  return std::make_unique<TreeDrafter>(options, std::make_unique<EagleDraft>(options, std::move(owned)));
}

const DrafterEntry kEagleDrafter{.name = "eagle", .claims = claims_eagle, .make = make_eagle};
const DrafterEntry kMtpDrafter{.name = "mtp", .claims = claims_mtp, .make = make_eagle};

}  // namespace sx
