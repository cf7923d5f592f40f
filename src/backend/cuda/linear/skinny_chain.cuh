// Skinny GEMM of single tokens with quantised weights: what kernels share that do more than multiply. See kernels.h for
// the order of summation and formats.cuh for the operands.
#pragma once
#include "backend/cuda/linear/formats.cuh"

namespace sx::cuda {

inline constexpr int kChainThreads = 256, kChainWarps = kChainThreads / 32;

// A warp multiplies one token with kTiles tiles of 16 outputs, groups [first, last) of the inner dimension, in THE
// ORDER: a part is a chain of tensor-core steps, and its sum goes to end(sum) when its last group is done. The token
// lies in shared memory, zeros behind its end up to a whole group; it stands in all eight columns of the operand, so
// every lane has the sums of outputs g and g + 8. kAhead groups of weights are in registers, asked for by begin().
template <class Format, int kTiles, int kAhead>
struct Chain {
  typename Format::Source sources[kTiles];
  typename Format::Group weights[kAhead][kTiles];

  __device__ __forceinline__ void begin(int first) {
#pragma unroll
    for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
      for (int step = 0; step < 4; ++step) {
#pragma unroll
        for (int i = 0; i < kTiles; ++i) Format::load(sources[i], weights[ahead][i], first + ahead, step);
      }
    }
  }

  template <class End>
  __device__ __forceinline__ void run(const uint32_t* token, int first, int last, int per_part, const End& end) {
    const int t = int(threadIdx.x) & 3;
    float sum[kTiles][4] = {};
    int left = per_part;
    for (int group = first; group < last; group += kAhead) {
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int here = group + ahead;
        if (ahead > 0 && here >= last) break;
#pragma unroll
        for (int step = 0; step < 4; ++step) {
          const uint32_t* b = token + here * (kGroup / 2) + step * 16 + t;
          const uint32_t b0 = b[0], b1 = b[4], b2 = b[8], b3 = b[12];
#pragma unroll
          for (int i = 0; i < kTiles; ++i) {
            uint32_t a[8];
            Format::operands(weights[ahead][i], step, a);
            multiply<Format::kHalf>(sum[i], a, b0, b1);
            multiply<Format::kHalf>(sum[i], a + 4, b2, b3);
            Format::load(sources[i], weights[ahead][i], here + kAhead, step);
          }
        }
        if (--left > 0 && here + 1 < last) continue;
        left = per_part;
        end(sum);
#pragma unroll
        for (int i = 0; i < kTiles; ++i) {
#pragma unroll
          for (int j = 0; j < 4; ++j) sum[i][j] = 0;
        }
      }
    }
  }
};

// What earlier kernels wrote, past L1, which may still hold what was there before.
__device__ __forceinline__ int read_now(const int32_t* from) {
  int v;
  asm volatile("ld.global.cg.s32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
  return v;
}

// Eight numbers of a token at a time, zeros behind its end.
__device__ __forceinline__ void copy_token(uint4* to, const uint16_t* from, int in, int pieces, int first, int step) {
  for (int i = first; i < pieces; i += step) to[i] = load_tokens(from + (8 * i < in ? 8 * i : 0), 8 * i < in);
}

inline size_t token_bytes(int in) { return size_t(parts_of(in).groups) * kGroup * sizeof(uint16_t); }

}  // namespace sx::cuda
