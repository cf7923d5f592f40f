// 9 to 64 rows with 16-bit float weights on Hopper, where whole rows of 128 outputs or more (linear_stream_sm90.cu)
// would leave multiprocessors idle: each warp has a part of the inner dimension to itself, as in few_rows, and the blocks of
// a cluster share the parts of a tile.
//
// All tokens go to each tile of outputs, and L2 gives some 6 to 7 TB/s with memory at 4.1: for 4,096 x 4,096 tiles of 32, 64
// or 128 outputs ask it for 100, 67 or 50 MB, of which 33 are the weights. Up to 4,224 outputs tiles of 64, up to 6,336 tiles of 96,
// with two blocks that have a multiprocessor each: all are there at once. Beyond, tiles of 128 with four blocks of half a
// multiprocessor. Of clusters of 4 or 8 whole blocks an H200 holds only 30 or 15 (its groups of multiprocessors are unequal): larger tiles
// in more parts, though they ask L2 for less, took half as long again. So did one copy of the tokens for two blocks of a
// cluster (multicast), which have to wait for each other. Having L2 fetch the next product's weights at a product's end lost, too.
#include <algorithm>

#include "backend/cuda/linear_tma.cuh"

namespace sx::cuda {
namespace {

constexpr int kWholeShared = 227 * 1024, kHalfShared = 113 * 1024;  // 228 KB per multiprocessor, 1 KB of each block's is lost

// A cluster of kSplit blocks has a tile of kOuts outputs, each block kPartsHere of the parts, and each part kOutWarps warps with
// kOutTiles * 16 outputs each. kBlocks: on a multiprocessor.
template <int kSplit_, int kOutTiles_, int kOutWarps_, int kBlocks_>
struct Form {
  static constexpr int kSplit = kSplit_, kOutTiles = kOutTiles_, kOutWarps = kOutWarps_, kBlocks = kBlocks_;
  static constexpr int kOuts = 16 * kOutTiles * kOutWarps, kPartsHere = kMostParts / kSplit;
  static constexpr int kThreads = kOutWarps * kPartsHere * 32, kShared = kBlocks == 1 ? kWholeShared : kHalfShared;
  static constexpr int kStride = kOuts + 8;  // floats from row to row of sums: stores meet all banks
};

#ifdef SX_HOPPER
// Four floats of a block of the cluster, which may be this one.
__device__ __forceinline__ float4 load_part(uint32_t address, int rank, bool here) {
  float4 v;
  if (here) {
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
    return v;
  }
  return load_from(address, rank);
}

// Counts in shared memory, after all that the warp has read there before; returns the number before.
__device__ __forceinline__ uint32_t count_one(uint32_t counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(counter) : "memory");
  return before;
}

// What all threads of a block know. Each of the block's parts has `depth` slots for stages in shared memory. All parts
// count as full ones; behind the end of the inner dimension, TMA gives zeros.
template <int kTokens, class F>
struct Place {
  static constexpr int kBytes = stage_bytes(F::kOuts, kTokens);  // of a slot
  int rank, tile, per_part;  // in the cluster; stages of a part
  uint32_t ring, barriers;   // shared memory: slots; per slot a barrier (full) and a counter
  __device__ Place(const LinearTask& task, const PartsPlan& plan, uint32_t shared)
      : rank(int(blockIdx.x) % F::kSplit),
        tile(int(blockIdx.x) / F::kSplit),
        per_part(task.parts.per_part * kStagesOfGroup),
        ring(shared),
        barriers(shared + uint32_t(F::kPartsHere * plan.depth * kBytes)) {}
  __device__ uint32_t full(int slot) const { return barriers + uint32_t(slot) * 16; }
  __device__ uint32_t done(int slot) const { return barriers + uint32_t(slot) * 16 + 8; }
};

// A warp: its outputs of one part, which lie as [part of this block][row][output] in shared memory in the end. Of the warps
// that share a part the last one to be done with a slot fills it again: nobody waits for others, or to copy.
template <Half kHalf, int kTokenTiles, class F>
__device__ __forceinline__ void multiply_stages(const LinearTask& task, const PartsPlan& plan,
                                                const Place<8 * kTokenTiles, F>& place, unsigned char* shared,
                                                const CUtensorMap& weights_map, const CUtensorMap& tokens_map) {
  using P = Place<8 * kTokenTiles, F>;
  const int warp = int(threadIdx.x) >> 5, which = warp / F::kOutWarps, first_out = warp % F::kOutWarps * F::kOutTiles * 16;
  const int first_stage = (place.rank * F::kPartsHere + which) * place.per_part, first_slot = which * plan.depth;
  const auto fetch_weights = [&](int slot, int stage) {
    hopper::barrier_arrive_expecting(place.full(slot), uint32_t(P::kBytes));
    hopper::load_box(place.ring + uint32_t(slot * P::kBytes), weights_map, (first_stage + stage) * kStageK,
                     place.tile * F::kOuts, place.full(slot));
  };
  const auto fetch_tokens = [&](int slot, int stage) {
    hopper::load_box(place.ring + uint32_t(slot * P::kBytes + F::kOuts * kStageLine), tokens_map,
                     (first_stage + stage) * kStageK, 0, place.full(slot));
  };
  const bool leads = (threadIdx.x & 31) == 0, fills = leads && first_out == 0;
  const int ahead = min(plan.depth, place.per_part);
#pragma unroll 1
  for (int i = 0; fills && i < ahead; ++i) fetch_weights(first_slot + i, i);  // needs nothing of earlier kernels
  wait_for_previous();
  hopper::fence_async_global();  // tokens were written by ordinary stores
#pragma unroll 1
  for (int i = 0; fills && i < ahead; ++i) fetch_tokens(first_slot + i, i);
  __syncwarp();

  WarpProducts<kHalf, kTokenTiles, F::kOutTiles> products(task);
  const uint32_t weights = place.ring + uint32_t(first_slot * P::kBytes + first_out * kStageLine) + products.at(),
                 tokens = place.ring + uint32_t(first_slot * P::kBytes + F::kOuts * kStageLine) + products.at();
  // Stages of this part that count. The rest, if any, come and go unread.
  const int wanted = min(place.per_part, task.parts.groups * kStagesOfGroup - first_stage);
  int at = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int stage = 0; stage < place.per_part; ++stage) {
    hopper::barrier_wait(place.full(first_slot + at), parity);
    if (stage < wanted) {
      const uint32_t here = uint32_t(at * P::kBytes);
            products.template stage<F::kBlocks == 1>(weights + here, tokens + here);
    }
    __syncwarp();
    if (leads && stage + plan.depth < place.per_part &&
        count_one(place.done(first_slot + at)) % uint32_t(F::kOutWarps) == uint32_t(F::kOutWarps - 1)) {
      fetch_weights(first_slot + at, stage + plan.depth);
      fetch_tokens(first_slot + at, stage + plan.depth);
    }
    __syncwarp();
    if (++at == plan.depth) at = 0, parity ^= 1;
  }
  float* const sums = reinterpret_cast<float*>(shared) + which * 8 * kTokenTiles * F::kStride + first_out;
  __syncthreads();  // the last stages have been read by all; nobody needs the slots any more
  products.all([&](int i, int n, int j, int row, int out) {  // the padding keeps these stores free of bank conflicts
    sums[row * F::kStride + out] = products.sum[i][n][j];
  });
}

// The sums of all blocks of a cluster, part by part, as store_result ends them. Each block takes a share of the rows, each thread
// up to kRounds times four outputs: all that it needs is on its way before anything is added.
template <int kTokens, class F>
struct Addition {
  static constexpr int kQuads = F::kOuts / 4, kRounds = (kTokens / F::kSplit * kQuads + F::kThreads - 1) / F::kThreads;
  const LinearTask& task;
  const Place<kTokens, F>& place;
  const int rows_each = (task.rows + F::kSplit - 1) / F::kSplit, first_row = place.rank * rows_each,
            rows = min(rows_each, task.rows - first_row);
  const bool whole = (task.out | task.out_stride) % 4 == 0 && reinterpret_cast<uintptr_t>(task.result) % 16 == 0;
  float bias[kRounds][4] = {}, old[kRounds][4] = {};

  // use(round, row, output of the tile, output, where it goes) for this thread's.
  template <class Use>
  __device__ __forceinline__ void each(const Use& use) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int e = int(threadIdx.x) + round * F::kThreads, row = first_row + e / kQuads, within = e % kQuads * 4,
                out = place.tile * F::kOuts + within;
      if (e < rows * kQuads && out < task.out) use(round, row, within, out, task.result + size_t(row) * size_t(task.out_stride) + out);
    }
  }
  // What the parts are added to; needs no other block.
  __device__ __forceinline__ void begin() {
    if (!task.bias && !task.accumulate) return;
    each([&](int round, int, int, int out, const float* to) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (task.bias && out + j < task.out) bias[round][j] = task.bias[out + j];
        if (task.accumulate && !whole && out + j < task.out) old[round][j] = to[j];
      }
      if (task.accumulate && whole) {
        const float4 v = *reinterpret_cast<const float4*>(to);
        old[round][0] = v.x, old[round][1] = v.y, old[round][2] = v.z, old[round][3] = v.w;
      }
    });
  }
  __device__ __forceinline__ void end() {
    float4 part[kRounds][kMostParts];
    each([&](int round, int row, int within, int, const float*) {
#pragma unroll
      for (int p = 0; p < kMostParts; ++p) {
        if (p >= task.parts.parts) continue;
        const int owner = p / F::kPartsHere, at = ((p - owner * F::kPartsHere) * kTokens + row) * F::kStride + within;
        part[round][p] = load_part(place.ring + uint32_t(at) * 4, owner, owner == place.rank);
      }
    });
    each([&](int round, int, int, int out, float* to) {
      float4 v = part[round][0];
      float* const sum[4] = {&v.x, &v.y, &v.z, &v.w};
#pragma unroll
      for (int p = 1; p < kMostParts; ++p) {
        if (p >= task.parts.parts) continue;
        const float4 more = part[round][p];
        v = make_float4(__fadd_rn(v.x, more.x), __fadd_rn(v.y, more.y), __fadd_rn(v.z, more.z), __fadd_rn(v.w, more.w));
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (task.bias) *sum[j] = __fadd_rn(*sum[j], bias[round][j]);
        if (task.accumulate) *sum[j] = __fadd_rn(*sum[j], old[round][j]);
        if (!whole && out + j < task.out) to[j] = *sum[j];
      }
      if (whole) *reinterpret_cast<float4*>(to) = v;
    });
  }
};
#endif

// A cluster of blocks computes kOuts outputs of all tokens; each of its warps some of them over one part, then each block adds
// up the parts of its share of the rows. A block must move kOuts * in / kSplit weights, and tokens * in / kSplit elements from
// L2. Bound: memory bandwidth; some 100 KB of weights per multiprocessor are in flight, before the tokens exist.
template <Half kHalf, int kTokenTiles, class F>
__global__ void __launch_bounds__(F::kThreads, F::kBlocks)
    parts_rows(const __grid_constant__ LinearTask task, const __grid_constant__ PartsPlan plan,
               const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  extern __shared__ unsigned char raw[];
  unsigned char* const shared = raw + (-hopper::shared_address(raw) & 1023u);
  using P = Place<8 * kTokenTiles, F>;
  const P place(task, plan, hopper::shared_address(shared));
  let_next_start();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < F::kPartsHere * plan.depth; ++i) {
      hopper::barrier_init(place.full(i), 1);
      asm volatile("st.shared::cta.u32 [%0], 0;" ::"r"(place.done(i)) : "memory");
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  multiply_stages<kHalf, kTokenTiles, F>(task, plan, place, shared, weights_map, tokens_map);
  cluster_arrive_release();
  Addition<8 * kTokenTiles, F> addition{task, place};
  addition.begin();
  cluster_wait();
  addition.end();
  cluster_arrive();  // nobody leaves while others read its sums
  cluster_wait();
#else
  __trap();
#endif
}

template <class F>
struct PartsLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  PartsLaunch(const PartsPlan& plan, int tokens, cudaStream_t stream) {
    config.gridDim = dim3(unsigned(plan.tiles * F::kSplit));
    config.blockDim = dim3(unsigned(F::kThreads));
    const int slots = F::kPartsHere * plan.depth * stage_bytes(F::kOuts, tokens);
    const int sums = F::kPartsHere * tokens * F::kStride * 4;
    if (sums > slots) check(cudaErrorInvalidValue, "sums of a product");  // barriers lie behind the slots, and stay barriers
    config.dynamicSmemBytes = size_t(slots + kSpare);
    config.stream = stream;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = unsigned(F::kSplit);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = has_dependent_launch() ? 2 : 1;
  }
  PartsLaunch(const PartsLaunch&) = delete;
};

template <Half kHalf, int kTokenTiles, class F>
auto parts_kernel() {  // ready for launches
  const auto kernel = parts_rows<kHalf, kTokenTiles, F>;
  static const cudaError_t allowed = [&] {
    const cudaError_t first = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::kShared);
    if (first != cudaSuccess) return first;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }();
  check(allowed, "shared memory");
  return kernel;
}

template <class F>
PartsPlan plan_of(const LinearTask& task) {
  const int fit = std::min(16, (F::kShared - kSpare) / stage_bytes(F::kOuts, tokens_of(task.rows)));
  return {divide_up(task.out, F::kOuts), fit / F::kPartsHere};
}

template <Half kHalf, class F>
void launch_parts(const LinearTask& task, cudaStream_t stream) {
  const PartsPlan plan = plan_of<F>(task);
  by_tokens(task.rows, [&]<int kTokenTiles>() {
    const PartsLaunch<F> launch(plan, 8 * kTokenTiles, stream);
    check(cudaLaunchKernelEx(&launch.config, parts_kernel<kHalf, kTokenTiles, F>(), task, plan,
                             map_of(task.data, kHalf, task.out, task.in, F::kOuts),
                             map_of(task.x, kHalf, task.rows, task.in, 8 * kTokenTiles)),
          "launch of a product");
  });
}

// Calls function<form>() for the form of a way.
template <class Function>
auto by_form(Way way, const Function& function) {
  switch (way) {
    case Way::kParts4: return function.template operator()<Form<4, 2, 4, 2>>();
    case Way::kWhole2x96: return function.template operator()<Form<2, 2, 3, 1>>();
    default: return function.template operator()<Form<2, 2, 2, 1>>();
  }
}

}  // namespace

void multiply_parts(const LinearTask& task, Half half, Way way, cudaStream_t stream) {
  by_form(way, [&]<class F>() {
    half == Half::kBF16 ? launch_parts<Half::kBF16, F>(task, stream) : launch_parts<Half::kF16, F>(task, stream);
  });
}

}  // namespace sx::cuda
