// Prefill attention: which kernel serves a call, the tensor core kernel for every device (mma.sync, in the
// manner of FlashAttention-2), and a simple kernel for head sizes that it does not know. The Hopper kernel is in
// prefill_sm90.cu.
#include <cstdlib>
#include <cstring>
#include <string>

#include <specextend/error.h>

#include "backend/cuda/attention/prefill_mma.cuh"
#include "backend/cuda/runtime/launch.cuh"

namespace sx::cuda {
namespace {

enum class Store { kBF16, kF16, kQ8 };  // Q8 becomes f16 on its way into shared memory

constexpr int kWarps = 4, kThreads = 32 * kWarps, kRows = 16 * kWarps;  // of a block

template <int head_dim>
struct Shape {
  static constexpr int kCells = head_dim > 128 ? 32 : 64;  // of a tile
  static constexpr int kPitch = head_dim + 8;              // elements from cell to cell: an odd number of 16-byte
                                                           // units, so that ldmatrix meets no bank twice
  static constexpr int kTile = kCells * kPitch;            // elements of a tile of K or V
  static constexpr bool kQInShared = head_dim > 128;       // else in registers
  static constexpr size_t kQBytes = kQInShared ? size_t(kRows) * head_dim * 2 : 0;
  static constexpr size_t kBytes = 4 * kTile * 2 + kQBytes;  // two stages of K and of V
  // Per multiprocessor, as many as registers allow.
  static constexpr int blocks(bool q8) { return head_dim == 64 || (head_dim == 96 && !q8) ? 3 : 2; }
};

template <bool bf16>
__device__ __forceinline__ void mma(float* d, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

template <bool transposed>
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t address) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
  }
}

__device__ __forceinline__ void copy16_async(uint32_t to, const void* from, bool wanted) {  // zeros if not wanted
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(wanted ? 16 : 0) : "memory");
}
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Brings tiles of K or V of one head into shared memory. 16-bit types are copied asynchronously by fetch(). Q8 is read
// into registers by fetch() and written as f16 by put(), so that arithmetic in between hides the latency. Cells from
// `end` on become 0.
template <int head_dim, Store store>
struct Stager {
  static constexpr int kCells = Shape<head_dim>::kCells, kPitch = Shape<head_dim>::kPitch;
  static constexpr bool kQ8 = store == Store::kQ8;
  static constexpr int kUnits = head_dim / (kQ8 ? 16 : 8);                   // 16-byte units of a cell
  static constexpr int kEach = (kCells * kUnits + kThreads - 1) / kThreads;  // units of a thread
  const std::byte* data;
  const uint16_t* scales;
  int end;
  uint32_t block_cells;
  uint4 held[kQ8 ? kEach : 1];
  uint16_t held_scales[kQ8 ? kEach : 1];

  __device__ __forceinline__ void fetch(uint16_t* tile, int first_cell) {
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      const int unit = int(threadIdx.x) + i * kThreads;
      const int row = unit / kUnits, column = unit % kUnits, cell = first_cell + row;
      const bool wanted = row < kCells && cell < end;
      const size_t from = wanted ? place_of(cell, block_cells) : 0;
      if constexpr (kQ8) {
        held[i] = make_uint4(0, 0, 0, 0);
        held_scales[i] = 0;
        if (wanted) {
          held[i] = *reinterpret_cast<const uint4*>(data + from * head_dim + size_t(column) * 16);
          held_scales[i] = scales[from * (head_dim / 32) + size_t(column / 2)];
        }
      } else if (row < kCells) {
        copy16_async(uint32_t(__cvta_generic_to_shared(tile + row * kPitch + column * 8)),
                     data + (from * head_dim + size_t(column) * 8) * 2, wanted);
      }
    }
  }

  __device__ __forceinline__ void put(uint16_t* tile) {
    if constexpr (kQ8) {
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int unit = int(threadIdx.x) + i * kThreads;
        const int row = unit / kUnits, column = unit % kUnits;
        if (row >= kCells) continue;
        const float scale = __half2float(__ushort_as_half(held_scales[i]));
        const uint32_t words[4] = {held[i].x, held[i].y, held[i].z, held[i].w};
        uint32_t halves[8];
#pragma unroll
        for (int w = 0; w < 4; w++) {
#pragma unroll
          for (int e = 0; e < 2; e++) {
            const float low = float(int8_t(words[w] >> (16 * e))), high = float(int8_t(words[w] >> (16 * e + 8)));
            halves[2 * w + e] = pack2<false>(__fmul_rn(scale, low), __fmul_rn(scale, high));
          }
        }
        uint4* to = reinterpret_cast<uint4*>(tile + row * kPitch + column * 16);
        to[0] = make_uint4(halves[0], halves[1], halves[2], halves[3]);
        to[1] = make_uint4(halves[4], halves[5], halves[6], halves[7]);
      }
    }
  }
};

// The fragment of 16 rows x 16 columns of q that one thread holds, scaled. Rows past the end are 0.
template <bool bf16>
__device__ __forceinline__ void load_q(uint32_t (&a)[4], const PromptArgs& args, const float* q, int row) {
#pragma unroll
  for (int i = 0; i < 4; i++) {  // a[0]: row, a[1]: row + 8, a[2] and a[3]: the same, 8 columns on
    const int at = row + i % 2 * 8;
    float2 x = make_float2(0.f, 0.f);
    if (at < args.rows) x = *reinterpret_cast<const float2*>(q + size_t(at) * args.q_stride + i / 2 * 8);
    a[i] = pack2<bf16>(__fmul_rn(x.x, args.scale), __fmul_rn(x.y, args.scale));
  }
}

// One block: 64 rows of one query head, 16 per warp, over all cells that one of them sees. Blocks of the last rows,
// which see the most, come first. It must read head_dim * 4 bytes of q per row and K and V once (they come from L2 for
// all but the first of the blocks of a K/V head) and does 4 * head_dim operations per row and cell: bound by the tensor
// cores (mma.sync).
template <int head_dim, Store store>
__global__ void __launch_bounds__(kThreads, Shape<head_dim>::blocks(store == Store::kQ8))
    attend_prompt_kernel(const PromptArgs args) {
  using S = Shape<head_dim>;
  constexpr bool bf16 = store == Store::kBF16;
  constexpr int kSteps = head_dim / 16;
  extern __shared__ __align__(16) uint16_t shared[];  // K of two stages, V of two stages, q of each warp
  uint4* const q_shared = reinterpret_cast<uint4*>(shared + 4 * S::kTile) + threadIdx.x / 32 * (32 * kSteps);
  let_next_start();
  wait_for_previous();

  const int head = int(blockIdx.x), lane = int(threadIdx.x % 32);
  const int block_row = int(gridDim.y - 1 - blockIdx.y) * kRows;
  const int block_first = args.history + block_row, block_last = args.history + min(block_row + kRows, args.rows) - 1;
  const int warp_row = block_row + int(threadIdx.x / 32) * 16, thread_row = warp_row + lane / 4;
  const int first = args.history + warp_row, last = args.history + min(warp_row + 16, args.rows) - 1;  // of the warp
  const int low_tile = args.window > 0 ? max(block_first - args.window + 1, 0) / S::kCells : 0;
  const int high_tile = block_last / S::kCells;

  const size_t cells = size_t(head / args.group) * kCellBlock;
  constexpr size_t kCellBytes = size_t(head_dim) * (store == Store::kQ8 ? 1 : 2);
  Stager<head_dim, store> k, v;
  k.data = args.k + cells * kCellBytes;
  v.data = args.v + cells * kCellBytes;
  k.scales = args.k_scale + cells * (head_dim / 32);  // not read unless Q8
  v.scales = args.v_scale + cells * (head_dim / 32);
  k.end = v.end = args.history + args.rows;
  k.block_cells = v.block_cells = args.block_cells;
  k.fetch(shared, low_tile * S::kCells);
  v.fetch(shared + 2 * S::kTile, low_tile * S::kCells);

  uint32_t q[S::kQInShared ? 1 : kSteps][4];
#pragma unroll
  for (int step = 0; step < kSteps; step++) {
    uint32_t(&a)[4] = q[S::kQInShared ? 0 : step];
    load_q<bf16>(a, args, args.q + size_t(head) * head_dim + step * 16 + lane % 4 * 2, thread_row);
    // Read by this thread only.
    if constexpr (S::kQInShared) q_shared[step * 32 + lane] = make_uint4(a[0], a[1], a[2], a[3]);
  }
  float out[head_dim / 8][4] = {};
  float most[2] = {minus_infinity(), minus_infinity()}, sum[2] = {0.f, 0.f};
  k.put(shared);
  v.put(shared + 2 * S::kTile);
  wait_for_copies();
  __syncthreads();

  // Where in a tile this lane's row of the four 8x8 matrices of a load begins. K: cells down, b0 b1 of two groups of 8
  // cells; V: transposed, b0 b1 of two groups of 8 columns.
  const int k_at = (lane / 16 * 8 + lane % 8) * S::kPitch + lane / 8 % 2 * 8;
  const int v_at = (lane % 16) * S::kPitch + lane / 16 * 8;
  for (int tile = low_tile; tile <= high_tile; tile++) {
    const int stage = (tile - low_tile) % 2, cell = tile * S::kCells;
    uint16_t* const next_k = shared + (stage ^ 1) * S::kTile;
    uint16_t* const next_v = next_k + 2 * S::kTile;
    const uint32_t k_tile = uint32_t(__cvta_generic_to_shared(shared + stage * S::kTile + k_at));
    const uint32_t v_tile = uint32_t(__cvta_generic_to_shared(shared + (2 + stage) * S::kTile + v_at));
    const bool more = tile < high_tile;
    // Uniform in a warp. What is skipped here would change nothing.
    const bool seen = cell <= last && (args.window == 0 || cell + S::kCells - 1 > first - args.window);
    if (more) {
      k.fetch(next_k, cell + S::kCells);
      if constexpr (store != Store::kQ8) v.fetch(next_v, cell + S::kCells);
    }
    float s[S::kCells / 2] = {};  // [cells / 8][4]
    if (seen) {
#pragma unroll
      for (int step = 0; step < kSteps; step++) {
        uint32_t a[4];
        if constexpr (S::kQInShared) {
          const uint4 x = q_shared[step * 32 + lane];
          a[0] = x.x, a[1] = x.y, a[2] = x.z, a[3] = x.w;
        } else {
#pragma unroll
          for (int i = 0; i < 4; i++) a[i] = q[step][i];
        }
#pragma unroll
        for (int group = 0; group < S::kCells / 16; group++) {
          uint32_t b[4];
          load_matrices<false>(b, k_tile + uint32_t(group * 16 * S::kPitch + step * 16) * 2);
          mma<bf16>(s + 8 * group, a, b[0], b[1]);
          mma<bf16>(s + 8 * group + 4, a, b[2], b[3]);
        }
      }
    }
    if constexpr (store == Store::kQ8) {
      if (more) {
        k.put(next_k);
        v.fetch(next_v, cell + S::kCells);
      }
    }
    if (seen) {
      if (args.soft_cap > 0) cap_scores(s, args.soft_cap);
      if (cell + S::kCells - 1 > first || (args.window > 0 && cell <= last - args.window)) {
        mask_scores(s, cell + lane % 4 * 2, args.history + thread_row, args.window);
      }
      float factor[2];
      softmax_step(s, most, sum, factor);
#pragma unroll
      for (int j = 0; j < head_dim / 8; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) out[j][i] = __fmul_rn(out[j][i], factor[i / 2]);
      }
#pragma unroll
      for (int step = 0; step < S::kCells / 16; step++) {
        uint32_t a[4];
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = pack2_weights<bf16>(s[8 * step + 2 * i], s[8 * step + 2 * i + 1]);
#pragma unroll
        for (int j = 0; j < head_dim / 16; j++) {
          uint32_t b[4];
          load_matrices<true>(b, v_tile + uint32_t(step * 16 * S::kPitch + j * 16) * 2);
          mma<bf16>(out[2 * j], a, b[0], b[1]);
          mma<bf16>(out[2 * j + 1], a, b[2], b[3]);
        }
      }
    }
    if constexpr (store == Store::kQ8) {
      if (more) v.put(next_v);
    }
    wait_for_copies();
    __syncthreads();
  }

#pragma unroll
  for (int r = 0; r < 2; r++) {
    const float inverse = row_factor(args, head, most[r], sum[r]);
    const int row = thread_row + 8 * r;
    if (row >= args.rows) continue;
#pragma unroll
    for (int j = 0; j < head_dim / 8; j++) {
      store2(args, row, size_t(head) * head_dim + size_t(j * 8 + lane % 4 * 2), __fmul_rn(out[j][2 * r], inverse),
             __fmul_rn(out[j][2 * r + 1], inverse));
    }
  }
}

template <Store store>
__device__ __forceinline__ float element(const std::byte* data, const uint16_t* scales, size_t cell, int head_dim,
                                         int d) {
  const size_t at = cell * size_t(head_dim) + size_t(d);
  if constexpr (store == Store::kBF16) {
    return __uint_as_float(uint32_t(reinterpret_cast<const uint16_t*>(data)[at]) << 16);
  } else if constexpr (store == Store::kF16) {
    return __half2float(reinterpret_cast<const __half*>(data)[at]);
  } else {
    const float scale = __half2float(__ushort_as_half(scales[cell * size_t(head_dim / 32) + size_t(d / 32)]));
    return __fmul_rn(scale, float(reinterpret_cast<const int8_t*>(data)[at]));
  }
}

constexpr int kMostSimple = 512;  // head_dim

// One warp: one row of one head, in f32, 32 cells at a time (a lane computes the score of a cell, then columns of the
// output). For head sizes of tiny models only: K comes uncoalesced, and nothing is shared between rows.
template <Store store>
__global__ void __launch_bounds__(kThreads) attend_prompt_simple_kernel(const PromptArgs args) {
  __shared__ float q_shared[kWarps][kMostSimple];
  let_next_start();
  wait_for_previous();
  const int lane = int(threadIdx.x % 32), head_dim = args.head_dim;
  const size_t item = size_t(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (item >= size_t(args.rows) * size_t(args.heads)) return;
  const int row = args.rows - 1 - int(item / size_t(args.heads)), head = int(item % size_t(args.heads));
  float* const q = q_shared[threadIdx.x / 32];
  const float* const from = args.q + size_t(row) * args.q_stride + size_t(head) * size_t(head_dim);
  for (int d = lane; d < head_dim; d += 32) q[d] = __fmul_rn(from[d], args.scale);
  __syncwarp();

  const size_t cells = size_t(head / args.group) * kCellBlock;
  const int index = args.history + row, low = args.window > 0 ? max(index - args.window + 1, 0) : 0;
  float out[kMostSimple / 32] = {};
  float most = minus_infinity(), sum = 0.f;
  for (int first = low / 32 * 32; first <= index; first += 32) {  // each holds a visible cell
    const int cell = first + lane;
    float s = minus_infinity();
    if (cell >= low && cell <= index) {
      const size_t at = cells + place_of(cell, args.block_cells);
      s = 0.f;
      for (int d = 0; d < head_dim; d++) {
        s = __fmaf_rn(q[d], element<store>(args.k, args.k_scale, at, head_dim, d), s);
      }
      if (args.soft_cap > 0) s = cap_score(s, args.soft_cap);
    }
    float now = s;
    for (int offset = 16; offset > 0; offset /= 2) now = fmaxf(now, __shfl_xor_sync(0xffffffffu, now, offset));
    now = fmaxf(now, most);
    const float factor = exp2_fast(__fsub_rn(most, now)), weight = exp2_fast(__fsub_rn(s, now));
    most = now;
    float part = weight;
    for (int offset = 16; offset > 0; offset /= 2) part = __fadd_rn(part, __shfl_xor_sync(0xffffffffu, part, offset));
    sum = __fmaf_rn(sum, factor, part);
#pragma unroll
    for (int i = 0; i < kMostSimple / 32; i++) out[i] = __fmul_rn(out[i], factor);
    for (int c = max(low, first); c <= min(index, first + 31); c++) {
      const float w = __shfl_sync(0xffffffffu, weight, c - first);
      const size_t at = cells + place_of(c, args.block_cells);
#pragma unroll
      for (int i = 0; i < kMostSimple / 32; i++) {
        const int d = lane + 32 * i;
        if (d < head_dim) { out[i] = __fmaf_rn(w, element<store>(args.v, args.v_scale, at, head_dim, d), out[i]); }
      }
    }
  }
  const float factor = args.sinks != nullptr ? add_sink(most, sum, args.sinks[head]) : 1.f;
  const float inverse = __fdiv_rn(factor, sum);  // the largest weight is 1
#pragma unroll
  for (int i = 0; i < kMostSimple / 32; i++) {
    const int d = lane + 32 * i;
    if (d >= head_dim) continue;
    const float x = __fmul_rn(out[i], inverse);
    const size_t at = (size_t(row) * size_t(args.heads) + size_t(head)) * size_t(head_dim) + size_t(d);
    args.out[at] = x;
    if (args.out16 == nullptr) continue;
    const uint32_t pair = args.half == Half::kBF16 ? pack2<true>(x, 0.f) : pack2<false>(x, 0.f);
    static_cast<uint16_t*>(args.out16)[at] = uint16_t(pair & 0xffff);
  }
}

template <int head_dim, Store store>
void launch_mma(const PromptArgs& args, cudaStream_t stream) {
  constexpr size_t bytes = Shape<head_dim>::kBytes;
  const auto kernel = attend_prompt_kernel<head_dim, store>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)), "attend_prompt");
  const dim3 grid{unsigned(args.heads), unsigned((args.rows + kRows - 1) / kRows)};
  launch(kernel, grid, dim3(kThreads), bytes, stream, args);
}

template <Store store>
bool attend_mma(const PromptArgs& args, cudaStream_t stream) {
  if (args.q_stride % 2 != 0 || reinterpret_cast<uintptr_t>(args.q) % 8 != 0) return false;  // read in pairs
  switch (args.head_dim) {
    case 64: launch_mma<64, store>(args, stream); return true;
    case 96: launch_mma<96, store>(args, stream); return true;
    case 128: launch_mma<128, store>(args, stream); return true;
    case 256: launch_mma<256, store>(args, stream); return true;
    default: return false;
  }
}

template <Store store>
bool attend_simple(const PromptArgs& args, cudaStream_t stream) {
  if (args.head_dim > kMostSimple) return false;
  const size_t items = size_t(args.rows) * size_t(args.heads);
  const dim3 grid{unsigned((items + kWarps - 1) / kWarps)};
  launch(attend_prompt_simple_kernel<store>, grid, dim3(kThreads), 0, stream, args);
  return true;
}

template <Store store>
bool attend_with(PromptKernel kernel, const PromptAttendCall& call, const PromptArgs& args, cudaStream_t stream) {
  const bool best = kernel == PromptKernel::kBest;
  if ((best || kernel == PromptKernel::kWgmma) && serves_wgmma(call)) {
    attend_prompt_wgmma(call, args, stream);
    return true;
  }
  if ((best || kernel == PromptKernel::kMma) && attend_mma<store>(args, stream)) return true;
  return (best || kernel == PromptKernel::kSimple) && attend_simple<store>(args, stream);
}

PromptArgs arguments(const PromptAttendCall& call) {
  const KvView& kv = call.kv;
  const size_t cells = size_t(call.layer) * kv.layer_cells() + size_t(call.slot) * kv.slot_cells();
  const bool q8 = kv.type == DType::kQ8_0;
  const size_t first = size_t(call.first_row), width = size_t(call.heads) * size_t(call.head_dim);
  const size_t bytes = cells * size_t(kv.head_dim) * (q8 ? 1 : 2), scales = cells * size_t(kv.head_dim / 32);
  PromptArgs args{};
  args.out = call.out + first * width;
  args.out16 = call.out16 == nullptr ? nullptr : static_cast<uint16_t*>(call.out16) + first * width;
  args.half = call.half;
  args.q = call.q + first * size_t(call.q_stride);
  args.q_stride = size_t(call.q_stride);
  args.k = kv.k + bytes;
  args.v = kv.v + bytes;
  args.k_scale = q8 ? kv.k_scale + scales : nullptr;
  args.v_scale = q8 ? kv.v_scale + scales : nullptr;
  args.block_cells = uint32_t(kv.block_cells());
  args.heads = call.heads;
  args.group = call.heads / call.kv_heads;
  args.head_dim = call.head_dim;
  args.rows = call.rows;
  args.history = call.history;
  args.window = call.window;
  args.scale = call.scale * kLog2E;
  args.soft_cap = call.soft_cap;
  args.sinks = call.sinks;
  return args;
}

}  // namespace

bool attend_prompt_with(PromptKernel kernel, const PromptAttendCall& call, cudaStream_t stream) {
  const KvView& kv = call.kv;
  if (kv.kv_heads != call.kv_heads || kv.head_dim != call.head_dim || call.heads % call.kv_heads != 0 ||
      call.history + call.rows > kv.capacity || (kv.type == DType::kQ8_0 && call.head_dim % 32 != 0)) {
    throw Error("CUDA: attention of a prompt: " + std::to_string(call.heads) + " heads, " + std::to_string(call.rows) +
                " rows behind " + std::to_string(call.history) + " cells: do not fit the K/V store");
  }
  const PromptArgs args = arguments(call);
  switch (kv.type) {
    case DType::kBF16: return call.rows == 0 || attend_with<Store::kBF16>(kernel, call, args, stream);
    case DType::kF16: return call.rows == 0 || attend_with<Store::kF16>(kernel, call, args, stream);
    case DType::kQ8_0: return call.rows == 0 || attend_with<Store::kQ8>(kernel, call, args, stream);
    default: throw Error("CUDA: attention: K/V are BF16, F16 or Q8_0");
  }
}

size_t attend_prompt_scratch_bytes(int, int, int) { return 0; }  // each block sees all of its rows' cells

void attend_prompt(const PromptAttendCall& call, void*, cudaStream_t stream) {
  // SPECEXTEND_PROMPT_ATTENTION=portable selects the mma.sync kernel, for debugging.
  static const bool portable = [] {
    const char* value = std::getenv("SPECEXTEND_PROMPT_ATTENTION");
    return value != nullptr && std::strcmp(value, "portable") == 0;
  }();
  if (portable && attend_prompt_with(PromptKernel::kMma, call, stream)) return;
  if (attend_prompt_with(portable ? PromptKernel::kSimple : PromptKernel::kBest, call, stream)) return;
  throw Error("CUDA: attention of a prompt: head_dim " + std::to_string(call.head_dim) + " is more than " +
              std::to_string(kMostSimple));
}

}  // namespace sx::cuda
