// The KV cache a drafter attends to. DraftCache keeps the cells (keys and values) of the whole text in one store
// ("full", keys at their positions in the text). The drafter works on a second, dense store ("work"): the cells that
// the policy chose, in the order of the text, then the cells appended since, then the draft tail of the growing tree.
// Where no cell ever moves, one store serves as both.
//
// Per sequence and round a drafter calls prepare() before it runs cells (this refreshes the choice if it is due),
// appended() after it, and note_target() or note_own() with the queries that the scores are made of.
//
// draft_cache.cc keeps lengths, positions and stores; draft_cache_choice.cc keeps queries, computes scores and asks the
// policy; draft_cache_state.cc copies, saves and restores.
#pragma once
#include <algorithm>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "formats/model_config.h"
#include "kv/sequence_table.h"
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {

struct DraftCacheParts {
  Backend* backend = nullptr;
  const ModelConfig* draft = nullptr;   // shape and RoPE of the drafter
  std::span<const double> frequencies;  // of the drafter's RoPE
  KvStore* work = nullptr;
  KvStore* full = nullptr;  // null unless two_stores()
  bool writes_full = true;  // false: the target writes these cells, because it drafts for itself
  int layer = -1;           // only this layer's cells are gathered; -1: all layers
  const ModelConfig* target = nullptr;
  const KvStore* target_kv = nullptr;
  int slots = 1, context = 0;
};

class DraftCache {
 public:
  static constexpr int kSlack = 256;  // cells that may be appended between refreshes

  DraftCache(const CacheConfig& config, const DraftCacheParts& parts);

  // Whether cells move: because they are chosen, or because the text may outgrow the trained length.
  static bool two_stores(const CacheConfig& config, int context, int trained);
  // The cells the working cache must have, without the draft tail.
  static int work_cells(const CacheConfig& config, int context);
  // The layers of the target whose queries are needed, ascending. Throws sx::Error for layers that the target does not
  // have.
  static std::vector<int> target_layers(const CacheConfig& config, int layers);

  const CacheConfig& config() const { return config_; }
  bool moving() const { return parts_.full != nullptr; }
  bool writes_full() const { return parts_.writes_full; }
  bool reads_target() const { return config_.reads_target(); }
  bool reads_draft() const { return config_.reads_draft(); }
  KvStore& store() { return *parts_.work; }
  int length(SeqId seq) const { return at(seq).length; }  // cells of the text that exist
  int work(SeqId seq) const { return at(seq).work; }      // cells in the working cache; the next cell goes behind them
  int room(SeqId seq) const { return capacity_ - at(seq).work; }  // cells that may be appended
  // The RoPE position of the cell `ahead` places behind the working cache.
  int position(SeqId seq, int ahead) const;
  // The text cell of each working cell, where cells move. Where every head chooses for itself: that of head 0 of layer
  // 0.
  std::span<const int32_t> cells(SeqId seq) const;
  int refreshes(SeqId seq) const { return at(seq).refreshes; }
  // After truncate(): the number of tokens behind which the target has to run again, so that its last queries can be
  // noted.
  int covered(SeqId seq) const;

  // A piece of a prompt: the drafter runs cells [length, length + rows) in this store, at their positions in the text.
  KvStore& prompt_store() { return moving() ? *parts_.full : *parts_.work; }
  int prompt_window() const;
  void prompted(SeqId seq, int rows);

  // Before `rows` cells are run behind the working cache; `text` holds all known tokens. Refreshes if it is due or
  // there is no room.
  void prepare(SeqId seq, std::span<const Token> text, int rows);
  // The drafter has run these cells. Where the target writes the cells of the text, they count until follow().
  void appended(SeqId seq, int rows);
  // For a drafter on the target's cells: brings the working cache up to the text without its last token, with what the
  // target has written.
  void follow(SeqId seq, std::span<const Token> text);

  // Memory for the cells of a text of so many tokens and of a tree behind them. False: there is none.
  bool hold(SeqId seq, int length);
  // The text ends after `tokens` tokens and `cells` cells may be kept. Fewer are kept where the drafter's own queries
  // must be noted again.
  void truncate(SeqId seq, int cells, int tokens);
  // Copies the first `cells` cells of `from`, as many as there are, to `to`, which is empty and whose text has `tokens`
  // tokens; none where there is no memory for them.
  void copy(SeqId from, SeqId to, int cells, int tokens);
  size_t save_bytes(SeqId seq) const;
  void save(SeqId seq, std::ostream& to) const;
  // Restores at most `cells` of the saved cells. Throws sx::Error on anything but what save() of such a cache wrote.
  void restore(SeqId seq, std::istream& from, int cells, int tokens);

  // The target's queries (one per tapped layer) of the last of `tokens` committed tokens.
  void note_target(SeqId seq, std::span<const float* const> query, int row, int tokens);
  // The drafter's own queries of rows [first, first + rows); the last of them belongs to cell `cell` and was run at
  // `position`.
  void note_own(SeqId seq, std::span<const float* const> query, int first, int rows, int position, int cell);
  // A round was verified.
  void observe(SeqId seq) { ++at(seq).rounds; }
  // The milliseconds that the host spent on scores and gathering since the last call.
  double take_ms() { return std::exchange(ms_, 0.0); }

 private:
  struct Slot {
    int length = 0, work = 0;
    int drafted = 0;  // cells at the end that the drafter has run in the target's place
    int shift = 0;    // compact position of place i: i - shift, at least 0
    int rounds = 0;   // since the last refresh
    int refreshes = 0;
    bool stale = true;                  // The working cache does not belong to the text.
    int noted = 0;                      // tokens (target's) or cells (own) up to the query noted last; 0: none
    int ended = 0;                      // tokens of the text at the last truncate()
    int chosen_once = 0;                // CacheRefresh::kOnce: text cells the choice was made from; 0: not yet
    mutable std::vector<int32_t> cell;  // [work capacity]
    mutable int unread = 0;             // so many of the first entries are still to be read from `retrieved`
    std::unique_ptr<KvChoice> retrieved;
    // The working cache holds what kv_retrieve() chose last, then the cells from `since` on.
    bool follows = false;
    int since = 0;
    std::vector<std::vector<int32_t>> choice;  // per layer and key/value head, or one for all
    ChunkBorders borders{1};
    float* query = nullptr;  // [queries, layers, heads * head_dim], backend memory
    std::vector<float> own;  // the same in host memory, where the queries are the drafter's
    int queries = 0;         // rows noted
  };
  const Slot& at(SeqId seq) const { return slots_[size_t(seq)]; }
  Slot& at(SeqId seq) { return slots_[size_t(seq)]; }
  int shift_for(int cells) const;  // how many of the first cells share a position
  int wanted_position(int shift, int place, int cell) const;
  int most_queries() const { return config_.policy->scores.queries; }

  void refresh(SeqId seq);
  void retrieve(SeqId seq, const EvenPlan& plan);
  void gather(SeqId seq);
  void append(SeqId seq, int rows);
  void move(SeqId seq, const KvStore& from, KvStore& to, int layer, int head = -1);
  static void read_cells(const Slot& s);
  void refilled(SeqId seq, int cells, int tokens);

  // Choice (draft_cache_choice.cc).
  void make_choosing();
  void choose(SeqId seq);
  void choose_by_target(SeqId seq);
  void choose_by_draft(SeqId seq);
  void keep_choice(Slot& s) const;
  std::span<const int32_t> borders_of(const Slot& s) const;
  void ask_policy(const Slot& s, std::vector<int32_t>& cells);
  KvScoreArgs score_args(const ModelConfig& model, const KvStore* kv, SeqId seq) const;

  CacheConfig config_;   // `budget` is that of the last refresh
  CacheConfig budgets_;  // as it was given
  DraftCacheParts parts_;
  int trained_ = 0, capacity_ = 0;  // trained positions; cells of the working cache
  // The backend chooses, where the text is longer than the budget and a query is noted.
  std::optional<BackendChoice> on_backend_;
  std::vector<int> layers_;  // of the target
  std::vector<Slot> slots_;
  std::vector<KvMove> moves_;
  std::vector<float> scores_;   // [layers * heads, parts]
  std::vector<float> summed_;   // [heads, parts]: scores added up over queries
  std::vector<float> reduced_;  // [parts]
  ChoiceScratch scratch_;
  std::vector<int32_t> each_;  // borders of single cells
  double ms_ = 0;
};

}  // namespace sx
