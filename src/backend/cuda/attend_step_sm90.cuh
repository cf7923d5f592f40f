// Attention of decode and verification on Hopper: what a warpgroup does with a tile of cells. Scores and outputs are products of wgmma;
// the online softmax between them takes the halves of a tile as they come.
#pragma once
#include "backend/cuda/attend_ring_sm90.cuh"

#ifdef SX_HOPPER
namespace sx::cuda {

inline constexpr uint32_t kHalfTileBytes = kAttendBlock * kLineBytes;  // from half to half of a tile in shared memory

// The descriptor of a matrix that begins `bytes` further: addresses are below 2^18, so nothing carries.
__device__ __forceinline__ uint64_t further(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xffffffff00000000ull) | (uint32_t(descriptor) + (bytes >> 4));
}

// Issues s = q K^T for a tile or half of one.
template <int D, bool bf16, int n>
__device__ __forceinline__ void issue_scores(float (&s)[n], uint32_t q, uint32_t k) {
  const uint64_t a = hopper::descriptor(q, 16), b = hopper::descriptor(k, 16);
#pragma unroll
  for (int step = 0; step < D / 16; ++step) {
    const uint32_t panel = uint32_t(step / 4) * kLineBytes, inside = uint32_t(step % 4) * 32;
    hopper::product_shared<bf16>(s, further(a, panel * kGroupQueries + inside), further(b, panel * kTileCells + inside),
                                 step > 0);
  }
  hopper::products_commit();
}

// Issues o = weights V, plus o if add, for half of a tile.
template <int D, bool bf16>
__device__ __forceinline__ void issue_output(float (&o)[D / 2], const uint32_t (&weights)[kAttendBlock / 4], uint32_t v,
                                             bool add) {
  const uint64_t b = hopper::descriptor(v, kTileCells * kLineBytes);
#pragma unroll
  for (int step = 0; step < kAttendBlock / 16; ++step) {
    hopper::product_registers<bf16>(o, weights + 4 * step, further(b, uint32_t(step) * 16 * kLineBytes), step > 0 || add);
  }
  hopper::products_commit();
}

template <bool bf16>
__device__ __forceinline__ void pack_weights(uint32_t (&weights)[kAttendBlock / 4], const float (&s)[kAttendBlock / 2]) {
#pragma unroll
  for (int i = 0; i < kAttendBlock / 4; ++i) weights[i] = pack2_weights<bf16>(s[2 * i], s[2 * i + 1]);
}

// The online softmax over the tiles of a unit, for the two rows of a thread. Weights are 2^(score - base). The base need not be the
// largest score: it is 0 if that is less than kFree away, and is raised only when a score is kFree above it. bf16 has the exponents of
// float, so 2^63 is as good a weight as 1; then outputs hardly ever have to be multiplied, neither within a unit nor when units merge.
template <bool bf16>
struct UnitSoftmax {
  static constexpr float kFree = bf16 ? 64.f : 8.f, kUnseen = -3.4e38f;  // the base of a row that has seen nothing
  float base[2], sum[2];  // the sum is this thread's part
  float even[2], odd[2];
  __device__ __forceinline__ void begin() {
    base[0] = base[1] = bf16 ? 0.f : kUnseen;
    sum[0] = sum[1] = 0.f;
  }
  // All scores of a tile are compared before the first is weighed.
  template <bool first>
  __device__ __forceinline__ void compare(const float (&s)[kAttendBlock / 2]) {
#pragma unroll
    for (int i = 0; i < kAttendBlock / 2; i += 4) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        even[r] = first && i == 0 ? s[2 * r] : fmaxf(even[r], s[i + 2 * r]);
        odd[r] = first && i == 0 ? s[2 * r + 1] : fmaxf(odd[r], s[i + 2 * r + 1]);
      }
    }
    // Meant to have this done before the wait for the other half; ptxas still moves most of it behind that.
    if (first) asm volatile("" : "+f"(even[0]), "+f"(even[1]), "+f"(odd[0]), "+f"(odd[1]));
  }
  // Finds the bases for the scores compared; o is what there is of the unit, if anything (`begun`).
  template <int n>
  __device__ __forceinline__ void adjust(float (&o)[n], bool begun) {
    float top[2];
    bool stays = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r] = quad_max(fmaxf(even[r], odd[r]));
      stays = stays && (begun ? top[r] : fabsf(top[r])) < __fadd_rn(base[r], kFree);
      even[r] = odd[r] = 0.f;
    }
    if (__all_sync(0xffffffffu, stays)) return;
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float before = base[r];
      if (!begun || before == kUnseen) {
        base[r] = top[r] == minus_infinity() ? kUnseen : bf16 && fabsf(top[r]) < kFree ? 0.f : top[r];
      } else if (top[r] >= __fadd_rn(before, kFree)) {
        base[r] = top[r];
      }
      factor[r] = exp2_fast(__fsub_rn(before, base[r]));
      if (begun) sum[r] = __fmul_rn(sum[r], factor[r]);
    }
    if (!begun) return;
#pragma unroll
    for (int j = 0; j < n; ++j) o[j] = __fmul_rn(o[j], factor[j % 4 / 2]);
  }
  // Scores become weights.
  __device__ __forceinline__ void weigh(float (&s)[kAttendBlock / 2]) {
#pragma unroll
    for (int i = 0; i < kAttendBlock / 2; ++i) s[i] = exp2_fast(__fsub_rn(s[i], base[i % 4 / 2]));
#pragma unroll
    for (int i = 0; i < kAttendBlock / 2; i += 4) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        even[r] = __fadd_rn(even[r], s[i + 2 * r]);
        odd[r] = __fadd_rn(odd[r], s[i + 2 * r + 1]);
      }
    }
  }
  __device__ __forceinline__ void weighed() {
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = __fadd_rn(sum[r], __fadd_rn(even[r], odd[r]));
  }
  // Of the state that the unit has come to.
  __device__ __forceinline__ float m(int r) const { return base[r] == kUnseen ? minus_infinity() : base[r]; }
};

}  // namespace sx::cuda
#endif
