// Products of quantised weights with shared memory of Hopper between memory and registers. Groups of a tile are contiguous
// (linear_formats.cuh), so the copy engine brings them as they are, and warps expand each weight once for all tokens. Two
// kernels, as for 16-bit floats (linear_stream_sm90.cu, linear_parts_sm90.cu): packed_stream where whole rows fill the
// device, packed_parts elsewhere. See linear_kernels.h for the order of summation.
//
// Per 16 outputs, 32 k and 64 tokens a warp issues 24 products, 32 fused multiply-adds and some 16 instructions for
// expanding and reading (Q4_0): for 28,672 x 4,096 that is 18 us of each scheduler and 19 of the tensor cores; memory needs 15.
#pragma once
#include <algorithm>

#include "backend/cuda/linear_tma.cuh"

namespace sx::cuda {

constexpr int kPackedSpare = 1024 + 512, kPackedSlots = 32;  // of shared memory, see kSpare; barriers
constexpr int kPackedShared = 227 * 1024, kPackedHalf = 113 * 1024;  // a multiprocessor's, and half of it

#ifdef SX_HOPPER
// Contiguous bytes, a multiple of 16, to shared memory.
__device__ __forceinline__ void load_bytes(uint32_t to, const void* from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from),
               "r"(bytes), "r"(barrier) : "memory");
}

// A warp's products: 32 outputs, two tiles, of all tokens. Lane (g, t) takes line `line` of 8 as its token g, see
// WarpProducts.
template <class Format, int kTokenTiles>
struct PackedProducts {
  float sum[2][kTokenTiles][4] = {};
  BaseOf<Format> base;
  uint32_t zero;  // one that the assembler does not know to be it
  __device__ explicit PackedProducts(const LinearTask& task) : base(task), zero(uint32_t(task.parts.parts) >> 16) {}
  static __device__ __forceinline__ int lane() { return int(threadIdx.x) & 31; }
  static __device__ __forceinline__ int line() { return (int(threadIdx.x) >> 3 & 3) | (int(threadIdx.x) & 4); }

  // Shared memory: a group of the warp's first tile, the second behind it; two boxes of all tokens with 64 k each. Reads
  // wait for products some way back, else all would come first and take registers that there are not.
  __device__ __forceinline__ void group(uint32_t weights, uint32_t tokens) {
    constexpr int kApart = kTokenTiles > 4 ? 3 : 2;
#pragma unroll(kTokenTiles > 2 ? 1 : 2)
    for (uint32_t half = 0; half < 2; ++half) {
      typename Format::Group packed[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) Format::read(weights + uint32_t(i * Format::kGroupBytes), lane(), half, packed[i]);
      const uint32_t box = tokens + half * uint32_t(kTokenTiles * 8 * kStageLine) + uint32_t(line() * kStageLine);
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t from = box + uint32_t(((step * 4 + (lane() & 3)) ^ line()) * 16);
        const StepOperands<Format> operands[2] = {{packed[0], step}, {packed[1], step}};
#pragma unroll
        for (int n = 0; n < kTokenTiles; ++n) {
          const int before = (n + kTokenTiles - kApart) % kTokenTiles;
          if (kTokenTiles > 2 && (step > 0 || n >= kApart))
            from |= (__float_as_uint(sum[0][before][3]) | __float_as_uint(sum[1][before][3])) & zero;
          uint4 b;
          read_shared(b, from + uint32_t(n * 8 * kStageLine));
          float start[4];
          if constexpr (Format::kScaleAfter) begin_step(start, base, b);
#pragma unroll
          for (int i = 0; i < 2; ++i) multiply_step(sum[i][n], operands[i], b, start);
        }
      }
    }
  }
  // use(i, n, j, row, output of the warp's 32) for every sum.
  template <class Use>
  __device__ __forceinline__ void all(const Use& use) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          use(i, n, j, n * 8 + (lane() & 3) + (j & 1) * 4, i * 16 + (lane() >> 2) + (j >> 1) * 8);
      }
    }
  }
};
#endif

// A ring of slots in shared memory, each with a group of some tiles and its tokens: first the tokens of all slots, two boxes of
// 64 k each, then the weights of all, then two barriers or counters per slot.
template <class Format>
struct PackedRing {
  int slots, tiles, tokens;
  __host__ __device__ int token_bytes() const { return tokens * 2 * kStageLine; }
  __host__ __device__ int weight_bytes() const { return tiles * Format::kGroupBytes; }
  __host__ __device__ int bytes() const { return slots * (token_bytes() + weight_bytes()); }
#ifdef SX_HOPPER
  __device__ uint32_t tokens_at(uint32_t shared, int slot) const { return shared + uint32_t(slot * token_bytes()); }
  __device__ uint32_t weights_at(uint32_t shared, int slot) const {
    return shared + uint32_t(slots * token_bytes() + slot * weight_bytes());
  }
  __device__ uint32_t full(uint32_t shared, int slot) const { return shared + uint32_t(bytes() + slot * 16); }
  __device__ uint32_t done(uint32_t shared, int slot) const { return shared + uint32_t(bytes() + slot * 16 + 8); }

  // A warp: tiles from `tile` on, as many as there are. The expectation is announced with the weights.
  __device__ __forceinline__ void fetch_weights(const LinearTask& task, uint32_t shared, int slot, int tile, int group) const {
    const int lane = int(threadIdx.x) & 31, there = min(tiles, (task.out + kTileOut - 1) / kTileOut - tile);
    if (lane == 0) {
      hopper::barrier_arrive_expecting(full(shared, slot), uint32_t(token_bytes() + there * Format::kGroupBytes));
    }
    __syncwarp();
    if (lane < there) {
      const size_t at = size_t(tile + lane) * size_t(task.parts.groups) + size_t(group);
      load_bytes(weights_at(shared, slot) + uint32_t(lane * Format::kGroupBytes),
                 static_cast<const char*>(task.data) + at * size_t(Format::kGroupBytes), uint32_t(Format::kGroupBytes),
                 full(shared, slot));
    }
  }
  __device__ __forceinline__ void fetch_tokens(uint32_t shared, const CUtensorMap& map, int slot, int group) const {
    if ((threadIdx.x & 31) != 0) return;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      hopper::load_box(tokens_at(shared, slot) + uint32_t(i * tokens * kStageLine), map, (group * 2 + i) * kStageK, 0,
                       full(shared, slot));
    }
  }
#endif
};

// ---- Whole rows ----

constexpr int kPackedWarps = 8, kPackedThreads = (kPackedWarps + 4) * 32;

struct PackedPlan { int warps, tiles, slots, split; };

// A block computes 32 * plan.warps outputs of all tokens, tile after tile. It must move the weights of its tiles once and the
// tokens from L2 once per tile, which for 64 tokens and 4 bits are as many bytes. Bound: memory bandwidth. Two warpgroups
// multiply (as many of their warps as the plan says), a warp of the third copies.
template <class Format, int kTokenTiles>
__global__ void __launch_bounds__(kPackedThreads, 1)
    packed_stream(const __grid_constant__ LinearTask task, const __grid_constant__ PackedPlan plan,
                  const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  extern __shared__ unsigned char raw[];
  const uint32_t shared = (hopper::shared_address(raw) + 1023u) & ~1023u;
  const PackedRing<Format> ring{plan.slots, 2 * plan.warps, 8 * kTokenTiles};
  const int warp = int(threadIdx.x) >> 5, groups = task.parts.groups;
  let_next_start();
  if (threadIdx.x == 0) {
    for (int i = 0; i < plan.slots; ++i) {
      hopper::barrier_init(ring.full(shared, i), 1);
      hopper::barrier_init(ring.done(shared, i), uint32_t(plan.warps));
    }
    hopper::barrier_init_done();
  }
  __syncthreads();

  if (warp >= kPackedWarps) {
    hopper::give_registers<40>();
    if (warp == kPackedWarps) {
      const int step = int(gridDim.x), all = (plan.tiles - int(blockIdx.x) + step - 1) / step * groups,
                ahead = min(all, plan.slots);
      int tile = int(blockIdx.x), group = 0;
      const auto next = [&] {
        if (++group == groups) group = 0, tile += step;
      };
      for (int i = 0; i < ahead; ++i, next())  // needs nothing of earlier kernels
        ring.fetch_weights(task, shared, i, tile * 2 * plan.warps, group);
      wait_for_previous();
      hopper::fence_async_global();  // tokens were written by ordinary stores
      for (int i = 0, at = 0; i < ahead; ++i, at = at + 1 == groups ? 0 : at + 1) ring.fetch_tokens(shared, tokens_map, i, at);
      uint32_t parity = 0;
      for (int i = ahead, slot = 0; i < all; ++i, next()) {
        hopper::barrier_wait(ring.done(shared, slot), parity);  // everybody is done with what was there
        ring.fetch_weights(task, shared, slot, tile * 2 * plan.warps, group);
        ring.fetch_tokens(shared, tokens_map, slot, group);
        if (++slot == plan.slots) slot = 0, parity ^= 1;
      }
    }
  } else {
    hopper::take_registers<232>();
    wait_for_previous();
    if (warp >= plan.warps) return;
    PackedProducts<Format, kTokenTiles> products(task);
    float total[2][kTokenTiles][4];
    int slot = 0;
    uint32_t parity = 0;
    for (int tile = int(blockIdx.x); tile < plan.tiles; tile += int(gridDim.x)) {
      products.all([&](int i, int n, int j, int, int) { total[i][n][j] = -0.0f; });  // -0 + p is p, bit for bit
      int left = task.parts.per_part;
      for (int group = 0; group < groups; ++group) {
        hopper::barrier_wait(ring.full(shared, slot), parity);
        products.group(ring.weights_at(shared, slot) + uint32_t(warp * 2 * Format::kGroupBytes), ring.tokens_at(shared, slot));
        __syncwarp();
        if ((threadIdx.x & 31) == 0) hopper::barrier_arrive(ring.done(shared, slot));
        if (++slot == plan.slots) slot = 0, parity ^= 1;
        if (--left > 0 && group + 1 < groups) continue;
        left = task.parts.per_part;  // the end of a part
        products.all([&](int i, int n, int j, int, int) {
          total[i][n][j] = __fadd_rn(total[i][n][j], products.sum[i][n][j]);
          products.sum[i][n][j] = 0;
        });
      }
      products.all([&](int i, int n, int j, int row, int out) {
        const int at = (tile * plan.warps + warp) * 32 + out;
        if (row < task.rows && at < task.out) store_result(task, row, at, total[i][n][j]);
      });
    }
  }
#else
  __trap();
#endif
}

// ---- Parts ----

#ifdef SX_HOPPER
// The barrier of all threads of a cluster. What they wrote before an arrival with release, all can read after the wait.
__device__ __forceinline__ void packed_arrive_release() { asm volatile("barrier.cluster.arrive.release;" ::: "memory"); }
__device__ __forceinline__ void packed_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void packed_wait() { asm volatile("barrier.cluster.wait.acquire;" ::: "memory"); }
// Four floats of the shared memory of block `rank` of the cluster, at the address they would have here.
__device__ __forceinline__ float4 packed_load_from(uint32_t address, int rank) {
  float4 v;
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}\n"
      : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address), "r"(rank) : "memory");
  return v;
}
// Counts in shared memory, after all that the warp has read there before; returns the number before.
__device__ __forceinline__ uint32_t packed_count(uint32_t counter) {
  uint32_t before;
  asm volatile("atom.acq_rel.cta.shared::cta.add.u32 %0, [%1], 1;" : "=r"(before) : "r"(counter) : "memory");
  return before;
}

// The blocks of a cluster: the sums of all its blocks, part by part, as store_result ends them. Each block takes a share of the
// rows.
template <int kTokens, int kSplit>
__device__ __forceinline__ void packed_add_up(const LinearTask& task, uint32_t sums, int rank, int tile) {
  constexpr int kOuts = 32 * kSplit, kStride = kOuts + 8, kPartsHere = kMostParts / kSplit, kQuads = kOuts / 4;
  const int rows_each = (task.rows + kSplit - 1) / kSplit, first_row = rank * rows_each,
            rows = min(rows_each, task.rows - first_row);
  for (int e = int(threadIdx.x); e < rows * kQuads; e += kPackedWarps * 32) {
    const int row = first_row + e / kQuads, within = e % kQuads * 4, out = tile * kOuts + within;
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
      const int owner = p / kPartsHere, at = ((p - owner * kPartsHere) * kTokens + row) * kStride + within;
      part[p] = packed_load_from(sums + uint32_t(at) * 4, owner);
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

// A cluster of kSplit blocks computes 32 * kSplit outputs of all tokens; each of its 8 * kSplit warps 32 of them over
// one part, then each block adds up the parts of its share of the rows. A block must move 32 * in weights, and
// tokens * in / kSplit elements from L2. Bound: memory bandwidth; some 100 KB per multiprocessor are in flight, the weights of
// them before the tokens exist. Of the warps that share a part the last one to be done with a slot fills it again.
template <class Format, int kTokenTiles, int kSplit>
__global__ void __launch_bounds__(kPackedWarps * 32, kTokenTiles > 4 ? 1 : 2)
    packed_parts(const __grid_constant__ LinearTask task, const __grid_constant__ PackedPlan plan,
                 const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  constexpr int kPartsHere = kMostParts / kSplit, kOuts = 32 * kSplit, kStride = kOuts + 8, kTokens = 8 * kTokenTiles;
  extern __shared__ unsigned char raw[];
  const uint32_t shared = (hopper::shared_address(raw) + 1023u) & ~1023u;
  const PackedRing<Format> ring{kPartsHere * plan.slots, 2 * kSplit, kTokens};
  const int rank = int(blockIdx.x) % kSplit, tile = int(blockIdx.x) / kSplit;
  const int warp = int(threadIdx.x) >> 5, which = warp / kSplit, turn = warp % kSplit, first_slot = which * plan.slots;
  const int first_group = (rank * kPartsHere + which) * task.parts.per_part,
            groups = min(task.parts.per_part, task.parts.groups - first_group), ahead = min(plan.slots, groups);
  let_next_start();
  if (threadIdx.x == 0) {
#pragma unroll 1
    for (int i = 0; i < ring.slots; ++i) {
      hopper::barrier_init(ring.full(shared, i), 1);
      asm volatile("st.shared::cta.u32 [%0], 0;" ::"r"(ring.done(shared, i)) : "memory");
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
#pragma unroll 1
  for (int i = 0; turn == 0 && i < ahead; ++i)  // needs nothing of earlier kernels
    ring.fetch_weights(task, shared, first_slot + i, tile * 2 * kSplit, first_group + i);
  wait_for_previous();
  hopper::fence_async_global();  // tokens were written by ordinary stores
#pragma unroll 1
  for (int i = 0; turn == 0 && i < ahead; ++i) ring.fetch_tokens(shared, tokens_map, first_slot + i, first_group + i);
  __syncwarp();

  PackedProducts<Format, kTokenTiles> products(task);
  int at = 0;
  uint32_t parity = 0;
#pragma unroll 1
  for (int group = 0; group < groups; ++group) {
    const int slot = first_slot + at;
    hopper::barrier_wait(ring.full(shared, slot), parity);
    products.group(ring.weights_at(shared, slot) + uint32_t(turn * 2 * Format::kGroupBytes), ring.tokens_at(shared, slot));
    __syncwarp();
    if (group + plan.slots < groups) {
      uint32_t before = kSplit - 1;
      if (kSplit > 1 && (threadIdx.x & 31) == 0) before = packed_count(ring.done(shared, slot));
      if (kSplit > 1) before = __shfl_sync(0xffffffffu, before, 0);
      if ((before & uint32_t(kSplit - 1)) == uint32_t(kSplit - 1)) {
        ring.fetch_weights(task, shared, slot, tile * 2 * kSplit, first_group + group + plan.slots);
        ring.fetch_tokens(shared, tokens_map, slot, first_group + group + plan.slots);
      }
      __syncwarp();
    }
    if (++at == plan.slots) at = 0, parity ^= 1;
  }
  __syncthreads();  // the last groups have been read by all; nobody needs the slots any more
  products.all([&](int i, int n, int j, int row, int out) {  // the padding keeps these stores free of bank conflicts
    const uint32_t to = shared + uint32_t((which * kTokens + row) * kStride + turn * 32 + out) * 4;
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(products.sum[i][n][j]) : "memory");
  });
  packed_arrive_release();
  packed_wait();
  packed_add_up<kTokens, kSplit>(task, shared, rank, tile);
  packed_arrive();  // nobody leaves while others read its sums
  packed_wait();
#else
  __trap();
#endif
}

// ---- Launches ----

// Calls function<number of token tiles>() for the rows of a task.
template <int kMost, class Function>
void by_packed_tokens(int rows, const Function& function) {
  if (rows <= 8) return function.template operator()<1>();
  if (kMost == 2 || rows <= 16) return function.template operator()<2>();
  if constexpr (kMost > 2) {
    if (rows <= 32) return function.template operator()<4>();
    return function.template operator()<8>();
  }
}

template <class Kernel>
cudaError_t allow_shared(Kernel kernel) {
  const cudaError_t first = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPackedShared);
  if (first != cudaSuccess) return first;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, cudaSharedmemCarveoutMaxShared);
}

template <class Format>
void launch_packed_stream(const LinearTask& task, cudaStream_t stream) {
  by_packed_tokens<8>(task.rows, [&]<int kTokenTiles>() {
    static const cudaError_t allowed = allow_shared(packed_stream<Format, kTokenTiles>);  // once, before the first launch
    check(allowed, "shared memory");
    PackedPlan plan{};
    int64_t best = 0;
    for (int warps = kPackedWarps; warps >= 4; --warps) {
      const int tiles = divide_up(task.out, 32 * warps);
      const int64_t cost = int64_t(divide_up(tiles, kDevice)) * (32 * warps + 8 * kTokenTiles);
      if (plan.warps != 0 && cost >= best) continue;
      const PackedRing<Format> one{1, 2 * warps, 8 * kTokenTiles};
      plan = {warps, tiles, std::min(kPackedSlots, (kPackedShared - kPackedSpare) / one.bytes()), 1};
      best = cost;
    }
    const PackedRing<Format> ring{plan.slots, 2 * plan.warps, 8 * kTokenTiles};
    launch(packed_stream<Format, kTokenTiles>, dim3(unsigned(std::min(plan.tiles, kDevice))), dim3(kPackedThreads),
           size_t(ring.bytes() + kPackedSpare), stream, task, plan,
           map_of(task.x, Half::kF16, task.rows, task.in, 8 * kTokenTiles));
  });
}

// whole: a block has a multiprocessor's shared memory to itself.
template <class Format, int kSplit>
void launch_packed_parts(const LinearTask& task, bool whole, cudaStream_t stream) {
  by_packed_tokens<kSplit == 1 ? 2 : 8>(task.rows, [&]<int kTokenTiles>() {
    const auto kernel = packed_parts<Format, kTokenTiles, kSplit>;
    static const cudaError_t allowed = allow_shared(kernel);  // once, before the first launch
    check(allowed, "shared memory");
    constexpr int kPartsHere = kMostParts / kSplit, kTokens = 8 * kTokenTiles;
    const PackedRing<Format> one{1, 2 * kSplit, kTokens};
    const int fit = ((whole || kTokenTiles > 4 || (kSplit == 1 && kTokenTiles > 1) ? kPackedShared : kPackedHalf) - kPackedSpare) / one.bytes();
    const PackedPlan plan{8, divide_up(task.out, 32 * kSplit), std::min(kPackedSlots, fit) / kPartsHere, kSplit};
    const PackedRing<Format> ring{kPartsHere * plan.slots, 2 * kSplit, kTokens};
    // Barriers lie behind the slots, and stay barriers.
    if (plan.slots < 1 || kPartsHere * kTokens * (32 * kSplit + 8) * 4 > ring.bytes())
      check(cudaErrorInvalidValue, "sums of a product");
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(plan.tiles * kSplit));
    config.blockDim = dim3(unsigned(kPackedWarps * 32));
    config.dynamicSmemBytes = size_t(ring.bytes() + kPackedSpare);
    config.stream = stream;
    cudaLaunchAttribute attributes[2]{};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = unsigned(kSplit);
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attributes;
    config.numAttrs = 2;
    check(cudaLaunchKernelEx(&config, kernel, task, plan, map_of(task.x, Half::kF16, task.rows, task.in, kTokens)),
          "launch of a product");
  });
}

}  // namespace sx::cuda
