#include "speculative/draft/model.h"

#include <algorithm>

#include "backend/kv_stream.h"
#include "base/error.h"
#include "speculative/draft/draft_step.h"

namespace sx {
namespace {

class ModelDraft final : public DraftModel {
 public:
  ModelDraft(const ModelDrafterOptions& options, OwnedModel owned);

  DraftShape shape() const override;
  DraftCache* cache() const override { return options_.cache; }
  std::string fingerprint() const override;
  bool hold(SeqId seq, int length) override;
  bool read(SeqId seq, std::span<const Token> text) override;
  int behind(SeqId seq, std::span<const Token> text) const override {
    return writes() ? int(text.size()) - options_.cache->length(seq) : 0;
  }
  DraftLogits run_text(std::span<DraftRows> rows) override;
  bool has_room(const DraftTask& task, int uncommitted, int rows) const override {
    return history(task) + uncommitted + rows <= kv().geometry().capacity;
  }
  DraftLogits run_level(std::span<const DraftRows> level) override;
  bool grow(const DraftTask&, TreeGrowthArgs& args) override;
  void accept(const Outcome& outcome, const DraftTail& tail) override;

 private:
  bool writes() const { return options_.cache && options_.cache->writes_full(); }
  KvStore& kv() const { return options_.cache ? options_.cache->store() : *options_.kv; }
  // Cells before the tail while levels are run.
  int history(const DraftTask& task) const {
    return options_.cache ? options_.cache->work(task.seq) : int(task.text.size()) - 1;
  }
  Token known(Token token) const { return std::min(token, Token(options_.model->config().vocab - 1)); }
  LayerPlan plan(int window) const;
  const StepOutputs& forward(KvStore& kv, int window = 0);
  void add_text(DraftRows& rows, int share, int most);
  int place_guesses(const DraftRows& rows, int most);

  OwnedModel owned_;
  ModelDrafterOptions options_;
  int vocab_;     // common to both models
  int rows_;      // of one pass
  int most_new_;  // cells that are run on the working cache at once
  int most_run_;  // nodes on a tail
  DraftStep step_;
  std::vector<KvMove> moves_;
  std::vector<int> places_, depths_;  // of guessed nodes on the tail, -2: not run; levels of those that are run
  std::vector<uint64_t> ahead_bits_;  // [slots][kMaxChain][DraftTail::kWords] ancestors of known and guessed rows
};

ModelDraft::ModelDraft(const ModelDrafterOptions& options, OwnedModel owned)
    : owned_(std::move(owned)),
      options_(options),
      vocab_(std::min(options.vocab, options.model->config().vocab)),
      rows_(options.model->options().max_rows),
      most_new_(options.cache && options.cache->moving() ? std::min(rows_, DraftCache::kSlack / 2) : rows_),
      most_run_(std::min(kMaxTreeNodes, make_tree_policy(options.tree)->capacity() + options.ahead)),
      step_(rows_, options.model->options().max_outputs, options.slots) {
  SX_ASSERT(tree_drafter_rows(options.tree, 1, options.ahead) <= rows_);
  moves_.reserve(kMaxTreeNodes);
  if (options.ahead == 0) return;
  places_.resize(size_t(options.ahead) + 1);
  depths_.resize(size_t(options.ahead));
  ahead_bits_.resize(size_t(options.slots) * kMaxChain * DraftTail::kWords);
  static_assert(kMaxChain <= 64);  // a word of ancestors
}

DraftShape ModelDraft::shape() const {
  return {.vocab = vocab_,
          .stride = options_.model->config().vocab,
          .outputs = options_.model->options().max_outputs,
          .sequences = options_.slots,
          .grows = options_.cache != nullptr};
}

std::string ModelDraft::fingerprint() const {
  if (!owned_.model || !writes()) return {};  // The target's own cells are saved with the target.
  return cells_fingerprint(kv().geometry().type, owned_.model->rope_frequencies(), owned_.model->rope_factor());
}

LayerPlan ModelDraft::plan(int window) const {
  return {options_.skip_attention.empty() ? nullptr : options_.skip_attention.data(),
          options_.skip_ffn.empty() ? nullptr : options_.skip_ffn.data(), window};
}

const StepOutputs& ModelDraft::forward(KvStore& kv, int window) {
  const StepOutputs* out = nullptr;
  timer_.time([&] { out = &options_.model->forward(step_.inputs(), kv, plan(window)); });
  return *out;
}

// Without a cache the nodes of the tail are written to the target's cells, behind the text.
bool ModelDraft::hold(SeqId seq, int length) {
  if (options_.cache) return DraftModel::hold(seq, length);
  return hold_cells(*options_.kv, seq, length, length + most_run_);
}

bool ModelDraft::read(SeqId seq, std::span<const Token> text) {
  const int left = behind(seq, text);
  if (left <= 0) return true;
  DraftCache& cache = *options_.cache;
  const int from = cache.length(seq), rows = std::min(left, rows_), last = from + rows - 1;
  step_.clear();
  step_.add({0, rows, seq, from});
  for (int i = 0; i < rows; ++i) step_.set(i, known(text[size_t(from + i)]), from + i);
  const StepOutputs& out = forward(cache.prompt_store(), cache.prompt_window());
  if (cache.reads_draft()) cache.note_own(seq, out.query, 0, rows, last, last);
  cache.prompted(seq, rows);
  return rows == left;
}

// Brings each cache up to the pending token.
DraftLogits ModelDraft::run_text(std::span<DraftRows> rows) {
  DraftCache* cache = options_.cache;
  const int most = rows_ / int(rows.size()), share = std::min(most, most_new_);
  for (const DraftRows& r : rows)  // what does not fit in one pass is run before it
    while (behind(r.task->seq, r.task->text) > share)
      read(r.task->seq,
           r.task->text.first(std::min(r.task->text.size() - 1, size_t(cache->length(r.task->seq) + rows_))));
  step_.clear();
  for (DraftRows& r : rows) add_text(r, share, most);
  const StepOutputs& out = forward(kv());
  for (size_t i = 0; cache && i < rows.size(); ++i) {
    const SeqId seq = rows[i].task->seq;
    const int known = int(rows[i].task->text.size()) - cache->length(seq), last = step_.first_row(i) + known - 1;
    cache->appended(seq, known);
    if (cache->reads_draft()) cache->note_own(seq, out.query, last, 1, step_.position(last), cache->length(seq) - 1);
  }
  return {out.logits, step_.outputs()};
}

// Adds the tokens of the text that have no cells, and the guesses behind them.
void ModelDraft::add_text(DraftRows& r, int share, int most) {
  const DraftTask& task = *r.task;
  DraftCache* cache = options_.cache;
  const int length = int(task.text.size());
  if (writes()) cache->prepare(task.seq, task.text, std::min(share, length - cache->length(task.seq)));
  else if (cache) cache->follow(task.seq, task.text);
  else r.root = r.tail->add(*task.tree, 0);
  const int from = cache ? cache->length(task.seq) : length - 1, known = length - from,
            own = r.tail->size();  // own: node 0, if it is there
  SX_ASSERT(known > 0 && known <= share);
  SeqRows rows{0, known, task.seq, history(task)};
  const int room = std::min({most - known, kMaxChain - known, kv().geometry().capacity - rows.history - known});
  const int guessed = r.guesses && known < kMaxChain ? place_guesses(r, room) : 0;
  rows.rows += guessed;
  if (guessed > 0) {  // a tree: the known tokens are a chain, from whose end the guesses hang
    constexpr size_t kWords = DraftTail::kWords;
    uint64_t* const bits = ahead_bits_.data() + size_t(task.seq) * kMaxChain * kWords;
    std::fill_n(bits, size_t(rows.rows) * kWords, 0);
    for (int i = 0; i < known; ++i) bits[size_t(i) * kWords] = (uint64_t{2} << i) - 1;
    const uint64_t all = (uint64_t{1} << known) - 1;
    for (int i = 0; i < guessed; ++i)
      bits[size_t(known + i) * kWords] = all | *r.tail->ancestors(own + i) << (known - own);
    rows.ancestors = bits, rows.words = DraftTail::kWords;
  }
  const auto position = [&](int i) { return cache ? cache->position(task.seq, i) : from + i; };
  const int first = step_.add(rows);
  for (int i = 0; i < known; ++i) step_.set(first + i, this->known(task.text[size_t(from + i)]), position(i));
  for (int i = 0; i < guessed; ++i) {
    const int place = own + i, parent = r.tail->parent(place);
    depths_[size_t(i)] = parent < own ? 1 : depths_[size_t(parent - own)] + 1;
    step_.set(first + known + i, r.tail->token(place), position(known + depths_[size_t(i)] - 1));
  }
  r.output = step_.outputs();
  for (int i = known - 1; i < rows.rows; ++i) step_.want(first + i);
}

// Puts at most `most` guessed nodes on the tail. Returns how many.
int ModelDraft::place_guesses(const DraftRows& r, int most) {
  const int before = r.tail->size();
  places_[0] = before - 1;  // node 0: -1 where it lies in the history
  for (NodeId n = 1; n < r.guesses->size(); ++n) {
    const int parent = places_[size_t(r.guesses->parent(n))];
    const bool runs = parent >= before - 1 && r.guesses->token(n) < vocab_ && r.tail->size() - before < most;
    places_[size_t(n)] = runs ? r.tail->add_ahead(r.guesses->token(n), parent) : -2;
  }
  return r.tail->size() - before;
}

DraftLogits ModelDraft::run_level(std::span<const DraftRows> level) {
  const DraftCache* cache = options_.cache;
  step_.clear();
  for (const DraftRows& r : level)
    step_.add_level(r, history(*r.task), [&](int depth) {
      return cache ? cache->position(r.task->seq, depth - 1) : int(r.task->text.size()) - 1 + depth;
    });
  return {forward(kv()).logits, step_.outputs()};
}

bool ModelDraft::grow(const DraftTask&, TreeGrowthArgs& args) {
  args.vocab = vocab_;
  return options_.model->levels(args, kv(), plan(0));
}

// Accepted nodes that were run keep their cells; only the others are computed again.
void ModelDraft::accept(const Outcome& o, const DraftTail& tail) {
  DraftCache* cache = options_.cache;
  if (!writes() || tail.size() == 0) return;  // The target has written better cells of its own.
  moves_.clear();
  const int history = cache->work(o.seq);
  int parent = -1, kept = 0;
  for (size_t i = 1; i < o.path.size() && kept < cache->room(o.seq); ++i) {
    const int found = tail.child(parent, o.tree->token(o.path[i]));
    if (found < 0) break;
    if (found != kept) moves_.push_back({history + found, history + kept, 0});
    parent = found;
    ++kept;
  }
  if (!moves_.empty()) options_.backend->kv_move({&cache->store(), &cache->store(), o.seq, o.seq, moves_});
  if (kept > 0) cache->appended(o.seq, kept);
}

}  // namespace

std::unique_ptr<Drafter> make_model_drafter(const ModelDrafterOptions& options, std::unique_ptr<Drafter> inner,
                                            OwnedModel owned) {
  return std::make_unique<TreeDrafter>(options, std::make_unique<ModelDraft>(options, std::move(owned)),
                                       std::move(inner));
}

}  // namespace sx
