// GEMM. Decode and verification (skinny: 1 row to a few hundred): one family of kernels that streams the weights once
// and reduces every output element in an order that depends on the matrix only. Prefill: cuBLASLt, with algorithms that
// give a row the same bits at every number of rows.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/cuda/runtime/device.h"
#include "backend/cuda/runtime/views.h"

namespace sx::cuda {

// Rows of a matrix that share a format.
struct WeightSegment {
  enum class Format : uint8_t { kF32, kBF16, kF16, kQ8, kQ4, kF4 };
  Format format;
  int first_out = 0, out = 0;  // output rows [first_out, first_out + out) of the matrix
  int sub = 0;                 // quantised: elements that share scale and offset, 32 or 16
  bool has_offset = false;     // quantised to 4 bits without: the number is 8 less
  const void* data = nullptr;  // device; quantised: with the scales
  bool quantised() const { return format == Format::kQ8 || format == Format::kQ4 || format == Format::kF4; }
};

class CudaMatrix : public Matrix {
 public:
  // What a segment is of a larger matrix's (ranks by columns have some outputs of each): the segment that this one
  // would have, and which of its outputs are here, as runs of neighbours.
  struct Run {
    int first, whole_first, count;  // outputs of the segment and of the whole one
  };
  struct Whole {
    WeightSegment segment;
    std::vector<Run> runs;
  };

  // of: empty, or which rows of larger tensors the parts are.
  CudaMatrix(std::span<const Tensor> parts, DeviceMemory& memory, std::span<const RowsOf> of = {});
  size_t bytes() const override { return bytes_; }
  std::span<const WeightSegment> segments() const { return segments_; }
  // The inputs that the kernels need: half() of x, and x itself if a segment is F32.
  Half half() const { return half_; }
  bool wants_f32() const { return wants_f32_; }
  bool wants_half() const { return wants_half_; }
  std::span<const Whole> wholes() const { return wholes_; }  // by segment
  int whole_out() const { return whole_out_; }

 private:
  std::vector<Whole> wholes_;
  int whole_out_ = 0;
  std::vector<WeightSegment> segments_;
  size_t bytes_ = 0;
  Half half_ = Half::kF16;
  bool wants_f32_ = false, wants_half_ = false;
};

struct LinearCall {   // out (+)= x W^T (+ bias)
  float* out;         // [rows, out_stride]
  const void* x16;    // [rows, in] of matrix.half(), or null
  const float* x;     // [rows, in], or null
  const float* bias;  // [out] or null
  int rows;
  int out_stride;
  bool accumulate;
};

// Scratch of linear_rows for matrices with up to `out` outputs and steps of up to `rows` rows.
size_t linear_scratch_bytes(int rows, int out);
void linear_rows(const CudaMatrix& matrix, const LinearCall& call, void* scratch, cudaStream_t stream);

// A norm and the GEMM of its rows as one kernel, where it serves them: quantised weights and few rows. The bits are
// those of norm and linear_rows; call.x and call.x16 are not read.
bool linear_normed_serves(const NormArgs& norm, const CudaMatrix& matrix, int rows);
void linear_normed(const CudaMatrix& matrix, const NormArgs& norm, const LinearCall& call, cudaStream_t stream);

// The GEMM whose outputs are gates and then as many factors, fused with silu(gate) * up: to call.out [rows, out_stride]
// (or null), and to out16 as matrix.half(), [rows, matrix.out() / 2]. False: nothing was done, and the caller uses
// linear_rows and glu, which give the same bits.
bool linear_glu(const CudaMatrix& matrix, const LinearCall& call, void* out16, cudaStream_t stream);

// Prefill GEMMs. The rows of a call are padded to the next of a few counts: buffers x16, x and out must have room for
// them. A row's bits depend neither on its place nor on the count.
class PromptLinear {
 public:
  PromptLinear(std::span<const int> sizes, DeviceMemory& memory);  // row counts, ascending
  ~PromptLinear();
  PromptLinear(const PromptLinear&) = delete;
  // Chooses and tries out the algorithms and takes scratch for dequantised weights; before the first run with this
  // matrix.
  void prepare(const CudaMatrix& matrix);
  // call.rows must be at most the largest row count, call.out_stride matrix.out().
  void run(const CudaMatrix& matrix, const LinearCall& call, cudaStream_t stream);
  // The row count that a call of `rows` rows is padded to, for the matrix's first segment; -1 if it is not prepared.
  int chosen(const CudaMatrix& matrix, int rows) const;

 private:
  struct Impl;
  std::vector<int> sizes_;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sx::cuda
