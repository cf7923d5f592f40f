// How one attend() call is cut into work. The rows of a sequence are put in order (trees: grouped by the leaf whose
// path they lie on) and cut into chunks of 48 to 192 query rows; a unit is a chunk and a KV head. A unit is one work
// item that runs through all spans, or, when units are too few or too uneven for the threads, one item per span
// (split-KV) whose states the last thread to finish merges in order. The plan cannot change a bit of the result.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/kv/store.h"
#include "base/memory.h"

namespace sx::cpu {

inline constexpr int kDirect = -1;  // leaf of rows whose cells lie in order of index: no gathering

struct PlannedRow {
  int32_t row;    // of the activations
  int32_t index;  // sees indices up to its own
  int32_t leaf;   // row of the sequence in this step whose ancestors (self included) contain this row's, or kDirect
};

struct Chunk {
  int32_t seq;
  int32_t first, tokens;  // rows[first, first + tokens)
  int32_t begin, end;     // indices that some row sees
  int32_t shared;         // blocks below this index are read in place by all rows; beyond it each group has its own
  int32_t first_span, spans;
  int32_t tiles, tile_rows;
  int32_t item;     // number of the chunk's first work item
  int32_t partial;  // first state of its spans, [kv head][span][tile]; -1: not cut
  int32_t counter;  // first of its kv_heads counters
};

// Memory of one thread.
struct AttentionWorker {
  float* part;         // [tiles] states
  float* total;        // [tiles] states
  float* lone;         // one state, for tails
  std::byte* queries;  // [tiles] packed
  std::byte* lone_query;
  std::byte* tail_keys;  // one gathered block each
  std::byte* tail_values;
  std::byte* block_keys;  // one unpacked block each
  std::byte* block_values;
  std::byte* ready_keys;  // one block each in the form that kernels read
  std::byte* ready_values;
  int32_t* begin;  // [chunk rows] indices seen by each query row of the packed chunk
  int32_t* end;
  int32_t all_from, all_to;       // indices that all of them see
  int32_t chunk = -1, head = -1;  // what `queries` holds
  int32_t cells[kBlock];          // what the gathered block holds
};

struct AttentionPlan {
  // Set by reserve().
  StepLimits limits;
  int threads = 0;
  std::vector<PlannedRow> rows;
  std::vector<int32_t> depth;  // [rows] of the sequence at hand
  std::vector<Chunk> chunks;
  std::unique_ptr<std::atomic<int32_t>[]> counters;
  std::vector<AttentionWorker> workers;
  Pages memory, partials;  // of the workers; of cut units

  // Set by plan().
  int chunk_count = 0, items = 0, group = 0, padded = 0, tile_rows = 0, chunk_rows = 0;
  int64_t cost = 0;  // blocks x tiles
  std::atomic<int32_t> next{0};

  void reserve(const StepLimits& wanted, int wanted_threads);
  void plan(const AttendArgs& args, const CpuKvStore& store, const AttentionKernels& kernels, int pool_threads);
  float* partial(const Chunk& c, int head, int span, int tile) const {
    const auto state = static_cast<size_t>(c.partial + (head * c.spans + span) * c.tiles + tile);
    return partials.as<float>() + state * static_cast<size_t>(state_floats(tile_rows, padded));
  }
  int find_chunk(int item) const;

 private:
  int rows_of_chunks(const AttendArgs& args, bool writes_out, int pool_threads) const;
  bool order_tree(const SeqRows& seq, int at);
  void cut_sequence(const AttendArgs& args, int seq, int at, bool tree);
  void number_items(int kv_heads, int pool_threads);
};

}  // namespace sx::cpu
