// Split-KV decode on Hopper: what a consumer warpgroup does with a tile of cells. Scores and outputs are wgmma; the
// online softmax between them takes the halves of a tile as they come.
#pragma once
#include "backend/cuda/attention/decode_ring_sm90.cuh"

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
    hopper::product_registers<bf16>(o, weights + 4 * step, further(b, uint32_t(step) * 16 * kLineBytes),
                                    step > 0 || add);
  }
  hopper::products_commit();
}

// The online softmax over the halves of tiles of a KV split, one after the other, for the two rows of a thread. Weights
// are 2^(score - base). The base need not be the largest score: it is 0 if that of the first half is less than kFree
// away, and is raised only when a score is kFree above it. bf16 has the exponents of float, so 2^63 is as good a weight
// as 1; then outputs hardly ever have to be rescaled, neither within a split nor when splits merge, and scores need not
// be compared: the weights show whether they had to be.
template <bool bf16>
struct UnitSoftmax {
  using Scores = float[kAttendBlock / 2];
  using Weights = uint32_t[kAttendBlock / 4];                            // two in each
  static constexpr float kFree = bf16 ? 64.f : 8.f, kUnseen = -3.4e38f;  // the base of a row that has seen nothing
  float base[2], sum[2];                                                 // the sum is this thread's part
  __device__ __forceinline__ void begin() {
    base[0] = base[1] = bf16 ? 0.f : kUnseen;
    sum[0] = sum[1] = 0.f;
  }
  // Turns the scores of half a tile into weights. `fresh`: the KV split begins with it. Otherwise o and, for the second
  // half of a tile, the weights of the first half hold what the split has come to.
  template <int half, int n>
  __device__ __forceinline__ void step(Weights (&weights)[kTileBlocks], const Scores& s, float (&o)[n], bool fresh) {
    float part[2];
    if constexpr (bf16) {
      weigh<true>(weights[half], s, part);
      // Weights below 2^63 do not ask for another base, nor do those of a thread that are not all too small for 0.
      // Which way a warp goes does not matter: raise() leaves alone the rows for which all is good here, and s - 0 is
      // s.
      const float least = fresh ? 0x1p-58f : -1.f;
      const bool bounded = (part[0] < 0x1p63f) & (part[1] < 0x1p63f) & (part[0] > least) & (part[1] > least);
      const bool good = (base[0] == 0.f) & (base[1] == 0.f) & bounded;
      if (__builtin_expect(!__all_sync(0xffffffffu, good), 0)) {
        raise<half>(weights[0], s, o, fresh);
        weigh<false>(weights[half], s, part);
      }
    } else {
      raise<half>(weights[0], s, o, fresh);
      weigh<false>(weights[half], s, part);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = __fadd_rn(sum[r], part[r]);
  }
  // The maximum m of the split's state.
  __device__ __forceinline__ float m(int r) const { return base[r] == kUnseen ? minus_infinity() : base[r]; }

 private:
  template <bool zero>  // base
  __device__ __forceinline__ void weigh(Weights& weights, const Scores& s, float (&part)[2]) const {
    float sums[2][2];
#pragma unroll
    for (int i = 0; i < kAttendBlock / 2; i += 2) {
      const int r = i % 4 / 2;
      const float x = exp2_fast(zero ? s[i] : __fsub_rn(s[i], base[r]));
      const float y = exp2_fast(zero ? s[i + 1] : __fsub_rn(s[i + 1], base[r]));
      weights[i / 2] = pack2_weights<bf16>(x, y);
      sums[r][0] = i < 4 ? x : __fadd_rn(sums[r][0], x);
      sums[r][1] = i < 4 ? y : __fadd_rn(sums[r][1], y);
    }
#pragma unroll
    for (int r = 0; r < 2; ++r) part[r] = __fadd_rn(sums[r][0], sums[r][1]);
  }
  // Gives the rows that need it another base. A whole warp comes here if one row has to: the others multiply by 1.
  template <int half, int n>
  __device__ __forceinline__ void raise(Weights& first, const Scores& s, float (&o)[n], bool fresh) {
    float factor[2];
    bool stays = true;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = s[2 * r];
#pragma unroll
      for (int i = 0; i < kAttendBlock / 2; i += 4) top = fmaxf(top, fmaxf(s[i + 2 * r], s[i + 2 * r + 1]));
      top = quad_max(top);
      const float before = base[r];
      if (fresh || before == kUnseen) {
        base[r] = top == minus_infinity() ? kUnseen : bf16 && fabsf(top) < kFree ? 0.f : top;
      } else if (__fsub_rn(top, before) >= kFree) {
        base[r] = top;
      }
      stays = stays && base[r] == before;
      factor[r] = exp2_fast(__fsub_rn(before, base[r]));
    }
    if (fresh || __all_sync(0xffffffffu, stays)) return;
#pragma unroll
    for (int r = 0; r < 2; ++r) sum[r] = __fmul_rn(sum[r], factor[r]);
    if constexpr (half > 0) {
#pragma unroll
      for (int i = 0; i < kAttendBlock / 4; ++i) {
        const float2 both = unpack2<bf16>(first[i]);
        first[i] = pack2_weights<bf16>(__fmul_rn(both.x, factor[i % 2]), __fmul_rn(both.y, factor[i % 2]));
      }
    }
#pragma unroll
    for (int j = 0; j < n; ++j) o[j] = __fmul_rn(o[j], factor[j % 4 / 2]);
  }
};

}  // namespace sx::cuda
#endif
