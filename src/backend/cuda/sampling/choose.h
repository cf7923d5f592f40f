// Picking tokens from rows of logits on the device: the largest (greedy), the largest with Gumbel noise, the k
// likeliest.
#pragma once
#include "backend/cuda/runtime/device.h"
#include "backend/ops.h"

namespace sx::cuda {

struct PickRow {        // one row; an array of them lies in device memory
  const float* logits;  // [vocab], device
  uint64_t position, seed;
  float temperature;  // 0: the largest
  int32_t unused;
};
// The tokens that the definition in ops.h gives without bias, penalties and filters. out: [rows]; broken: [rows] or
// null, not 0 where some logit is NaN or +infinity.
size_t pick_scratch_bytes(int rows, int vocab);
void pick(Token* out, const PickRow* rows, int count, int vocab, void* scratch, cudaStream_t stream,
          int32_t* broken = nullptr);

// out[r][t] = logits of the row's token where allowed, else -infinity. out: [rows, vocab]; allowed: [rows, (vocab + 31)
// / 32]; all on the device.
inline constexpr int kMostMasked = 16;
struct MaskCall {
  float* out;
  const float* logits[kMostMasked];
  const uint32_t* allowed;
  int rows, vocab;
};
void mask_rows(const MaskCall& call, cudaStream_t stream);

struct TopKCall {
  Candidate* out;
  const float* logits;
  int rows, vocab, stride, k;
};  // out [rows, k] and logits on the device
inline constexpr int kMostTopK = 256;
size_t top_k_scratch_bytes(int rows, int vocab, int k);
void top_k(const TopKCall& call, void* scratch, cudaStream_t stream);

}  // namespace sx::cuda
