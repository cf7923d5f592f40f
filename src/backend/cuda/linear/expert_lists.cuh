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
  int32_t* active;  // [slots] experts that have entries, then -1
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

// A warp routes a row: lane l looks at experts l, l + 32, ... Reads a row of logits; bound by latency.
__global__ void __launch_bounds__(128) route_rows(const __grid_constant__ RouteCall call) {
  const int lane = int(threadIdx.x) & 31, row = int(blockIdx.x) * 4 + (int(threadIdx.x) >> 5);
  let_next_start();
  wait_for_previous();
  const ExpertLists& lists = call.lists;
  if (row >= lists.rows) return;
  int32_t* choice = lists.choice + size_t(row) * size_t(lists.used);
  float* weight = lists.weight + size_t(row) * size_t(lists.used);
  if (call.row_info && call.row_info[row].slot < 0) {
    for (int j = lane; j < lists.used; j += 32) choice[j] = -1;
    return;
  }
  const float* logits = call.logits + size_t(row) * size_t(lists.experts);
  const bool sigmoid = call.routing == Routing::kSigmoid;
  const auto probability = [&](int e) { return __fdiv_rn(1.0f, __fadd_rn(1.0f, expf(-logits[e]))); };
  const auto score = [&](int e) {
    if (!sigmoid) return logits[e];
    return call.choice_bias ? __fadd_rn(probability(e), call.choice_bias[e]) : probability(e);
  };
  // Whether a is chosen before b: the larger, of equals the lower; -1 is none.
  const auto before = [](float a, int i, float b, int j) { return i >= 0 && (j < 0 || a > b || (a == b && i < j)); };
  uint32_t taken = 0;  // of the lane's experts
  float top = 0, total = 0;
  for (int j = 0; j < lists.used; ++j) {
    float best = 0;
    int which = -1;
    for (int e = lane, i = 0; e < lists.experts; e += 32, ++i) {
      if (taken >> i & 1) continue;
      const float s = score(e);
      if (before(s, e, best, which)) best = s, which = e;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(kAllLanes, best, step);
      const int its = __shfl_xor_sync(kAllLanes, which, step);
      if (before(other, its, best, which)) best = other, which = its;
    }
    which = __shfl_sync(kAllLanes, which, 0);  // NaN may leave lanes with different winners
    if (which % 32 == lane) taken |= 1u << (which / 32);
    const float logit = logits[which];
    if (j == 0) top = logit;
    const float w = sigmoid ? probability(which) : expf(__fsub_rn(logit, top));
    total = __fadd_rn(total, w);
    if (lane == 0) choice[j] = which, weight[j] = w;
  }
  if (sigmoid) total = call.renormalise ? __fadd_rn(total, 1e-20f) : 1.0f;
  if (!sigmoid && !call.renormalise) {
    float sum = 0;
    for (int e = lane; e < lists.experts; e += 32) sum = __fadd_rn(sum, expf(__fsub_rn(logits[e], top)));
    total = warp_sum(sum);
  }
  __syncwarp();
  for (int j = lane; j < lists.used; j += 32) weight[j] = __fmul_rn(__fdiv_rn(weight[j], total), call.scale);
}

// One block; thread e has expert e. The lists come out the same whatever the block's timing. Reads all choices once per
// warp, from L1.
__global__ void __launch_bounds__(kMostExperts) list_entries(const __grid_constant__ ExpertLists lists) {
  __shared__ int32_t sums[2][kMostExperts];
  const int e = int(threadIdx.x), entries = lists.rows * lists.used;
  let_next_start();
  wait_for_previous();
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
    if (count > 0) lists.active[before >> 20] = e;
  }
  if (e == 0) lists.first[lists.experts] = all & 0xfffff;
  for (int i = (all >> 20) + e; i < lists.slots; i += int(blockDim.x)) lists.active[i] = -1;
  if (count == 0) return;
  for (int i = 0; i < entries; ++i) {
    if (lists.choice[i] != e) continue;
    lists.place[i] = next;
    lists.row_of[next++] = i / lists.used;
  }
}

}  // namespace sx::cuda
