#include "backend/cpu/attention/attention_plan.h"

#include <algorithm>
#include <bit>

#include "base/error.h"

namespace sx::cpu {
namespace {

constexpr int kChunkRows = 48, kMostChunkRows = 192;  // query rows of a chunk (at least one token)
constexpr int kUnitsPerThread = 4;                    // that large chunks leave
constexpr size_t kPartialBytes = size_t(256) << 20;   // address space; pages come with use

// Calls visit(row) for each set bit that stands for a row of this step; nodes below `uncommitted` are skipped.
template <class Visit>
void each_row(const SeqRows& seq, const uint64_t* bits, Visit visit) {
  const int from = seq.uncommitted / 64;
  uint64_t mask = ~uint64_t(0) << (seq.uncommitted % 64);
  for (int w = from; w < seq.words; ++w, mask = ~uint64_t(0))
    for (uint64_t left = bits[w] & mask; left; left &= left - 1)
      visit(w * 64 + std::countr_zero(left) - seq.uncommitted);
}

const uint64_t* ancestors_of(const SeqRows& seq, int row) {
  return seq.ancestors + static_cast<size_t>(row) * static_cast<size_t>(seq.words);
}

// Whether the row sees the first `count` nodes of the tail, which is as many as it sees in all.
bool sees_first_nodes(const SeqRows& seq, int row, int count) {
  const uint64_t* bits = ancestors_of(seq, row);
  for (int w = 0; w < count / 64; ++w)
    if (~bits[w] != 0) return false;
  return count % 64 == 0 || bits[count / 64] == (uint64_t(1) << (count % 64)) - 1;
}

size_t round64(size_t n) { return (n + 63) / 64 * 64; }

// Working memory of one thread, in bytes, with tiles of so many rows.
struct Sizes {
  size_t states, queries;  // of all tiles of a chunk
  size_t state, query;     // of one
  Sizes(int chunk_rows, int tile_rows, int padded) {
    state = round64(sizeof(float) * static_cast<size_t>(state_floats(tile_rows, padded)));
    query = round64(query_bytes(tile_rows, padded));
    const auto tiles = static_cast<size_t>((chunk_rows + tile_rows - 1) / tile_rows);
    states = tiles * state;
    queries = tiles * query;
  }
};

}  // namespace

void AttentionPlan::reserve(const StepLimits& wanted, int wanted_threads) {
  limits.rows = std::max(limits.rows, wanted.rows);
  limits.heads = std::max(limits.heads, wanted.heads);
  limits.kv_heads = std::max(limits.kv_heads, wanted.kv_heads);
  limits.head_dim = std::max(limits.head_dim, wanted.head_dim);
  threads = std::max(threads, wanted_threads);
  const int widest = (limits.head_dim + 15) / 16 * 16;
  const int most_rows = std::max(kMostChunkRows, limits.heads);

  const auto n = static_cast<size_t>(limits.rows);
  rows.resize(n);
  depth.resize(n);
  chunks.resize(n);
  counters = std::make_unique<std::atomic<int32_t>[]>(n * static_cast<size_t>(limits.kv_heads));

  const Sizes small(most_rows, kTileRows, widest), large(most_rows, kMostTileRows, widest);
  const size_t states = std::max(small.states, large.states), queries = std::max(small.queries, large.queries);
  const size_t block = round64(static_cast<size_t>(widest) * kBlock * 4 + 256);
  const size_t ranges = round64(sizeof(int32_t) * static_cast<size_t>(most_rows));
  const size_t each = 2 * states + large.state + queries + large.query + 6 * block + 2 * ranges;
  memory = Pages(each * static_cast<size_t>(threads), "the scratch of attention");
  workers.assign(static_cast<size_t>(threads), {});
  std::byte* p = memory.data();
  const auto take = [&p](size_t bytes) {
    std::byte* at = p;
    p += bytes;
    return at;
  };
  for (auto& w : workers) {
    w.part = reinterpret_cast<float*>(take(states));
    w.total = reinterpret_cast<float*>(take(states));
    w.lone = reinterpret_cast<float*>(take(large.state));
    w.queries = take(queries);
    w.lone_query = take(large.query);
    w.tail_keys = take(block);
    w.tail_values = take(block);
    w.block_keys = take(block);
    w.block_values = take(block);
    w.ready_keys = take(block);
    w.ready_values = take(block);
    w.begin = reinterpret_cast<int32_t*>(take(ranges));
    w.end = reinterpret_cast<int32_t*>(take(ranges));
  }
  if (partials.size() == 0) partials = Pages(kPartialBytes, "the scratch of attention");
}

// Puts the rows of a tree in order, grouped by leaf; returns false, and does nothing, if it is a chain after all.
bool AttentionPlan::order_tree(const SeqRows& seq, int at) {
  int32_t* deep = depth.data();
  PlannedRow* out = rows.data() + at;
  bool chain = true;
  for (int i = 0; i < seq.rows; ++i) {
    int count = 0;
    for (int w = 0; w < seq.words; ++w) count += std::popcount(ancestors_of(seq, i)[w]);
    deep[i] = count - 1;
    chain = chain && deep[i] == seq.uncommitted + i;
  }
  if (chain) return false;
  // A leaf is a row that is no row's proper ancestor. Marks live in `leaf` of the slots about to be filled.
  for (int i = 0; i < seq.rows; ++i) out[i].leaf = 0;
  for (int i = 0; i < seq.rows; ++i)
    each_row(seq, ancestors_of(seq, i), [&](int a) {
      if (a != i) out[a].leaf = 1;
    });
  // `index` serves as the mark of rows that have found their group, `row` as the list of leaves.
  int leaves = 0;
  for (int i = 0; i < seq.rows; ++i)
    if (!out[i].leaf) out[leaves++].row = i;
  for (int i = 0; i < seq.rows; ++i) out[i].index = kDirect - 1;
  for (int i = 0; i < seq.rows; ++i)
    if (sees_first_nodes(seq, i, deep[i] + 1)) out[i].index = kDirect;  // cell == index all along
  for (int l = 0; l < leaves; ++l)
    each_row(seq, ancestors_of(seq, out[l].row), [&](int a) {
      if (out[a].index < kDirect) out[a].index = out[l].row;
    });
  // Now index holds each row's group; sort rows by it (counting over few leaves would need more memory).
  for (int i = 0; i < seq.rows; ++i) {
    out[i].leaf = out[i].index;
    out[i].index = seq.history + deep[i];
    out[i].row = seq.first_row + i;
  }
  std::sort(out, out + seq.rows, [](const PlannedRow& a, const PlannedRow& b) {
    return a.leaf != b.leaf ? a.leaf < b.leaf : a.row < b.row;
  });
  return true;
}

void AttentionPlan::cut_sequence(const AttendArgs& args, int s, int at, bool tree) {
  const SeqRows& seq = args.seqs[static_cast<size_t>(s)];
  const int most = std::max(1, chunk_rows / group);
  for (int t = 0; t < seq.rows; t += most) {
    Chunk& c = chunks[static_cast<size_t>(chunk_count++)];
    c.seq = s;
    c.first = at + t;
    c.tokens = std::min(most, seq.rows - t);
    int low = rows[static_cast<size_t>(c.first)].index, high = low;
    for (int i = 0; i < c.tokens; ++i) {
      const int index = rows[static_cast<size_t>(c.first + i)].index;
      low = std::min(low, index);
      high = std::max(high, index);
    }
    c.begin = args.window > 0 ? std::max(0, low + 1 - args.window) : 0;
    c.end = high + 1;
    c.shared = tree ? seq.history / kBlock * kBlock : c.end;
    c.first_span = c.begin / kSpan;
    c.spans = high / kSpan + 1 - c.first_span;
    const int query_rows = c.tokens * group;
    c.tiles = (query_rows + tile_rows - 1) / tile_rows;
    c.tile_rows = ((query_rows + c.tiles - 1) / c.tiles + 1) / 2 * 2;  // even: rows go in pairs
    c.tiles = (query_rows + c.tile_rows - 1) / c.tile_rows;
  }
}

void AttentionPlan::number_items(int kv_heads, int pool_threads) {
  cost = 0;
  const auto cost_of = [](const Chunk& c) { return int64_t(c.tiles) * ((c.end - 1) / kBlock + 1 - c.begin / kBlock); };
  for (int i = 0; i < chunk_count; ++i) cost += cost_of(chunks[static_cast<size_t>(i)]) * kv_heads;
  items = 0;
  int64_t states = 0;
  int counted = 0;
  const auto room =
      static_cast<int64_t>(partials.size() / (sizeof(float) * static_cast<size_t>(state_floats(tile_rows, padded))));
  for (int i = 0; i < chunk_count; ++i) {
    Chunk& c = chunks[static_cast<size_t>(i)];
    const int64_t need = int64_t(kv_heads) * c.spans * c.tiles;
    c.item = items;
    c.partial = -1;
    if (c.spans > 1 && pool_threads > 1 && cost_of(c) * pool_threads * 4 > cost && states + need <= room) {
      c.partial = static_cast<int32_t>(states);
      c.counter = counted;
      for (int h = 0; h < kv_heads; ++h)
        counters[static_cast<size_t>(counted++)].store(c.spans, std::memory_order_relaxed);
      states += need;
    }
    items += kv_heads * (c.partial < 0 ? 1 : c.spans);
  }
}

// A chunk of a prompt is large where its rows share what a block is written out to, but leaves all threads enough to
// do.
int AttentionPlan::rows_of_chunks(const AttendArgs& args, bool writes_out, int pool_threads) const {
  if (!writes_out) return kChunkRows;
  int64_t all = 0;
  for (const SeqRows& seq : args.seqs) all += int64_t(seq.rows) * group * args.shape.kv_heads;
  return static_cast<int>(
      std::clamp<int64_t>(all / (int64_t(kUnitsPerThread) * pool_threads), kChunkRows, kMostChunkRows));
}

void AttentionPlan::plan(const AttendArgs& args, const CpuKvStore& store, const AttentionKernels& kernels,
                         int pool_threads) {
  SX_ASSERT(args.shape.heads % args.shape.kv_heads == 0 && args.shape.heads <= limits.heads &&
            args.shape.kv_heads <= limits.kv_heads);
  SX_ASSERT(args.shape.head_dim == store.geometry().head_dim && args.shape.head_dim <= limits.head_dim);
  SX_ASSERT(args.shape.kv_heads == store.geometry().kv_heads && pool_threads <= threads);
  group = args.shape.heads / args.shape.kv_heads;
  padded = store.key_layout().padded;
  tile_rows = kernels.tile_rows;
  chunk_rows = rows_of_chunks(args, kernels.shared != nullptr, pool_threads);
  chunk_count = 0;
  int at = 0;
  for (size_t s = 0; s < args.seqs.size(); ++s) {
    const SeqRows& seq = args.seqs[s];
    if (seq.rows <= 0) continue;
    const int nodes = seq.uncommitted + seq.rows;
    SX_ASSERT(at + seq.rows <= limits.rows && seq.uncommitted >= 0 && seq.history + nodes <= store.geometry().capacity);
    SX_ASSERT(!seq.ancestors || seq.words * 64 >= nodes);
    const bool tree = seq.ancestors && order_tree(seq, at);
    if (!tree)
      for (int i = 0; i < seq.rows; ++i)
        rows[static_cast<size_t>(at + i)] = {seq.first_row + i, seq.history + seq.uncommitted + i, kDirect};
    cut_sequence(args, static_cast<int>(s), at, tree);
    at += seq.rows;
  }
  number_items(args.shape.kv_heads, pool_threads);
  for (auto& w : workers) w.chunk = -1;
  next.store(0, std::memory_order_relaxed);
}

int AttentionPlan::find_chunk(int item) const {
  int low = 0, high = chunk_count - 1;  // the last chunk whose first item is not above `item`
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (chunks[static_cast<size_t>(middle)].item <= item) low = middle;
    else high = middle - 1;
  }
  return low;
}

}  // namespace sx::cpu
