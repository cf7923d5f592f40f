// Prefill attention: what its kernels share. A row's bits are a left fold over tiles of cells at absolute
// multiples of the tile (online softmax in base 2), the same whichever rows share its block: a tile that is fully
// masked for a row leaves the row's state as it is, bit for bit (factor 1, or 0 times 0 before its first visible cell,
// and weights that are 0).
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "backend/cuda/attention/attention.h"
#ifdef __CUDACC__
#include "backend/cuda/attention/softmax.cuh"
#endif

namespace sx::cuda {

// kBest is what attend_prompt() takes: wgmma on compute capability 9.0 for the shapes it serves (head_dim 64 and 128,
// K/V of 16 bits, no soft cap), else mma.sync (head_dim 64, 96, 128, 256), else kSimple. The choice depends on the
// model and the device only, never on rows or history: the kernels differ in their bits.
enum class PromptKernel { kBest, kWgmma, kMma, kSimple };
// False: this kernel does not serve the call (or not on this device), nothing was launched.
bool attend_prompt_with(PromptKernel kernel, const PromptAttendCall& call, cudaStream_t stream);

// A PromptAttendCall as kernels see it: q, out and out16 begin at the first row of the chain, K and V at layer and
// slot.
struct PromptArgs {
  float* out;  // [rows, heads * head_dim]
  void* out16;
  Half half;
  const float* q;  // [rows, q_stride]
  size_t q_stride;
  const std::byte *k, *v;             // of head 0, see KvView
  const uint16_t *k_scale, *v_scale;  // likewise
  uint32_t block_cells;
  int heads, group, head_dim;  // group: query heads of a K/V head
  int rows, history, window;
  float scale;         // times log2(e)
  float soft_cap;      // 0: none
  const float* sinks;  // [heads] or null
};

// prefill_sm90.cu
bool serves_wgmma(const PromptAttendCall& call);
void attend_prompt_wgmma(const PromptAttendCall& call, const PromptArgs& args, cudaStream_t stream);

#ifdef __CUDACC__
// Columns `column` (even) and column + 1 of an output row.
__device__ __forceinline__ void store2(const PromptArgs& args, int row, size_t column, float x, float y) {
  const size_t at = size_t(row) * size_t(args.heads) * size_t(args.head_dim) + column;
  *reinterpret_cast<float2*>(args.out + at) = make_float2(x, y);
  if (args.out16 != nullptr) {
    static_cast<uint32_t*>(args.out16)[at / 2] = args.half == Half::kBF16 ? pack2<true>(x, y) : pack2<false>(x, y);
  }
}

// What the outputs of a row are multiplied with at the end: 1 over the sum of its weights, of which this thread has
// `part`; a sink joins the sum. The factor is 0 for a row that does not exist.
__device__ __forceinline__ float row_factor(const PromptArgs& args, int head, float most, float part) {
  float total = quad_sum(part), factor = 1.f;
  if (args.sinks != nullptr) factor = add_sink(most, total, args.sinks[head]);
  return total > 0.f ? __fdiv_rn(factor, total) : 0.f;
}

// Masks the scores of two rows, `index` and index + 8 in the chain, in the accumulator layout that mma.sync and wgmma
// share: s[4 j + e] and s[4 j + 2 + e] are the two rows' scores of cell first + 8 j + e, where `first` includes the
// thread's own 2 * (lane % 4).
template <int n>
__device__ __forceinline__ void mask_scores(float (&s)[n], int first, int index, int window) {
#pragma unroll
  for (int i = 0; i < n; i++) {
    const int cell = first + i / 4 * 8 + i % 2;
    const int row = index + (i % 4 / 2) * 8;
    if (cell > row || (window > 0 && cell <= row - window)) s[i] = minus_infinity();
  }
}
#endif

}  // namespace sx::cuda
