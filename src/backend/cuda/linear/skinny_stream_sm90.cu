// Streaming skinny GEMM: 9 to 64 rows with 16-bit float weights on Hopper, where whole rows fill the device. A producer
// thread copies weights and tokens by TMA, so that the consumer warps only multiply. See tma.cuh.
//
// Where the time of 64 rows goes, per block of 256 outputs and 64 k (the numbers of small_batch_mma.cuh, 1.75 GHz):
// memory at its share of 4.3 TB/s 1,750 cycles with 40 KB of weights and tokens; tensor cores 512; shared memory 320 to
// write and 770 to read; 2,300 were measured. What was lost: 10 copies and their addresses per thread and a barrier of
// the block per stage, with two warps per scheduler to hide them; 112 or 96 blocks on 132 multiprocessors. Hence here:
// a warp of its own for the copies, and blocks of 128 to 256 outputs as the device is best filled.
//
// 28,672 x 4,096 with glu inside takes an H200 57 us with 16 rows and 59 with 64, of which 1.5 are the end, from sums
// to results; copies alone take 55. Four stages: with three it waits for memory, with more the queues there grow, some
// multiprocessors are done a sixth earlier than others, and a layer takes 1 us longer. What else was tried is in
// docs/cuda-notes.md.
#include <algorithm>

#include "backend/cuda/linear/tma.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {
namespace {

constexpr int kMostWarps = 8, kThreads = (kMostWarps + 4) * 32;  // warps that multiply, 32 outputs each
constexpr int kSharedBytes = 227 * 1024;
constexpr int kMostStages = 4;

#ifdef SX_HOPPER
// silu_times of several at once, with its bits: quotients as division makes them where no number is near the ends of
// its range, all side by side. As one branch each they took 4 us for the 32 of a thread.
template <int kCount>
__device__ __forceinline__ void silu_times_all(const float (&gate)[kCount], const float (&up)[kCount],
                                               float (&to)[kCount]) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    const float below = __fadd_rn(1.0f, expf(-gate[i]));
    largest = fmaxf(largest, fabsf(gate[i]));
    float inverse;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(below));
    inverse = __fmaf_rn(inverse, __fmaf_rn(-below, inverse, 1.0f), inverse);
    const float near = __fmul_rn(inverse, gate[i]), excess = __fmaf_rn(below, near, -gate[i]);
    to[i] = __fmul_rn(__fmaf_rn(-inverse, excess, near), up[i]);  // of zeros, both halves of the sum have the sign
  }
  if (largest <= 80.0f) return;
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) {  // rare, and little code
    float one = gate[0], other = up[0];
#pragma unroll
    for (int j = 1; j < kCount; ++j) one = i == j ? gate[j] : one, other = i == j ? up[j] : other;
    const float v = silu_times(one, other);
#pragma unroll
    for (int j = 0; j < kCount; ++j) to[j] = i == j ? v : to[j];
  }
}

// x and y as 16-bit numbers, x in the lower half.
template <Half kHalf>
__device__ __forceinline__ uint32_t two_halves(float x, float y) {
  uint32_t v;
  if constexpr (kHalf == Half::kBF16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(v) : "f"(y), "f"(x));
  } else {
    v = half_pair(kHalf, x, y);
  }
  return v;
}

// Calls use(n) for the token tiles n, n + 1, .. n + kAtOnce - 1 in total[.][0 .. kAtOnce - 1], as a loop: what runs
// once should be little code, because code is fetched from memory too. The totals move up instead.
template <int kAtOnce, int kTokenTiles, class Use>
__device__ __forceinline__ void by_tiles(int rows, float (&total)[2][kTokenTiles][4], const Use& use) {
#pragma unroll 1
  for (int n = 0; n < kTokenTiles && n * 8 < rows; n += kAtOnce) {
    use(n);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int m = 0; m + kAtOnce < kTokenTiles; ++m) {
#pragma unroll
        for (int j = 0; j < 4; ++j) total[i][m][j] = total[i][m + kAtOnce][j];
      }
    }
  }
}

// The epilogue of a warp's outputs that feed a glu, as store_result and glu_kernel would compute it: gates in total[0],
// factors in total[1], `first` is the first of the warp's 16 outputs. Neighbours in the warp exchange 16-bit results
// until each has four in a row.
template <Half kHalf, int kTokenTiles>
__device__ __forceinline__ void store_activated(const LinearTask& task, int first, float (&total)[2][kTokenTiles][4]) {
  using Products = WarpProducts<kHalf, kTokenTiles>;
  constexpr int kAtOnce = kTokenTiles % 4 == 0 ? 4 : 2, kCount = kAtOnce * 4;
  const int lane = int(threadIdx.x) & 31, t = Products::t(), width = task.out / 2;
  const bool odd = (lane & 8) != 0, upper = (lane & 16) != 0;  // bits 0 and 1 of line(); bit 2 is that of the lane
  auto* const result16 = static_cast<uint16_t*>(task.result16);
  const bool quads = width % 4 == 0 && reinterpret_cast<uintptr_t>(result16) % 8 == 0, singles = task.result || !quads;
  const uint32_t mine = odd ? 0x3276u : 0x5410u;  // of two neighbours' pairs: both first rows, or both second ones
  by_tiles<kAtOnce>(task.rows, total, [&](int n) {
    float gate[kCount], up[kCount], v[kCount];  // [tile][half][j]
#pragma unroll
    for (int i = 0; i < kCount; ++i) gate[i] = total[0][i >> 2][i & 3], up[i] = total[1][i >> 2][i & 3];
    if (task.bias) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int out = first + half * 8 + Products::line();
        const float gate_bias = out < width ? task.bias[out] : 0, up_bias = out < width ? task.bias[width + out] : 0;
#pragma unroll
        for (int i = 0; i < kCount; ++i) {
          if ((i >> 1 & 1) == half) gate[i] = __fadd_rn(gate[i], gate_bias), up[i] = __fadd_rn(up[i], up_bias);
        }
      }
    }
    silu_times_all(gate, up, v);
    if (singles) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const int row = (n + (i >> 2)) * 8 + t + (i & 1) * 4, out = first + (i >> 1 & 1) * 8 + Products::line();
        if (row >= task.rows || out >= width) continue;
        if (task.result) task.result[size_t(row) * size_t(task.out_stride) + size_t(out)] = v[i];
        if (!quads) result16[size_t(row) * size_t(width) + size_t(out)] = half_bits(kHalf, v[i]);
      }
    }
    if (!quads) return;
#pragma unroll
    for (int m = 0; m < kAtOnce; m += 2) {
      const int row = (n + m + (upper ? 1 : 0)) * 8 + t + (odd ? 4 : 0), at = first + (lane & 4);
      uint16_t* const to = result16 + size_t(row) * size_t(width) + size_t(at);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t pairs[2];  // outputs out and out ^ 1 of a row, of the odd ones of the other row
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const uint32_t own = two_halves<kHalf>(v[(m + i) * 4 + half * 2], v[(m + i) * 4 + half * 2 + 1]);
          pairs[i] = __byte_perm(own, __shfl_xor_sync(0xffffffffu, own, 8), mine);
        }
        const uint32_t other = __shfl_xor_sync(0xffffffffu, upper ? pairs[0] : pairs[1], 16);
        if (row < task.rows && at + half * 8 < width)
          *reinterpret_cast<uint2*>(to + half * 8) = upper ? make_uint2(other, pairs[1]) : make_uint2(pairs[0], other);
      }
    }
  });
}

// The epilogue of a warp's other outputs, as store_result computes it: `first` is the first of its 32 outputs.
// Neighbours exchange until each has four in a row.
template <Half kHalf, int kTokenTiles>
__device__ __forceinline__ void store_totals(const LinearTask& task, int first, float (&total)[2][kTokenTiles][4]) {
  using Products = WarpProducts<kHalf, kTokenTiles>;
  const int lane = int(threadIdx.x) & 31, t = Products::t();
  const bool odd = (lane & 8) != 0, upper = (lane & 16) != 0;  // see store_activated
  const bool quads = (task.out | task.out_stride) % 4 == 0 && reinterpret_cast<uintptr_t>(task.result) % 16 == 0;
  by_tiles<2>(task.rows, total, [&](int n) {
    if (!quads) {
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        const int row = (n + (i >> 2 & 1)) * 8 + t + (i & 1) * 4,
                  out = first + (i >> 3) * 16 + (i >> 1 & 1) * 8 + Products::line();
        if (row < task.rows && out < task.out) store_result(task, row, out, total[i >> 3][i >> 2 & 1][i & 3]);
      }
      return;
    }
    const int row = (n + (upper ? 1 : 0)) * 8 + t + (odd ? 4 : 0);
#pragma unroll
    for (int i = 0; i < 4; ++i) {  // 8 outputs each
      const int at = first + i * 8 + (lane & 4), out = first + i * 8 + Products::line();
      const float bias = task.bias && out < task.out ? task.bias[out] : 0;
      float pairs[2][2];  // [n or n + 1][output]
#pragma unroll
      for (int m = 0; m < 2; ++m) {
        float v[2] = {total[i >> 1][m][(i & 1) * 2], total[i >> 1][m][(i & 1) * 2 + 1]};
        if (task.bias) v[0] = __fadd_rn(v[0], bias), v[1] = __fadd_rn(v[1], bias);
        const float other = __shfl_xor_sync(0xffffffffu, odd ? v[0] : v[1], 8);
        pairs[m][0] = odd ? other : v[0], pairs[m][1] = odd ? v[1] : other;
      }
      const float other0 = __shfl_xor_sync(0xffffffffu, upper ? pairs[0][0] : pairs[1][0], 16),
                  other1 = __shfl_xor_sync(0xffffffffu, upper ? pairs[0][1] : pairs[1][1], 16);
      float4 sum = upper ? make_float4(other0, other1, pairs[1][0], pairs[1][1])
                         : make_float4(pairs[0][0], pairs[0][1], other0, other1);
      if (row < task.rows && at < task.out) {
        auto* const to = reinterpret_cast<float4*>(task.result + size_t(row) * size_t(task.out_stride) + size_t(at));
        if (task.accumulate) {
          const float4 old = *to;
          sum = make_float4(__fadd_rn(sum.x, old.x), __fadd_rn(sum.y, old.y), __fadd_rn(sum.z, old.z),
                            __fadd_rn(sum.w, old.w));
        }
        *to = sum;
      }
    }
  });
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

// The producer thread: it copies the stages of each of the block's tiles, one after the other.
template <bool kGlu>
struct Copies {
  const LinearTask& task;
  const StreamPlan& plan;
  const Place& place;
  const CUtensorMap &weights_map, &tokens_map;
  const int all = (plan.tiles - place.first_tile + place.step - 1) / place.step * place.stages,
            ahead = min(all, plan.stages);
  int tile = place.first_tile, stage = 0;  // of the next weights

  __device__ __forceinline__ void weights(int slot) {
    const uint32_t to = place.ring + uint32_t(slot * place.bytes);
    const int outs = kGlu ? place.outs / 2 : place.outs;
    hopper::barrier_arrive_expecting(place.full(slot), uint32_t(place.bytes));
    hopper::load_box(to, weights_map, stage * kStageK, tile * outs, place.full(slot));
    if constexpr (kGlu) {
      hopper::load_box(to + uint32_t(outs * kStageLine), weights_map, stage * kStageK, task.out / 2 + tile * outs,
                       place.full(slot));
    }
    if (++stage == place.stages) stage = 0, tile += place.step;
  }
  __device__ __forceinline__ void tokens(int slot, int at) {
    hopper::load_box(place.ring + uint32_t(slot * place.bytes + place.outs * kStageLine), tokens_map, at * kStageK, 0,
                     place.full(slot));
  }
  // Runs before all other threads: the barriers, and weights, which need nothing of earlier kernels.
  __device__ __forceinline__ void begin() {
    hopper::prefetch_map(weights_map);
    for (int i = 0; i < plan.stages; ++i) {
      hopper::barrier_init(place.full(i), 1);
      hopper::barrier_init(place.free(i), uint32_t(plan.warps));
    }
    hopper::barrier_init_done();
    for (int i = 0; i < ahead; ++i) weights(i);
    hopper::prefetch_map(tokens_map);
  }
  __device__ __forceinline__ void go_on() {
    wait_for_previous();
    hopper::fence_async_global();  // tokens were written by ordinary stores
    for (int i = 0, at = 0; i < ahead; ++i, at = at + 1 == place.stages ? 0 : at + 1) tokens(i, at);
    uint32_t parity = 0;
    for (int i = ahead, slot = 0; i < all; ++i) {
      hopper::barrier_wait(place.free(slot), parity);  // all consumers are done with what was there
      const int at = stage;
      weights(slot);
      tokens(slot, at);
      if (++slot == plan.stages) slot = 0, parity ^= 1;
    }
  }
};

// A consumer warp: 32 outputs of all tiles; of a glu 16 gates and their 16 factors.
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
      __syncwarp();
      const uint32_t here = place.ring + uint32_t(slot * place.bytes) + products.at();
      const uint32_t read =
          products.stage(here + uint32_t(first_out * kStageLine), here + uint32_t(place.outs * kStageLine), apart);
      __syncwarp();
      if ((threadIdx.x & 31) == 0) hopper::barrier_arrive(place.free(slot) + read);
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
      store_totals<kHalf>(task, tile * place.outs + first_out, total);
    }
  }
}
#endif

// A block computes 32 * plan.warps outputs of all tokens, tile after tile. It must move the weights of its tiles once
// and the tokens from L2 once per tile, a quarter of that for 256 outputs and 64 tokens. Bound: memory bandwidth; up to
// 160 KB are in flight. Two warpgroups multiply (as many of their warps as the plan says), a third has the one thread
// that copies and gives its registers away.
template <Half kHalf, int kTokenTiles, bool kGlu>
__global__ void __launch_bounds__(kThreads, 1)
    stream_rows(const __grid_constant__ LinearTask task, const __grid_constant__ StreamPlan plan,
                const __grid_constant__ CUtensorMap weights_map, const __grid_constant__ CUtensorMap tokens_map) {
#ifdef SX_HOPPER
  extern __shared__ unsigned char raw[];
  unsigned char* const shared = raw + (-hopper::shared_address(raw) & 1023u);
  const Place place(task, plan, hopper::shared_address(shared), 8 * kTokenTiles);
  const int warp = int(threadIdx.x) >> 5;
  const bool copies_here = threadIdx.x == kMostWarps * 32;
  Copies<kGlu> copies{task, plan, place, weights_map, tokens_map};
  if (copies_here) copies.begin();
  let_next_start();
  __syncthreads();

  if (warp >= kMostWarps) {
    hopper::give_registers<40>();
    if (copies_here) copies.go_on();
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
    static const cudaError_t allowed = [&] {  // once, before the first launch
      const cudaError_t first = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes);
      if (first != cudaSuccess) return first;
      return cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout,
                                  cudaSharedmemCarveoutMaxShared);
    }();
    check(allowed, "shared memory");
    // All of the shared memory, so that no block of the next kernel moves in: one made such a GEMM take half as long
    // again.
    launch(kernel, dim3(unsigned(std::min(plan.tiles, kDevice))), dim3(kThreads), kSharedBytes, stream, task, plan,
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
    best = {warps, tiles, std::min(kMostStages, (kSharedBytes - kSpare) / stage_bytes(outs, tokens)), cost};
  }
  return best;
}

void multiply_stream(const LinearTask& task, Half half, cudaStream_t on) {
  const StreamPlan plan = stream_plan(task);
  half == Half::kBF16 ? stream<Half::kBF16>(task, plan, on) : stream<Half::kF16>(task, plan, on);
}

}  // namespace sx::cuda
