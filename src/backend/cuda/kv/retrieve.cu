// kv_retrieve without the host: scores of chunks of one length, the choice of the best, and the gather of their cells
// into another store. Three kernels: queries times keys (score.cuh), the mean score of each chunk and the choice, the
// gather.
#include "backend/cuda/kv/move.cuh"
#include "backend/cuda/kv/score.cuh"

namespace sx::cuda {
namespace {

constexpr int kThreadsOfMean = 512, kWarpsOfMean = kThreadsOfMean / 32;
constexpr int kMostItems = 16;  // chunks per thread
static_assert(kMostRetrieveChunks == kThreadsOfMean * kMostItems);
constexpr int kPlaces = 4, kPerPlace = 4;  // cells that a block gathers at once, and warps for each
constexpr int kGatherWarps = kPlaces * kPerPlace, kGatherThreads = 32 * kGatherWarps;
constexpr int kGatherBlocks = 264;  // two for each of the 132 SMs of an H200

// The order of scores as integers: see score_order() in kv/chunk_choice.h, which this must follow.
__device__ __forceinline__ uint32_t order_of(float score) {
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
  return score != score ? 0 : bits >> 31 ? ~bits : bits | 0x80000000u;
}

struct ChoiceRoom {
  uint16_t taken[kMostRetrieveChunks];
  uint32_t few[kThreadsOfMean];
  uint32_t parts[kWarpsOfMean];
};

// The functions below are for all threads of a block of kThreadsOfMean.

// The sum of x over the threads before this one, and over all.
__device__ uint32_t sum_before(uint32_t x, ChoiceRoom& room, uint32_t& all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  uint32_t until = x;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, until, step);
    if (lane >= step) until += other;
  }
  __syncthreads();  // the last sums may still be read
  if (lane == 31) room.parts[warp] = until;
  __syncthreads();
  const uint32_t part = lane < kWarpsOfMean ? room.parts[lane] : 0;
  all = __reduce_add_sync(kAllLanes, part);
  return __reduce_add_sync(kAllLanes, lane < warp ? part : 0) + until - x;
}

// The highest bar that `take` reach, bit by bit; take > 0. count(bar): how many do. `exact`: no more do, the bar need
// not be the highest.
template <class Count>
__device__ uint32_t find_bar(int take, bool& exact, Count count) {
  uint32_t bar = 0;
  exact = false;
  for (int bit = 31; bit >= 0 && !exact; --bit) {
    const int reach = count(bar | 1u << bit);
    if (reach >= take) bar |= 1u << bit;
    exact = reach == take;
  }
  return bar;
}

// The chunks of [first, last) that are taken, ascending. A thread has `items` neighbours. Of those that are exactly at
// the bar, the later ones are taken.
template <int items>
__device__ void take_best(const RetrieveCall& c, ChoiceRoom& room) {
  const int others = c.last - c.first, mine = int(threadIdx.x) * items;
  uint32_t order[items];
#pragma unroll
  for (int i = 0; i < items; ++i) {
    const float score = mine + i < others ? __ldcg(c.scores + c.first + mine + i) : 0.0f;
    order[i] = mine + i < others ? order_of(c.per_cell ? __fdiv_rn(score, float(c.chunk)) : score) : 0;
  }
  bool exact = c.take == others || c.take == 0;  // all that reach the bar are taken
  uint32_t bar = c.take == 0 ? 0xffffffffu : 0, all;
  if (!exact && items == 1) {
    bar = find_bar(c.take, exact, [&](uint32_t at) { return __syncthreads_count(order[0] >= at); });
  } else if (!exact) {
    // The bar is not below the one that `take` threads reach with their best score; few scores reach that, and only
    // they are examined.
    uint32_t best = 0, floor = 0, reach = 0;
#pragma unroll
    for (int i = 0; i < items; ++i) best = max(best, order[i]);
    bool unused;
    if (c.take <= kThreadsOfMean)
      floor = find_bar(c.take, unused, [&](uint32_t at) { return __syncthreads_count(best >= at); });
#pragma unroll
    for (int i = 0; i < items; ++i) reach += order[i] >= floor;
    uint32_t at = sum_before(reach, room, all);
    if (floor > 0 && all <= kThreadsOfMean) {
#pragma unroll
      for (int i = 0; i < items; ++i)
        if (order[i] >= floor) room.few[at++] = order[i];
      __syncthreads();
      const uint32_t one = threadIdx.x < all ? room.few[threadIdx.x] : 0;
      bar = find_bar(c.take, exact, [&](uint32_t at) { return __syncthreads_count(one >= at); });
      bar = max(bar, floor);  // below it are others that were not looked at
    } else {                  // many are alike
      bar = find_bar(c.take, exact, [&](uint32_t at) {
        uint32_t mine_reach = 0, sum;
#pragma unroll
        for (int i = 0; i < items; ++i) mine_reach += order[i] >= at;
        sum_before(mine_reach, room, sum);
        return int(sum);
      });
    }
  }
  const auto above = [&](int i) { return mine + i < others && (exact ? order[i] >= bar : order[i] > bar); };
  const auto at_bar = [&](int i) { return mine + i < others && !exact && order[i] == bar; };
  uint32_t counts = 0;  // above: lower half, at the bar: upper half
#pragma unroll
  for (int i = 0; i < items; ++i) counts += uint32_t(above(i)) + (uint32_t(at_bar(i)) << 16);
  const uint32_t before = sum_before(counts, room, all);
  const int left_out = int(all >> 16) - (c.take - int(all & 0xffff));  // of those at the bar, the first
  int rank = int(before & 0xffff), equal = int(before >> 16);
#pragma unroll
  for (int i = 0; i < items; ++i) {
    if (above(i)) room.taken[rank++ + max(0, equal - left_out)] = uint16_t(c.first + mine + i);
    if (!at_bar(i)) continue;
    if (equal >= left_out) room.taken[rank + equal - left_out] = uint16_t(c.first + mine + i);
    ++equal;
  }
  __syncthreads();
}

// The cells of all places.
__device__ void choose(const RetrieveCall& c, ChoiceRoom& room) {
  const int others = c.last - c.first;
  if (others <= kThreadsOfMean) take_best<1>(c, room);
  else if (others <= 2 * kThreadsOfMean) take_best<2>(c, room);
  else if (others <= 8 * kThreadsOfMean) take_best<8>(c, room);
  else take_best<kMostItems>(c, room);
  const int head_end = c.first * c.chunk, taken_end = head_end + c.take * c.chunk;
  for (int place = threadIdx.x; place < c.count; place += kThreadsOfMean) {
    const int inside = place - head_end;
    c.chosen[place] = place < head_end    ? place
                      : place < taken_end ? int(room.taken[inside / c.chunk]) * c.chunk + inside % c.chunk
                                          : c.last * c.chunk + place - taken_end;
  }
}

// One block: the choice alone, 4 bytes per chunk. Bound: latency.
__global__ void __launch_bounds__(kThreadsOfMean) choose_kernel(const __grid_constant__ RetrieveCall c) {
  __shared__ ChoiceRoom room;
  let_next_start();
  wait_for_previous();
  choose(c, room);
}

// One block: 32 chunks, one per lane, and all pairs, of which a warp takes every 16th: 8 bytes read per 16 cells and
// pair. Every block weighs the spans of all pairs anew, while its first pieces are on their way. Bound: latency. Orders
// depend on the number of spans and pairs alone. `two`: chunks are two pieces. The last block to end makes the choice,
// if one is wanted.
template <bool two>
__global__ void __launch_bounds__(kThreadsOfMean, 2)
    mean_of_pieces(const __grid_constant__ ScoreCall c, Scratch s, int chunk_pieces,
                   const __grid_constant__ RetrieveCall then) {
  extern __shared__ float2 weights[];  // [pairs]: largest logit, 1 / sum
  __shared__ float totals[kWarpsOfMean][32];
  __shared__ ChoiceRoom room;
  __shared__ bool is_last;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, pairs = c.layers * c.heads, pitch = s.pitch / kPiece;
  const int chunk = int(blockIdx.x) * 32 + lane, read = min(chunk, c.chunks - 1);
  const bool peak = c.kind == ScoreKind::kPeak;
  let_next_start();
  wait_for_previous();
  constexpr int kAhead = 4;
  float4 ahead[kAhead];
  const auto load = [&](int first) {  // pairs first, first + 16, ...
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int pair = min(first + i * kWarpsOfMean, pairs - 1);
      ahead[i] = *reinterpret_cast<const float4*>(s.pieces + size_t(pair) * size_t(pitch) + size_t(2 * read));
    }
  };
  if constexpr (two) load(warp);
  for (int base = 0; base < pairs; base += kThreadsOfMean / 8) {  // the same number of rounds for all threads
    const int pair = base + int(threadIdx.x / 8);
    const float2* states = s.states + size_t(min(pair, pairs - 1)) * size_t(s.spans);
    constexpr int kHeld = 8;
    float2 held[kHeld];  // of the first 64 spans, all under way at once; there are seldom more
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = int(threadIdx.x % 8) + 8 * j;
      held[j] = i < s.spans ? states[i] : make_float2(-INFINITY, 0);
    }
    float most = -INFINITY, sum = 0;
    const int rest = int(threadIdx.x % 8) + 8 * kHeld;
#pragma unroll
    for (int j = 0; j < kHeld; ++j) most = fmaxf(most, held[j].x);
    for (int i = rest; i < s.spans; i += 8) most = fmaxf(most, states[i].x);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) most = fmaxf(most, __shfl_xor_sync(kAllLanes, most, step));
    const auto add_span = [&](float2 span) {
      sum = __fadd_rn(sum, __fmul_rn(span.y, __expf(__fsub_rn(span.x, most))));
    };
#pragma unroll
    for (int j = 0; j < kHeld; ++j) add_span(held[j]);
    for (int i = rest; i < s.spans; i += 8) add_span(states[i]);
#pragma unroll
    for (int step = 4; step > 0; step /= 2) sum = __fadd_rn(sum, __shfl_xor_sync(kAllLanes, sum, step));
    if (threadIdx.x % 8 == 0 && pair < pairs) weights[pair] = make_float2(most, __fdiv_rn(1.0f, sum));
  }
  __syncthreads();
  float total = 0;
  // (largest, sum) of some pieces and the next one.
  const auto join = [&](float& most, float& sum, float2 piece, float2 weight) {
    most = fmaxf(most, piece.x);
    sum = __fadd_rn(sum, __fmul_rn(piece.y, __expf(__fsub_rn(piece.x, weight.x))));
  };
  const auto add = [&](float most, float sum, float2 weight) {
    total = __fadd_rn(total, __fmul_rn(peak ? __expf(__fsub_rn(most, weight.x)) : sum, weight.y));
  };
  if constexpr (two) {
    for (int first = warp; first < pairs; first += kAhead * kWarpsOfMean) {
      if (first > warp) load(first);
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const int pair = first + i * kWarpsOfMean;
        if (pair >= pairs) break;  // the same for the warp
        float most = -INFINITY, sum = 0;
        join(most, sum, make_float2(ahead[i].x, ahead[i].y), weights[pair]);
        join(most, sum, make_float2(ahead[i].z, ahead[i].w), weights[pair]);
        add(most, sum, weights[pair]);
      }
    }
  } else {
    for (int pair = warp; pair < pairs; pair += kWarpsOfMean) {
      const float2* pieces = s.pieces + size_t(pair) * size_t(pitch);
      const int end = min((read + 1) * chunk_pieces, pitch);
      float most = -INFINITY, sum = 0;
#pragma unroll 4
      for (int i = read * chunk_pieces; i < end; ++i) join(most, sum, pieces[i], weights[pair]);
      add(most, sum, weights[pair]);
    }
  }
  totals[warp][lane] = total;
  __syncthreads();
  if (warp == 0) {
    float sum = totals[0][lane];
    for (int w = 1; w < min(kWarpsOfMean, pairs); ++w) sum = __fadd_rn(sum, totals[w][lane]);
    if (chunk < c.chunks) c.mean[chunk] = __fdiv_rn(sum, float(pairs));
    if (then.done) {
      __threadfence();  // before the block is counted
      __syncwarp();
      if (lane == 0) is_last = atomicAdd(then.done, 1u) == gridDim.x - 1;
    }
  }
  if (!then.done) return;
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  if (threadIdx.x == 0) *then.done = 0;  // for the next time
  choose(then, room);
}

// One block: a key/value head of a layer, the mean over its query heads, 4 bytes read for each of these and chunk, and
// the choice. Bound: latency.
__global__ void __launch_bounds__(kThreadsOfMean)
    choose_heads_kernel(const __grid_constant__ RetrieveCall c, const __grid_constant__ HeadScores s) {
  __shared__ ChoiceRoom room;
  const int group = s.heads / s.kv_heads, list = int(blockIdx.y) * s.kv_heads + int(blockIdx.x);
  const float* rows = s.scores + size_t(list) * size_t(group) * size_t(s.chunks);
  float* means = s.means + size_t(list) * size_t(s.chunks);
  let_next_start();
  wait_for_previous();
  for (int chunk = threadIdx.x; chunk < s.chunks; chunk += kThreadsOfMean) {
    float sum = rows[chunk];
    for (int row = 1; row < group; ++row) sum = __fadd_rn(sum, rows[size_t(row) * size_t(s.chunks) + size_t(chunk)]);
    __stcg(means + chunk, __fdiv_rn(sum, float(group)));
  }
  __threadfence_block();
  __syncthreads();
  RetrieveCall own = c;
  own.scores = means;
  own.chosen = c.chosen + (size_t(s.first_layer * s.kv_heads) + size_t(list)) * size_t(c.count);
  choose(own, room);
}

// The places of a cell of every kPerPlace-th head, from head `member` on, of every gridDim.y-th layer.
struct Walk {
  size_t at;
  int head;
  __device__ Walk(const KvView& kv, int slot, int member, int cell)
      : at(cell_index(kv, int(blockIdx.y), slot, member, cell)), head(member) {}
  __device__ size_t next(const KvView& kv, int member) {
    const size_t result = at;
    head += kPerPlace, at += size_t(kPerPlace) * kCellBlock;
    if (head < kv.kv_heads) return result;
    at += cell_index(kv, int(gridDim.y), 0, 0, 0) - size_t(head - member) * kCellBlock;
    head = member;
    return result;
  }
};

// One block: the cells of every gridDim.x-th four places, in every gridDim.y-th layer, all heads: 4 head_dim bytes read
// and written per cell and head in 16-bit types. Bound: latency for a few layers, memory for many. What a place holds
// already is not written again.
template <class Word>
__global__ void __launch_bounds__(kGatherThreads, sizeof(Word) == 16 ? 2 : 1)
    gather_kernel(const __grid_constant__ RetrieveCall c) {
  __shared__ float tables[kPlaces][kMostHeadDim];
  __shared__ __align__(8) float keys[kGatherWarps][kMostHeadDim];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, slot = warp % kPlaces, member = warp / kPlaces;
  const Where& w = c.where;
  let_next_start();
  wait_for_previous();
  for (int group = blockIdx.x; group * kPlaces < c.count; group += int(gridDim.x)) {
    const int place = group * kPlaces + slot;
    bool moves = place < c.count;
    const int cell = moves ? c.chosen[place] : 0;
    const auto position = [&](int shift) { return c.compact ? min(max(place - shift, 0), c.top) : cell; };
    const int delta = position(c.shift) - cell;
    if (moves && place < c.held) {
      const int old = place < c.listed ? c.before[place] : c.since + place - c.listed;
      moves = old != cell || position(c.shift_before) != position(c.shift);
    }
    // Layers of this row of blocks, and in each of them heads of this warp.
    const int layers = (w.to.layers - int(blockIdx.y) + int(gridDim.y) - 1) / int(gridDim.y);
    const int each = (w.heads - member + kPerPlace - 1) / kPerPlace, items = moves ? each * layers : 0;
    Walk read(w.from, w.from_slot, member, cell), write(w.to, w.to_slot, member, place);
    Cell<Word> now, next;  // two are under way
    if (items > 0) now.read(w.from, read.next(w.from, member), lane);
    if (items > 1) next.read(w.from, read.next(w.from, member), lane);
    if (moves && delta != 0) {
#pragma unroll 1  // there is one
      for (int i = member * 32 + lane; i < w.dims / 2; i += kPerPlace * 32) fill_entry(tables[slot], w, delta, i);
    }
    __syncthreads();
    for (int i = 0; i < items; ++i) {
      const size_t to = write.next(w.to, member);
      if (delta == 0) {
        now.write(w.to, to, lane, true);
      } else {
        float* x = keys[warp];
        now.widen_keys(w.from, x, lane);
        __syncwarp();
        turn_key(x, tables[slot], w, lane);
        __syncwarp();
        now.write(w.to, to, lane, false);
        store_key<Word>(w.to, to, x, lane);
        __syncwarp();  // before the next head overwrites x
      }
      now = next;
      if (i + 2 < items) next.read(w.from, read.next(w.from, member), lane);
    }
    __syncthreads();  // before the tables are filled again
  }
}

// One warp: one cell of one head, every gridDim.x * kGatherWarps-th of all: 4 head_dim bytes read and written in 16-bit
// types. Bound: memory. Cells at their positions in the text are copied as they are.
template <class Word>
__global__ void __launch_bounds__(kGatherThreads, 1)
    gather_heads_kernel(const __grid_constant__ RetrieveCall c, int lists) {
  __shared__ float tables[kGatherWarps][kMostHeadDim];
  __shared__ __align__(8) float keys[kGatherWarps][kMostHeadDim];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Where& w = c.where;
  let_next_start();
  wait_for_previous();
  const int64_t items = int64_t(lists) * c.count;
  for (int64_t item = int64_t(blockIdx.x) * kGatherWarps + warp; item < items;
       item += int64_t(gridDim.x) * kGatherWarps) {
    const int list = int(item / c.count), place = int(item % c.count), layer = list / w.heads, head = list % w.heads;
    const int cell = c.chosen[item], position = c.compact ? min(max(place - c.shift, 0), c.top) : cell;
    const size_t to = cell_index(w.to, layer, w.to_slot, head, place);
    Cell<Word> moved;
    moved.read(w.from, cell_index(w.from, layer, w.from_slot, head, cell), lane);
    if (position == cell) {
      moved.write(w.to, to, lane, true);
      continue;
    }
    fill_table(tables[warp], w, position - cell, lane, 32);
    moved.widen_keys(w.from, keys[warp], lane);
    __syncwarp();
    turn_key(keys[warp], tables[warp], w, lane);
    __syncwarp();
    moved.write(w.to, to, lane, false);
    store_key<Word>(w.to, to, keys[warp], lane);
    __syncwarp();  // before the next cell overwrites the key
  }
}

}  // namespace

bool scores_in_pieces(const ScoreCall& c) {
  return c.chunk > 0 && c.chunk % kPiece == 0 && c.first == 0 &&
         (c.kind == ScoreKind::kMass || c.kind == ScoreKind::kPeak);
}

size_t pieces_scratch_bytes(int heads, int context, int layers) {  // there are never more spans than tiles
  return size_t(layers) * size_t(heads) * size_t(tiles_for(context)) * (kTile / kPiece + 1) * sizeof(float2);
}

void score_pieces(const ScoreCall& c, void* scratch, cudaStream_t stream, const RetrieveCall* then) {
  const Scratch s = score_keys<true>(c, scratch, stream);
  const auto kernel = c.chunk == 2 * kPiece ? mean_of_pieces<true> : mean_of_pieces<false>;
  launch(kernel, unsigned((c.chunks + 31) / 32), kThreadsOfMean, size_t(c.layers * c.heads) * sizeof(float2), stream, c,
         s, c.chunk / kPiece, then ? *then : RetrieveCall{});
}

void choose_chunks(const RetrieveCall& c, cudaStream_t stream) {
  launch(choose_kernel, 1, kThreadsOfMean, 0, stream, c);
}

void choose_heads(const RetrieveCall& c, const HeadScores& s, cudaStream_t stream) {
  launch(choose_heads_kernel, dim3(unsigned(s.kv_heads), unsigned(s.layers)), kThreadsOfMean, 0, stream, c, s);
}

void gather_heads(const RetrieveCall& c, int layers, cudaStream_t stream) {
  if (c.count <= 0) return;
  const int lists = layers * c.where.heads;
  const int64_t blocks = (int64_t(lists) * c.count + kGatherWarps - 1) / kGatherWarps;
  const auto kernel = c.where.to.packed                  ? gather_heads_kernel<Packed>
                      : cell_bytes(c.where.to) % 16 == 0 ? gather_heads_kernel<uint4>
                                                         : gather_heads_kernel<uint32_t>;
  launch(kernel, unsigned(std::min<int64_t>(blocks, 2 * kGatherBlocks)), kGatherThreads, 0, stream, c, lists);
}

void gather(const RetrieveCall& c, cudaStream_t stream) {
  if (c.count <= 0) return;
  const int groups = (c.count + kPlaces - 1) / kPlaces, across = std::min(groups, kGatherBlocks);
  const int down = std::clamp(kGatherBlocks / across, 1, c.where.to.layers);  // few cells of many layers
  const auto kernel = c.where.to.packed                  ? gather_kernel<Packed>
                      : cell_bytes(c.where.to) % 16 == 0 ? gather_kernel<uint4>
                                                         : gather_kernel<uint32_t>;
  launch(kernel, dim3(unsigned(across), unsigned(down)), kGatherThreads, 0, stream, c);
}

}  // namespace sx::cuda
