// Arg max and Gumbel-max, one token per row, by comparison alone: results do not depend on how a row is cut into
// slices. See top_k.cu for the k likeliest. Rows with forbidden tokens are copied with -infinity in their place.
#include "backend/cuda/sampling/choose.h"

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/elementwise/norm_glu_embed.cuh"

namespace sx::cuda {
namespace {

constexpr int kThreads = 256, kPer = 8, kSlice = kThreads * kPer;

// The position-keyed noise of base/rng.h on the device.
__device__ __forceinline__ uint64_t mix(uint64_t x) {
  x ^= x >> 32, x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32, x *= 0xd6e8feb86659fd93ull;
  return x ^ x >> 32;
}
__device__ __forceinline__ uint64_t row_key(uint64_t seed, uint64_t position) {
  return mix(mix(seed + 0x9e3779b97f4a7c15ull) ^ position * 0xbf58476d1ce4e5b9ull);
}
__device__ __forceinline__ double uniform(uint64_t key, uint32_t token) {
  return __dmul_rn(__dadd_rn(double(mix(key ^ (uint64_t(token) + 0x94d049bb133111ebull)) >> 12), 0.5), 0x1p-52);
}
__device__ __forceinline__ double exact_noise(double u) { return -log(-log(u)); }
// The same to 1e-5: u and 1 - u are exact doubles that lose 6e-8 of themselves as floats, logf and log1pf are good to a
// few units in the last place, so -log(u) is good to 1e-6 of itself, and its logarithm, at most 37, to 1e-5.
__device__ __forceinline__ float rough_noise(double u) {
  const float e = u <= 0.5 ? -logf(float(u)) : -log1pf(-float(1.0 - u));
  return -logf(e);
}
constexpr double kDoubt = 1e-3;  // far more than twice the error of a rough score

// The best of a part of a row. token -1: none.
struct Best {
  double score;  // sampled
  Token token;
  Token largest;   // the first of the largest
  float logit;     // its logit
  int32_t broken;  // some logit is NaN or +infinity
};

__device__ __forceinline__ void offer_score(Best& b, double score, Token token) {
  if (token >= 0 && (b.token < 0 || score > b.score || (score == b.score && token < b.token)))
    b.score = score, b.token = token;
}
__device__ __forceinline__ void offer_logit(Best& b, float logit, Token token) {
  if (token >= 0 && (b.largest < 0 || logit > b.logit || (logit == b.logit && token < b.largest)))
    b.logit = logit, b.largest = token;
}
__device__ __forceinline__ void join_lanes(Best& b) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    const double score = __shfl_xor_sync(kAllLanes, b.score, step);
    const Token token = __shfl_xor_sync(kAllLanes, b.token, step),
                largest = __shfl_xor_sync(kAllLanes, b.largest, step);
    const float logit = __shfl_xor_sync(kAllLanes, b.logit, step);
    b.broken |= __shfl_xor_sync(kAllLanes, b.broken, step);
    offer_score(b, score, token);
    offer_logit(b, logit, largest);
  }
}
__device__ __forceinline__ Best nothing() { return {0, -1, -1, -INFINITY, 0}; }

// One block: the best of 2,048 logits of one row, 8 KB read. Bound: latency. Sampled rows: scores with rough noise are
// ranked first, and only those near the best of the block get exact ones: the block's best is always among them.
__global__ void __launch_bounds__(kThreads) pick_slices(Best* out, const PickRow* rows, int vocab) {
  __shared__ Best best[kThreads / 32];
  __shared__ float part[32];
  const int t = threadIdx.x, lane = t % 32, from = int(blockIdx.x) * kSlice;
  let_next_start();
  wait_for_previous();
  const PickRow row = rows[blockIdx.y];
  const bool sampled = row.temperature > 0, whole = (reinterpret_cast<uintptr_t>(row.logits) & 15) == 0;
  float x[kPer];
#pragma unroll
  for (int j = 0; j < kPer / 4; ++j) {
    const int i = from + (j * kThreads + t) * 4;
    const float4 v = load4(row.logits, i, vocab, whole && i + 4 <= vocab);
    x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
  }
  const auto token_of = [&](int j) { return from + (j / 4 * kThreads + t) * 4 + j % 4; };
  Best mine = nothing();
#pragma unroll
  for (int j = 0; j < kPer; ++j) {
    const Token token = token_of(j);
    if (token < vocab && x[j] > -INFINITY) offer_logit(mine, x[j], token);  // false for NaN
    if (token < vocab && !(x[j] < INFINITY)) mine.broken = 1;               // true for NaN
  }
  if (sampled) {  // the same for all threads
    const double inverse = __ddiv_rn(1.0, double(row.temperature));
    const uint64_t key = row_key(row.seed, row.position);
    double rough[kPer], most = -INFINITY;
#pragma unroll
    for (int j = 0; j < kPer; ++j) {
      const Token token = token_of(j);
      rough[j] = -INFINITY;
      if (token < vocab && isfinite(x[j]))
        rough[j] = double(x[j]) * inverse + double(rough_noise(uniform(key, uint32_t(token))));
      most = fmax(most, rough[j]);
    }
    // As a float rounded down, so that it is a score which the block reaches.
    float reached = __double2float_rd(most);
    reached = block_max(reached, part);
    const double least = double(reached) - kDoubt;
#pragma unroll 1
    for (int j = 0; j < kPer; ++j) {
      const Token token = token_of(j);
      bool near = false;
      float logit = 0;
#pragma unroll
      for (int i = 0; i < kPer; ++i)
        if (i == j) near = rough[i] > -INFINITY && rough[i] >= least, logit = x[i];
      if (near)
        offer_score(mine, __dadd_rn(__dmul_rn(double(logit), inverse), exact_noise(uniform(key, uint32_t(token)))),
                    token);
    }
  }
  join_lanes(mine);
  if (lane == 0) best[t / 32] = mine;
  __syncthreads();
  if (t >= 32) return;
  mine = lane < kThreads / 32 ? best[lane] : nothing();
  join_lanes(mine);
  if (lane == 0) out[size_t(blockIdx.y) * gridDim.x + blockIdx.x] = mine;
}

// One warp: the best of one row's slices, 32 bytes read for each. Bound: latency.
__global__ void pick_best(Token* out, int32_t* broken, const Best* parts, int slices) {
  let_next_start();
  wait_for_previous();
  Best mine = nothing();
  for (int i = int(threadIdx.x); i < slices; i += 32) {
    const Best other = parts[size_t(blockIdx.x) * size_t(slices) + size_t(i)];
    offer_score(mine, other.score, other.token);
    offer_logit(mine, other.logit, other.largest);
    mine.broken |= other.broken;
  }
  join_lanes(mine);
  if (threadIdx.x == 0 && broken) broken[blockIdx.x] = mine.broken;
  if (threadIdx.x == 0) out[blockIdx.x] = mine.token >= 0 ? mine.token : mine.largest >= 0 ? mine.largest : 0;
}

// One block: 256 logits of one row, 2 KB and 32 bytes moved. Bound: latency.
__global__ void __launch_bounds__(kThreads) copy_logits(const __grid_constant__ AllowedCall c) {
  const int row = int(blockIdx.y), token = int(blockIdx.x) * kThreads + int(threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (token >= c.vocab) return;
  bool allowed = true;
  if (c.masked >> row & 1)
    allowed = c.allowed[size_t(row) * size_t((c.vocab + 31) / 32) + size_t(token / 32)] >> (token % 32) & 1;
  c.out[size_t(row) * size_t(c.vocab) + size_t(token)] = allowed ? c.logits[row][token] : -INFINITY;
}

// One thread: one logit. Bound: latency.
__global__ void __launch_bounds__(kThreads) edit_logits(float* rows, int vocab, const LogitEdit* edits, int count) {
  const int i = int(blockIdx.x) * kThreads + int(threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (i >= count) return;
  const LogitEdit e = edits[i];
  float& logit = rows[size_t(e.row) * size_t(vocab) + size_t(e.token)];
  float x = e.bias != 0 ? __fadd_rn(logit, e.bias) : logit;
  if (e.count > 0) x = __fsub_rn(x > 0 ? __fdiv_rn(x, e.repeat) : __fmul_rn(x, e.repeat), e.less);
  logit = x;
}

int slices_of(int vocab) { return (vocab + kSlice - 1) / kSlice; }

}  // namespace

size_t pick_scratch_bytes(int rows, int vocab) { return size_t(rows) * size_t(slices_of(vocab)) * sizeof(Best); }

void copy_allowed(const AllowedCall& call, cudaStream_t stream) {
  if (call.rows <= 0) return;
  launch(copy_logits, dim3(unsigned((call.vocab + kThreads - 1) / kThreads), unsigned(call.rows)), kThreads, 0, stream,
         call);
}

void edit_rows(float* rows, int vocab, const LogitEdit* edits, int count, cudaStream_t stream) {
  if (count <= 0) return;
  launch(edit_logits, unsigned((count + kThreads - 1) / kThreads), kThreads, 0, stream, rows, vocab, edits, count);
}

void pick(Token* out, const PickRow* rows, int count, int vocab, void* scratch, cudaStream_t stream, int32_t* broken) {
  if (count <= 0) return;
  const int slices = slices_of(vocab);
  launch(pick_slices, dim3(unsigned(slices), unsigned(count)), kThreads, 0, stream, static_cast<Best*>(scratch), rows,
         vocab);
  launch(pick_best, unsigned(count), 32, 0, stream, out, broken, static_cast<const Best*>(scratch), slices);
}

}  // namespace sx::cuda
