// Which expert has which rows, found on the device.
#pragma once
#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/runtime/launch.cuh"
#include "backend/ops.h"

namespace sx::cuda {

// "Entry": a row together with one of its experts. Entries of an expert are consecutive, experts ascend.
struct ExpertLists {
  int32_t* choice;  // [rows, used] experts, best first; -1: a row of padding
  float* weight;    // [rows, used]
  int32_t* place;   // [rows, used] entries
  int32_t* row_of;  // [entries]
  int32_t* first;   // [experts + 1]: an expert's entries
  int4* active;     // [slots] {expert, its first entry, its number of entries} of experts that have some, then -1
  int rows, used, experts, slots;
};

struct RouteCall {
  ExpertLists lists;
  const float* logits;       // [rows, experts]
  const float* choice_bias;  // [experts] or null
  const RowInfo* row_info;   // [rows] or null
  Routing routing;
  bool renormalise;
  float scale;
};

// A score as an integer of the same order, of which 0 is none: -0 is 0, and NaN lies outside of the infinities.
__device__ __forceinline__ uint32_t score_key(float score) {
  const uint32_t bits = __float_as_uint(__fadd_rn(score, 0.0f));
  return max(bits >> 31 ? ~bits : bits | 0x80000000u, 1u);
}

// A warp routes a row by its logits [experts]: lane l has the scores of experts l, l + 32, ..., at most kPerLane of
// them. Bound by latency.
template <int kPerLane>
__device__ __forceinline__ void route_row(const RouteCall& call, const float* logits, int row) {
  const int lane = int(threadIdx.x) & 31;
  const ExpertLists& lists = call.lists;
  int32_t* choice = lists.choice + size_t(row) * size_t(lists.used);
  float* weight = lists.weight + size_t(row) * size_t(lists.used);
  if (call.row_info && call.row_info[row].slot < 0) {
    for (int j = lane; j < lists.used; j += 32) choice[j] = -1;
    return;
  }
  const bool sigmoid = call.routing == Routing::kSigmoid;
  const auto probability = [](float logit) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-logit))); };
  float logit[kPerLane];
  uint32_t key[kPerLane];  // 0: chosen, or no expert
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) logit[i] = i * 32 + lane < lists.experts ? logits[i * 32 + lane] : 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    float score = !sigmoid ? logit[i] : probability(logit[i]);
    if (sigmoid && call.choice_bias && e < lists.experts) score = __fadd_rn(score, call.choice_bias[e]);
    key[i] = e < lists.experts ? score_key(score) : 0;
  }
  float top = 0, total = 0, mine[2] = {};  // weights lane and lane + 32
  static_assert(kMostUsedExperts <= 64);
  for (int j = 0; j < lists.used; ++j) {  // the largest, of equals the lower
    uint32_t best = key[0];
    int place = 0;
    float its_logit = logit[0];
#pragma unroll
    for (int i = 1; i < kPerLane; ++i)
      if (key[i] > best) best = key[i], place = i, its_logit = logit[i];
    const uint32_t largest = __reduce_max_sync(kAllLanes, best);
    const int which = __reduce_min_sync(kAllLanes, best == largest ? place * 32 + lane : kMostExperts);
    its_logit = __shfl_sync(kAllLanes, its_logit, which % 32);
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (i * 32 + lane == which) key[i] = 0;
    if (j == 0) top = its_logit;
    const float w = sigmoid ? probability(its_logit) : expf(__fsub_rn(its_logit, top));
    total = __fadd_rn(total, w);
    if (j % 32 == lane) choice[j] = which, mine[0] = j < 32 ? w : mine[0], mine[1] = w;
  }
  if (sigmoid) total = call.renormalise ? __fadd_rn(total, 1e-20f) : 1.0f;
  if (!sigmoid && !call.renormalise) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (i * 32 + lane < lists.experts) sum = __fadd_rn(sum, expf(__fsub_rn(logit[i], top)));
    total = warp_sum(sum);
  }
#pragma unroll
  for (int i = 0; i < 2; ++i)
    if (lane + 32 * i < lists.used) weight[lane + 32 * i] = __fmul_rn(__fdiv_rn(mine[i], total), call.scale);
}

template <int kPerLane>
__global__ void __launch_bounds__(128) route_rows(const __grid_constant__ RouteCall call) {
  const int row = int(blockIdx.x) * 4 + (int(threadIdx.x) >> 5);
  let_next_start();
  wait_for_previous();
  if (row < call.lists.rows) route_row<kPerLane>(call, call.logits + size_t(row) * size_t(call.lists.experts), row);
}

// One block; thread e has expert e. The lists come out the same whatever the block's timing. Reads all choices once per
// warp, from L1.
__device__ __forceinline__ void list_entries(const ExpertLists& lists, int32_t (&sums)[2][kMostExperts]) {
  const int e = int(threadIdx.x), entries = lists.rows * lists.used;
  int count = 0;
  if (e < lists.experts)
    for (int i = 0; i < entries; ++i) count += lists.choice[i] == e;
  // Inclusive sums over experts: entries in the low bits, active experts above.
  int mine = count | (count > 0 ? 1 << 20 : 0), from = 0;
  sums[0][e] = mine;
  __syncthreads();
  for (int distance = 1; distance < int(blockDim.x); distance *= 2, from ^= 1) {
    mine = sums[from][e] + (e >= distance ? sums[from][e - distance] : 0);
    sums[from ^ 1][e] = mine;
    __syncthreads();
  }
  const int before = e > 0 ? sums[from][e - 1] : 0, all = sums[from][int(blockDim.x) - 1];
  int next = before & 0xfffff;
  if (e < lists.experts) {
    lists.first[e] = next;
    if (count > 0) lists.active[before >> 20] = make_int4(e, next, count, 0);
  }
  if (e == 0) lists.first[lists.experts] = all & 0xfffff;
  for (int i = (all >> 20) + e; i < lists.slots; i += int(blockDim.x)) lists.active[i] = make_int4(-1, 0, 0, 0);
  if (count == 0) return;
  for (int i = 0; i < entries; ++i) {
    if (lists.choice[i] != e) continue;
    lists.place[i] = next;
    lists.row_of[next++] = i / lists.used;
  }
}

// Both in one block, for few rows: a launch less, and the choices stay in L1.
inline constexpr int kRouteThreads = 512;
template <int kPerLane>
__global__ void __launch_bounds__(kRouteThreads) route_and_list(const __grid_constant__ RouteCall call) {
  __shared__ int32_t sums[2][kMostExperts];
  let_next_start();
  wait_for_previous();
  for (int row = int(threadIdx.x) >> 5; row < call.lists.rows; row += kRouteThreads / 32)
    route_row<kPerLane>(call, call.logits + size_t(row) * size_t(call.lists.experts), row);
  __syncthreads();
  list_entries(call.lists, sums);
}

}  // namespace sx::cuda
