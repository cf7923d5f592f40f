// The cache a drafter attends to. All cells of the text are kept aside ("full", keys at their places in the text) and the drafter
// works on a dense cache ("work") that is filled from it: chosen cells in the order of the text, then what came since, then the
// tail of the growing tree. Where every cell stays at its place, one store is both.
//
// Per sequence and round: prepare() before cells are run (refreshes if due), appended() after, note_*() with what scores are made of.
#pragma once
#include <algorithm>
#include <iosfwd>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kv/sequence_table.h"
#include "formats/model_config.h"
#include "speculative/cache/choice.h"
#include "speculative/cache/config.h"

namespace sx {

struct DraftCacheParts {
  Backend* backend = nullptr;
  const ModelConfig* draft = nullptr;        // shape and RoPE of the drafter
  std::span<const double> frequencies;       // of its RoPE
  KvStore* work = nullptr;
  KvStore* full = nullptr;                   // null unless two_stores()
  bool writes_full = true;                   // false: somebody else does (the target, when it drafts for itself)
  int layer = -1;                            // only this layer's cells are gathered, where nobody looks at others; -1: all
  const ModelConfig* target = nullptr;
  const KvStore* target_kv = nullptr;
  std::span<const uint8_t> sentence_ends{};  // [vocab], with chunks that end with sentences
  int slots = 1, context = 0;
};

class DraftCache {
 public:
  static constexpr int kSlack = 256;         // cells that may be appended between refreshes

  DraftCache(const CacheConfig& config, const DraftCacheParts& parts);

  // Whether cells move at all: they are chosen, or the text may outgrow the trained length.
  static bool two_stores(const CacheConfig& config, int context, int trained);
  // Cells the working cache must have, without the tail of a tree.
  static int work_cells(const CacheConfig& config, int context);
  // Layers of the target whose queries are needed, ascending; throws sx::Error for layers it does not have.
  static std::vector<int> target_layers(const CacheConfig& config, int layers);

  const CacheConfig& config() const { return config_; }
  bool moving() const { return parts_.full != nullptr; }
  bool writes_full() const { return parts_.writes_full; }
  KvStore& store() { return *parts_.work; }
  int length(SeqId seq) const { return at(seq).length; }  // cells of the text that exist
  int work(SeqId seq) const { return at(seq).work; }      // of them in the working cache; the next one goes here
  int position(SeqId seq, int ahead) const;               // RoPE position of the cell `ahead` places behind these
  // Text cell of each working cell (where cells move; of head 0 of layer 0 where every head chooses for itself).
  std::span<const int32_t> cells(SeqId seq) const;
  int refreshes(SeqId seq) const { return at(seq).refreshes; }
  int room(SeqId seq) const { return capacity_ - at(seq).work; }  // cells that may be appended
  // After truncate: tokens of the text behind which the target has to run again, so that its last queries can be noted.
  int covered(SeqId seq) const;

  // A piece of a prompt: cells [length, length + rows) are run in this store, at their places in the text, behind `length` cells.
  KvStore& prompt_store() { return moving() ? *parts_.full : *parts_.work; }
  int prompt_window() const;
  void prompted(SeqId seq, int rows);

  // Before `rows` cells are run behind the working cache; `text`: all tokens known. Refreshes if it is due or there is no room.
  void prepare(SeqId seq, std::span<const Token> text, int rows);
  void appended(SeqId seq, int rows);
  // For a drafter that writes no cells, only looks at the target's: brings the working cache up to the text without its last token.
  void follow(SeqId seq, std::span<const Token> text);

  // The text ends after `tokens` tokens; `cells` may be kept. Fewer are where the draft's own queries must be noted again.
  void truncate(SeqId seq, int cells, int tokens);
  // The first `cells` cells of `from`, as many as there are, become those of `to`, which is empty; its text has `tokens` tokens.
  void copy(SeqId from, SeqId to, int cells, int tokens);
  size_t save_bytes(SeqId seq) const;
  void save(SeqId seq, std::ostream& to) const;
  // At most `cells` of the saved cells; throws sx::Error on anything but what save() of such a cache wrote.
  void restore(SeqId seq, std::istream& from, int cells, int tokens);
  // The target's queries (one per tapped layer) of the last of `tokens` committed tokens.
  void note_target(SeqId seq, std::span<const float* const> query, int row, int tokens);
  // The drafter's own queries of rows [first, first + rows), the last of them at cell `cell` with this position.
  void note_own(SeqId seq, std::span<const float* const> query, int first, int rows, int position, int cell);
  // A round was verified; `accepted` drafted tokens were right.
  void observe(SeqId seq, int accepted);

  bool reads_target() const { return config_.reads_target(); }
  bool reads_draft() const { return config_.reads_draft(); }
  double take_ms() { return std::exchange(ms_, 0.0); }    // that the host spent on scores and gathering

 private:
  struct Slot {
    int length = 0, work = 0;
    int shift = 0;                     // compact position of place i: i - shift, at least 0
    int rounds = 0;                    // since the last refresh
    int refreshes = 0;
    bool stale = true;                 // the working cache does not follow from the text
    int noted = 0;                     // tokens (target's queries) or cells (its own) up to the query noted last; 0: none
    int ended = 0;                     // tokens of the text at the last truncate
    int chosen_once = 0;               // kOnce, kSnap: text cells the choice was made from; 0: not yet
    float fast = 0, slow = 0;          // running means of accepted tokens
    mutable std::vector<int32_t> cell; // [work capacity]
    mutable int unread = 0;            // so many of the first are still to be read from `retrieved`
    std::unique_ptr<KvChoice> retrieved;
    bool follows = false;              // the working cache holds what kv_retrieve() chose last, then the cells from `since` on
    int since = 0;
    std::vector<std::vector<int32_t>> choice;  // per layer and key/value head, or one for all
    ChunkBorders borders{1};
    float* query = nullptr;            // [layers or observe * layers, heads * head_dim], backend memory
    std::vector<float> own;            // the same where they are the draft's, host memory
    int queries = 0;                   // rows noted (kSnap)
  };
  const Slot& at(SeqId seq) const { return slots_[size_t(seq)]; }
  Slot& at(SeqId seq) { return slots_[size_t(seq)]; }
  bool due(const Slot& s) const;
  void refresh(SeqId seq, std::span<const Token> text);
  void retrieve(SeqId seq, const EvenPlan& plan);
  static void read_cells(const Slot& s);
  void choose(SeqId seq);
  void choose_by_target(SeqId seq);
  void choose_by_draft(SeqId seq);
  void gather(SeqId seq);
  void refilled(SeqId seq, int cells, int tokens);
  int shift_for(int cells) const;      // so many of the first share a position
  int wanted_position(int shift, int place, int cell) const;
  int most_queries() const { return config_.kind == CacheKind::kSnap ? config_.observe : 1; }

  CacheConfig config_;
  DraftCacheParts parts_;
  int trained_ = 0, capacity_ = 0;     // of positions; of the working cache
  bool retrieves_ = false;             // by kv_retrieve(), where the text is longer than the budget and a query is noted
  std::vector<int> layers_;            // of the target
  std::vector<Slot> slots_;
  std::vector<KvMove> moves_;
  std::vector<float> scores_;          // [layers * heads, chunks]
  std::vector<float> reduced_, scratch_, picked_;
  std::vector<uint64_t> order_;        // scratch of the choice
  std::vector<int32_t> each_;          // borders of single cells
  double ms_ = 0;
};

}  // namespace sx
