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
  void accept_all(std::span<const AcceptedTree> trees) override;

 private:
  struct Slot {
    int waiting = 0;  // states after the pairs in the cache; their features are in features_
    int root = -1;    // the pair of the root: its states are in row `seq` of given_ while it is the last one
    // Of the present draft: the rows of given_ that have what the head gave for the root and for the nodes of the tail.
    int32_t root_row = 0;
    std::vector<int32_t> node_rows;
  };
  // The tokens of a text whose states waited and are run in this pass.
  struct TextRows {
    SeqId seq = 0;
    int first = 0, count = 0;  // rows of the pass
  };
  int width() const { return options_.head->state_width(); }
  int pairs(SeqId seq) const { return options_.cache->length(seq); }
  float* row(float* rows, int i) const { return rows + size_t(i) * size_t(width()); }
  int32_t features_at(SeqId seq, int i) const { return int32_t(seq) * kEagleWaiting + i; }
  float* features(SeqId seq, int i) const {
    return features_ + size_t(features_at(seq, i)) * options_.head->feature_width();
  }
  // Waiting states whose tokens `text` has.
  int runnable(SeqId seq, std::span<const Token> text) const {
    return std::min(slots_[size_t(seq)].waiting, int(text.size()) - 1 - pairs(seq));
  }
  int given_rows() const;
  void flush(SeqId seq, std::span<const Token> text, int masks = 0);
  void begin_texts();
  void add_text(SeqId seq, std::span<const Token> text, int rows);
  void run_texts(int masks);
  void add_masks(SeqId seq, int rows, int masks);
  int masks() const { return options_.levels > 0 ? options_.levels - 1 : 0; }
  void forward(KvStore& kv, int window = 0, bool cells_only = false, int depth = 0);
  void follow(SeqId seq);
  void keep_root(SeqId seq, int row, int pair);
  void keep_roots();
  void keep_states(int at, int rows);
  void add_parents(const DraftRows& level);
  DraftLogits run_nodes(const DraftRows& level);
  void keep_noted(const StepOutputs& outputs);

  OwnedEagle owned_;
  EagleDrafterOptions options_;
  std::vector<Slot> slots_;
  DraftStep step_;
  std::vector<TextRows> texts_;        // of a pass over texts
  std::vector<int32_t> which_, into_;  // rows to be copied, and where to
  // [slots, kEagleWaiting, feature_width()] of waiting states, which become states when they are run.
  float* features_ = nullptr;
  float* states_ = nullptr;  // [rows, width] of the pass
  // [given_rows(), width]: what the head gave for the root of each slot, then for the roots and nodes of the present
  // draft, all sequences together, in the order in which they were run.
  float* given_ = nullptr;
  int given_used_ = 0;
  const Token* map_ = nullptr;  // the head's own tokens as the target's, where the backend grows trees; backend memory
  EagleOutputs result_;         // of the last pass
  float* level_logits_ = nullptr;  // several MTP blocks: of a level whose nodes are of several depths
  int level_rows_ = 0;  // of the last pass, where that ran a level; their states are kept before the next one
};

EagleDraft::EagleDraft(const EagleDrafterOptions& options, OwnedEagle owned)
    : owned_(std::move(owned)),
      options_(options),
      slots_(size_t(options.slots)),
      step_(options.head->options().max_rows, options.head->options().max_outputs, options.slots) {
  Backend& backend = *options.backend;
  const size_t rows = size_t(options.head->options().max_rows), width = size_t(this->width());
  which_.reserve(std::max(rows, size_t(kMaxTreeNodes)));
  into_.reserve(which_.capacity());
  texts_.reserve(slots_.size());
  states_ = backend.allocate(rows * width, "states of the draft head");
  features_ =
      backend.allocate(slots_.size() * kEagleWaiting * options.head->feature_width(), "states of the draft head");
  given_ = backend.allocate(size_t(given_rows()) * width, "states of the draft head");
  for (Slot& s : slots_) s.node_rows.resize(kMaxTreeNodes);
  if (options.head->blocks() > 1)
    level_logits_ = backend.allocate(
        size_t(backend.output_capacity(options.head->options().max_outputs)) * size_t(shape().vocab), "logits");
  if (const auto map = options.head->token_map(); backend.level_rows() > 0 && !map.empty()) {
    float* placed = backend.allocate(map.size(), "tokens of the draft head");  // whatever they are, they are 4 bytes
    static_assert(sizeof(Token) == sizeof(float));
    backend.upload(placed, reinterpret_cast<const float*>(map.data()), map.size());
    map_ = reinterpret_cast<const Token*>(placed);
  }
}

int EagleDraft::given_rows() const {
  const int slots = int(slots_.size()), nodes = std::min(kMaxTreeNodes, make_tree_policy(options_.tree)->capacity());
  return slots + slots * (1 + nodes);
}

// Several MTP blocks and P-EAGLE's masks take one sequence at a time.
DraftShape EagleDraft::shape() const {
  const int vocab = options_.head->config().draft_vocab;
  const bool shared = options_.head->blocks() == 1 && options_.levels == 0;
  return {.vocab = vocab,
          .stride = vocab,
          .map = options_.head->token_map(),
          .outputs = options_.head->options().max_outputs,
          .sequences = shared ? options_.slots : 1,
          .parallel_levels = options_.levels,
          .grows = shared};
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
  options_.head->follow(known ? row(given_, seq) : nullptr);
}

// What the head gave for the last pair of the text, which is in `row` of the pass.
void EagleDraft::keep_root(SeqId seq, int row, int pair) {
  Slot& s = slots_[size_t(seq)];
  const int w = width();
  options_.backend->copy_rows({this->row(given_, seq), result_.states + size_t(row) * size_t(w), 1, w, w, w});
  s.root = pair, s.root_row = int32_t(seq);
}

// The same for all texts of the pass, for this draft alone.
void EagleDraft::keep_roots() {
  const int w = width();
  which_.clear();
  for (const TextRows& t : texts_) {
    slots_[size_t(t.seq)].root_row = given_used_ + int32_t(which_.size());
    which_.push_back(t.first + t.count - 1);
  }
  options_.backend->copy_rows({row(given_, given_used_), result_.states, int(which_.size()), w, w, w, which_.data()});
  given_used_ += int(which_.size());
}

// What the head gave for the nodes of a level, the first rows of the pass.
void EagleDraft::keep_states(int at, int rows) {
  const int w = width();
  options_.backend->copy_rows({.to = row(given_, at),
                               .from = result_.states,
                               .rows = rows,
                               .width = w,
                               .to_stride = w,
                               .from_stride = w,
                               .launched = true});
}

// P-EAGLE: rows of masks behind the last pair stand for tokens that are not known yet. Their cells are not kept.
void EagleDraft::add_masks(SeqId seq, int rows, int masks) {
  const int w = width();
  step_.extend(masks);
  for (int i = 0; i < masks; ++i) {
    step_.set(rows + i, Token(options_.head->config().mask_token), options_.cache->position(seq, rows + i));
    step_.want(rows + i);
  }
  which_.assign(size_t(masks), 0);
  if (masks > 0)
    options_.backend->copy_rows({row(states_, rows), options_.head->mask_state(), masks, w, w, w, which_.data()});
}

void EagleDraft::begin_texts() {
  step_.clear();
  texts_.clear();
}

// Adds the first `rows` of the waiting states of a text to the pass.
void EagleDraft::add_text(SeqId seq, std::span<const Token> text, int rows) {
  DraftCache& cache = *options_.cache;
  cache.prepare(seq, text, rows);
  const int first = step_.add({0, rows, seq, cache.work(seq)});
  for (int i = 0; i < rows; ++i) step_.set(first + i, text[size_t(pairs(seq) + i + 1)], cache.position(seq, i));
  step_.want(first + rows - 1);
  texts_.push_back({seq, first, rows});
}

// Runs what was added; what is left of the waiting states goes on waiting.
void EagleDraft::run_texts(int masks) {
  DraftCache& cache = *options_.cache;
  timer_.time([&] {
    which_.clear();
    for (const TextRows& t : texts_)
      for (int i = 0; i < t.count; ++i) which_.push_back(features_at(t.seq, i));
    options_.head->fuse(features_, which_, states_);
  });
  if (masks > 0) add_masks(texts_[0].seq, texts_[0].count, masks);
  if (texts_.size() == 1) follow(texts_[0].seq);
  forward(cache.store());
  const size_t width = options_.head->feature_width();
  for (const TextRows& t : texts_) {
    Slot& s = slots_[size_t(t.seq)];
    const int last = t.first + t.count - 1;
    cache.appended(t.seq, t.count);
    if (cache.reads_draft()) cache.note_own(t.seq, result_.query, last, 1, step_.position(last), pairs(t.seq) - 1);
    s.waiting -= t.count;
    for (int i = 0; i < s.waiting; ++i)  // those left over move to the front
      options_.backend->copy_rows(
          {features(t.seq, i), features(t.seq, t.count + i), 1, int(width), int(width), int(width)});
  }
  given_used_ = int(slots_.size());
  if (texts_.size() == 1) keep_root(texts_[0].seq, texts_[0].count - 1, pairs(texts_[0].seq) - 1);
  else keep_roots();
}

// Runs the waiting states whose tokens `text` has.
void EagleDraft::flush(SeqId seq, std::span<const Token> text, int masks) {
  const int rows = runnable(seq, text);
  if (rows <= 0) return;
  begin_texts();
  add_text(seq, text, rows);
  run_texts(masks);
}

void EagleDraft::read_prompt(const PromptChunk& chunk) {
  Slot& s = slots_[size_t(chunk.seq)];
  DraftCache& cache = *options_.cache;
  const int known = pairs(chunk.seq), rows = s.waiting + chunk.rows - 1,
            last = known + rows - 1;  // the last state waits for its token
  step_.clear();
  step_.add({0, rows, chunk.seq, known});
  if (s.waiting > 0) options_.head->fuse(features(chunk.seq, 0), s.waiting, states_);
  which_.resize(size_t(chunk.rows));
  std::iota(which_.begin(), which_.end(), chunk.first_row);
  if (chunk.rows > 1)
    options_.head->fuse(chunk.outputs->hidden, std::span(which_).first(which_.size() - 1),
                        states_ + size_t(s.waiting) * size_t(options_.head->config().cell.width));
  for (int i = 0; i < rows; ++i) step_.set(i, chunk.text[size_t(known + i + 1)], known + i);
  options_.head->take(chunk.outputs->hidden, std::span(which_).last(1), features(chunk.seq, 0));
  if (rows > 0) {
    follow(chunk.seq);
    forward(cache.prompt_store(), cache.prompt_window(), true);
    if (options_.head->blocks() > 1) keep_root(chunk.seq, rows - 1, last);
    if (cache.reads_draft()) cache.note_own(chunk.seq, result_.query, 0, rows, last, last);
    cache.prompted(chunk.seq, rows);
  }
  s.waiting = 1;
}

// All texts share a pass. A text of which more waits than its share of the pass runs that first.
DraftLogits EagleDraft::run_text(std::span<DraftRows> rows) {
  const int share = options_.head->options().max_rows / int(rows.size());
  for (const DraftRows& r : rows)
    if (const int most = runnable(r.task->seq, r.task->text); most > share)
      flush(r.task->seq, r.task->text.first(size_t(pairs(r.task->seq) + 1 + most - share)));
  begin_texts();
  for (DraftRows& r : rows) {
    r.output = step_.outputs();
    add_text(r.task->seq, r.task->text, runnable(r.task->seq, r.task->text));
  }
  run_texts(masks());
  level_rows_ = 0;
  return {result_.logits, step_.outputs()};
}

// Appends the rows of given_ that have what the head gave for the parents of these nodes.
void EagleDraft::add_parents(const DraftRows& level) {
  const Slot& s = slots_[size_t(level.task->seq)];
  for (int i = 0; i < int(level.nodes.size()); ++i) {
    const int parent = level.tail->parent(level.first + i);
    which_.push_back(parent < 0 ? s.root_row : s.node_rows[size_t(parent)]);
  }
}

// Each node is fed the state that the head gave for its parent.
DraftLogits EagleDraft::run_level(std::span<const DraftRows> level) {
  DraftCache& cache = *options_.cache;
  if (options_.head->blocks() > 1) return run_nodes(level[0]);
  const int w = width();
  if (level_rows_ > 0) keep_states(given_used_ - level_rows_, level_rows_);
  step_.clear();
  which_.clear();
  for (const DraftRows& r : level) {
    step_.add_level(r, cache.work(r.task->seq), [&](int depth) { return cache.position(r.task->seq, depth - 1); });
    add_parents(r);
    Slot& s = slots_[size_t(r.task->seq)];
    for (int i = 0; i < int(r.nodes.size()); ++i) s.node_rows[size_t(r.first + i)] = given_used_++;
  }
  level_rows_ = step_.outputs();
  options_.backend->copy_rows({states_, given_, level_rows_, w, w, w, which_.data()});
  forward(cache.store());
  return {result_.logits, level_rows_};
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
    which_.clear();
    add_parents(part);
    options_.backend->copy_rows({states_, given_, rows, w, w, w, which_.data()});
    forward(cache.store(), 0, false, tree.depth(part.nodes[0]));
    keep_states(given_used_, rows);
    for (int i = 0; i < rows; ++i) s.node_rows[size_t(part.first + i)] = given_used_++;
    options_.backend->copy_rows(
        {level_logits_ + size_t(done) * size_t(vocab), result_.logits, rows, vocab, vocab, vocab});
  }
  return {level_logits_, count};
}

bool EagleDraft::grow(const DraftTask& task, TreeGrowthArgs& args) {
  const int w = width();
  args.map = map_;
  args.states = states_;
  // The first level hangs below the root.
  which_.assign(size_t(args.rules.rows), slots_[size_t(task.seq)].root_row);
  options_.backend->copy_rows({states_, given_, args.rules.rows, w, w, w, which_.data()});
  return options_.head->levels(args, options_.cache->store());
}

// The pass gave the states of the committed nodes. Cells of drafted nodes are not kept: the head was fed its own
// states.
void EagleDraft::accept_all(std::span<const AcceptedTree> trees) {
  which_.clear(), into_.clear();
  for (const AcceptedTree& t : trees) {
    const Outcome& o = *t.outcome;
    Slot& s = slots_[size_t(o.seq)];
    for (const NodeId node : o.path) {
      if (s.waiting == kEagleWaiting) {
        keep_noted(*o.outputs);
        flush(o.seq, o.text);
        which_.clear(), into_.clear();
      }
      SX_ASSERT(s.waiting < kEagleWaiting);
      which_.push_back(o.first_row + node);
      into_.push_back(features_at(o.seq, s.waiting++));
    }
  }
  keep_noted(*trees.back().outcome->outputs);
}

// Copies the states of the rows that were noted, of all sequences at once.
void EagleDraft::keep_noted(const StepOutputs& outputs) {
  if (!which_.empty()) options_.head->take(outputs.hidden, which_, features_, into_);
}

std::unique_ptr<Drafter> make_eagle(const DraftContext& context) {
  EagleOptions options;
  const bool parallel = context.source.head->config().mask_token >= 0;
  const int levels = parallel ? std::min(context.tree.depth, kMostParallel) : 0;
  options.max_outputs = std::max(tree_drafter_rows(context.tree, parallel ? 1 : context.slots), levels);
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
