// Which cells of the text a drafter attends to. Every policy keeps the whole text's cells aside and fills a small dense working
// cache from them; they differ in which cells they choose and when.
#pragma once
#include <cstdint>
#include <vector>

namespace sx {

enum class CacheKind {
  kFull,       // all cells
  kWindow,     // the most recent ones
  kStreaming,  // StreamingLLM: the first few and the most recent ones
  kRetrieval,  // chunks the target attends to from the last accepted token (cross-model retrieval)
  kOnce,       // chunks whose mean key suits the draft's own query at the end of the prompt, chosen once (TriForce)
  kQuest,      // chunks whose bounds of the keys suit the draft's own last query (Quest)
  kSnap,       // cells that the draft's last prompt queries attend to, chosen once (SnapKV, MagicDec)
  kPrune,      // cells the target attends to, and others spread evenly (SpecVLM)
  kRandom,     // random chunks: what any choice must beat
};

// Where RoPE sees a cell: at its place among the chosen ones (never beyond the trained length: of more cells the oldest share the
// first position), or at its place in the text.
enum class CachePositions { kCompact, kOriginal };
enum class HeadReduce { kMean, kMax };
enum class ChunkReduce { kMean, kMax, kSum };

struct CacheConfig {
  CacheKind kind = CacheKind::kFull;
  CachePositions positions = CachePositions::kCompact;
  int budget = 1024;            // cells in the working cache after a refresh
  int chunk = 32;               // cells chosen together
  int interval = 4;             // rounds from one refresh to the next
  int sink = 4, recent = 64;    // first and last cells that are always chosen (whole chunks of them where chunks are chosen)
  int window = -1;              // of the draft's own attention over the prompt; 0: all of it; -1: 512 where cells are chosen, else
                                // the trained length where the context is longer
  std::vector<int> layers;      // of the target, whose attention counts; negative: from the end; empty: those that find things again (probe.h)
  bool all_layers = false;
  HeadReduce head_reduce = HeadReduce::kMean;
  std::vector<int> heads;       // query heads that count; empty: all
  ChunkReduce chunk_reduce = ChunkReduce::kMean;
  bool adaptive = false;        // refresh when acceptance falls below its running mean
  int interval_min = 1, interval_max = 16;
  bool sentences = false;       // chunks end with sentences where they can
  int observe = 32;             // kSnap: last queries of the prompt that vote
  int pool = 7;                 // kSnap: cells over which votes are smoothed
  float uniform = 0.2f;         // kPrune: share of the budget that is spread evenly

  bool chooses() const { return kind != CacheKind::kFull; }
  bool reads_target() const { return kind == CacheKind::kRetrieval || kind == CacheKind::kPrune; }
  bool probes() const { return reads_target() && layers.empty() && !all_layers; }
  bool reads_draft() const { return kind == CacheKind::kOnce || kind == CacheKind::kQuest || kind == CacheKind::kSnap; }
  bool per_head() const { return reads_draft(); }  // each layer and key/value head chooses for itself
  bool once() const { return kind == CacheKind::kOnce || kind == CacheKind::kSnap; }
};

}  // namespace sx
