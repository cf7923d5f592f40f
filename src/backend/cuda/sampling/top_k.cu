// The k likeliest tokens of a row. Logits and ids become keys of 64 bits that are unique and rank as the definition
// says, so selection is exact and does not depend on how a row is cut. A block first finds a number that at least k of
// its keys reach and few others; the keys that reach it are gathered and sorted. Where too many do (ties), the k-th
// largest of the threads' best keys is found bit by bit: at most 8 k reach that. Slices first, then the lists that they
// leave.
#include <algorithm>

#include "backend/cuda/sampling/choose.h"
#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {
namespace {

constexpr int kPer = 8;       // keys of a thread
constexpr int kRanked = 256;  // up to so many gathered keys are ranked by counting, which takes no barriers
constexpr int kGathered = kPer * kMostTopK;

int threads_for(int k) { return k <= 64 ? 512 : 1024; }
int slice_for(int k) { return threads_for(k) * kPer; }
int slices_of(int vocab, int k) { return (vocab + slice_for(k) - 1) / slice_for(k); }
// Slices of a row are all about as long: in a block with few keys, few would be found to reach anything.
int length_of_slices(int vocab, int k) { return ((vocab - 1) / slices_of(vocab, k) + 4) / 4 * 4; }

struct Part {  // of the softmax: the largest finite logit of a slice and the sum of e^(x - largest)
  double sum;
  float largest;
  int32_t unused;
};

// Larger is better: the logit, then the smaller id. What is not finite ranks as -infinity, -0 as 0; no key is 0.
__device__ __forceinline__ uint64_t key_of(float x, Token token) {
  const uint32_t bits = __float_as_uint(!isfinite(x) ? -INFINITY : x == 0 ? 0.0f : x);
  const uint32_t rank = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(rank) << 32 | uint32_t(~uint32_t(token));
}
// The logit of the upper half of a key, but 0 for -0 and -infinity for what is not finite; 0 is no key.
__device__ __forceinline__ float logit_of(uint32_t rank) {
  return rank == 0 ? -INFINITY : __uint_as_float(rank & 0x80000000u ? rank ^ 0x80000000u : ~rank);
}
__device__ __forceinline__ Token token_of(uint64_t key) { return Token(~uint32_t(key)); }

// The largest number that at least `wanted` of the threads reach; at least so many threads there are.
__device__ __forceinline__ uint32_t reached_by(uint32_t mine, bool counts, int wanted) {
  uint32_t reached = 0;
  for (uint32_t bit = 0x80000000u; bit != 0; bit >>= 1) {
    if (__syncthreads_count(counts && mine >= (reached | bit)) >= wanted) reached |= bit;
  }
  return reached;
}

// gathered[] = all threads' keys from `least` (not 0) on, as far as there is room, in any order; *count, 0 before: how
// many there are. The caller puts barriers around.
__device__ __forceinline__ void gather(const uint64_t (&key)[kPer], uint64_t least, uint64_t* gathered, int* count) {
  unsigned reach[kPer];
  int all = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) reach[j] = __ballot_sync(kAllLanes, key[j] >= least), all += __popc(reach[j]);
  if (all == 0) return;  // the same for the warp
  const int lane = threadIdx.x % 32;
  int at = 0;
  if (lane == 0) at = atomicAdd(count, all);
  at = __shfl_sync(kAllLanes, at, 0);
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int place = at + __popc(reach[j] & ((1u << lane) - 1));
    if (key[j] >= least && place < kGathered) gathered[place] = key[j];
    at += __popc(reach[j]);
  }
}

// The same with all keys that reach the k-th largest of the threads' best keys. All threads of the block take part.
__device__ void gather_tied(const uint64_t (&key)[kPer], int k, uint64_t* gathered, int* count) {
  uint64_t mine = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) mine = max(mine, key[j]);
  // Upper half first.
  const uint32_t upper = reached_by(uint32_t(mine >> 32), true, k);
  const int above = __syncthreads_count(uint32_t(mine >> 32) > upper);
  const bool tied = uint32_t(mine >> 32) == upper;
  uint32_t lower = 0;
  if (above + __syncthreads_count(tied) > k) lower = reached_by(uint32_t(mine), tied, k - above);
  if (threadIdx.x == 0) *count = 0;
  __syncthreads();
  gather(key, max(uint64_t(upper) << 32 | lower, uint64_t(1)), gathered, count);
  __syncthreads();
}

// put(i, key) for the i-th largest of the block's keys, i < k, 0 where there are fewer. *count keys reached what at
// least k do; they are gathered as far as there was room. All threads of the block take part.
template <class Put>
__device__ __forceinline__ void select(const uint64_t (&key)[kPer], int k, uint64_t* gathered, int* count, Put put) {
  const int t = threadIdx.x, threads = blockDim.x;
  int n = *count;
  if (n > kGathered) {
    __syncthreads();  // all have read *count
    gather_tied(key, k, gathered, count);
    n = *count;
  }
  if (n <= kRanked) {
    for (int base = 0; base < n; base += threads / 4) {  // four threads count for a key
      const int i = base + t / 4;
      const uint64_t own = i < n ? gathered[i] : 0;
      int rank = 0;
#pragma unroll 4
      for (int j = t % 4; j < n; j += 4) rank += gathered[j] > own;
      rank += __shfl_xor_sync(kAllLanes, rank, 1);
      rank += __shfl_xor_sync(kAllLanes, rank, 2);
      if (t % 4 == 0 && i < n && rank < k) put(rank, own);
    }
  } else {
    int size = kRanked;
    while (size < n) size *= 2;
    for (int i = n + t; i < size; i += threads) gathered[i] = 0;
    __syncthreads();
    for (int run = 2; run <= size; run *= 2) {
      for (int step = run / 2; step > 0; step /= 2) {
        for (int i = t; i < size / 2; i += threads) {
          const int a = 2 * i - (i & (step - 1)), b = a + step;  // i / step * step * 2 + i % step
          const uint64_t x = gathered[a], y = gathered[b];
          if ((x < y) == ((a & run) == 0)) gathered[a] = y, gathered[b] = x;
        }
        __syncthreads();
      }
    }
    for (int i = t; i < min(n, k); i += threads) put(i, gathered[i]);
  }
  for (int i = n + t; i < k; i += threads) put(i, uint64_t(0));
}

// One block: the k best of a slice of one row and the slice's part of the softmax: 4 bytes read per logit. Bound:
// latency. Each warp finds a number that its part of k threads reach; the least of these numbers is one that k threads
// of the block reach.
__global__ void __launch_bounds__(1024) top_k_slices(TopKCall c, int length, uint64_t* lists, Part* parts) {
  __shared__ uint64_t gathered[kGathered];
  __shared__ uint32_t tops[32], reaches[32];
  __shared__ double sums[32];
  __shared__ int count;
  const int t = threadIdx.x, threads = blockDim.x, lane = t % 32, warp = t / 32, warps = threads / 32;
  const int from = int(blockIdx.x) * length, end = min(from + length, c.vocab);
  const float* logits = c.logits + size_t(blockIdx.y) * size_t(c.stride);
  const bool whole = (reinterpret_cast<uintptr_t>(logits) & 15) == 0;
  let_next_start();
  wait_for_previous();
  float x[kPer];
  uint64_t key[kPer];
  uint32_t rest = 0;
#pragma unroll
  for (int j = 0; j < kPer / 4; ++j) {
    const int i = from + (j * threads + t) * 4;
    const float4 v = load4(logits, i, end, whole && i + 4 <= end);
    x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
  }
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const int i = from + (j / 4 * threads + t) * 4 + j % 4;
    key[j] = i < end ? key_of(x[j], i) : 0;
    if (i >= end || !isfinite(x[j])) x[j] = -INFINITY;
    rest = max(rest, uint32_t(key[j] >> 32));
  }
  uint32_t reached = __reduce_max_sync(kAllLanes, rest);
  if (lane == 0) tops[warp] = reached;
  for (int i = 1; i < (c.k + warps - 1) / warps; ++i) {
    if (lane == __ffs(int(__ballot_sync(kAllLanes, rest == reached))) - 1) rest = 0;
    reached = __reduce_max_sync(kAllLanes, rest);
  }
  if (lane == 0) reaches[warp] = reached;
  if (t == 0) count = 0;
  __syncthreads();
  const float largest = logit_of(__reduce_max_sync(kAllLanes, lane < warps ? tops[lane] : 0u));
  const uint32_t least = __reduce_min_sync(kAllLanes, lane < warps ? reaches[lane] : ~0u);
  gather(key, max(uint64_t(least) << 32, uint64_t(1)), gathered, &count);
  float sum = 0;
#pragma unroll
  for (int j = 0; j < kPer; ++j) sum = __fadd_rn(sum, x[j] == -INFINITY ? 0.0f : expf(__fsub_rn(x[j], largest)));
  const double warps_sum = warp_sum(double(sum));
  if (lane == 0) sums[warp] = warps_sum;
  __syncthreads();
  const size_t list = size_t(blockIdx.y) * gridDim.x + blockIdx.x;
  if (warp == 0) {
    const double total = warp_sum(lane < warps ? sums[lane] : 0.0);
    if (lane == 0) parts[list] = {total, largest, 0};
  }
  uint64_t* out = lists + list * size_t(c.k);
  select(key, c.k, gathered, &count, [&](int i, uint64_t best) { out[i] = best; });
}

// One block: the k best of up to `per_block` lists of one row, to a new list; or, where they are all the row has, to
// the result. 8 bytes read per key. Bound: latency. The least of all lists' (k / lists)-th keys is reached by k keys,
// and so is the largest of their k-th ones: lists fall.
__global__ void __launch_bounds__(1024) top_k_lists(TopKCall c, const uint64_t* lists, int count_of_lists,
                                                    int per_block, uint64_t* out, const Part* parts, int slices) {
  __shared__ uint64_t gathered[kGathered];
  __shared__ double log_sum;
  __shared__ float most;
  __shared__ int count;
  const int t = threadIdx.x, threads = blockDim.x, lane = t % 32, row = blockIdx.y;
  const int first = int(blockIdx.x) * per_block, n = min(per_block, count_of_lists - first);
  if (t == 0) count = 0;
  let_next_start();
  wait_for_previous();
  const uint64_t* from = lists + (size_t(row) * size_t(count_of_lists) + size_t(first)) * size_t(c.k);
  uint64_t key[kPer];
#pragma unroll
  for (int j = 0; j < kPer; ++j) key[j] = j * threads + t < n * c.k ? from[j * threads + t] : 0;
  uint32_t share = ~0u, last = 0;
  for (int i = lane; i < n; i += 32) {
    const uint64_t* list = from + size_t(i) * size_t(c.k);
    share = min(share, uint32_t(list[(c.k + n - 1) / n - 1] >> 32));
    last = max(last, uint32_t(list[c.k - 1] >> 32));
  }
  const uint32_t least = max(__reduce_min_sync(kAllLanes, share), __reduce_max_sync(kAllLanes, last));
  __syncthreads();  // *count
  gather(key, max(uint64_t(least) << 32, uint64_t(1)), gathered, &count);
  if (!out && t >= threads - 32) {  // the last warp has the fewest keys
    float largest = -INFINITY;
    for (int i = lane; i < slices; i += 32)
      largest = fmaxf(largest, parts[size_t(row) * size_t(slices) + size_t(i)].largest);
    largest = warp_max(largest);
    double sum = 0;
    for (int i = lane; i < slices; i += 32) {
      const Part p = parts[size_t(row) * size_t(slices) + size_t(i)];
      if (p.largest > -INFINITY) sum = __dadd_rn(sum, __dmul_rn(p.sum, exp(double(p.largest) - double(largest))));
    }
    sum = log(warp_sum(sum));
    if (lane == 0) log_sum = sum, most = largest;
  }
  __syncthreads();
  select(key, c.k, gathered, &count, [&](int i, uint64_t best) {
    if (out) {
      out[(size_t(row) * gridDim.x + blockIdx.x) * size_t(c.k) + size_t(i)] = best;
      return;
    }
    const Token token = token_of(best);
    float x = logit_of(uint32_t(best >> 32));
    if (x == 0 || x == -INFINITY) x = c.logits[size_t(row) * size_t(c.stride) + size_t(token)];
    const float logp = isfinite(x) ? fminf(0.0f, float(double(x) - double(most) - log_sum)) : -INFINITY;
    c.out[size_t(row) * size_t(c.k) + size_t(i)] = {token, logp, x};
  });
}

size_t up(size_t bytes) { return (bytes + 255) / 256 * 256; }
size_t list_bytes(int rows, int lists, int k) {
  return up(size_t(rows) * size_t(lists) * size_t(k) * sizeof(uint64_t));
}

}  // namespace

size_t top_k_scratch_bytes(int rows, int vocab, int k) {
  const int slices = slices_of(vocab, k);
  return 2 * list_bytes(rows, slices, k) + up(size_t(rows) * size_t(slices) * sizeof(Part));
}

void top_k(const TopKCall& call, void* scratch, cudaStream_t stream) {
  TopKCall c = call;
  if (c.rows <= 0 || c.k <= 0) return;
  if (c.stride == 0) c.stride = c.vocab;
  const int slices = slices_of(c.vocab, c.k), per_block = slice_for(c.k) / c.k;
  const unsigned threads = unsigned(threads_for(c.k)), rows = unsigned(c.rows);
  auto* memory = static_cast<std::byte*>(scratch);
  auto* lists = reinterpret_cast<uint64_t*>(memory);
  auto* others = reinterpret_cast<uint64_t*>(memory + list_bytes(c.rows, slices, c.k));
  auto* parts = reinterpret_cast<Part*>(memory + 2 * list_bytes(c.rows, slices, c.k));
  launch(top_k_slices, dim3(unsigned(slices), rows), threads, 0, stream, c, length_of_slices(c.vocab, c.k), lists,
         parts);
  int count = slices;
  while (count > per_block) {
    const int blocks = (count + per_block - 1) / per_block;
    launch(top_k_lists, dim3(unsigned(blocks), rows), threads, 0, stream, c, lists, count, per_block, others, parts,
           slices);
    std::swap(lists, others);
    count = blocks;
  }
  launch(top_k_lists, dim3(1, rows), threads, 0, stream, c, lists, count, per_block, static_cast<uint64_t*>(nullptr),
         parts, slices);
}

}  // namespace sx::cuda
