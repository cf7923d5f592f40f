// Skinny GEMM with split-K in a cluster: 9 to 64 rows with 16-bit float weights on Hopper, where whole rows of 128
// outputs or more (skinny_stream_sm90.cu) would leave SMs idle. Each warp has a split-K part to itself, as in few_rows,
// and the two blocks of a cluster share the parts of a tile. Each block has an SM to itself, and all are resident at
// once: tiles of 64 outputs up to 4,224 outputs, of 96 up to 6,336, of 128 up to 8,448.
//
// What takes time beside the weights, at 64 rows: all tokens go to each tile of outputs, 117 MB through L2 for 4,096 x
// 14,336; operands pass shared memory, which is busy three quarters of the time; and the end, when memory has nothing
// to do. From block to block go some 25 bytes per ns. So what the first block's parts come to goes over once, as soon
// as it is there, and that block leaves: 1 us less than if each block reads all parts of half of the rows, between two
// barriers of the cluster.
//
// What was tried and left out is in docs/cuda-notes.md.
#include <algorithm>

#include "backend/cuda/linear/tma.cuh"

namespace sx::cuda {
namespace {

constexpr int kSplit = 2, kPartsHere = kMostParts / kSplit;  // blocks of a cluster; parts of each
constexpr int kShared = 227 * 1024, kMargin = 1024, kBarrierBytes = 512, kMostDepth = 4;  // margin: to align the slots

// A cluster has a tile of kOuts outputs, each part kOutWarps warps with kOutTiles * 16 outputs each.
template <int kOutTiles_, int kOutWarps_>
struct Form {
  static constexpr int kOutTiles = kOutTiles_, kOutWarps = kOutWarps_, kOuts = 16 * kOutTiles * kOutWarps;
  static constexpr int kThreads = kOutWarps * kPartsHere * 32;
  static constexpr int kStride = kOuts + 8;  // floats from row to row of finished sums: stores meet all banks
};
__host__ __device__ constexpr int tile_bytes(int outs, int tokens) { return outs * tokens * 4; }  // of sums

#ifdef SX_HOPPER
// The address of what lies at `address` here in block `rank` of the cluster.
__device__ __forceinline__ uint32_t address_in(uint32_t address, int rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
// Sends four floats to another block; they count towards a barrier there.
__device__ __forceinline__ void send(uint32_t there, float4 v, uint32_t barrier_there) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(there),
      "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w), "r"(barrier_there)
      : "memory");
}
// barrier_wait for the first phase of a barrier that another block ends.
__device__ __forceinline__ void wait_for_other(uint32_t barrier) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  } while (done == 0);
}
__device__ __forceinline__ float4 read_floats(uint32_t from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(from)
               : "memory");
  return v;
}
__device__ __forceinline__ void write_float(uint32_t to, float v) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(v) : "memory");
}
__device__ __forceinline__ float4 add(float4 a, float4 b) {
  return make_float4(__fadd_rn(a.x, b.x), __fadd_rn(a.y, b.y), __fadd_rn(a.z, b.z), __fadd_rn(a.w, b.w));
}
__device__ __forceinline__ void write_floats(uint32_t to, const float (&v)[4]) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
               : "memory");
}

// function<index>(), for warps.
template <int kCount, int kIndex = 0, class Function>
__device__ __forceinline__ void with_index(int index, const Function& function) {
  if constexpr (kIndex + 1 < kCount) {
    if (index != kIndex) return with_index<kCount, kIndex + 1>(index, function);
  }
  function.template operator()<kIndex>();
}

// Counts in shared memory, after all that the warp has read there before; returns the number before.
__device__ __forceinline__ uint32_t count_one(uint32_t counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(counter) : "memory");
  return before;
}

// What all threads of a block know. Each of the block's parts has plan.depth slots for stages in shared memory.
template <int kTokens, class F>
struct Place {
  static constexpr int kBytes = stage_bytes(F::kOuts, kTokens),
                       kTile = tile_bytes(F::kOuts, kTokens);  // of a slot, of sums
  int rank, tile;                                              // in the cluster
  uint32_t ring, received,
      barriers;  // shared memory: slots; sums of the other block; per slot a barrier (full) and a counter, ...
  __device__ Place(const PartsPlan& plan, uint32_t shared)
      : rank(int(blockIdx.x) % kSplit),
        tile(int(blockIdx.x) / kSplit),
        ring(shared),
        received(shared + uint32_t(kPartsHere * plan.depth * kBytes)),
        barriers(received + uint32_t(kTile)) {}
  __device__ uint32_t full(int slot) const { return barriers + uint32_t(slot) * 16; }
  __device__ uint32_t done(int slot) const { return barriers + uint32_t(slot) * 16 + 8; }
  // ... and per warp a barrier: the other block's sums are there.
  __device__ uint32_t arrived(int warp) const { return barriers + kPartsHere * kMostDepth * 16 + uint32_t(warp) * 8; }
};

// A warp: its outputs of one split-K part. Of the warps that share a part the last one to be done with a slot refills
// it: no warp waits for another, and there is no producer warp.
template <Half kHalf, int kTokenTiles, class F>
__device__ __forceinline__ void multiply_stages(const LinearTask& task, const PartsPlan& plan,
                                                const Place<8 * kTokenTiles, F>& place,
                                                WarpProducts<kHalf, kTokenTiles, F::kOutTiles>& products,
                                                const CUtensorMap& weights_map, const CUtensorMap& tokens_map) {
  using P = Place<8 * kTokenTiles, F>;
  const int warp = int(threadIdx.x) >> 5, which = warp / F::kOutWarps,
            first_out = warp % F::kOutWarps * F::kOutTiles * 16;
  const int per_part = task.parts.per_part * kStagesOfGroup, first_stage = (place.rank * kPartsHere + which) * per_part,
            stages =
                min(per_part, task.parts.groups * kStagesOfGroup - first_stage);  // of this part; there may be none
  const int first_slot = which * plan.depth;
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
  // Weights need nothing of earlier kernels. Of few tokens the second block takes one stage at first: then the first
  // one's sums are there when it is done.
  const int ahead = min(plan.depth, stages), early = place.rank == 0 || kTokenTiles > 4 ? ahead : min(1, ahead);
#pragma unroll 1
  for (int i = 0; fills && i < early; ++i) fetch_weights(first_slot + i, i);
  wait_for_previous();
  hopper::fence_async_global();  // tokens were written by ordinary stores
#pragma unroll 1
  for (int i = 0; fills && i < ahead; ++i) {
    if (i >= early) fetch_weights(first_slot + i, i);
    fetch_tokens(first_slot + i, i);
  }
  __syncwarp();

  const uint32_t weights = place.ring + uint32_t(first_out * kStageLine) + products.at(),
                 tokens = place.ring + uint32_t(F::kOuts * kStageLine) + products.at();
  int at = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int stage = 0; stage < stages; ++stage) {
    const int slot = first_slot + at;
    hopper::barrier_wait(place.full(slot), parity);
    __syncwarp();
    const uint32_t read = products.stage(weights + uint32_t(slot * P::kBytes), tokens + uint32_t(slot * P::kBytes));
    __syncwarp();
    if (leads && stage + plan.depth < stages &&
        count_one(place.done(slot) + read) % uint32_t(F::kOutWarps) == uint32_t(F::kOutWarps - 1)) {
      fetch_weights(slot, stage + plan.depth);
      fetch_tokens(slot, stage + plan.depth);
    }
    __syncwarp();
    if (++at == plan.depth) at = 0, parity ^= 1;
  }
}

// Adds the split-K parts of a tile in order. The warps of a block with the same outputs divide their sums among
// themselves, as the tensor cores left them (four floats of each lane at a time), and exchange them through shared
// memory. What the first block's come to goes from each of its warps to the same warp of the second block, which adds
// its parts, and ends them as store_result does.
template <Half kHalf, int kTokenTiles, class F, int kWhich>
__device__ __forceinline__ void add_parts(const LinearTask& task, const Place<8 * kTokenTiles, F>& place,
                                          const WarpProducts<kHalf, kTokenTiles, F::kOutTiles>& products) {
  constexpr int kAll = F::kOutTiles * kTokenTiles, kMine = (kAll - kWhich + kPartsHere - 1) / kPartsHere;
  constexpr int kQuads = F::kOutTiles * 4, kThem = kPartsHere * 32,
                kRounds = (8 * kTokenTiles * kQuads + kThem - 1) / kThem;
  const int warp = int(threadIdx.x) >> 5, lane = int(threadIdx.x) & 31, out_warp = warp % F::kOutWarps;
  const bool last = place.rank == kSplit - 1, accumulate = last && task.accumulate;
  const bool whole = (task.out | task.out_stride) % 4 == 0 && reinterpret_cast<uintptr_t>(task.result) % 16 == 0;
  // use(round, row, output of the tile, output, where it goes) for the four outputs in a row that this thread ends.
  const auto each = [&](const auto& use) {
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      const int e = kWhich * 32 + lane + round * kThem, row = e / kQuads,
                within = out_warp * F::kOutTiles * 16 + e % kQuads * 4, out = place.tile * F::kOuts + within;
      if (row < task.rows && out < task.out)
        use(round, row, within, out, task.result + size_t(row) * size_t(task.out_stride) + out);
    }
  };
  float4 old[kRounds];
  if (accumulate) {
    each([&](int round, int, int, int out, const float* to) {
      if (whole) {
        old[round] = *reinterpret_cast<const float4*>(to);
      } else {
        old[round] = make_float4(to[0], out + 1 < task.out ? to[1] : 0, out + 2 < task.out ? to[2] : 0,
                                 out + 3 < task.out ? to[3] : 0);
      }
    });
  }
  cluster_wait();   // the other block has begun, its barriers can be used
  __syncthreads();  // the last stages have been read by all; no warp needs the slots any more
  const auto exchange = [&](int which, int v) {
    return place.ring + uint32_t((which * F::kOutWarps + out_warp) * kAll + v) * 512 + uint32_t(lane) * 16;
  };
#pragma unroll
  for (int v = 0; v < kAll; ++v) {
    if (v % kPartsHere != kWhich) write_floats(exchange(kWhich, v), products.sum[v / kTokenTiles][v % kTokenTiles]);
  }
  hopper::named_sync(1 + out_warp, kThem);
  const int parts = task.parts.parts - place.rank * kPartsHere;  // here, if so many
  float4 part[kPartsHere][kMine], sum[kMine];
#pragma unroll
  for (int p = 0; p < kPartsHere; ++p) {
    if (p >= parts) continue;
#pragma unroll
    for (int u = 0; u < kMine; ++u) {
      const int v = u * kPartsHere + kWhich;
      const float(&own)[4] = products.sum[v / kTokenTiles][v % kTokenTiles];
      part[p][u] = p == kWhich ? make_float4(own[0], own[1], own[2], own[3]) : read_floats(exchange(p, v));
    }
  }
  const uint32_t box = place.received + uint32_t((out_warp * kAll + kWhich) * 512 + lane * 16);
  if (last) wait_for_other(place.arrived(warp));
#pragma unroll
  for (int u = 0; u < kMine; ++u) {  // -0 + p is p, bit for bit
    sum[u] = last ? read_floats(box + uint32_t(u * kPartsHere * 512)) : make_float4(-0.0f, -0.0f, -0.0f, -0.0f);
#pragma unroll
    for (int p = 0; p < kPartsHere; ++p) {
      if (p < parts) sum[u] = add(sum[u], part[p][u]);
    }
  }
  if (!last) {
    const uint32_t there = address_in(box, place.rank + 1), barrier = address_in(place.arrived(warp), place.rank + 1);
#pragma unroll
    for (int u = 0; u < kMine; ++u) send(there + uint32_t(u * kPartsHere * 512), sum[u], barrier);
    return;
  }
  // By rows, behind what is being exchanged.
  const uint32_t rows = place.ring + uint32_t(kPartsHere * tile_bytes(F::kOuts, 8 * kTokenTiles));
#pragma unroll
  for (int u = 0; u < kMine; ++u) {
    const int v = u * kPartsHere + kWhich, row = v % kTokenTiles * 8 + products.t(),
              out = (out_warp * F::kOutTiles + v / kTokenTiles) * 16 + products.line();
    const uint32_t to = rows + uint32_t(row * F::kStride + out) * 4;
    write_float(to, sum[u].x), write_float(to + 4 * F::kStride * 4, sum[u].y);
    write_float(to + 8 * 4, sum[u].z), write_float(to + (4 * F::kStride + 8) * 4, sum[u].w);
  }
  hopper::named_sync(1 + out_warp, kThem);
  each([&](int round, int row, int within, int out, float* to) {
    float4 v = read_floats(rows + uint32_t(row * F::kStride + within) * 4);
    const int n = whole ? 4 : min(4, task.out - out);
    if (task.bias) {
      const float* b = task.bias + out;
      v = add(v, make_float4(b[0], n > 1 ? b[1] : 0, n > 2 ? b[2] : 0, n > 3 ? b[3] : 0));
    }
    if (accumulate) v = add(v, old[round]);
    if (whole) {
      *reinterpret_cast<float4*>(to) = v;
      return;
    }
    to[0] = v.x;
    if (n > 1) to[1] = v.y;
    if (n > 2) to[2] = v.z;
    if (n > 3) to[3] = v.w;
  });
}
#endif

// A cluster of two blocks computes kOuts outputs of all tokens; each of its warps some of them over one split-K part,
// then the parts are added. A block must read kOuts * in / 2 weights, and tokens * in / 2 elements from L2. Bound:
// memory bandwidth; some 110 KB of weights per multiprocessor are in flight before the tokens exist. Beside that shared
// memory: a stage of 64 outputs and 64 tokens is written once (16 KB), and read (8 KB of weights, 8 KB of tokens for
// each warp).
template <Half kHalf, int kTokenTiles, class F>
__global__ void __launch_bounds__(F::kThreads, 1)
    parts_rows(const __grid_constant__ LinearTask task, const __grid_constant__ PartsPlan plan,
               const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  extern __shared__ unsigned char raw[];
  const Place<8 * kTokenTiles, F> place(plan, (hopper::shared_address(raw) + 1023u) & ~1023u);
  const int warp = int(threadIdx.x) >> 5, which = warp / F::kOutWarps;
  let_next_start();
  if (threadIdx.x == 0) {
    hopper::prefetch_map(weights_map);
    hopper::prefetch_map(tokens_map);
#pragma unroll 1
    for (int i = 0; i < kPartsHere * plan.depth; ++i) {
      hopper::barrier_init(place.full(i), 1);
      asm volatile("st.shared::cta.u32 [%0], 0;" ::"r"(place.done(i)) : "memory");
    }
#pragma unroll 1
    for (int i = 0; i < F::kThreads / 32; ++i) hopper::barrier_init(place.arrived(i), 1);
    hopper::barrier_init_done();
  }
  __syncthreads();
  if ((threadIdx.x & 31) == 0) {  // the sums that this warp will receive
    constexpr int kAll = F::kOutTiles * kTokenTiles;
    hopper::barrier_arrive_expecting(place.arrived(warp), uint32_t((kAll - which + kPartsHere - 1) / kPartsHere) * 512);
  }
  cluster_arrive_release();
  WarpProducts<kHalf, kTokenTiles, F::kOutTiles> products(task);
  multiply_stages<kHalf, kTokenTiles, F>(task, plan, place, products, weights_map, tokens_map);
  with_index<kPartsHere>(which, [&]<int kWhich>() { add_parts<kHalf, kTokenTiles, F, kWhich>(task, place, products); });
#else
  __trap();
#endif
}

template <class F>
struct PartsLaunch {
  cudaLaunchConfig_t config{};
  cudaLaunchAttribute attributes[2]{};
  PartsLaunch(const PartsPlan& plan, int tokens, cudaStream_t stream) {
    config.gridDim = dim3(unsigned(plan.tiles * kSplit));
    config.blockDim = dim3(unsigned(F::kThreads));
    const int slots = kPartsHere * plan.depth * stage_bytes(F::kOuts, tokens), tile = tile_bytes(F::kOuts, tokens);
    if (plan.depth == 0 || kPartsHere * tile + tokens * F::kStride * 4 > slots)  // sums lie where slots were
      check(cudaErrorInvalidValue, "shared memory of a product");
    config.dynamicSmemBytes = size_t(slots + tile + kBarrierBytes + kMargin);
    config.stream = stream;
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = unsigned(kSplit);
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
    const cudaError_t first = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
    if (first != cudaSuccess) return first;
    return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
  }();
  check(allowed, "shared memory");
  return kernel;
}

template <class F>
PartsPlan plan_of(const LinearTask& task) {
  const int tokens = tokens_of(task.rows), room = kShared - kMargin - kBarrierBytes - tile_bytes(F::kOuts, tokens);
  return {divide_up(task.out, F::kOuts), std::min(kMostDepth, room / stage_bytes(F::kOuts, tokens) / kPartsHere)};
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
    case Way::kWhole2x128: return function.template operator()<Form<4, 2>>();
    case Way::kWhole2x96: return function.template operator()<Form<2, 3>>();
    default: return function.template operator()<Form<2, 2>>();
  }
}

}  // namespace

void multiply_parts(const LinearTask& task, Half half, Way way, cudaStream_t stream) {
  by_form(way, [&]<class F>() {
    half == Half::kBF16 ? launch_parts<Half::kBF16, F>(task, stream) : launch_parts<Half::kF16, F>(task, stream);
  });
}

}  // namespace sx::cuda
