// One level of a draft's tree, expanded on the device by the rules of speculative/tree/levels.cc: scores, comparisons
// and sums in the same order with the same operations, so that the host would have grown the same tree.
#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/tree/grow_tree.h"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "base/fixed_math.h"

namespace sx::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kMostRun = 511;                // nodes run for a tree
static_assert(kThreads >= kLevelNodes + 1);  // a thread for each score that counts

// Larger is better: the score (finite, at most 0), then what came first.
__device__ __forceinline__ uint64_t key_of(float score, int order) {
  const uint32_t bits = __float_as_uint(score == 0 ? 0.0f : score);
  const uint32_t rank = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return uint64_t(rank) << 32 | uint32_t(~uint32_t(order));
}
__device__ __forceinline__ float score_of(uint64_t key) {
  const uint32_t rank = uint32_t(key >> 32);
  return __uint_as_float(rank & 0x80000000u ? rank ^ 0x80000000u : ~rank);
}
__device__ __forceinline__ int order_of(uint64_t key) { return int(~uint32_t(key)); }

// How many of a falling list are larger than x, or (equal) at least x.
__device__ __forceinline__ int count_above(const float* list, int count, float x, bool equal) {
  int low = 0, high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (list[middle] > x || (equal && list[middle] == x)) low = middle + 1;
    else high = middle;
  }
  return low;
}

struct Sums {
  double sum, gain;
  bool goes_on;
};

// One thread: the expected gain of the level, and whether the next level is worth its pass. exps: of the best scores;
// ahead: of the frontier.
__device__ Sums weigh(const TreeGrowthPlan& plan, const TreeGrowthState& state, bool begins, const double* exps,
                      int counted, const double* ahead, int frontier, int level) {
  double total = 0;
  for (int i = 0; i < counted; ++i) total = __dadd_rn(total, exps[i]);
  const double before = begins ? 0.0 : state.sum, last = begins ? 1.0 : state.gain;
  Sums s;
  s.gain = __dsub_rn(total, before);
  s.sum = __dadd_rn(before, s.gain);
  s.goes_on = false;
  if (level == plan.depth || frontier == 0) return s;
  double most = 0;
  for (int i = 0; i < frontier; ++i) most = __dadd_rn(most, ahead[i]);
  const double level_cost = plan.level_cost;
  if (most <= level_cost) return s;
  if (!plan.while_it_pays) {
    s.goes_on = true;
  } else if (!plan.with_costs || plan.level_cost <= 0) {
    s.goes_on = s.gain > double(plan.threshold);
  } else {
    const double share = s.gain / last;
    const double kept = __dmul_rn(s.gain, share < 1.0 ? share : 1.0);
    const double gain = kept < most ? kept : most;
    const double cost = __dadd_rn(__dmul_rn(level_cost, double(level)), double(plan.verify_cost[counted]));
    s.goes_on = __dmul_rn(gain, cost) > __dmul_rn(level_cost, __dadd_rn(1.0, s.sum));
  }
  return s;
}

// The step of the next pass: a thread for each row, padding included.
__device__ void write_row(const GrowCall& c, const TreeGrowthPlan& plan, int row, int frontier, int level, int ran,
                          Token token, const uint64_t (&above)[kAncestorWords]) {
  const bool real = row < frontier;
  const int place = ran + row;
  c.step.tokens[row] = real ? token : 0;
  c.step.positions[row] = real ? plan.positions[level - 1] : 0;
  c.step.outputs[row] = row;
  c.step.rows[row] =
      real ? RowInfo{plan.slot, plan.history, plan.history + place, plan.history + level - 1} : RowInfo{-1, 0, 0, 0};
#pragma unroll
  for (int w = 0; w < kAncestorWords; ++w) {
    const uint64_t own = place / 64 == w ? uint64_t(1) << (place % 64) : 0;
    c.step.ancestors[row * kAncestorWords + w] = real ? above[w] | own : 0;
  }
  if (row == 0) *c.step.tile = {0, frontier, plan.slot, plan.history};
}

// One block, one level: up to 16 x 128 candidates ranked by counting, merged into the best scores, and the next step
// written. 12 bytes read per candidate, 16 written to the host per node. Bound: latency.
__global__ void __launch_bounds__(kThreads) grow_kernel(GrowCall c) {
  __shared__ uint64_t keys[kLevelRows * kLevelBranch];
  __shared__ float level_scores[kLevelNodes + 1], merged[kLevelNodes + 1], parent_scores[kLevelRows];
  __shared__ double exps[kLevelNodes + 1], ahead[kLevelRows];
  __shared__ Token tokens[kLevelRows];
  __shared__ int parents[kLevelRows];
  __shared__ int alive;
  __shared__ bool goes_on;
  const int t = threadIdx.x, lane = t % 32;
  let_next_start();
  wait_for_previous();
  const TreeGrowthPlan& plan = *c.plan;
  TreeGrowthState& state = *c.state;
  const int rows = c.begins ? 1 : state.frontier, first = c.begins ? 0 : state.first;
  const int size = c.begins ? 1 : state.size, ran = c.begins ? 0 : state.ran, before = c.begins ? 0 : state.counted;
  const int level = (c.begins ? 0 : state.level) + 1;
  const float floor = c.begins ? plan.dead : state.floor;
  const int each = min(c.each, plan.branch), all = rows * each;
  if (t < rows) parent_scores[t] = c.begins ? 0.0f : state.scores[t];
  if (t == 0) alive = 0;
  __syncthreads();

  // Those above the floor, in any order: their keys tell it.
  for (int base = 0; base < all; base += kThreads) {
    const int i = base + t, row = i / each, rank = i - row * each;
    uint64_t key = 0;
    if (i < all) {
      const float logp = c.candidates[row * c.each + rank].logp;
      const float score = __fadd_rn(parent_scores[row], 0.0f < logp ? 0.0f : logp);
      if (score > floor) key = key_of(score, i);
    }
    const unsigned found = __ballot_sync(kAllLanes, key != 0);
    int at = 0;
    if (lane == 0 && found != 0) at = atomicAdd(&alive, __popc(found));
    at = __shfl_sync(kAllLanes, at, 0);
    if (key != 0) keys[at + __popc(found & ((1u << lane) - 1))] = key;
  }
  __syncthreads();
  const int count = alive, fresh = min(count, plan.nodes);
  for (int i = t; i < count; i += kThreads) {
    const uint64_t own = keys[i];
    int rank = 0;
#pragma unroll 8
    for (int j = 0; j < count; ++j) rank += keys[j] > own;
    if (rank >= fresh) continue;
    const int order = order_of(own), row = order / each;
    const float score = score_of(own);
    const Token found = c.candidates[row * c.each + (order - row * each)].token;
    const Token token = c.map ? c.map[found] : found;
    level_scores[rank] = score;
    if (rank < kLevelRows) tokens[rank] = token, parents[rank] = row;
    *reinterpret_cast<int4*>(&c.result->node[size + rank]) = make_int4(token, first + row, __float_as_int(score), 0);
  }
  __syncthreads();

  // Both lists fall; of equal scores the older come first.
  const int counted = min(before + fresh, plan.nodes);
  if (t < before) {
    const float x = state.best[t];
    const int at = t + count_above(level_scores, fresh, x, false);
    if (at < counted) merged[at] = x;
  }
  if (t < fresh) {
    const float x = level_scores[t];
    const int at = t + count_above(state.best, before, x, true);
    if (at < counted) merged[at] = x;
  }
  __syncthreads();
  if (t < counted) exps[t] = fixed_exp(double(merged[t]));
  if (t < min(fresh, kLevelRows)) ahead[t] = fixed_exp(double(level_scores[t]));
  const float worst = counted < plan.nodes ? -INFINITY : merged[counted - 1];
  const float next_floor = plan.dead < worst ? worst : plan.dead;
  const int most = min(min(min(plan.branch, plan.rows), min(kLevelRows, (kMostRun - ran + 1) / 2)), fresh);
  // A prefix: the level falls. Also the barrier before what was just written is read.
  const int frontier = __syncthreads_count(t < most && level_scores[t] > next_floor);

  uint64_t above[kAncestorWords] = {};
  if (!c.begins && t < frontier) {
#pragma unroll
    for (int w = 0; w < kAncestorWords; ++w) above[w] = c.step.ancestors[parents[t] * kAncestorWords + w];
  }
  if (t == 0) {
    const Sums s = weigh(plan, state, c.begins, exps, counted, ahead, frontier, level);
    goes_on = s.goes_on;
    state.sum = s.sum, state.gain = s.gain, state.floor = next_floor, state.level = level, state.size = size + fresh;
    state.frontier = frontier, state.first = size, state.counted = counted;
    state.ran = ran + (s.goes_on ? frontier : 0);
    if (c.in_loop) cudaGraphSetConditional(c.loop, s.goes_on ? 1u : 0u);
    if (!s.goes_on) {
      c.result->ran = ran, c.result->passes = level - 1;
      __threadfence_system();  // the host may see the size only after all that this block has written
      *const_cast<volatile int32_t*>(&c.result->size) = size + fresh;
    }
  }
  __syncthreads();  // the bits above have been read, and all of the old state
  if (t < counted) state.best[t] = merged[t];
  if (!goes_on) return;
  if (t < c.step.count) {
    write_row(c, plan, t, frontier, level, ran, t < frontier ? tokens[t] : 0, above);
    state.parents[t] = t < frontier ? parents[t] : 0;
  }
  if (t < frontier) {
    state.scores[t] = level_scores[t];
    c.result->order[ran + t] = size + t;
  }
}

// One block: the candidates after one node as TreeGrowthSampling has them, best first; those left out come last and are
// impossible. Sums run from the likeliest on, as the host's do. 12 bytes read and written per candidate. Bound:
// latency.
__global__ void __launch_bounds__(kLevelBranch) reweigh_kernel(GrowCall c) {
  __shared__ double exps[kLevelBranch];
  __shared__ float logits[kLevelBranch], values[kLevelBranch], sorted[kLevelBranch];
  __shared__ Token tokens[kLevelBranch];
  __shared__ int kept;
  __shared__ double log_sum;
  const int t = threadIdx.x;
  let_next_start();
  wait_for_previous();
  const TreeGrowthPlan& plan = *c.plan;
  if (!c.begins && int(blockIdx.x) >= c.state->frontier) return;  // padding
  Candidate* row = c.candidates + size_t(blockIdx.x) * size_t(c.each);
  const int most = plan.top_k > 0 ? min(plan.top_k, c.each) : c.each;
  Candidate mine{};
  if (t < c.each) {
    mine = row[t];
    logits[t] = mine.logit;
    tokens[t] = c.map ? c.map[mine.token] : mine.token;
  }
  __syncthreads();
  if (t < most) exps[t] = fixed_exp(double(__fsub_rn(logits[t], logits[0])));
  __syncthreads();
  if (t == 0) {
    double sum = 0, part = 0;
    for (int i = 0; i < most; ++i) sum = __dadd_rn(sum, exps[i]);
    const double wanted = __dmul_rn(double(plan.top_p), sum);
    int n = 0;
    while (n < most && part < wanted) part = __dadd_rn(part, exps[n++]);
    n = max(n, 1);
    while (plan.least < 0 && n > 1 && double(__fsub_rn(logits[n - 1], logits[0])) < plan.least) --n;
    kept = n;
  }
  __syncthreads();
  const int count = kept;
  float value = -INFINITY;
  if (t < count) {
    const uint64_t position = plan.position + uint64_t(c.begins ? 0 : c.state->level);
    value = __fdiv_rn(logits[t], plan.temperature);
    if (plan.noise) value = __fadd_rn(value, float(fixed_gumbel(plan.seed, position, uint64_t(tokens[t]))));
    values[t] = value;
  }
  sorted[t] = -INFINITY;
  __syncthreads();
  int rank = t;
  if (t < count && plan.noise) {
    rank = 0;
    for (int j = 0; j < count; ++j) rank += values[j] > value || (values[j] == value && tokens[j] < tokens[t]);
  }
  if (t < count) sorted[rank] = value;
  __syncthreads();
  if (t < count) exps[t] = fixed_exp(__dsub_rn(double(sorted[t]), double(sorted[0])));
  __syncthreads();
  if (t == 0) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum = __dadd_rn(sum, exps[i]);
    log_sum = __dadd_rn(double(sorted[0]), fixed_log(sum));
  }
  __syncthreads();
  if (t < c.each)
    row[t < count ? rank : t] = {mine.token, t < count ? float(__dsub_rn(double(value), log_sum)) : -INFINITY,
                                 mine.logit};
}

}  // namespace

void reweigh_candidates(const GrowCall& call, int rows, cudaStream_t stream) {
  launch(reweigh_kernel, unsigned(rows), kLevelBranch, 0, stream, call);
}

void grow_level(const GrowCall& call, cudaStream_t stream) { launch(grow_kernel, 1, kThreads, 0, stream, call); }

}  // namespace sx::cuda
