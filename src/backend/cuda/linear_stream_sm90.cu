// 9 to 64 rows with 16-bit float weights on Hopper, where whole rows fill the device: weights and tokens come by TMA, so that
// the warps that multiply do nothing else. See linear_tma.cuh.
//
// Where the time of 64 rows goes, per block of 256 outputs and 64 k (the numbers of linear_many.cuh, 1.75 GHz): memory at
// its share of 4.3 TB/s 1,750 cycles with 40 KB of weights and tokens; tensor cores 512; shared memory 320 to write and 770
// to read; 2,300 were measured. What was lost: 10 copies and their addresses per thread and a barrier of the block per
// stage, with two warps per scheduler to hide them; 112 or 96 blocks on 132 multiprocessors. Hence here: a warp of its own for
// the copies, and blocks of 128 to 256 outputs as the device is best filled.
#include <algorithm>

#include "backend/cuda/linear_tma.cuh"
#include "backend/cuda/rows.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostWarps = 8, kThreads = (kMostWarps + 4) * 32;  // warps that multiply, 32 outputs each
constexpr int kSharedBytes = 227 * 1024;

#ifdef SX_HOPPER
// The end of a warp's products that feed a glu, as store_result and glu_kernel would have it: gates in total[0], factors in
// total[1], `first` is the first of the warp's 16 outputs. Neighbours in the warp exchange 16-bit results until each has four in a row.
template <Half kHalf, int kTokenTiles>
__device__ __forceinline__ void store_activated(const LinearTask& task, int first, const float (&total)[2][kTokenTiles][4]) {
  using Products = WarpProducts<kHalf, kTokenTiles>;
  const int lane = int(threadIdx.x) & 31, t = Products::t(), width = task.out / 2;
  const bool odd = (lane & 8) != 0, upper = (lane & 16) != 0;  // bits 0 and 1 of line(); bit 2 is that of the lane
  auto* const result16 = static_cast<uint16_t*>(task.result16);
  const bool quads = width % 4 == 0 && reinterpret_cast<uintptr_t>(result16) % 8 == 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int out = first + half * 8 + Products::line();
    float gate_bias = 0, up_bias = 0;
    if (task.bias && out < width) gate_bias = task.bias[out], up_bias = task.bias[width + out];
    uint32_t pairs[kTokenTiles];  // outputs out and out ^ 1 of row n * 8 + t, of the odd ones 4 rows further
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
      uint32_t bits[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float gate = total[0][n][half * 2 + j], up = total[1][n][half * 2 + j];
        if (task.bias) gate = __fadd_rn(gate, gate_bias), up = __fadd_rn(up, up_bias);
        const float v = silu_times(gate, up);
        bits[j] = half_bits(kHalf, v);
        const int row = n * 8 + t + j * 4;
        if (row >= task.rows || out >= width) continue;
        if (task.result) task.result[size_t(row) * size_t(task.out_stride) + size_t(out)] = v;
        if (!quads) result16[size_t(row) * size_t(width) + size_t(out)] = uint16_t(bits[j]);
      }
      const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? bits[0] : bits[1], 8);
      pairs[n] = odd ? other | bits[1] << 16 : bits[0] | other << 16;
    }
#pragma unroll
    for (int n = 0; n < kTokenTiles; n += 2) {
      const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? pairs[n] : pairs[n + 1], 16);
      const int row = (n + (upper ? 1 : 0)) * 8 + t + (odd ? 4 : 0), at = first + half * 8 + (lane & 4);
      if (quads && row < task.rows && at < width) {
        *reinterpret_cast<uint2*>(result16 + size_t(row) * size_t(width) + size_t(at)) =
            upper ? make_uint2(other, pairs[n + 1]) : make_uint2(pairs[n], other);
      }
    }
  }
}

// What all threads of a block know.
struct Place {
  int first_tile, step;     // the first of the block's tiles, and from tile to tile
  int outs, stages;         // outputs of a tile; stages of 64 k
  int bytes;                // of a stage
  uint32_t ring, barriers;  // stages in shared memory; per stage two barriers: full, free
  __device__ Place(const LinearTask& task, const StreamPlan& plan, uint32_t shared, int tokens)
      : first_tile(int(blockIdx.x)),
        step(int(gridDim.x)),
        outs(32 * plan.warps),
        stages(task.parts.groups * kStagesOfGroup),
        bytes(stage_bytes(outs, tokens)),
        ring(shared),
        barriers(shared + uint32_t(plan.stages * bytes)) {}
  __device__ uint32_t full(int slot) const { return barriers + uint32_t(slot) * 16; }
  __device__ uint32_t free(int slot) const { return barriers + uint32_t(slot) * 16 + 8; }
};

// The copying thread: the stages of each of the block's tiles, one after the other.
template <bool kGlu>
__device__ __forceinline__ void copy_stages(const LinearTask& task, const StreamPlan& plan, const Place& place,
                                            const CUtensorMap& weights_map, const CUtensorMap& tokens_map) {
  const int tiles = (plan.tiles - place.first_tile + place.step - 1) / place.step, all = tiles * place.stages,
            ahead = min(all, plan.stages);
  const auto weights = [&](int slot, int tile, int stage) {
    const uint32_t to = place.ring + uint32_t(slot * place.bytes);
    const int outs = kGlu ? place.outs / 2 : place.outs;
    hopper::barrier_arrive_expecting(place.full(slot), uint32_t(place.bytes));
    hopper::load_box(to, weights_map, stage * kStageK, tile * outs, place.full(slot));
    if constexpr (kGlu) {
      hopper::load_box(to + uint32_t(outs * kStageLine), weights_map, stage * kStageK, task.out / 2 + tile * outs, place.full(slot));
    }
  };
  const auto tokens = [&](int slot, int stage) {
    hopper::load_box(place.ring + uint32_t(slot * place.bytes + place.outs * kStageLine), tokens_map, stage * kStageK, 0,
                     place.full(slot));
  };
  int tile = place.first_tile, stage = 0;
  const auto advance = [&] {
    if (++stage == place.stages) stage = 0, tile += place.step;
  };
  for (int i = 0; i < ahead; ++i, advance()) weights(i, tile, stage);  // needs nothing of earlier kernels
  wait_for_previous();
  hopper::fence_async_global();  // tokens were written by ordinary stores
  for (int i = 0, s = 0; i < ahead; ++i, s = s + 1 == place.stages ? 0 : s + 1) tokens(i, s);
  uint32_t parity = 0;
  for (int i = ahead, slot = 0; i < all; ++i, advance()) {
    hopper::barrier_wait(place.free(slot), parity);  // everybody is done with what was there
    weights(slot, tile, stage);
    tokens(slot, stage);
    if (++slot == plan.stages) slot = 0, parity ^= 1;
  }
}

// A multiplying warp: 32 outputs of all tiles; of a glu 16 gates and their 16 factors.
template <Half kHalf, int kTokenTiles, bool kGlu>
__device__ __forceinline__ void multiply_stages(const LinearTask& task, const StreamPlan& plan, const Place& place) {
  const int first_out = (int(threadIdx.x) >> 5) * (kGlu ? 16 : 32), per_part = task.parts.per_part * kStagesOfGroup;
  const uint32_t apart = uint32_t((kGlu ? place.outs / 2 : 16) * kStageLine);
  WarpProducts<kHalf, kTokenTiles> products(task);
  float total[2][kTokenTiles][4];
  int slot = 0;
  uint32_t parity = 0;
  for (int tile = place.first_tile; tile < plan.tiles; tile += place.step) {
    products.all([&](int i, int n, int j, int, int) { total[i][n][j] = -0.0f; });  // -0 + p is p, bit for bit
    int left = per_part;
    for (int stage = 0; stage < place.stages; ++stage) {
      hopper::barrier_wait(place.full(slot), parity);
      const uint32_t here = place.ring + uint32_t(slot * place.bytes) + products.at();
      products.stage(here + uint32_t(first_out * kStageLine), here + uint32_t(place.outs * kStageLine), apart);
      __syncwarp();
      if ((threadIdx.x & 31) == 0) hopper::barrier_arrive(place.free(slot));
      if (++slot == plan.stages) slot = 0, parity ^= 1;
      if (--left > 0 && stage + 1 < place.stages) continue;
      left = per_part;  // the end of a part
      products.all([&](int i, int n, int j, int, int) {
        total[i][n][j] = __fadd_rn(total[i][n][j], products.sum[i][n][j]);
        products.sum[i][n][j] = 0;
      });
    }
    if constexpr (kGlu) {
      store_activated<kHalf>(task, tile * (place.outs / 2) + first_out, total);
    } else {
      products.all([&](int i, int n, int j, int row, int out) {
        const int at = tile * place.outs + first_out + out;
        if (row < task.rows && at < task.out) store_result(task, row, at, total[i][n][j]);
      });
    }
  }
}
#endif

// A block computes 32 * plan.warps outputs of all tokens, tile after tile. It must move the weights of its tiles once and
// the tokens from L2 once per tile, a quarter of that for 256 outputs and 64 tokens. Bound: memory bandwidth; up to 220 KB
// are in flight. Two warpgroups multiply (as many of their warps as the plan says), a third has the one thread that copies
// and gives its registers away.
template <Half kHalf, int kTokenTiles, bool kGlu>
__global__ void __launch_bounds__(kThreads, 1)
    stream_rows(const __grid_constant__ LinearTask task, const __grid_constant__ StreamPlan plan,
                const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  extern __shared__ unsigned char raw[];
  unsigned char* const shared = raw + (-hopper::shared_address(raw) & 1023u);
  const Place place(task, plan, hopper::shared_address(shared), 8 * kTokenTiles);
  const int warp = int(threadIdx.x) >> 5;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      hopper::barrier_init(place.full(i), 1);
      hopper::barrier_init(place.free(i), uint32_t(plan.warps));
    }
    hopper::barrier_init_done();
  }
  __syncthreads();

  if (warp >= kMostWarps) {
    hopper::give_registers<40>();
    if (threadIdx.x == kMostWarps * 32) copy_stages<kGlu>(task, plan, place, weights_map, tokens_map);
  } else {
    hopper::take_registers<232>();
    wait_for_previous();
    if (warp < plan.warps) multiply_stages<kHalf, kTokenTiles, kGlu>(task, plan, place);
  }
#else
  __trap();
#endif
}

template <Half kHalf, bool kGlu>
void stream(const LinearTask& task, const StreamPlan& plan, cudaStream_t stream) {
  by_tokens(task.rows, [&]<int kTokenTiles>() {
    const auto kernel = stream_rows<kHalf, kTokenTiles, kGlu>;
    static const cudaError_t allowed =  // once, before the first launch
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    check(allowed, "shared memory");
    const size_t shared = size_t(plan.stages) * size_t(stage_bytes(32 * plan.warps, 8 * kTokenTiles)) + kSpare;
    launch(kernel, dim3(unsigned(std::min(plan.tiles, kDevice))), dim3(kThreads), shared, stream, task, plan,
           map_of(task.data, kHalf, task.out, task.in, (kGlu ? 16 : 32) * plan.warps),
           map_of(task.x, kHalf, task.rows, task.in, 8 * kTokenTiles));
  });
}

template <Half kHalf>
void stream(const LinearTask& task, const StreamPlan& plan, cudaStream_t on) {
  task.glu ? stream<kHalf, true>(task, plan, on) : stream<kHalf, false>(task, plan, on);
}

}  // namespace

bool can_stream() {
  static const bool can = [] {
    int device = 0, major = 0, minor = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, stream_rows<Half::kBF16, 8, false>), "product");
    // Other architectures' code is one trap, and needs next to no registers.
    return major == 9 && minor == 0 && attributes.numRegs > 64 && encode_tiled() != nullptr;
  }();
  return can;
}

StreamPlan stream_plan(const LinearTask& task) {
  const int tokens = tokens_of(task.rows);
  StreamPlan best{};
  for (int warps = kMostWarps; warps >= 4; --warps) {
    const int outs = 32 * warps, tiles = divide_up(task.out, outs);
    const int64_t cost = int64_t(divide_up(tiles, kDevice)) * (outs + tokens) * task.in;
    if (best.warps != 0 && cost >= best.cost) continue;
    best = {warps, tiles, std::min(12, (kSharedBytes - kSpare) / stage_bytes(outs, tokens)), cost};
  }
  return best;
}

void multiply_stream(const LinearTask& task, Half half, cudaStream_t on) {
  const StreamPlan plan = stream_plan(task);
  half == Half::kBF16 ? stream<Half::kBF16>(task, plan, on) : stream<Half::kF16>(task, plan, on);
}

}  // namespace sx::cuda
