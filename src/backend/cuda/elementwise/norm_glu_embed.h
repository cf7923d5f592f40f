// Ops on rows: embedding, norms, rotation, activation, copies. One block per row or per piece of a row; all are bound
// by latency for a few rows and by memory for a prompt.
#pragma once
#include <span>

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/views.h"

namespace sx::cuda {

// A copy of the table in device memory whose rows embed() reads: floats as they are, quantised types as int8 values
// with exact f32 scale and offset per sub-block. The result's `data` is a device address; its type and shape stay those
// of the table.
Tensor place_table(const Tensor& table, DeviceMemory& memory);

struct EmbedCall {
  float* out;
  const Token* tokens;
  int rows;
  Tensor table;
};  // tokens in device memory, table from place_table
void embed(const EmbedCall& call, cudaStream_t stream);

struct NormCall {
  float* out;   // may alias x
  void* out16;  // the same as `half`, or null
  Half half;
  const float* x;
  const float* weight;
  int rows, width;
  float eps;
  bool centred = false;  // see NormArgs
  const float* bias = nullptr;
  int stride = 0;  // of x and out (not of out16); 0: width
};
// The order of a norm's sum depends on its threads, and so on the width alone.
inline int norm_threads(int width) { return width <= 1024 ? 256 : width <= 4096 ? 512 : 1024; }
void norm(const NormCall& call, cudaStream_t stream);

struct RopeTableCall {
  float* table;
  const int32_t* positions;
  int rows;
  const double* frequencies;
  int dims;
  float factor;
};  // all device
void rope_table(const RopeTableCall& call, cudaStream_t stream);

struct RopeStoreCall {  // see RopeStoreArgs
  float* qkv;
  const float* table;
  const float *q_norm, *k_norm;
  float eps;
  int heads, kv_heads, head_dim, dims;
  RopeStyle style;
  KvView kv;
  int layer, rows;
  const RowInfo* info;  // [rows]: slot and cell
};
void rope_store(const RopeStoreCall& call, cudaStream_t stream);

struct GluCall {
  float* out;
  void* out16;
  Half half;
  const float* gate_up;
  int rows, width;
  Activation activation = Activation::kSilu;
  bool gated = true;
};
void glu(const GluCall& call, cudaStream_t stream);

void soft_cap(const SoftCapArgs& call, cudaStream_t stream);

// to[into ? into[r] : r] (+)= from[which ? which[r] : r] * scale; `which` in device memory.
struct CopyCall {
  float* to;
  const float* from;
  int rows, width;
  ptrdiff_t to_stride, from_stride;
  const int32_t* which;
  bool add;
  float scale = 1;
};
void copy_rows(const CopyCall& call, cudaStream_t stream);
// The same with `which` and `into` (or none) in host memory, which travel with launches of up to kHostRows rows.
inline constexpr int kHostRows = 512;
void copy_rows_by(const CopyCall& call, std::span<const int32_t> which, std::span<const int32_t> into,
                  cudaStream_t stream);

void to_half(void* out16, Half half, const float* x, size_t count, cudaStream_t stream);

}  // namespace sx::cuda
