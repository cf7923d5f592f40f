// 17 to 64 rows with 16-bit float weights on Hopper: weights and tokens come by TMA, so that the warps that multiply do
// nothing else. See linear_kernels.h for the order of summation and linear_formats.cuh for the operands.
//
// Where the time of 64 rows goes, per block of 256 outputs and 64 k (the numbers of linear_many.cuh, 1.75 GHz): memory at
// its share of 4.3 TB/s 1,750 cycles with 40 KB of weights and tokens; tensor cores 512; shared memory 320 to write and 770
// to read; 2,300 were measured. What was lost: 10 copies and their addresses per thread and a barrier of the block per
// stage, with two warps per scheduler to hide them; 112 or 96 blocks on 132 multiprocessors; sums of parts through memory
// (12.6 MB written and read for 6,144 outputs) and a second kernel. Hence here: a warp of its own for the copies, blocks of
// 128 to 256 outputs as the device is best filled, and parts that meet in the shared memory of a cluster.
#include <algorithm>

#include "backend/cuda/hopper.cuh"
#include "backend/cuda/linear_formats.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostWarps = 8, kThreads = (kMostWarps + 4) * 32;  // warps that multiply, 32 outputs each
constexpr int kStageK = 64, kStageLine = kStageK * 2;  // a stage has lines of 128 bytes, swizzled
constexpr int kSharedBytes = 227 * 1024;
constexpr int kSpare = 1024 + 256;  // to align the stages, and the barriers behind them

__host__ __device__ constexpr int stage_bytes(int warps, int tokens) { return (32 * warps + tokens) * kStageLine; }

#ifdef SX_HOPPER
constexpr int kStagesOfGroup = kGroup / kStageK;

__device__ __forceinline__ void cluster_sync() {  // all threads of all blocks of the cluster
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}
// Four floats of the shared memory of block `rank` of the cluster, at the address they would have here.
__device__ __forceinline__ float4 load_from(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address), "r"(rank) : "memory");
  return v;
}

// What all threads of a block know.
struct Place {
  int rank, first_tile, step;  // in the cluster; the first of the block's tiles, and from tile to tile
  int outs, first, last;       // outputs of a tile; the block's stages of 64 k
  int bytes;                   // of a stage
  uint32_t ring, barriers;     // stages in shared memory; per stage two barriers: full, free
  __device__ Place(const LinearTask& task, const StreamPlan& plan, uint32_t shared, int tokens)
      : rank(int(blockIdx.x) % plan.split),
        first_tile(int(blockIdx.x) / plan.split),
        step(int(gridDim.x) / plan.split),
        outs(32 * plan.warps),
        bytes(stage_bytes(plan.warps, tokens)),
        ring(shared),
        barriers(shared + uint32_t(plan.stages * bytes)) {
    const int part = rank * plan.parts_here;
    first = min(part * task.parts.per_part, task.parts.groups) * kStagesOfGroup;
    last = min((part + plan.parts_here) * task.parts.per_part, task.parts.groups) * kStagesOfGroup;
  }
  __device__ uint32_t full(int slot) const { return barriers + uint32_t(slot) * 16; }
  __device__ uint32_t free(int slot) const { return barriers + uint32_t(slot) * 16 + 8; }
};

// The copying thread: the stages of each of the block's tiles, one after the other.
__device__ __forceinline__ void copy_stages(const StreamPlan& plan, const Place& place, const CUtensorMap& weights_map,
                                            const CUtensorMap& tokens_map) {
  const int tiles = (plan.tiles - place.first_tile + place.step - 1) / place.step,
            all = tiles * (place.last - place.first), ahead = min(all, plan.stages);
  const auto weights = [&](int slot, int tile, int stage) {
    hopper::barrier_arrive_expecting(place.full(slot), uint32_t(place.bytes));
    hopper::load_box(place.ring + uint32_t(slot * place.bytes), weights_map, stage * kStageK, tile * place.outs,
                     place.full(slot));
  };
  const auto tokens = [&](int slot, int stage) {
    hopper::load_box(place.ring + uint32_t(slot * place.bytes + place.outs * kStageLine), tokens_map, stage * kStageK, 0,
                     place.full(slot));
  };
  int tile = place.first_tile, stage = place.first;
  const auto next = [&] {
    if (++stage == place.last) stage = place.first, tile += place.step;
  };
  for (int i = 0; i < ahead; ++i, next()) weights(i, tile, stage);  // needs nothing of earlier kernels
  wait_for_previous();
  hopper::fence_async_global();  // tokens were written by ordinary stores
  for (int i = 0, s = place.first; i < ahead; ++i, s = s + 1 == place.last ? place.first : s + 1) tokens(i, s);
  uint32_t parity = 0;
  for (int i = ahead, slot = 0; i < all; ++i, next()) {
    hopper::barrier_wait(place.free(slot), parity);  // everybody is done with what was there
    weights(slot, tile, stage);
    tokens(slot, stage);
    if (++slot == plan.stages) slot = 0, parity ^= 1;
  }
}

// A multiplying warp: 32 outputs of all tiles. Results are stored, or lie as [part of this block][row][output] in shared
// memory in the end.
template <Half kHalf, int kTokenTiles>
__device__ __forceinline__ void multiply_stages(const LinearTask& task, const StreamPlan& plan, const Place& place,
                                                unsigned char* shared) {
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31, g = lane >> 2, t = lane & 3;
  // Lane (g, t) takes line `line` of 8 as its row g of weights and of tokens: two g that are neighbours then have lines
  // four apart, and the reads of 8 lanes meet all banks. Chunk 4 step + t of 16 bytes lies at chunk ^ line.
  const int line = g >> 1 | (g & 1) << 2;
  const int at[2] = {line * kStageLine + (t ^ line) * 16, line * kStageLine + ((4 + t) ^ line) * 16};
  const uint32_t zero = uint32_t(task.parts.parts) >> 16;  // see many_rows
  const int per_part = task.parts.per_part * kStagesOfGroup;
  float sum[2][kTokenTiles][4] = {}, total[2][kTokenTiles][4];
  const auto all_sums = [&](const auto& use) {  // use(i, n, j, row, output of the tile)
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) use(i, n, j, n * 8 + t + (j & 1) * 4, warp * 32 + i * 16 + line + (j >> 1) * 8);
      }
    }
  };
  int slot = 0;
  uint32_t parity = 0;
  for (int tile = place.first_tile; tile < plan.tiles; tile += place.step) {
    all_sums([&](int i, int n, int j, int, int) { total[i][n][j] = -0.0f; });  // -0 + p is p, bit for bit
    int left = per_part, parts_done = 0;
    for (int stage = place.first; stage < place.last; ++stage) {
      hopper::barrier_wait(place.full(slot), parity);
      const unsigned char* const here = shared + slot * place.bytes;
      const unsigned char *const weights = here + warp * 32 * kStageLine, *const tokens = here + place.outs * kStageLine;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t a[2][8];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint4 low = *reinterpret_cast<const uint4*>(weights + i * 16 * kStageLine + at[step]);
          const uint4 high = *reinterpret_cast<const uint4*>(weights + (i * 16 + 8) * kStageLine + at[step]);
          a[i][0] = low.x | zero, a[i][1] = high.x | zero, a[i][2] = low.y | zero, a[i][3] = high.y | zero;
          a[i][4] = low.z | zero, a[i][5] = high.z | zero, a[i][6] = low.w | zero, a[i][7] = high.w | zero;
        }
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const uint4 b = *reinterpret_cast<const uint4*>(tokens + n * 8 * kStageLine + at[step]);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply<kHalf>(sum[i][n], a[i], b.x, b.y);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply<kHalf>(sum[i][n], a[i] + 4, b.z, b.w);
        }
      }
      __syncwarp();
      if (lane == 0) hopper::barrier_arrive(place.free(slot));
      if (++slot == plan.stages) slot = 0, parity ^= 1;
      if (--left > 0 && stage + 1 < place.last) continue;
      left = per_part;                                     // the end of a part
      if (plan.split > 1 && parts_done++ > 0) continue;  // the second of two stays apart; there is no third
      all_sums([&](int i, int n, int j, int, int) {
        total[i][n][j] = __fadd_rn(total[i][n][j], sum[i][n][j]);
        sum[i][n][j] = 0;
      });
    }
    if (plan.split > 1) break;
    all_sums([&](int i, int n, int j, int row, int out) {
      if (row < task.rows && tile * place.outs + out < task.out)
        store_result(task, row, tile * place.outs + out, total[i][n][j]);
    });
  }
  if (plan.split == 1) return;
  float* const sums = reinterpret_cast<float*>(shared);
  const int stride = place.outs + 8;       // the padding keeps these stores free of bank conflicts
  hopper::named_sync(1, plan.warps * 32);  // the last stage has been read by all
  all_sums([&](int i, int n, int j, int row, int out) { sums[row * stride + out] = total[i][n][j]; });
  if (plan.parts_here < 2) return;
  all_sums([&](int i, int n, int j, int row, int out) { sums[(8 * kTokenTiles + row) * stride + out] = sum[i][n][j]; });
}

// The multiplying warps of a cluster: the sums of all its blocks, part by part, as store_result ends them. Each block takes a
// share of the rows.
__device__ __forceinline__ void add_up(const LinearTask& task, const StreamPlan& plan, const Place& place, int tokens) {
  const int rows_each = (task.rows + plan.split - 1) / plan.split, first_row = place.rank * rows_each,
            rows = min(rows_each, task.rows - first_row), quads = place.outs / 4, stride = place.outs + 8;
  for (int e = int(threadIdx.x); e < rows * quads; e += plan.warps * 32) {
    const int row = first_row + e / quads, within = e % quads * 4, out = place.first_tile * place.outs + within;
    // What is added in the end comes while the parts do.
    float* const to = task.result + size_t(row) * size_t(task.out_stride) + out;
    float bias[4] = {}, old[4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (task.bias && out + j < task.out) bias[j] = task.bias[out + j];
      if (task.accumulate && out + j < task.out) old[j] = to[j];
    }
    float4 part[kMostParts];
#pragma unroll
    for (int p = 0; p < kMostParts; ++p) {
      if (p >= task.parts.parts) continue;
      const int owner = p / plan.parts_here, which = p - owner * plan.parts_here;
      part[p] = load_from(place.ring + uint32_t((which * tokens + row) * stride + within) * 4, owner);
    }
    float sum[4] = {part[0].x, part[0].y, part[0].z, part[0].w};
#pragma unroll
    for (int p = 1; p < kMostParts; ++p) {
      if (p >= task.parts.parts) continue;
      sum[0] = __fadd_rn(sum[0], part[p].x), sum[1] = __fadd_rn(sum[1], part[p].y);
      sum[2] = __fadd_rn(sum[2], part[p].z), sum[3] = __fadd_rn(sum[3], part[p].w);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      if (task.bias) sum[j] = __fadd_rn(sum[j], bias[j]);
      if (task.accumulate) sum[j] = __fadd_rn(sum[j], old[j]);
      if (out + j < task.out) to[j] = sum[j];
    }
  }
}
#endif

// A block computes 32 * plan.warps outputs of all tokens, tile after tile: over all parts, or (plan.split > 1, a cluster
// of so many blocks, one tile) over parts_here of them, one or two; then each block adds up the parts of its share of the
// rows. It must move the weights of its tiles once and the tokens from L2 once per tile, a quarter of that for 256 outputs
// and 64 tokens. Bound: memory bandwidth; up to 220 KB are in flight. Two warpgroups multiply (as many of their warps as
// the plan says), a third has the one thread that copies and gives its registers away.
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
    __syncwarp();
    if (plan.split > 1) cluster_sync(), cluster_sync();
  } else {
    hopper::take_registers<232>();
    wait_for_previous();
    if (warp < plan.warps) multiply_stages<kHalf, kTokenTiles>(task, plan, place, shared);
    if (plan.split > 1) {
      cluster_sync();
      if (warp < plan.warps) add_up(task, plan, place, 8 * kTokenTiles);
      cluster_sync();  // nobody leaves while others read its sums
    }
  }
#else
  __trap();
#endif
}

// [rows][in] of 16-bit elements in boxes of `box_rows` x 64, swizzled; zeros outside.
CUtensorMap map_of(const void* data, Half half, int rows, int in, int box_rows) {
  CUtensorMap map;
  const cuuint64_t sizes[2] = {cuuint64_t(in), cuuint64_t(rows)}, strides[1] = {cuuint64_t(in) * 2};
  const cuuint32_t box[2] = {kStageK, cuuint32_t(box_rows)}, steps[2] = {1, 1};
  const auto type = half == Half::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result = encode_tiled()(&map, type, 2, const_cast<void*>(data), sizes, strides, box, steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "tensor map of a product");
  return map;
}

int divide_up(int a, int b) { return (a + b - 1) / b; }
int tokens_of(int rows) { return divide_up(rows, 16) * 16; }

struct StreamLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  StreamLaunch(int blocks, int split, size_t shared, cudaStream_t stream) {
    config.gridDim = dim3(unsigned(blocks));
    config.blockDim = dim3(unsigned(kThreads));
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = unsigned(split);
    attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
    config.attrs = attributes;
    config.numAttrs = split > 1 ? 2 : 1;
  }
  StreamLaunch(const StreamLaunch&) = delete;
};

// Clusters of `split` such blocks that are on the device at once.
int clusters_at_once(int split) {
  const auto ask = [](int size) {
    StreamLaunch launch(size * kDevice, size, kSharedBytes, nullptr);
    launch.config.attrs = launch.attributes + 1;
    launch.config.numAttrs = 1;
    const auto kernel = stream_rows<Half::kBF16, 8>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes), "shared memory");
    int count = 0;
    if (cudaOccupancyMaxActiveClusters(&count, kernel, &launch.config) == cudaSuccess) return count;
    cudaGetLastError();
    return 0;
  };
  static const int four = ask(4), eight = ask(8);
  return split == 1 ? kDevice : split == 4 ? four : eight;
}

template <Half kHalf, int kTokenTiles>
void launch_stream(const LinearTask& task, const StreamPlan& plan, cudaStream_t stream) {
  const auto kernel = stream_rows<kHalf, kTokenTiles>;
  static const cudaError_t allowed =  // once, before the first launch
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
  check(allowed, "shared memory");
  const int blocks = plan.split > 1 ? plan.tiles * plan.split : std::min(plan.tiles, kDevice);
  const size_t shared = size_t(plan.stages) * size_t(stage_bytes(plan.warps, 8 * kTokenTiles)) + kSpare;
  const StreamLaunch launch(blocks, plan.split, shared, stream);
  check(cudaLaunchKernelEx(&launch.config, kernel, task, plan,
                           map_of(task.data, kHalf, task.out, task.in, 32 * plan.warps),
                           map_of(task.x, kHalf, task.rows, task.in, 8 * kTokenTiles)),
        "launch of a product");
}

template <Half kHalf>
void stream(const LinearTask& task, const StreamPlan& plan, cudaStream_t stream) {
  switch (tokens_of(task.rows)) {
    case 16: return launch_stream<kHalf, 2>(task, plan, stream);
    case 32: return launch_stream<kHalf, 4>(task, plan, stream);
    case 48: return launch_stream<kHalf, 6>(task, plan, stream);
    default: return launch_stream<kHalf, 8>(task, plan, stream);
  }
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

// By the elements that the busiest multiprocessor takes in, where a cluster's meeting costs as much as 40,000 of them and
// those of the parts it reads from others.
StreamPlan stream_plan(const LinearTask& task, int only_split) {
  const int tokens = tokens_of(task.rows), parts = task.parts.parts;
  StreamPlan best{};
  int64_t least = 0;
  for (const int split : {1, 4, 8}) {
    if (only_split != 0 ? split != only_split : clusters_at_once(split) < 1 || (split > 1 && parts <= split / 2)) continue;
    for (int warps = kMostWarps; warps >= 4; --warps) {
      const int outs = 32 * warps, tiles = divide_up(task.out, outs), parts_here = divide_up(parts, split);
      const int64_t rounds = divide_up(tiles, std::max(1, clusters_at_once(split)));
      const int64_t inner = int64_t(std::min(parts_here * task.parts.per_part, task.parts.groups)) * kGroup;
      const int64_t meeting = split == 1 ? 0 : 40000 + int64_t(2) * outs * tokens * parts / split;
      const int64_t cost = rounds * ((outs + tokens) * inner + meeting);
      if (best.warps != 0 && cost >= least) continue;
      const int stages = std::min(12, (kSharedBytes - kSpare) / stage_bytes(warps, tokens));
      best = {warps, split, parts_here, tiles, stages};
      least = cost;
    }
  }
  return best;
}

void multiply_stream(const LinearTask& task, Half half, int only_split, cudaStream_t on) {
  const StreamPlan plan = stream_plan(task, only_split);
  half == Half::kBF16 ? stream<Half::kBF16>(task, plan, on) : stream<Half::kF16>(task, plan, on);
}

}  // namespace sx::cuda
