// What linear_rows hands to its kernels, and the one split-K of the inner dimension that all of them keep to.
#pragma once
#include <algorithm>

#include "backend/cuda/linear/linear.h"

namespace sx::cuda {

// THE ORDER: the inner dimension is cut into groups of 128, the groups into at most 8 contiguous split-K parts of equal
// size (the last may be smaller). A part is one chain of tensor-core steps of 16 k in ascending order, starting from
// zero; whole groups always, with zeros behind the end. An element is ((p0 + p1) + p2) + ..., then + bias, then + what
// was there. Every kernel does exactly this, so a row's bits depend neither on the kernel nor on the number of rows.
inline constexpr int kGroup = 128;
inline constexpr int kMostParts = 8;
struct Parts {
  int groups, per_part, parts;
};
inline Parts parts_of(int in) {
  const int groups = (in + kGroup - 1) / kGroup, per_part = std::max(1, (groups + kMostParts - 1) / kMostParts);
  return {groups, per_part, std::max(1, (groups + per_part - 1) / per_part)};
}

inline constexpr int kTileOut = 16;    // outputs of a tensor-core tile; quantised weights lie in tiles of so many rows
inline constexpr int kFewRows = 8;     // tokens of a tensor-core tile
inline constexpr int kManyRows = 64;   // rows of one launch at most
inline constexpr int kDevice = 132;    // multiprocessors of the device that choices by shape are made for
inline constexpr int kManyOuts = 256;  // outputs of a block of many_rows
inline constexpr int kSplitBelow =
    kDevice / 2 * kManyOuts;  // up to here its blocks may share the split-K parts, see scratch

struct LinearTask {
  const void* data;
  const void* x;      // [rows, in]
  const float* bias;  // of the segment's first output, or null
  float* result;      // at the segment's first output
  float* scratch;     // [parts][rows][out]
  int in, out, rows, out_stride;
  bool accumulate;
  Parts parts;
  // silu(gate) * up of outputs [0, out / 2) and [out / 2, out) instead, and the same once more as 16-bit numbers,
  // without gaps.
  bool glu;
  void* result16;
};

// Which kernel computes a GEMM. Quantised weights: kFew, packed_few; on Hopper kStream, packed_rows with whole rows,
// and kParts4, with a cluster of four blocks that share the split-K parts of a tile. Floats: kFew, few_rows, a block
// has few outputs and all parts; kInside, kScratch: many_rows, a block has 256 outputs and all parts, or some parts
// which a second kernel adds; 16-bit floats on Hopper: kStream, stream_rows; kWhole2: parts_rows with a cluster of two
// blocks that share the parts of a tile of 64 outputs; kWhole2x96, kWhole2x128: the same with tiles of 96 and 128.
enum class Way { kByShape, kFew, kInside, kScratch, kStream, kParts4, kWhole2, kWhole2x96, kWhole2x128 };

// Whether the weights stay in L2 and can be read from there again and again.
inline bool is_small(const LinearTask& task) { return size_t(task.in) * size_t(task.out) <= size_t(2) << 20; }
// Parts of a block of many_rows: so few that the blocks just fit on the device, one per multiprocessor.
int parts_per_block(const LinearTask& task);
// What kByShape means; half: the weights are 16-bit floats. rows.cu
Way way_of(const LinearTask& task, bool half);

// A launch of stream_rows: blocks of `warps` warps with 32 outputs each. skinny_stream_sm90.cu. cost: by the elements
// that the busiest multiprocessor takes in.
struct StreamPlan {
  int warps, tiles, stages;
  int64_t cost;
};
bool can_stream();  // this and parts_rows
StreamPlan stream_plan(const LinearTask& task);
void multiply_stream(const LinearTask& task, Half half, cudaStream_t stream);

// A launch of parts_rows: tiles, and the stages of each split-K part that are resident or in flight.
// skinny_splitk_sm90.cu
struct PartsPlan {
  int tiles, depth;
};
void multiply_parts(const LinearTask& task, Half half, Way way, cudaStream_t stream);

// One function per format; each picks its kernel by rows and shape. half.cu, quantised.cu
void multiply_bf16(const LinearTask& task, Way way, cudaStream_t stream);
void multiply_f16(const LinearTask& task, Way way, cudaStream_t stream);
void multiply_quantised(const WeightSegment& segment, const LinearTask& task, Way way, cudaStream_t stream);

// linear_rows with a given kernel, for programs that check all of them.
void linear_rows_by(const CudaMatrix& matrix, const LinearCall& call, void* scratch, Way way, cudaStream_t stream);

// f16 rows [first, first + count) of a quantised segment, row-major [count, in]; first is a multiple of 16.
void dequantise_rows(void* to, const WeightSegment& segment, int in, int first, int count, cudaStream_t stream);

}  // namespace sx::cuda
