// Small-batch GEMM, 17 to 64 rows: verification and batches (16-bit weights on Hopper: skinny_stream_sm90.cu,
// skinny_splitk_sm90.cu). See kernels.h for the order of summation and formats.cuh for the operands. Here also: which
// kernel a task goes to.
#pragma once
#include "backend/cuda/linear/skinny_mma.cuh"

namespace sx::cuda {

// Stages of weights and tokens in shared memory; as many as fit into a multiprocessor of sm_90.
template <class Format, int kTokenTiles>
struct Stages {
  static constexpr int kChunks = Format::kStageSteps * 4;  // of 8 k
  static constexpr uint32_t kWeights = 2 * Format::kStageBytes;
  static constexpr uint32_t kStage = kWeights + uint32_t(kTokenTiles) * 8 * kChunks * 16;
  static constexpr int kCount = 216 * 1024 / kStage < 6 ? int(216 * 1024 / kStage) : 6;
  static constexpr uint32_t kBytes = kCount * kStage;
  static_assert(kCount >= 3 && kBytes <= 227 * 1024);
};
static_assert(kManyOuts == 8 * 2 * kTileOut);  // 8 warps, two tiles each

__device__ __forceinline__ void copy_async(uint32_t to_shared, const void* from,
                                           bool wanted) {  // 16 bytes, zeros unless wanted
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(to_shared), "l"(from), "r"(wanted ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void write_shared(uint32_t to, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

// A block computes 256 outputs of all tokens over the split-K parts [blockIdx.y * parts_here, .. + parts_here): all of
// them, or else its sums go to scratch part by part and add_parts ends the work. A block must read the weights of its
// outputs once, 256 * in elements, and the tokens from L2, a quarter of that for 64 tokens: the reason for so many
// outputs per block, as L2 hardly gives more than memory does. Two tiles per warp share the tokens' reads from shared
// memory. Both pass through stages: weights in each thread's own places, tokens as [8 kTokenTiles][kStageSteps * 32 k]
// for all warps. Bound: memory bandwidth (64 tokens: half the rate of mma.sync); the one block of a multiprocessor
// keeps 96 KB of weights or more in flight.
template <class Format, int kTokenTiles>
__global__ void __launch_bounds__(256, 1) many_rows(const __grid_constant__ LinearTask task, const int parts_here) {
  using Memory = Stages<Format, kTokenTiles>;
  constexpr int kStagesOfGroup = 4 / Format::kStageSteps;
  extern __shared__ __align__(128) unsigned char shared[];
  const uint32_t shared_address = uint32_t(__cvta_generic_to_shared(shared));
  const int thread = int(threadIdx.x), warp = thread >> 5, lane = thread & 31, g = lane >> 2, t = lane & 3;
  const bool inside = parts_here >= task.parts.parts;
  int part = int(blockIdx.y) * parts_here;
  const int first_group = part * task.parts.per_part,
            last_group = min(first_group + parts_here * task.parts.per_part, task.parts.groups);
  const int first = first_group * kStagesOfGroup, last = last_group * kStagesOfGroup,
            per_part = task.parts.per_part * kStagesOfGroup;
  let_next_start();

  const int first_tile = (int(blockIdx.x) * 8 + warp) * 2;
  const typename Format::Source sources[2] = {{task, first_tile, lane, last_group},
                                              {task, first_tile + 1, lane, last_group}};
  const auto fetch_weights_of = [&](int stage, uint32_t to) {
#pragma unroll
    for (int i = 0; i < 2; ++i) Format::fetch(sources[i], to + uint32_t(i) * Format::kStageBytes, stage);
  };
  // Chunk c (8 k) of a token lies at chunk c ^ 4 if the token is odd: reads of 8 lanes (two tokens, four chunks) meet
  // all banks. A thread brings chunks 0 .. kMine - 1 of its own; use(from, wanted, offset in the stage) for each.
  constexpr int kMine = kTokenTiles * 8 * Memory::kChunks / 256;
  static_assert(kMine * 256 == kTokenTiles * 8 * Memory::kChunks);
  const auto my_chunk = [&](int stage, int i, const auto& use) {
    const int row = (i * 256 + thread) / Memory::kChunks, chunk = (i * 256 + thread) % Memory::kChunks;
    const int k = (stage * Memory::kChunks + chunk) * 8;
    const bool wanted = row < task.rows && stage < last && k < task.in;
    const uint16_t* from =
        static_cast<const uint16_t*>(task.x) + (wanted ? size_t(row) * size_t(task.in) + size_t(k) : 0);
    use(from, wanted, Memory::kWeights + uint32_t(row * Memory::kChunks + (chunk ^ (row & 1) * 4)) * 16);
  };
#pragma unroll
  for (int i = 0; i < Memory::kCount - 1; ++i) {  // all that weights need is known before the tokens are
    fetch_weights_of(first + i, shared_address + uint32_t(i) * Memory::kStage);
    commit_copies();
  }
  wait_for_previous();
  {  // The first tokens go through registers: as copies they would wait for all the weights before them.
    uint4 chunks[Memory::kCount - 1][kMine];
#pragma unroll
    for (int s = 0; s < Memory::kCount - 1; ++s) {
#pragma unroll
      for (int i = 0; i < kMine; ++i)
        my_chunk(first + s, i, [&](auto from, bool wanted, uint32_t) { chunks[s][i] = load_tokens(from, wanted); });
    }
#pragma unroll
    for (int s = 0; s < Memory::kCount - 1; ++s) {
#pragma unroll
      for (int i = 0; i < kMine; ++i)
        my_chunk(first + s, i, [&](auto, bool, uint32_t offset) {
          write_shared(shared_address + uint32_t(s) * Memory::kStage + offset, chunks[s][i]);
        });
    }
  }

  float sum[2][kTokenTiles][4] = {}, total[2][kTokenTiles][4];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) total[i][n][j] = -0.0f;  // -0 + p is p, bit for bit
    }
  }
  const auto row_of = [&](int n, int j) { return n * 8 + 2 * t + (j & 1); };
  const auto out_of = [&](int i, int j) { return (first_tile + i) * kTileOut + g + (j >> 1) * 8; };
  // Operands that are just registers as loaded would be gathered anew before every MMA; combined with a zero that
  // the assembler does not know to be one, they are values of their own, made once.
  const uint32_t zero = uint32_t(task.parts.parts) >> 16;
  uint32_t here = shared_address, before = shared_address + (Memory::kCount - 1) * Memory::kStage;
  int left = per_part;
  for (int stage = first; stage < last; ++stage) {
    wait_for_copies<Memory::kCount - 2>();
    __syncthreads();  // this stage has arrived, and all warps are done with the one before, which is refilled now
    fetch_weights_of(stage + Memory::kCount - 1, before);
#pragma unroll
    for (int i = 0; i < kMine; ++i)
      my_chunk(stage + Memory::kCount - 1, i,
               [&](auto from, bool wanted, uint32_t offset) { copy_async(before + offset, from, wanted); });
    commit_copies();
    const uint32_t tokens = here + Memory::kWeights + uint32_t(g * Memory::kChunks) * 16;
    typename Format::Group weights[2];
#pragma unroll
    for (int step = 0; step < Format::kStageSteps; ++step) {
      uint32_t a[2][8];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        Format::read(here + uint32_t(i) * Format::kStageBytes, weights[i], step);
        Format::operands(weights[i], step, a[i]);
        if constexpr (Format::kAsLoaded) {
#pragma unroll
          for (int j = 0; j < 8; ++j) a[i][j] |= zero;
        }
      }
      const uint32_t at = tokens + uint32_t((step * 4 + t) ^ (g & 1) * 4) * 16;
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
        uint4 b;
        read_shared(b, at + uint32_t(n * 8 * Memory::kChunks) * 16);
#pragma unroll
        for (int i = 0; i < 2; ++i) multiply<Format::kHalf>(sum[i][n], a[i], b.x, b.y);
#pragma unroll
        for (int i = 0; i < 2; ++i) multiply<Format::kHalf>(sum[i][n], a[i] + 4, b.z, b.w);
      }
    }
    before = here;
    here = here + Memory::kStage == shared_address + Memory::kBytes ? shared_address : here + Memory::kStage;
    if (--left > 0 && stage + 1 < last) continue;
    left = per_part;  // the end of a part
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const int row = row_of(n, j), out = out_of(i, j);
          if (inside) {
            total[i][n][j] = __fadd_rn(total[i][n][j], sum[i][n][j]);
          } else if (row < task.rows && out < task.out) {
            task.scratch[(size_t(part) * size_t(task.rows) + size_t(row)) * size_t(task.out) + size_t(out)] =
                sum[i][n][j];
          }
          sum[i][n][j] = 0;
        }
      }
    }
    ++part;
  }
  wait_for_copies<0>();
  if (!inside) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int n = 0; n < kTokenTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        if (row_of(n, j) < task.rows && out_of(i, j) < task.out)
          store_result(task, row_of(n, j), out_of(i, j), total[i][n][j]);
      }
    }
  }
}

template <class Format, int kTokenTiles>
void launch_many(const LinearTask& task, int parts_here, cudaStream_t stream) {
  constexpr uint32_t kBytes = Stages<Format, kTokenTiles>::kBytes;
  static const cudaError_t allowed =  // once, before the first launch
      cudaFuncSetAttribute(many_rows<Format, kTokenTiles>, cudaFuncAttributeMaxDynamicSharedMemorySize, int(kBytes));
  check(allowed, "shared memory");
  const dim3 grid(unsigned((task.out + kManyOuts - 1) / kManyOuts),
                  unsigned((task.parts.parts + parts_here - 1) / parts_here));
  launch(many_rows<Format, kTokenTiles>, grid, dim3(256), kBytes, stream, task, parts_here);
}

// The kernel for a number of rows and a shape; the bits are the same in all of them.
template <class Format>
void multiply_rows(const LinearTask& task, Way way, cudaStream_t stream) {
  constexpr int kNear = Format::kAhead, kFar = Format::kFarAhead;
  const bool small = is_small(task);
  if (way != Way::kFew) {
    const int parts_here = way == Way::kInside ? task.parts.parts : parts_per_block(task);
    if (task.rows > 32) return launch_many<Format, 8>(task, parts_here, stream);
    return launch_many<Format, 4>(task, parts_here, stream);
  }
  if (small) {  // blocks of 16 outputs, for there are few; what several blocks read again comes from L2
    if (task.rows > 32) return launch_few<Format, 1, 4, kNear>(task, stream);
    if (task.rows > kFewRows) return launch_few<Format, 1, 2, kNear>(task, stream);
    return launch_few<Format, 1, 1, kNear>(task, stream);
  }
  // Where one wave of blocks must hold all that is in flight, each holds more.
  if (task.rows > kFewRows) {  // the tokens of 16 rows are half of the weights of 32 outputs, and all of those of 16
    if (task.out <= kDevice * kTileOut) return launch_few<Format, 1, 2, kFar>(task, stream);
    if (task.out <= kDevice * 2 * kTileOut) return launch_few<Format, 2, 2, kFar>(task, stream);
    return launch_few<Format, 2, 2, kNear>(task, stream);
  }
  if (task.out <= 2 * kDevice * kTileOut) return launch_few<Format, 1, 1, kFar>(task, stream);
  if (task.out < 4 * kDevice * kTileOut) return launch_few<Format, 1, 1, kNear>(task, stream);  // smaller blocks: more
  launch_few<Format, 2, 1, kNear>(task, stream);
}

}  // namespace sx::cuda
