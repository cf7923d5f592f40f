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
#ifdef SX_ROOM
constexpr int kBound = 512, kTaken = 176, kKept = 32;
#else
constexpr int kBound = kThreads, kTaken = 232, kKept = 40;
#endif
constexpr int kSharedBytes = 227 * 1024;

#ifdef SX_HOPPER
// Arrives at the barrier that block `rank` of the cluster has at this address.
__device__ __forceinline__ void barrier_arrive_at(uint32_t barrier, int rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [there];\n}\n" ::"r"(barrier), "r"(rank) : "memory");
}
// load_box to the same place in each block of the mask, whose barriers at the same place count its bytes.
__device__ __forceinline__ void load_box_for_all(uint32_t to, const CUtensorMap& map, int x, int y, uint32_t barrier,
                                                 uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
      "[%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to), "l"(reinterpret_cast<uint64_t>(&map)), "r"(x), "r"(y), "r"(barrier), "h"(mask)
      : "memory");
}

// The end of a product that feeds a glu: as store_result and then glu_kernel would have it.
__device__ __forceinline__ void store_activated(const LinearTask& task, int row, int out, float gate, float up) {
  if (task.bias) gate = __fadd_rn(gate, task.bias[out]), up = __fadd_rn(up, task.bias[task.out / 2 + out]);
  const float v = silu_times(gate, up);
  if (task.result) task.result[size_t(row) * size_t(task.out_stride) + size_t(out)] = v;
  static_cast<uint16_t*>(task.result16)[size_t(row) * size_t(task.out / 2) + size_t(out)] = half_bits(task.half16, v);
}

// What all threads of a block know. The blocks of a cluster have neighbouring tiles, and all of them the same number of tiles,
// some perhaps behind the last.
template <int kTokens, int kCluster, bool kGlu>
struct Place {
  int rank, first_tile, step, tiles;  // in the cluster; the block's tiles: the first, from one to the next, how many
  int outs, stages;                   // outputs of a tile; stages of 64 k
  int bytes;                          // of a stage
  uint32_t ring, barriers;            // stages in shared memory; per stage two barriers: full, free
  __device__ Place(const LinearTask& task, const StreamPlan& plan, uint32_t shared)
      : rank(int(blockIdx.x) % kCluster),
        first_tile(int(blockIdx.x)),
        step(int(gridDim.x)),
        tiles((plan.tiles - (first_tile - rank) + step - 1) / step),
        outs(32 * plan.warps),
        stages(task.parts.groups * kStagesOfGroup),
        bytes(stage_bytes(outs, kTokens)),
        ring(shared),
        barriers(shared + uint32_t(plan.stages * bytes)) {}
  __device__ uint32_t full(int slot) const { return barriers + uint32_t(slot) * 16; }
  __device__ uint32_t free(int slot) const { return barriers + uint32_t(slot) * 16 + 8; }
};

// The copying warp, of which one thread does it: the stages of each of the block's tiles, one after the other. Of the tokens it fetches its share for all
// blocks of the cluster.
template <int kTokens, int kCluster, bool kGlu>
__device__ __forceinline__ void copy_stages(const LinearTask& task, const StreamPlan& plan, const AheadFetch& next,
                                            const Place<kTokens, kCluster, kGlu>& place, const CUtensorMap& weights_map,
                                            const CUtensorMap& tokens_map) {
  const int all = place.tiles * place.stages, ahead = min(all, plan.stages);
  const auto weights = [&](int slot, int tile, int stage) {
    const uint32_t to = place.ring + uint32_t(slot * place.bytes);
    hopper::barrier_arrive_expecting(place.full(slot), uint32_t(place.bytes));
    if constexpr (kGlu) {
      const int half = place.outs / 2;
      hopper::load_box(to, weights_map, stage * kStageK, tile * half, place.full(slot));
      hopper::load_box(to + uint32_t(half * kStageLine), weights_map, stage * kStageK, task.out / 2 + tile * half, place.full(slot));
    } else {
      hopper::load_box(to, weights_map, stage * kStageK, tile * place.outs, place.full(slot));
    }
  };
  const auto tokens = [&](int slot, int stage) {
    const uint32_t to = place.ring + uint32_t(slot * place.bytes + place.outs * kStageLine);
    if constexpr (kCluster == 1) {
      hopper::load_box(to, tokens_map, stage * kStageK, 0, place.full(slot));
    } else {
      constexpr int kShare = kTokens / kCluster;
      load_box_for_all(to + uint32_t(place.rank * kShare * kStageLine), tokens_map, stage * kStageK, place.rank * kShare,
                       place.full(slot), uint16_t((1 << kCluster) - 1));
    }
  };
  const bool leads = (threadIdx.x & 31) == 0;
  int tile = place.first_tile, stage = 0;
  const auto advance = [&] {
    if (++stage == place.stages) stage = 0, tile += place.step;
  };
  for (int i = 0; leads && i < ahead; ++i, advance()) weights(i, tile, stage);  // needs nothing of earlier kernels
  __syncwarp();
  if (kCluster > 1) cluster_wait();  // the others' barriers are there
  wait_for_previous();
  if (leads) {
    hopper::fence_async_global();  // tokens were written by ordinary stores
    for (int i = 0, s = 0; i < ahead; ++i, s = s + 1 == place.stages ? 0 : s + 1) tokens(i, s);
    uint32_t parity = 0;
    for (int i = ahead, slot = 0; i < all; ++i, advance()) {
      hopper::barrier_wait(place.free(slot), parity);  // everybody is done with what was there, here and in the cluster
      weights(slot, tile, stage);
      tokens(slot, stage);
      if (++slot == plan.stages) slot = 0, parity ^= 1;
    }
    fetch_ahead(next, int(blockIdx.x), int(gridDim.x));
  }
  __syncwarp();
}

// A multiplying warp: 32 outputs of all tiles; of a glu 16 gates and their 16 factors.
template <Half kHalf, int kTokenTiles, int kCluster, bool kGlu>
__device__ __forceinline__ void multiply_stages(const LinearTask& task, const StreamPlan& plan,
                                                const Place<8 * kTokenTiles, kCluster, kGlu>& place) {
  const int first_out = (int(threadIdx.x) >> 5) * (kGlu ? 16 : 32), per_part = task.parts.per_part * kStagesOfGroup;
  const uint32_t apart = uint32_t((kGlu ? place.outs / 2 : 16) * kStageLine);
  WarpProducts<kHalf, kTokenTiles> products(task);
  float total[2][kTokenTiles][4];
  int slot = 0;
  uint32_t parity = 0;
  for (int i = 0, tile = place.first_tile; i < place.tiles; ++i, tile += place.step) {
    products.all([&](int i, int n, int j, int, int) { total[i][n][j] = -0.0f; });  // -0 + p is p, bit for bit
    int left = per_part;
    for (int stage = 0; stage < place.stages; ++stage) {
      hopper::barrier_wait(place.full(slot), parity);
      if (stage == 0) trace(task, 3);
      const uint32_t here = place.ring + uint32_t(slot * place.bytes) + products.at();
      products.stage(here + uint32_t(first_out * kStageLine), here + uint32_t(place.outs * kStageLine), apart);
      __syncwarp();
      if (kCluster == 1) {
        if ((threadIdx.x & 31) == 0) hopper::barrier_arrive(place.free(slot));
      } else {
        if ((threadIdx.x & 31) < kCluster) barrier_arrive_at(place.free(slot), int(threadIdx.x & 31));
      }
      if (++slot == plan.stages) slot = 0, parity ^= 1;
      if (--left > 0 && stage + 1 < place.stages) continue;
      left = per_part;  // the end of a part
      products.all([&](int i, int n, int j, int, int) {
        total[i][n][j] = __fadd_rn(total[i][n][j], products.sum[i][n][j]);
        products.sum[i][n][j] = 0;
      });
    }
    trace(task, 4);
    products.all([&](int i, int n, int j, int row, int out) {
      const int at = tile * (kGlu ? place.outs / 2 : place.outs) + first_out + out;
      if constexpr (kGlu) {
        if (i == 0 && row < task.rows && at < task.out / 2) {
          store_activated(task, row, at, total[0][n][j], total[1][n][j]);
        }
      } else {
        if (row < task.rows && at < task.out) store_result(task, row, at, total[i][n][j]);
      }
    });
  }
}
#endif

// A block computes 32 * plan.warps outputs of all tokens, tile after tile. It must move the weights of its tiles once and
// the tokens from L2 once per tile (and cluster), a quarter of that for 256 outputs and 64 tokens. Bound: memory bandwidth; up to 220 KB
// are in flight. Two warpgroups multiply (as many of their warps as the plan says), a third has the one thread that copies
// and gives its registers away.
template <Half kHalf, int kTokenTiles, int kCluster, bool kGlu>
__global__ void __launch_bounds__(kBound, 1)
    stream_rows(const __grid_constant__ LinearTask task, const __grid_constant__ StreamPlan plan,
                const __grid_constant__ AheadFetch next, const __grid_constant__ CUtensorMap weights_map,
                const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  extern __shared__ unsigned char raw[];
  unsigned char* const shared = raw + (-hopper::shared_address(raw) & 1023u);
  const Place<8 * kTokenTiles, kCluster, kGlu> place(task, plan, hopper::shared_address(shared));
  const int warp = int(threadIdx.x) >> 5;
  let_next_start();
  trace(task, 0);
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.stages; ++i) {
      hopper::barrier_init(place.full(i), 1);
      hopper::barrier_init(place.free(i), uint32_t(plan.warps * kCluster));
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  if (kCluster > 1) cluster_arrive_release();

  if (warp >= kMostWarps) {
    hopper::give_registers<kKept>();
    if (warp == kMostWarps) {
      copy_stages(task, plan, next, place, weights_map, tokens_map);
    } else {
      if (kCluster > 1) cluster_wait();
    }
  } else {
    hopper::take_registers<kTaken>();
    if (kCluster > 1) cluster_wait();
    wait_for_previous();
    trace(task, 2);
    if (warp < plan.warps) multiply_stages<kHalf, kTokenTiles>(task, plan, place);
  }
  if (kCluster > 1) {  // nobody leaves while others still send
    cluster_arrive_release();
    cluster_wait();
  }
  trace(task, 6);
#else
  __trap();
#endif
}

template <Half kHalf, int kCluster, bool kGlu>
void stream(const LinearTask& task, const StreamPlan& plan, cudaStream_t stream) {
  by_tokens(task.rows, [&]<int kTokenTiles>() {
    const auto kernel = stream_rows<kHalf, kTokenTiles, kCluster, kGlu>;
    static const cudaError_t allowed =  // once, before the first launch
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
    check(allowed, "shared memory");
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(std::min(divide_up(plan.tiles, kCluster) * kCluster, kDevice)));
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = size_t(plan.stages) * size_t(stage_bytes(32 * plan.warps, 8 * kTokenTiles)) + kSpare;
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = kCluster;
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = kCluster > 1 ? 2 : 1;
    check(cudaLaunchKernelEx(&config, kernel, task, plan, ahead_fetch(task.ahead, task.rows),
                             map_of(task.data, kHalf, task.out, task.in, (kGlu ? 16 : 32) * plan.warps),
                             map_of(task.x, kHalf, task.rows, task.in, 8 * kTokenTiles / kCluster)),
          "launch of a product");
  });
}

template <Half kHalf>
void stream_any(const LinearTask& task, const StreamPlan& plan, cudaStream_t on) {
  if (stream_cluster == 2 || (stream_cluster == 4 && tokens_of(task.rows) % 32 != 0)) return task.glu ? stream<kHalf, 2, true>(task, plan, on) : stream<kHalf, 2, false>(task, plan, on);
  if (stream_cluster == 4 && tokens_of(task.rows) % 32 == 0) return task.glu ? stream<kHalf, 4, true>(task, plan, on) : stream<kHalf, 4, false>(task, plan, on);
  return task.glu ? stream<kHalf, 1, true>(task, plan, on) : stream<kHalf, 1, false>(task, plan, on);
}

}  // namespace

int stream_cluster = 1, stream_spare_kb = 0;

bool can_stream() {
  static const bool can = [] {
    int device = 0, major = 0, minor = 0;
    check(cudaGetDevice(&device), "device");
    check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
    check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, stream_rows<Half::kBF16, 8, 1, false>), "product");
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
    best = {warps, tiles, std::min(12, (kSharedBytes - stream_spare_kb * 1024 - kSpare) / stage_bytes(outs, tokens)), cost};
  }
  return best;
}

void multiply_stream(const LinearTask& task, Half half, cudaStream_t on) {
  const StreamPlan plan = stream_plan(task);
  half == Half::kBF16 ? stream_any<Half::kBF16>(task, plan, on) : stream_any<Half::kF16>(task, plan, on);
}

}  // namespace sx::cuda
