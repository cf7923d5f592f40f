// Prefill attention on Hopper, in the manner of FlashAttention-3: a producer streams tiles of K and V into a ring in
// shared memory (TMA), two consumer warpgroups compute (wgmma) in a ping-pong schedule, so that the softmax of one runs
// under the MMAs of the other; each issues the scores of the next tile before the output of this one, so that its
// tensor work never runs dry. The kernel needs code for sm_90a; code for another architecture traps, and serves_wgmma()
// is false there.
#include "backend/cuda/attention/prefill_mma.cuh"
#include "backend/cuda/runtime/hopper.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {
namespace {

constexpr int kCells = 128;  // of a tile
constexpr int kTileBlocks = kCells / kCellBlock;
constexpr int kGroupRows = 64;  // of a warpgroup
constexpr int kGroups = 2;      // warpgroups that compute
constexpr int kRows = kGroups * kGroupRows;
constexpr int kThreads = 128 * (1 + kGroups);
constexpr int kStages = 2;
constexpr int kLineBytes = 128;  // 64 elements; a wider matrix is several panels of 64 columns

template <int head_dim>
struct Shape {
  static constexpr int kPanels = head_dim / 64;
  static constexpr uint32_t kQPanel = kGroupRows * kLineBytes, kPanel = kCells * kLineBytes;  // bytes
  static constexpr uint32_t kQ = kPanels * kQPanel;                                           // of one warpgroup
  static constexpr uint32_t kTile = kPanels * kPanel;                                         // of K or V
  // q of each group, K of each stage, V of each stage, barriers; 1024 to align the beginning.
  static constexpr uint32_t kKAt = kGroups * kQ, kVAt = kKAt + kStages * kTile, kBarriersAt = kVAt + kStages * kTile;
  static constexpr uint32_t kBytes = kBarriersAt + 4 * kStages * 8 + 1024;
};

#ifdef SX_HOPPER
// Barriers in shared memory, 8 bytes each: a tile of K or V is there (full), or all warps are done with it (empty).
template <int head_dim>
struct Ring {
  uint32_t base;  // of the aligned shared memory
  using S = Shape<head_dim>;
  __device__ __forceinline__ uint32_t k(int stage) const { return base + S::kKAt + uint32_t(stage) * S::kTile; }
  __device__ __forceinline__ uint32_t v(int stage) const { return base + S::kVAt + uint32_t(stage) * S::kTile; }
  __device__ __forceinline__ uint32_t barrier(int which, int stage) const {
    return base + S::kBarriersAt + uint32_t(which * kStages + stage) * 8;
  }
  __device__ __forceinline__ uint32_t full_k(int stage) const { return barrier(0, stage); }
  __device__ __forceinline__ uint32_t full_v(int stage) const { return barrier(1, stage); }
  __device__ __forceinline__ uint32_t empty_k(int stage) const { return barrier(2, stage); }
  __device__ __forceinline__ uint32_t empty_v(int stage) const { return barrier(3, stage); }
};
__device__ __forceinline__ int stage_of(int i) { return i % kStages; }
__device__ __forceinline__ uint32_t parity_of(int i) { return uint32_t(i / kStages % 2); }

// One thread: K and V of tiles low_tile .. low_tile + tiles - 1, each as soon as its stage is free.
template <int head_dim>
__device__ __forceinline__ void produce(const Ring<head_dim>& ring, const CUtensorMap& k_map, const CUtensorMap& v_map,
                                        int kv_head, int low_tile, int tiles) {
  using S = Shape<head_dim>;
  for (int i = 0; i < tiles; i++) {
    const int stage = stage_of(i), block = (low_tile + i) * kTileBlocks;
    hopper::barrier_wait(ring.empty_k(stage), parity_of(i) ^ 1);
    hopper::barrier_arrive_expecting(ring.full_k(stage), S::kTile);
#pragma unroll
    for (int p = 0; p < S::kPanels; p++) {
      hopper::load_box(ring.k(stage) + p * S::kPanel, k_map, 64 * p, 0, kv_head, block, ring.full_k(stage));
    }
    hopper::barrier_wait(ring.empty_v(stage), parity_of(i) ^ 1);
    hopper::barrier_arrive_expecting(ring.full_v(stage), S::kTile);
#pragma unroll
    for (int p = 0; p < S::kPanels; p++) {
      hopper::load_box(ring.v(stage) + p * S::kPanel, v_map, 64 * p, 0, kv_head, block, ring.full_v(stage));
    }
  }
}

// The 64 rows of q of a warpgroup, scaled, as 16-bit values in swizzled panels. Rows past the end are 0.
template <int head_dim, bool bf16>
__device__ __forceinline__ void stage_q(std::byte* to, const PromptArgs& args, const float* q, int first_row) {
  using S = Shape<head_dim>;
  constexpr int kUnits = head_dim / 8;  // 16-byte units of a row
  const int thread = int(threadIdx.x % 128);
#pragma unroll
  for (int i = 0; i < kGroupRows * kUnits / 128; i++) {
    const int at = thread + i * 128, row = at / kUnits, unit = at % kUnits;
    float4 x = make_float4(0.f, 0.f, 0.f, 0.f), y = x;
    if (first_row + row < args.rows) {
      const float* const from = q + size_t(first_row + row) * args.q_stride + size_t(unit) * 8;
      x = *reinterpret_cast<const float4*>(from);
      y = *reinterpret_cast<const float4*>(from + 4);
    }
    const float scale = args.scale;
    const uint4 packed = make_uint4(pack2<bf16>(__fmul_rn(x.x, scale), __fmul_rn(x.y, scale)),
                                    pack2<bf16>(__fmul_rn(x.z, scale), __fmul_rn(x.w, scale)),
                                    pack2<bf16>(__fmul_rn(y.x, scale), __fmul_rn(y.y, scale)),
                                    pack2<bf16>(__fmul_rn(y.z, scale), __fmul_rn(y.w, scale)));
    *reinterpret_cast<uint4*>(to + unit / 8 * S::kQPanel + row * kLineBytes + (unit % 8 ^ row % 8) * 16) = packed;
  }
}

// Issues s = q K^T for a tile.
template <int head_dim, bool bf16>
__device__ __forceinline__ void issue_scores(float (&s)[kCells / 2], uint32_t q, uint32_t k) {
  using S = Shape<head_dim>;
#pragma unroll
  for (int step = 0; step < head_dim / 16; step++) {
    const uint32_t inside = step % 4 * 32;
    hopper::product_shared<bf16>(s, hopper::descriptor(q + step / 4 * S::kQPanel + inside, 16),
                                 hopper::descriptor(k + step / 4 * S::kPanel + inside, 16), step > 0);
  }
  hopper::products_commit();
}

// Issues out += weights V for a tile.
template <int head_dim, bool bf16>
__device__ __forceinline__ void issue_output(float (&out)[head_dim / 2], const uint32_t (&weights)[kCells / 4],
                                             uint32_t v) {
#pragma unroll
  for (int step = 0; step < kCells / 16; step++) {
    const uint64_t b = hopper::descriptor(v + step * 16 * kLineBytes, Shape<head_dim>::kPanel);
    hopper::product_registers<bf16>(out, weights + 4 * step, b);
  }
  hopper::products_commit();
}

template <bool bf16>
__device__ __forceinline__ void pack_weights(uint32_t (&weights)[kCells / 4], const float (&s)[kCells / 2]) {
#pragma unroll
  for (int i = 0; i < kCells / 4; i++) weights[i] = pack2_weights<bf16>(s[2 * i], s[2 * i + 1]);
}

// A consumer warpgroup: its 64 rows over all tiles. Named barrier 1 + group: this group may issue; 3 + group: within
// the group.
template <int head_dim, bool bf16>
__device__ __forceinline__ void consume(const Ring<head_dim>& ring, std::byte* shared, const PromptArgs& args,
                                        int group, int head, int block_row, int low_tile, int tiles) {
  using S = Shape<head_dim>;
  const int lane = int(threadIdx.x % 32), warp = int(threadIdx.x % 128 / 32);
  const int group_row = block_row + group * kGroupRows, thread_row = group_row + warp * 16 + lane / 4;
  const int first = args.history + group_row, last = first + kGroupRows - 1;
  const uint32_t q = ring.base + uint32_t(group) * S::kQ;
  stage_q<head_dim, bf16>(shared + size_t(group) * S::kQ, args, args.q + size_t(head) * head_dim, group_row);
  hopper::fence_async_shared();
  hopper::named_sync(3 + group, 128);

  float out[head_dim / 2], s[kCells / 2];
  float most[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.f, 0.f}, factor[2];
  uint32_t weights[kCells / 4];
#pragma unroll
  for (int i = 0; i < head_dim / 2; i++) out[i] = 0.f;
  // Turns scores into weights; only tiles on the diagonal or at the window's edge have masks.
  const auto softmax = [&](int i) {
    const int cell = (low_tile + i) * kCells;
    if (cell + kCells - 1 > first || (args.window > 0 && cell <= last - args.window)) {
      mask_scores(s, cell + lane % 4 * 2, args.history + thread_row, args.window);
    }
    softmax_step(s, most, sum, factor);
  };
  // Every warp of the two groups arrives for itself: a warp's wait covers only its own part of a wgmma.
  const auto release = [&](uint32_t barrier) {
    if (lane == 0) hopper::barrier_arrive(barrier);
  };

  if (group == 1 && tiles > 1) hopper::named_arrive(1, 256);  // group 0 issues first
  hopper::barrier_wait(ring.full_k(0), 0);
  __syncwarp();
  hopper::products_begin();
  issue_scores<head_dim, bf16>(s, q, ring.k(0));
  hopper::products_wait<0>();
  hopper::hold(s);
  release(ring.empty_k(0));
  softmax(0);
  pack_weights<bf16>(weights, s);
  for (int i = 1; i < tiles; i++) {
    const int stage = stage_of(i), before = stage_of(i - 1);
    hopper::barrier_wait(ring.full_k(stage), parity_of(i));
    hopper::barrier_wait(ring.full_v(before), parity_of(i - 1));
    __syncwarp();
    hopper::named_sync(1 + group, 256);
    hopper::products_begin();
    issue_scores<head_dim, bf16>(s, q, ring.k(stage));
    issue_output<head_dim, bf16>(out, weights, ring.v(before));
    if (group == 0 || i < tiles - 1)
      hopper::named_arrive(2 - group, 256);  // the other group may issue, if it has a tile left
    hopper::products_wait<1>();
    hopper::hold(s);
    release(ring.empty_k(stage));
    softmax(i);
    // Weights come before the wait: ptxas would move them behind it, where no MMA runs to hide them, were it not for a
    // synchronisation that needs their sum. (A sum is never negative: the mask is always the whole warp.)
    __syncwarp(sum[0] + sum[1] < 0.f ? 1u : 0xffffffffu);
    hopper::products_wait<0>();
    hopper::hold(out);
    release(ring.empty_v(before));
#pragma unroll
    for (int j = 0; j < head_dim / 2; j++) out[j] = __fmul_rn(out[j], factor[j % 4 / 2]);
    pack_weights<bf16>(weights, s);
  }
  hopper::barrier_wait(ring.full_v(stage_of(tiles - 1)), parity_of(tiles - 1));
  __syncwarp();
  hopper::products_begin();
  issue_output<head_dim, bf16>(out, weights, ring.v(stage_of(tiles - 1)));
  hopper::products_wait<0>();
  hopper::hold(out);

#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float inverse = row_factor(args, head, most[r], sum[r]);
    const int row = thread_row + 8 * r;
    if (row >= args.rows) continue;
#pragma unroll
    for (int j = 0; j < head_dim / 8; j++) {
      store2(args, row, size_t(head) * head_dim + size_t(j * 8 + lane % 4 * 2), __fmul_rn(out[4 * j + 2 * r], inverse),
             __fmul_rn(out[4 * j + 2 * r + 1], inverse));
    }
  }
}
#endif

// One block: 128 rows of one query head over all cells that one of them sees, in tiles of 128 cells. Blocks of the last
// rows, which see the most, come first. It must read head_dim * 4 bytes of q per row, and K and V once (from L2 for all
// but the first block of a K/V head: 64 KB per tile at head_dim 128), and does 4 * head_dim operations per row and
// cell: bound by the tensor cores for head_dim 128, by exponentials and tensor cores alike for 64.
template <int head_dim, bool bf16>
__global__ void __launch_bounds__(kThreads, 1)
    attend_prompt_wgmma_kernel(const PromptArgs args, const __grid_constant__ CUtensorMap k_map,
                               const __grid_constant__ CUtensorMap v_map) {
#ifdef SX_HOPPER
  extern __shared__ std::byte unaligned[];
  std::byte* const shared = unaligned + (1024 - hopper::shared_address(unaligned) % 1024) % 1024;
  const Ring<head_dim> ring{hopper::shared_address(shared)};
  const int group = int(threadIdx.x / 128) - 1;  // -1: copies
  if (threadIdx.x == 0) {
    hopper::prefetch_map(k_map);
    hopper::prefetch_map(v_map);
    for (int stage = 0; stage < kStages; stage++) {
      hopper::barrier_init(ring.full_k(stage), 1);
      hopper::barrier_init(ring.full_v(stage), 1);
      hopper::barrier_init(ring.empty_k(stage), kGroups * 4);
      hopper::barrier_init(ring.empty_v(stage), kGroups * 4);
    }
    hopper::barrier_init_done();
  }
  __syncthreads();
  let_next_start();
  wait_for_previous();

  const int head = int(blockIdx.x), block_row = int(gridDim.y - 1 - blockIdx.y) * kRows;
  const int block_first = args.history + block_row, block_last = args.history + min(block_row + kRows, args.rows) - 1;
  const int low_tile = args.window > 0 ? max(block_first - args.window + 1, 0) / kCells : 0;
  const int tiles = block_last / kCells - low_tile + 1;  // both groups take them all: they ping-pong
  if (group < 0) {
    hopper::give_registers<24>();
    if (threadIdx.x == 0) {
      hopper::fence_async_global();  // K and V were written by ordinary stores of an earlier kernel
      produce<head_dim>(ring, k_map, v_map, head / args.group, low_tile, tiles);
    }
  } else {
    hopper::take_registers<240>();
    consume<head_dim, bf16>(ring, shared, args, group, head, block_row, low_tile, tiles);
  }
#else
  __trap();
#endif
}

// Boxes of 128 cells x 64 columns, swizzled, of [blocks][kv_heads][64 cells][head_dim]; blocks that the rows do not
// see read as zeros. Behind the last row's cell its block holds what was there: finite numbers, whose weights are 0.
CUtensorMap tensor_map(const std::byte* data, const PromptAttendCall& call) {
  CUtensorMap map;
  const cuuint64_t width = cuuint64_t(call.head_dim),
                   blocks = cuuint64_t(call.history + call.rows + kCellBlock - 1) / kCellBlock;
  const cuuint64_t sizes[4] = {width, kCellBlock, cuuint64_t(call.kv_heads), blocks};
  const cuuint64_t strides[3] = {width * 2, width * 2 * kCellBlock,  // bytes, of dimensions 1 to 3
                                 width * 2 * cuuint64_t(call.kv.block_cells())};
  const cuuint32_t box[4] = {64, kCellBlock, 1, kTileBlocks}, steps[4] = {1, 1, 1, 1};
  const auto type = call.kv.type == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult result = encode_tiled()(&map, type, 4, const_cast<std::byte*>(data), sizes, strides, box, steps,
                                         CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                         CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) check(cudaErrorInvalidValue, "tensor map of attend_prompt");
  return map;
}

template <int head_dim, bool bf16>
void launch_wgmma(const PromptAttendCall& call, const PromptArgs& args, cudaStream_t stream) {
  constexpr size_t bytes = Shape<head_dim>::kBytes;
  const auto kernel = attend_prompt_wgmma_kernel<head_dim, bf16>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "attend_prompt");
  const dim3 grid{unsigned(args.heads), unsigned((args.rows + kRows - 1) / kRows)};
  launch(kernel, grid, dim3(kThreads), bytes, stream, args, tensor_map(args.k, call), tensor_map(args.v, call));
}

// Whether the build has code for sm_90a: the kernel of other architectures is one trap, and needs next to no registers.
bool has_wgmma_code() {
  static const bool known = [] {
    cudaFuncAttributes attributes{};
    check(cudaFuncGetAttributes(&attributes, attend_prompt_wgmma_kernel<128, true>), "attend_prompt");
    return attributes.numRegs > 64;
  }();
  return known;
}

}  // namespace

bool serves_wgmma(const PromptAttendCall& call) {
  if ((call.head_dim != 64 && call.head_dim != 128) || call.soft_cap > 0) return false;
  if (call.kv.type != DType::kBF16 && call.kv.type != DType::kF16) return false;
  if (call.q_stride % 4 != 0 || reinterpret_cast<uintptr_t>(call.q) % 16 != 0) return false;  // read in fours
  int device = 0, major = 0, minor = 0;
  check(cudaGetDevice(&device), "device");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "compute capability");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "compute capability");
  return major == 9 && minor == 0 && has_wgmma_code() && encode_tiled() != nullptr;
}

void attend_prompt_wgmma(const PromptAttendCall& call, const PromptArgs& args, cudaStream_t stream) {
  const bool bf16 = call.kv.type == DType::kBF16;
  if (call.head_dim == 128) {
    bf16 ? launch_wgmma<128, true>(call, args, stream) : launch_wgmma<128, false>(call, args, stream);
  } else {
    bf16 ? launch_wgmma<64, true>(call, args, stream) : launch_wgmma<64, false>(call, args, stream);
  }
}

}  // namespace sx::cuda
