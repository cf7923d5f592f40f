#include "backend/cuda/linear/experts_few.h"

#include <algorithm>

#include "backend/cuda/elementwise/norm_glu_embed.cuh"
#include "backend/cuda/linear/expert_glu.cuh"
#include "backend/cuda/linear/skinny_chain.cuh"

namespace sx::cuda {
namespace {

struct GateUp {
  const char* data;               // the gates of expert 0
  size_t expert_bytes, up_bytes;  // how far the next expert is, and the factors of this one
  const float* bias;              // [experts, 2 ffn] or null
  const int32_t* choice;
  const uint16_t* x16;
  uint16_t* inner16;
  int used, in, ffn;
  Parts parts;
  float limit, alpha;
};

// A block: 16 gates and their 16 factors of one row and one of its experts, a warp for each split-K part; then the
// activation. It reads the weights of both once. Bound: memory; all blocks of a row are there at once (three on a
// multiprocessor) with all of their weights asked for.
template <class Format>
__global__ void __launch_bounds__(kChainThreads, 3) few_gate_up(const __grid_constant__ GateUp c) {
  extern __shared__ __align__(16) uint4 token[];
  __shared__ float sums[kMostParts][2][kTileOut];
  const int part = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31, tile = int(blockIdx.x), entry = int(blockIdx.y);
  const int first = part * c.parts.per_part, last = min(first + c.parts.per_part, c.parts.groups);
  wait_for_previous();
  // Behind the wait: when a block of the next kernel starts, what this one waited for can be read.
  let_next_start();
  const int expert = read_now(c.choice + entry);
  const uint16_t* x = c.x16 + size_t(entry / c.used) * size_t(c.in);
  if (expert < 0) return;
  Chain<Format, 2, Format::kAhead> chain;
  LinearTask task{};
  task.data = c.data + size_t(expert) * c.expert_bytes;
  task.out = c.ffn, task.parts = c.parts;
  chain.sources[0].begin(task, tile, lane, last);
  task.data = static_cast<const char*>(task.data) + c.up_bytes;
  chain.sources[1].begin(task, tile, lane, last);
  chain.begin(first);
  copy_token(token, x, c.in, c.parts.groups * (kGroup / 8), int(threadIdx.x), kChainThreads);
  __syncthreads();
  chain.run(reinterpret_cast<const uint32_t*>(token), first, last, c.parts.per_part, [&](const float(&sum)[2][4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if ((lane & 3) == 0) sums[part][i][lane >> 2] = sum[i][0], sums[part][i][(lane >> 2) + 8] = sum[i][2];
  });
  __syncthreads();
  if (threadIdx.x >= kTileOut) return;
  const int out = tile * kTileOut + lane;
  float gate = sums[0][0][lane], up = sums[0][1][lane];
  for (int p = 1; p < c.parts.parts; ++p)
    gate = __fadd_rn(gate, sums[p][0][lane]), up = __fadd_rn(up, sums[p][1][lane]);
  if (c.bias) {
    const float* bias = c.bias + size_t(expert) * 2 * size_t(c.ffn) + out;
    gate = __fadd_rn(gate, bias[0]), up = __fadd_rn(up, bias[c.ffn]);
  }
  c.inner16[size_t(entry) * size_t(c.ffn) + size_t(out)] = f16_bits(activate_expert(gate, up, c.limit, c.alpha));
}

struct Down {
  const char* data;  // of expert 0
  size_t expert_bytes;
  const float* bias;  // [experts, width] or null
  const int32_t* choice;
  const float* weight;
  const uint16_t* inner16;
  float* out;  // [rows, width]
  int used, in, width;
  Parts parts;
  bool accumulate;
};

// A block: 16 outputs of one row, a warp for each of eight experts at a time; then their weighted sum in the order of
// choice. The choice was made two kernels before, so the weights are asked for before this one waits. Bound: memory.
template <class Format>
__global__ void __launch_bounds__(kChainThreads, 2) few_down(const __grid_constant__ Down c) {
  extern __shared__ __align__(16) uint4 tokens[];  // [at most kChainWarps][pieces]
  __shared__ float terms[kMostUsedExperts][kTileOut];
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31, tile = int(blockIdx.x), row = int(blockIdx.y);
  const int groups = c.parts.groups, pieces = groups * (kGroup / 8), g = lane >> 2;
  let_next_start();
  for (int j0 = 0; j0 < c.used; j0 += kChainWarps) {
    const int j = j0 + warp, entry = row * c.used + j;
    const int expert = j < c.used ? read_now(c.choice + entry) : -1;
    Chain<Format, 1, 3 * Format::kAhead> chain;
    LinearTask task{};
    task.data = c.data + size_t(max(expert, 0)) * c.expert_bytes;
    task.out = c.width, task.parts = c.parts;
    chain.sources[0].begin(task, tile, lane, expert < 0 ? 0 : groups);
    chain.begin(0);
    if (j0 == 0) wait_for_previous();
    uint4* const own = tokens + warp * pieces;  // each warp copies the token that it will read
    __syncwarp();
    if (expert >= 0) copy_token(own, c.inner16 + size_t(entry) * size_t(c.in), c.in, pieces, lane, 32);
    __syncwarp();
    if (expert < 0) continue;
    float total[2] = {-0.0f, -0.0f};  // -0 + p is p, bit for bit
    chain.run(reinterpret_cast<const uint32_t*>(own), 0, groups, c.parts.per_part, [&](const float(&sum)[1][4]) {
      total[0] = __fadd_rn(total[0], sum[0][0]), total[1] = __fadd_rn(total[1], sum[0][2]);
    });
    const float weight = c.weight[entry];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if ((lane & 3) != 0) break;
      const int within = g + 8 * i;
      if (c.bias)
        total[i] = __fadd_rn(total[i], c.bias[size_t(expert) * size_t(c.width) + size_t(tile * kTileOut + within)]);
      terms[j][within] = __fmul_rn(weight, total[i]);
    }
  }
  __syncthreads();
  if (threadIdx.x >= kTileOut || read_now(c.choice + row * c.used) < 0) return;
  float& to = c.out[size_t(row) * size_t(c.width) + size_t(tile * kTileOut + lane)];
  const float old = c.accumulate ? to : 0;
  float sum = terms[0][lane];
  for (int j = 1; j < c.used; ++j) sum = __fadd_rn(sum, terms[j][lane]);
  to = c.accumulate ? __fadd_rn(old, sum) : sum;
}

size_t down_bytes(const CudaExperts& down, const ExpertsArgs& args) {
  return size_t(std::min(args.used, kChainWarps)) * token_bytes(down.in());
}

size_t tile_bytes(const WeightSegment& segment, int in) {
  size_t group = 0;
  by_format(segment, [&]<class Packed>() { group = size_t(Packed::kGroupBytes); });
  return size_t(parts_of(in).groups) * group;
}

}  // namespace

bool few_experts_serve(const CudaExperts& gate_up, const CudaExperts& down, const ExpertsArgs& args) {
  constexpr size_t kMostShared = 40 << 10;  // besides what the kernels declare
  const auto parts = gate_up.parts();
  return args.rows <= kFewExpertRows && !args.part && parts.size() == 2 && down.parts().size() == 1 &&
         parts[0].segment == parts[1].segment && parts[0].out == parts[1].out && gate_up.segments()[0].quantised() &&
         down.segments()[0].quantised() && token_bytes(gate_up.in()) <= kMostShared &&
         down_bytes(down, args) <= kMostShared;
}

void few_experts(const FewExpertsCall& call, cudaStream_t stream) {
  const CudaExperts &gate_up = *call.gate_up, &down = *call.down;
  const ExpertsArgs& a = call.args;
  const int width = gate_up.in(), ffn = down.in();
  const auto tiles = [](int rows) { return size_t(rows / kTileOut); };
  const WeightSegment &both = gate_up.segments()[0], &last = down.segments()[0];
  const GateUp first{.data = static_cast<const char*>(both.data),
                     .expert_bytes = tiles(ffn) * tile_bytes(both, width),
                     .up_bytes = tiles(gate_up.parts()[1].first_row) * tile_bytes(both, width),
                     .bias = a.gate_up_bias,
                     .choice = call.choice,
                     .x16 = call.x16,
                     .inner16 = call.inner16,
                     .used = a.used,
                     .in = width,
                     .ffn = ffn,
                     .parts = parts_of(width),
                     .limit = a.limit,
                     .alpha = a.alpha};
  by_format(both, [&]<class Format>() {
    launch(few_gate_up<Format>, dim3(unsigned(ffn / kTileOut), unsigned(a.rows * a.used)), dim3(kChainThreads),
           token_bytes(width), stream, first);
  });
  const Down second{.data = static_cast<const char*>(last.data),
                    .expert_bytes = tiles(width) * tile_bytes(last, ffn),
                    .bias = a.down_bias,
                    .choice = call.choice,
                    .weight = call.weight,
                    .inner16 = call.inner16,
                    .out = a.out,
                    .used = a.used,
                    .in = ffn,
                    .width = width,
                    .parts = parts_of(ffn),
                    .accumulate = a.accumulate};
  by_format(last, [&]<class Format>() {
    launch(few_down<Format>, dim3(unsigned(width / kTileOut), unsigned(a.rows)), dim3(kChainThreads),
           down_bytes(down, a), stream, second);
  });
}

}  // namespace sx::cuda
