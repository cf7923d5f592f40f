// attend(). For every query row: positions are cut at absolute multiples into blocks of 64 and spans of kSpan; inside
// a span the state is a left fold over its blocks, spans merge in ascending order. Chains read the store in place.
// Rows of a tree read the full blocks of the history in place, then continue over their own tail (rest of the
// history, ancestors in order of depth), gathered block by block into the same layout.
#include "backend/cpu/attention/attention.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "backend/cpu/attention/attention_kernels.h"
#include "backend/cpu/attention/attention_plan.h"
#include "backend/cpu/kv/records.h"
#include "base/error.h"
#include "base/fixed_math.h"

namespace sx::cpu {

void reset_state(float* state, const AttentionKernels& kernels, int padded) {
  const int sums = kernels.sums_at();
  std::fill_n(state, sums, -1e30f);
  std::memset(state + sums, 0, sizeof(float) * static_cast<size_t>(state_floats(kernels.tile_rows, padded) - sums));
}

AttentionScratch::AttentionScratch() : plan_(std::make_unique<AttentionPlan>()) {}
AttentionScratch::~AttentionScratch() = default;
AttentionScratch::AttentionScratch(AttentionScratch&&) noexcept = default;
AttentionScratch& AttentionScratch::operator=(AttentionScratch&&) noexcept = default;
void AttentionScratch::reserve(const StepLimits& limits, int threads) { plan_->reserve(limits, threads); }

namespace {

// Of the blocks that kernels read: the store's, or what its records are unpacked to.
struct TileLayouts {
  KvLayout keys, values;
  const UnpackKernels& unpack;
};

// One thread at work on one unit (chunk, KV head).
class Unit {
 public:
  Unit(const AttendArgs& args, const CpuKvStore& store, const TileLayouts& tile, const AttentionKernels& kernels,
       AttentionPlan& plan, AttentionWorker& worker, int chunk, int head)
      : args_(args),
        store_(store),
        tile_(tile),
        kernels_(kernels),
        plan_(plan),
        worker_(worker),
        chunk_(plan.chunks[static_cast<size_t>(chunk)]),
        seq_(args.seqs[static_cast<size_t>(chunk_.seq)]),
        head_(head) {
    if (worker.chunk != chunk || worker.head != head) pack(chunk);
  }

  void all_spans() {
    for (int s = 0; s < chunk_.spans; ++s) {
      float* into = s == 0 ? worker_.total : worker_.part;
      span(s, into);
      if (s > 0)
        for (int t = 0; t < chunk_.tiles; ++t) kernels_.merge(worker_.total + at(t), into + at(t), plan_.padded);
    }
    for (int t = 0; t < chunk_.tiles; ++t) write(t, worker_.total + at(t));
  }

  void one_span(int s) {
    span(s, plan_.partial(chunk_, head_, s, 0));
    auto& left = plan_.counters[static_cast<size_t>(chunk_.counter + head_)];
    if (left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
    for (int t = 0; t < chunk_.tiles; ++t) {  // last to finish: merge
      float* total = plan_.partial(chunk_, head_, 0, t);
      for (int i = 1; i < chunk_.spans; ++i) kernels_.merge(total, plan_.partial(chunk_, head_, i, t), plan_.padded);
      write(t, total);
    }
  }

 private:
  size_t at(int tile) const {
    return static_cast<size_t>(tile) * static_cast<size_t>(state_floats(plan_.tile_rows, plan_.padded));
  }
  std::byte* query(int tile) const {
    return worker_.queries + static_cast<size_t>(tile) * query_bytes(plan_.tile_rows, plan_.padded);
  }
  int rows_of(int tile) const {
    return std::min(chunk_.tile_rows, chunk_.tokens * plan_.group - tile * chunk_.tile_rows);
  }
  const PlannedRow& token(int i) const { return plan_.rows[static_cast<size_t>(chunk_.first + i)]; }
  // Query row r of the chunk: head r % group of token r / group.
  const float* q_of(int r) const {
    return args_.q + static_cast<size_t>(token(r / plan_.group).row) * static_cast<size_t>(args_.q_stride) +
           static_cast<size_t>((head_ * plan_.group + r % plan_.group) * args_.shape.head_dim);
  }

  void pack(int chunk) {
    for (int t = 0; t < chunk_.tiles; ++t)
      for (int i = 0; i < rows_of(t); ++i)
        kernels_.pack(query(t), i, q_of(t * chunk_.tile_rows + i), args_.shape.head_dim, plan_.padded, args_.scale);
    worker_.all_from = 0;
    worker_.all_to = chunk_.end;
    for (int r = 0; r < chunk_.tokens * plan_.group; ++r) {
      const int index = token(r / plan_.group).index;
      worker_.begin[r] = args_.window > 0 ? std::max(0, index + 1 - args_.window) : 0;
      worker_.end[r] = index + 1;
      worker_.all_from = std::max(worker_.all_from, worker_.begin[r]);
      worker_.all_to = std::min(worker_.all_to, worker_.end[r]);
    }
    worker_.chunk = chunk;
    worker_.head = head_;
  }

  // Block b as kernels read it: in place, or unpacked, until the next call.
  const std::byte* keys_of(int b) {
    const std::byte* keys = store_.keys(seq_.slot, args_.layer, head_, b);
    if (!store_.key_layout().record) return keys;
    tile_.unpack.keys(store_.key_layout(), keys, tile_.keys, worker_.block_keys);
    return worker_.block_keys;
  }
  const std::byte* values_of(int b) {
    const std::byte* values = store_.values(seq_.slot, args_.layer, head_, b);
    if (!store_.value_layout().record) return values;
    tile_.unpack.values(store_.value_layout(), values, tile_.values, worker_.block_values);
    return worker_.block_values;
  }

  // A block as `kernels` read it, until the next call.
  struct Block {
    const AttentionKernels& kernels;
    const std::byte *keys, *values;
    const std::byte* next_keys = nullptr;  // as in FoldArgs
  };
  Block ready(const AttentionKernels& kernels, const std::byte* keys, const std::byte* values,
              const std::byte* next_keys = nullptr, const std::byte* next_values = nullptr) {
    if (!kernels.ready_keys) return {kernels, keys, values, next_keys};
    kernels.ready_keys(keys, next_keys ? next_keys : keys, plan_.padded, worker_.ready_keys);
    kernels.ready_values(values, next_values ? next_values : values, plan_.padded, worker_.ready_values);
    return {kernels, worker_.ready_keys, worker_.ready_values};
  }

  // Folds block b into a tile whose rows are rows [first, first + rows) of the chunk.
  void fold(float* state, const std::byte* packed, const Block& block, int b, int first, int rows) {
    FoldArgs a{state, packed, block.keys, block.values, rows, plan_.padded};
    a.next_keys = block.next_keys;
    a.soft_cap = args_.soft_cap;
    const int p = b * kBlock;
    if (p >= worker_.all_from && p + kBlock <= worker_.all_to) return block.kernels.fold(a);
    uint8_t begin[kMostTileRows], end[kMostTileRows];
    bool all = true, none = true;
    for (int i = 0; i < rows; ++i) {
      begin[i] = static_cast<uint8_t>(std::clamp(worker_.begin[first + i] - p, 0, kBlock));
      end[i] = static_cast<uint8_t>(std::clamp(worker_.end[first + i] - p, 0, kBlock));
      all = all && begin[i] == 0 && end[i] == kBlock;
      none = none && end[i] <= begin[i];
    }
    if (none) return;
    if (!all) a.begin = begin, a.end = end;
    block.kernels.fold(a);
  }

  void span(int s, float* states) {
    for (int t = 0; t < chunk_.tiles; ++t) reset_state(states + at(t), kernels_, plan_.padded);
    const int from = (chunk_.first_span + s) * kSpan, to = std::min(from + kSpan, chunk_.end);
    const int last = std::min(to, chunk_.shared);
    const AttentionKernels& kernels = chunk_.tiles > 1 && kernels_.shared ? *kernels_.shared : kernels_;
    for (int p = std::max(from, chunk_.begin / kBlock * kBlock); p < last; p += kBlock) {
      const int b = p / kBlock;
      const std::byte *k = keys_of(b), *v = values_of(b);
      const bool more = p + kBlock < last;
      const std::byte* next_k = more ? store_.keys(seq_.slot, args_.layer, head_, b + 1) : k;
      const std::byte* next_v = more ? store_.values(seq_.slot, args_.layer, head_, b + 1) : v;
      if (store_.key_layout().record || store_.value_layout().record) next_k = next_v = nullptr;
      Block block = ready(kernels, k, v, next_k, next_v);
      for (int t = 0; t < chunk_.tiles; ++t) {
        fold(states + at(t), query(t), block, b, t * chunk_.tile_rows, rows_of(t));
        block.next_keys = nullptr;  // the first tile brings the block in, the others find it in the cache
      }
    }
    for (int p = std::max(from, chunk_.shared); p < to; p += kBlock) tail(p / kBlock, states);
  }

  // Block b of the tails: the rows of each group fold the block of their own path.
  void tail(int b, float* states) {
    const std::byte *k = keys_of(b), *v = values_of(b);
    bool copied = false;
    for (int first = 0, last; first < chunk_.tokens; first = last) {
      const int leaf = token(first).leaf;
      int end = 0;
      for (last = first; last < chunk_.tokens && token(last).leaf == leaf; ++last)
        end = std::max(end, token(last).index + 1);
      if (end <= b * kBlock) continue;
      if (leaf != kDirect) {
        if (!copied) {
          std::memcpy(worker_.tail_keys, k, tile_.keys.bytes);
          std::memcpy(worker_.tail_values, v, tile_.values.bytes);
          for (int i = 0; i < kBlock; ++i) worker_.cells[i] = b * kBlock + i;
          copied = true;
        }
        gather(b, leaf);
      }
      const Block block =
          leaf == kDirect ? ready(kernels_, k, v) : ready(kernels_, worker_.tail_keys, worker_.tail_values);
      const int to = last * plan_.group;
      for (int r = first * plan_.group; r < to; r += plan_.tile_rows)
        fold_lone(states, block, b, r, std::min(plan_.tile_rows, to - r));
    }
  }

  // Puts the ancestors of `leaf` that have their index in block b in their places. Along a path node numbers ascend, so
  // the d-th set bit is the ancestor of depth d.
  void gather(int b, int leaf) {
    const uint64_t* bits = seq_.ancestors + static_cast<size_t>(leaf) * static_cast<size_t>(seq_.words);
    int index = seq_.history;
    for (int w = 0; w < seq_.words && index < (b + 1) * kBlock; ++w)
      for (uint64_t left = bits[w]; left; left &= left - 1, ++index) {
        const int cell = seq_.history + w * 64 + std::countr_zero(left), p = index % kBlock;
        if (index / kBlock != b || worker_.cells[p] == cell) continue;
        const std::byte* k = store_.keys(seq_.slot, args_.layer, head_, cell / kBlock);
        const std::byte* v = store_.values(seq_.slot, args_.layer, head_, cell / kBlock);
        worker_.cells[p] = cell;
        float x[kMaxHeadDim];
        if (store_.key_layout().record) {
          load_key(store_.key_layout(), k, cell % kBlock, x);
          store_key(tile_.keys, worker_.tail_keys, p, x);
        } else {
          copy_key(tile_.keys, k, cell % kBlock, worker_.tail_keys, p);
        }
        if (store_.value_layout().record) {
          load_value(store_.value_layout(), v, cell % kBlock, x);
          store_value(tile_.values, worker_.tail_values, p, x);
        } else {
          copy_value(tile_.values, v, cell % kBlock, worker_.tail_values, p);
        }
      }
  }

  // Rows [first, first + rows) of the chunk as a tile of their own for one block.
  void fold_lone(float* states, const Block& block, int b, int first, int rows) {
    for (int i = 0; i < rows; ++i) {
      const int r = first + i;
      kernels_.pack(worker_.lone_query, i, q_of(r), args_.shape.head_dim, plan_.padded, args_.scale);
      kernels_.copy_row(worker_.lone, i, states + at(r / chunk_.tile_rows), r % chunk_.tile_rows, plan_.padded);
    }
    fold(worker_.lone, worker_.lone_query, block, b, first, rows);
    for (int i = 0; i < rows; ++i) {
      const int r = first + i;
      kernels_.copy_row(states + at(r / chunk_.tile_rows), r % chunk_.tile_rows, worker_.lone, i, plan_.padded);
    }
  }

  void write(int tile, const float* state) {
    for (int i = 0; i < rows_of(tile); ++i) {
      const int r = tile * chunk_.tile_rows + i;
      const size_t row = static_cast<size_t>(token(r / plan_.group).row);
      float* out = args_.out + row * static_cast<size_t>(args_.shape.heads * args_.shape.head_dim) +
                   static_cast<size_t>((head_ * plan_.group + r % plan_.group) * args_.shape.head_dim);
      kernels_.finish(state, i, out, args_.shape.head_dim, plan_.padded);
      if (args_.sinks) add_sink(state, i, args_.sinks[head_ * plan_.group + r % plan_.group], out);
    }
  }

  // The head's sink joins the sum of the softmax: l of row i grows, its output o / l shrinks.
  void add_sink(const float* state, int i, float sink, float* out) const {
    const double m = double(state[i]) * 0.6931471805599453, top = std::max(m, double(sink));
    const double sum = double(state[kernels_.sums_at() + i]) * fixed_exp(m - top);
    const auto share = static_cast<float>(sum / (sum + fixed_exp(sink - top)));
    for (int c = 0; c < args_.shape.head_dim; ++c) out[c] *= share;
  }

  const AttendArgs& args_;
  const CpuKvStore& store_;
  const TileLayouts& tile_;
  const AttentionKernels& kernels_;
  AttentionPlan& plan_;
  AttentionWorker& worker_;
  const Chunk& chunk_;
  const SeqRows& seq_;
  const int head_;
};

constexpr int64_t kWorthSharing = 8;  // blocks x tiles below which waking the others costs more than it saves

}  // namespace

void attend(const AttendArgs& args, Isa isa, ThreadPool& pool, AttentionScratch& scratch) {
  const auto& store = static_cast<const CpuKvStore&>(*args.kv);
  const TileLayouts tile{tile_layout(store.key_layout(), store.value_layout(), isa),
                         tile_layout(store.value_layout(), store.key_layout(), isa), unpack_kernels(isa)};
  const AttentionKernels& kernels = attention_kernels(tile.keys, tile.values, isa);
  AttentionPlan& plan = *scratch.plan_;
  plan.plan(args, store, kernels, pool.size());
  const auto work = [&](int thread) {
    AttentionWorker& worker = plan.workers[static_cast<size_t>(thread)];
    if (kernels.enter) kernels.enter();
    for (int i; (i = plan.next.fetch_add(1, std::memory_order_relaxed)) < plan.items;) {
      const int item = plan.items - 1 - i;  // the last rows see most: long items first
      const int index = plan.find_chunk(item);
      const Chunk& c = plan.chunks[static_cast<size_t>(index)];
      const int n = item - c.item;
      const int span = c.spans - 1 - n % c.spans;  // ascending in time, as memory is read fastest
      if (c.partial < 0) Unit(args, store, tile, kernels, plan, worker, index, n).all_spans();
      else Unit(args, store, tile, kernels, plan, worker, index, n / c.spans).one_span(span);
    }
    if (kernels.leave) kernels.leave();
  };
  if (plan.cost < kWorthSharing) work(0);
  else pool.run(work);
}

}  // namespace sx::cpu
