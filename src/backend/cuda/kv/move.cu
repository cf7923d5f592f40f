// kv_move: copies cells, as they are or with rotated keys. A warp moves one cell of one head, key and value; it reads
// all of it before it writes anything. Lists whose moves do not touch each other's cells run in parallel; others run in
// order inside a block per head and layer, in batches that may all be read before any is written.
#include <algorithm>

#include "backend/cuda/kv/move.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {
namespace {

constexpr int kWarps = 8;         // of a block that moves one cell of many heads
constexpr int kMostBatch = 16;    // moves of a batch, a warp each
constexpr int kMostMoves = 2000;  // of a launch: 24 KB of its parameters, of which there are 32,764 bytes

// Large parameters cost launch time, so there are sizes, and runs of moves whose cells follow each other.
constexpr uint32_t kStart = 0x80000000u;
template <int size>
struct Moves {
  int count;
  KvMove at[size];  // the top bit of src marks the first of a batch
  __device__ KvMove operator[](int i) const { return {int32_t(uint32_t(at[i].src) & ~kStart), at[i].dst, at[i].delta}; }
};
constexpr int kMostRuns = 256;
struct Run {
  int32_t src, dst, delta, first;  // first: the number of moves before it
};
template <int size>
struct Runs {
  int count;
  Run at[size];
  __device__ KvMove operator[](int i) const {
    int low = 0, high = count - 1;  // the last run that begins no later than i
    while (low < high) {
      const int middle = (low + high + 1) / 2;
      if (at[middle].first <= i) low = middle;
      else high = middle - 1;
    }
    const int further = i - at[low].first;
    return {at[low].src + further, at[low].dst + further, at[low].delta};
  }
};

// One block: one cell of one layer, all its heads: 4 head_dim bytes read and written per head in 16-bit types. Moves do
// not depend on each other. Bound: latency for a few cells, memory for many. `turns`: some key is rotated (delta is
// not 0); without, the kernel needs fewer registers.
template <class Word, class List, bool turns>
__global__ void __launch_bounds__(32 * kWarps, sizeof(Word) == 16 ? (turns ? 6 : 8) : 3)
    move_apart(const __grid_constant__ Where w, const __grid_constant__ List moves) {
  __shared__ float table[turns ? kMostHeadDim : 1];
  __shared__ __align__(8) float keys[turns ? kWarps : 1][turns ? kMostHeadDim : 2];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, layer = w.first_layer + int(blockIdx.y);
  const KvMove move = moves[int(blockIdx.x)];
  let_next_start();
  if (turns && move.delta != 0) {  // frequencies never change
    fill_table(table, w, move.delta, int(threadIdx.x), int(blockDim.x));
    __syncthreads();
  }
  wait_for_previous();
  for (int h = warp; h < w.heads; h += int(blockDim.x / 32)) {
    const int head = w.first_head + h;
    const size_t from = cell_index(w.from, layer, w.from_slot, head, move.src),
                 to = cell_index(w.to, layer, w.to_slot, head, move.dst);
    Cell<Word> cell;
    cell.read(w.from, from, lane);
    if (!turns || move.delta == 0) {
      cell.write(w.to, to, lane, true);
      continue;
    }
    float* x = keys[warp];
    cell.widen_keys(w.from, x, lane);
    __syncwarp();
    turn_key(x, table, w, lane);
    __syncwarp();
    cell.write(w.to, to, lane, false);
    store_key<Word>(w.to, to, x, lane);
    __syncwarp();  // before the next head overwrites x
  }
}

// One block: one head of one layer, all moves in order, a batch at a time and a warp per move of the batch. Nothing in
// a batch reads or writes what an earlier move of the batch writes, so all of it is read, then all of it written.
// Bound: latency of the batches.
template <class Word, int size>
__global__ void move_in_order(const __grid_constant__ Where w, const __grid_constant__ Moves<size> moves) {
  __shared__ float tables[kMostBatch][kMostHeadDim];
  __shared__ __align__(8) float keys[kMostBatch][kMostHeadDim];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const int head = w.first_head + int(blockIdx.x), layer = w.first_layer + int(blockIdx.y);
  let_next_start();
  wait_for_previous();
  for (int first = 0, last; first < moves.count; first = last) {
    last = first + 1;
    while (last < moves.count && last - first < warps && !(uint32_t(moves.at[last].src) & kStart)) ++last;
    const bool mine = first + warp < last;
    const KvMove move = moves.at[mine ? first + warp : first];
    const size_t from = cell_index(w.from, layer, w.from_slot, head, int(uint32_t(move.src) & ~kStart));
    const size_t to = cell_index(w.to, layer, w.to_slot, head, move.dst);
    const bool turns = move.delta != 0;
    Cell<Word> cell;
    if (mine) {
      cell.read(w.from, from, lane);
      if (turns) {
        cell.widen_keys(w.from, keys[warp], lane);
        fill_table(tables[warp], w, move.delta, lane, 32);
        __syncwarp();
        turn_key(keys[warp], tables[warp], w, lane);
      }
    }
    __syncthreads();
    if (mine) {
      cell.write(w.to, to, lane, !turns);
      if (turns) store_key<Word>(w.to, to, keys[warp], lane);
    }
    __syncthreads();
  }
}

// Whether the moves may be done in any order: no destination twice, and none inside the range of sources.
bool are_apart(std::span<const KvMove> moves, bool same) {
  bool ascending = true;
  int low_src = moves[0].src, high_src = low_src, low_dst = moves[0].dst, high_dst = low_dst;
  for (size_t i = 1; i < moves.size(); ++i) {
    ascending = ascending && moves[i - 1].dst < moves[i].dst;
    low_src = std::min(low_src, moves[i].src), high_src = std::max(high_src, moves[i].src);
    low_dst = std::min(low_dst, moves[i].dst), high_dst = std::max(high_dst, moves[i].dst);
  }
  if (!same || moves.size() == 1) return ascending;
  return ascending && (high_dst < low_src || high_src < low_dst);
}

template <class Word, class List>
void go_apart(const Where& w, std::span<const KvMove> part, const List& moves, int layers, cudaStream_t stream) {
  const int warps = std::min(kWarps, w.heads);
  const bool turns = std::any_of(part.begin(), part.end(), [](const KvMove& m) { return m.delta != 0; });
  const auto kernel = turns ? move_apart<Word, List, true> : move_apart<Word, List, false>;
  launch(kernel, dim3(unsigned(part.size()), unsigned(layers)), unsigned(warps * 32), 0, stream, w, moves);
}

// False: there are too many.
bool make_runs(std::span<const KvMove> part, Runs<kMostRuns>& runs) {
  runs.count = 0;
  for (size_t i = 0; i < part.size(); ++i) {
    const KvMove &move = part[i], *before = i > 0 ? &part[i - 1] : nullptr;
    if (before && move.src == before->src + 1 && move.dst == before->dst + 1 && move.delta == before->delta) continue;
    if (runs.count == kMostRuns) return false;
    runs.at[runs.count++] = {move.src, move.dst, move.delta, int32_t(i)};
  }
  return true;
}

template <class Word>
bool go_in_runs(const Where& w, std::span<const KvMove> part, int layers, cudaStream_t stream) {
  Runs<kMostRuns> runs;
  if (!make_runs(part, runs)) return false;
  if (runs.count <= 64) {
    Runs<64> few;
    few.count = runs.count;
    std::copy_n(runs.at, runs.count, few.at);
    go_apart<Word>(w, part, few, layers, stream);
  } else {
    go_apart<Word>(w, part, runs, layers, stream);
  }
  return true;
}

template <class Word, int size>
void go(const Where& w, std::span<const KvMove> part, int layers, bool apart, bool same, cudaStream_t stream) {
  Moves<size> moves;
  moves.count = int(part.size());
  std::copy(part.begin(), part.end(), moves.at);
  if (apart) return go_apart<Word>(w, part, moves, layers, stream);
  const int warps = std::min(kMostBatch, moves.count);
  for (int i = 0, first = 0; i < moves.count; ++i) {
    bool start = i == 0 || i - first == warps;
    for (int j = first; j < i && !start; ++j)
      start = part[i].dst == part[j].dst || (same && part[i].src == part[j].dst);
    if (!start) continue;
    first = i;
    moves.at[i].src = int32_t(uint32_t(moves.at[i].src) | kStart);
  }
  launch(move_in_order<Word, size>, dim3(unsigned(w.heads), unsigned(layers)), unsigned(warps * 32), 0, stream, w,
         moves);
}

template <class Word>
void move_all(const Where& w, std::span<const KvMove> moves, int layers, bool same, cudaStream_t stream) {
  for (size_t done = 0; done < moves.size();) {
    const auto part = moves.subspan(done, std::min(moves.size() - done, size_t(kMostMoves)));
    const bool apart = are_apart(part, same);
    done += part.size();
    if (apart && part.size() > 64 && go_in_runs<Word>(w, part, layers, stream)) continue;
    if (part.size() <= 64) go<Word, 64>(w, part, layers, apart, same, stream);
    else if (part.size() <= 512) go<Word, 512>(w, part, layers, apart, same, stream);
    else if (part.size() <= 1100) go<Word, 1100>(w, part, layers, apart, same, stream);
    else go<Word, kMostMoves>(w, part, layers, apart, same, stream);
  }
}

}  // namespace

void kv_move(const MoveCall& c, cudaStream_t stream) {
  if (c.moves.empty()) return;
  Where w{c.from,
          c.to,
          c.from_slot,
          c.to_slot,
          std::max(c.layer, 0),
          std::max(c.head, 0),
          c.head < 0 ? c.to.kv_heads : 1,
          c.frequencies,
          c.dims,
          c.style};
  const int layers = c.layer < 0 ? c.to.layers : 1;
  const bool same = c.from.k == c.to.k && c.from_slot == c.to_slot;
  if (c.to.packed) move_all<Packed>(w, c.moves, layers, same, stream);
  else if (cell_bytes(c.to) % 16 == 0) move_all<uint4>(w, c.moves, layers, same, stream);
  else move_all<uint32_t>(w, c.moves, layers, same, stream);
}

}  // namespace sx::cuda
