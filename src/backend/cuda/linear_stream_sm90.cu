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

namespace sx::cuda {
namespace {

constexpr int kMostWarps = 8, kThreads = (kMostWarps + 4) * 32;  // warps that multiply, 32 outputs each
constexpr int kSharedBytes = 227 * 1024;

#ifdef SX_HOPPER
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
__device__ __forceinline__ void copy_stages(const StreamPlan& plan, const Place& place, const CUtensorMap& weights_map,
                                            const CUtensorMap& tokens_map) {
  const int tiles = (plan.tiles - place.first_tile + place.step - 1) / place.step, all = tiles * place.stages,
            ahead = min(all, plan.stages);
  const auto weights = [&](int slot, int tile, int stage) {
    hopper::barrier_arrive_expecting(place.full(slot), uint32_t(place.bytes));
    hopper::load_box(place.ring + uint32_t(slot * place.bytes), weights_map, stage * kStageK, tile * place.outs,
                     place.full(slot));
  };
  const auto tokens = [&](int slot, int stage) {
    hopper::load_box(place.ring + uint32_t(slot * place.bytes + place.outs * kStageLine), tokens_map, stage * kStageK, 0,
                     place.full(slot));
  };
  int tile = place.first_tile, stage = 0;
  const auto next = [&] {
    if (++stage == place.stages) stage = 0, tile += place.step;
  };
  for (int i = 0; i < ahead; ++i, next()) weights(i, tile, stage);  // needs nothing of earlier kernels
  wait_for_previous();
  hopper::fence_async_global();  // tokens were written by ordinary stores
  for (int i = 0, s = 0; i < ahead; ++i, s = s + 1 == place.stages ? 0 : s + 1) tokens(i, s);
  uint32_t parity = 0;
  for (int i = ahead, slot = 0; i < all; ++i, next()) {
    hopper::barrier_wait(place.free(slot), parity);  // everybody is done with what was there
    weights(slot, tile, stage);
    tokens(slot, stage);
    if (++slot == plan.stages) slot = 0, parity ^= 1;
  }
}

// A multiplying warp: 32 outputs of all tiles.
template <Half kHalf, int kTokenTiles>
__device__ __forceinline__ void multiply_stages(const LinearTask& task, const StreamPlan& plan, const Place& place) {
  const int first_out = (int(threadIdx.x) >> 5) * 32, per_part = task.parts.per_part * kStagesOfGroup;
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
      products.stage(here + uint32_t(first_out * kStageLine), here + uint32_t(place.outs * kStageLine));
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
    products.all([&](int i, int n, int j, int row, int out) {
      const int at = tile * place.outs + first_out + out;
      if (row < task.rows && at < task.out) store_result(task, row, at, total[i][n][j]);
    });
  }
}
#endif

// A block computes 32 * plan.warps outputs of all tokens, tile after tile. It must move the weights of its tiles once and
// the tokens from L2 once per tile, a quarter of that for 256 outputs and 64 tokens. Bound: memory bandwidth; up to 220 KB
// are in flight. Two warpgroups multiply (as many of their warps as the plan says), a third has the one thread that copies
// and gives its registers away.
template <Half kHalf, int kTokenTiles>
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
    if (threadIdx.x == kMostWarps * 32) copy_stages(plan, place, weights_map, tokens_map);
  } else {
    hopper::take_registers<232>();
    wait_for_previous();
    if (warp < plan.warps) multiply_stages<kHalf, kTokenTiles>(task, plan, place);
  }
#else
  __trap();
#endif
}

template <Half kHalf>
void stream(const LinearTask& task, const StreamPlan& plan, cudaStream_t stream) {
  by_tokens(task.rows, [&]<int kTokenTiles>() {
    const auto kernel = stream_rows<kHalf, kTokenTiles>;
    static const cudaError_t allowed =  // once, before the first launch
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    check(allowed, "shared memory");
    const size_t shared = size_t(plan.stages) * size_t(stage_bytes(32 * plan.warps, 8 * kTokenTiles)) + kSpare;
    launch(kernel, dim3(unsigned(std::min(plan.tiles, kDevice))), dim3(kThreads), shared, stream, task, plan,
           map_of(task.data, kHalf, task.out, task.in, 32 * plan.warps),
           map_of(task.x, kHalf, task.rows, task.in, 8 * kTokenTiles));
  });
}

}  // namespace

bool can_stream() {
  static const bool can = [] {
    int device = 0, major = 0, minor = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, stream_rows<Half::kBF16, 8>), "product");
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
