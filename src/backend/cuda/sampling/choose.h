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

// Copies of rows: out[r][t] = logits of the row's token where allowed, else -infinity. out: [rows, vocab]; allowed:
// [rows, (vocab + 31) / 32], read for rows whose bit of `masked` is set; all on the device.
inline constexpr int kMostCopied = 32;
struct AllowedCall {
  float* out;
  const float* logits[kMostCopied];
  const uint32_t* allowed;
  uint32_t masked;
  int rows, vocab;
};
void copy_allowed(const AllowedCall& call, cudaStream_t stream);

// What bias and penalties make of one logit of such a copy, in this order, as the definition in ops.h says: x + bias,
// then, where `count` > 0, x / repeat or x * repeat, then minus `less`.
struct LogitEdit {
  int32_t row;
  Token token;
  float bias;
  int32_t count;
  float repeat, less;
};
void edit_rows(float* rows, int vocab, const LogitEdit* edits, int count, cudaStream_t stream);

struct TopKCall {
  Candidate* out;
  const float* logits;
  int rows, vocab, stride, k;
};  // out [rows, k] and logits on the device
inline constexpr int kMostTopK = 256;
size_t top_k_scratch_bytes(int rows, int vocab, int k);
void top_k(const TopKCall& call, void* scratch, cudaStream_t stream);

}  // namespace sx::cuda
