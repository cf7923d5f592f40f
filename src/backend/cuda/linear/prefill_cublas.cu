// Prefill GEMMs through cuBLASLt. A prompt is padded to one of a few row counts. At set-up the algorithm of the largest
// count is tested: a row's bits must not depend on its place; the algorithm of every smaller count must give those same
// bits. So a token's K/V do not depend on how many tokens share its pass. Quantised weights are expanded to f16 a slice
// at a time, small enough to be still in the L2 cache when used.
#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <specextend/error.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/kernels.h"

namespace sx::cuda {
namespace {

constexpr size_t kWorkspace = size_t(32) << 20, kSlice = size_t(48) << 20;
constexpr int kSliceOutputs = 4096;  // fewer would leave multiprocessors idle at small row counts
constexpr int kSuggestions = 24, kKinds = 16, kTimedRuns = 4, kTimedChoices = 3;
constexpr size_t kSmallMatrix = size_t(8) << 20;  // weights; below that the search takes longer than it will ever save

void check_lt(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(std::string("cuBLASLt: ") + what + ": " + cublasLtGetStatusString(status));
}

// What decides on an algorithm: element type, sizes, and how well the result is aligned.
struct Shape {
  cudaDataType type;
  int in, out;
  int stride, alignment;  // of the result; in elements, in bytes
  bool operator==(const Shape& other) const {
    return type == other.type && in == other.in && out == other.out && stride == other.stride &&
           alignment == other.alignment;
  }
};
struct Choice {
  Shape shape;
  int rows;
  float ms;  // what it took at set-up
  unsigned char
      algorithm[sizeof(cublasLtMatmulAlgo_t)];  // as bytes: nvcc fails on containers of the library's own type
};

// Outputs [first, first + count) of a segment that are multiplied at once.
struct Piece {
  int first, count;
};
std::vector<Piece> pieces_of(const WeightSegment& segment, int in) {
  const bool quantised = segment.quantised();
  const int most = quantised ? std::max(kSliceOutputs, int(kSlice / (size_t(in) * 2)) / 128 * 128) : segment.out;
  std::vector<Piece> pieces;
  for (int first = 0; first < segment.out; first += most)
    pieces.push_back({first, std::min(most, segment.out - first)});
  return pieces;
}

// Some outputs of a segment that are multiplied at once. Of a matrix that is part of a larger one (ranks by columns)
// the outputs belong to a piece of the larger, whose algorithm they take: an output's bits are those it has there.
struct Outputs {
  Piece whole;
  int first, count;  // of the segment that is here
};
std::vector<Outputs> outputs_of(const CudaMatrix::Whole& whole, int in) {
  std::vector<Outputs> all;
  for (const Piece& piece : pieces_of(whole.segment, in))
    for (const CudaMatrix::Run& run : whole.runs) {
      const int begin = std::max(piece.first, run.whole_first),
                end = std::min(piece.first + piece.count, run.whole_first + run.count);
      if (begin >= end) continue;
      all.push_back({piece, run.first + begin - run.whole_first, end - begin});
    }
  return all;
}

// The rows of whole tiles, which quantised weights are expanded by.
Piece tiled(const Outputs& outputs) {
  const int first = outputs.first / kTileOut * kTileOut;
  return {first, outputs.first + outputs.count - first};
}

cudaDataType type_of(const WeightSegment& segment) {
  using Format = WeightSegment::Format;
  return segment.format == Format::kF32 ? CUDA_R_32F : segment.format == Format::kBF16 ? CUDA_R_16BF : CUDA_R_16F;
}

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

Shape shape_of(const WeightSegment& segment, const Piece& piece, int in, int stride) {
  const int at = segment.first_out + piece.first;
  return {type_of(segment), in, piece.count, stride, at % 4 == 0 && stride % 4 == 0 ? 16 : 4};
}

// Column-major as the library sees it: result [out, rows] = W [in, out]^T x [in, rows].
struct Product {
  cublasLtMatmulDescOpaque_t operation{};
  cublasLtMatrixLayoutOpaque_t weights{}, x{}, result{};
  Product(cudaDataType type, int in, int out, int rows, int stride) {
    check_lt(cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "operation");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_lt(cublasLtMatmulDescSetAttribute(&operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)),
             "operation");
    check_lt(cublasLtMatrixLayoutInit(&weights, type, uint64_t(in), uint64_t(out), in), "layout of weights");
    check_lt(cublasLtMatrixLayoutInit(&x, type, uint64_t(in), uint64_t(rows), in), "layout of x");
    check_lt(cublasLtMatrixLayoutInit(&result, CUDA_R_32F, uint64_t(out), uint64_t(rows), stride),
             "layout of the result");
  }
};

__host__ __device__ inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352du;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return x ^ (x >> 16);
}
// The test has kKinds different rows; row r is of this kind, and the first kKinds rows are one of each.
__device__ inline uint32_t kind_of(uint32_t row) { return row < kKinds ? row : mixed(row) % kKinds; }

// Random numbers in [-1, 1); row r of `width` elements is a function of its kind, or of r itself.
template <class Number>
__global__ void fill_random(Number* to, int width, bool by_kind) {
  const uint32_t row = blockIdx.x, seed = mixed(by_kind ? kind_of(row) + 1000003u : row);
  for (int i = int(threadIdx.x); i < width; i += int(blockDim.x)) {
    to[size_t(row) * size_t(width) + size_t(i)] = Number(float(int32_t(mixed(seed + uint32_t(i)))) * 0x1p-31f);
  }
}

// found[0] counts elements of `result` that differ from the row of the same kind in `expected` [kKinds, width];
// found[1] is a checksum that does not depend on the order of the sum.
__global__ void compare_rows(const uint32_t* result, const uint32_t* expected, int width, unsigned long long* found) {
  const uint32_t row = blockIdx.x;
  const uint32_t *mine = result + size_t(row) * size_t(width), *first = expected + size_t(kind_of(row)) * size_t(width);
  unsigned long long different = 0, sum = 0;
  for (int i = int(threadIdx.x); i < width; i += int(blockDim.x)) {
    different += mine[i] != first[i];
    sum += (unsigned long long)(mixed(mine[i] ^ mixed(uint32_t(i) + row * 0x9e3779b9u)));
  }
  atomicAdd(found, different);
  atomicAdd(found + 1, sum);
}

__global__ void __launch_bounds__(256) add_bias(float* out, const float* bias, int width, int stride) {
  const int i = int(blockIdx.x) * 256 + int(threadIdx.x);
  let_next_start();
  wait_for_previous();
  if (i >= width) return;
  float* to = out + size_t(blockIdx.y) * size_t(stride) + i;
  *to = __fadd_rn(*to, bias[i]);
}

class Temporary {  // device memory during prepare()
 public:
  explicit Temporary(size_t bytes) {
    if (cudaMalloc(&data_, bytes) == cudaSuccess) return;
    cudaGetLastError();
    throw Error("CUDA: no " + std::to_string(bytes >> 20) + " MiB free to try out matrix products");
  }
  ~Temporary() { cudaFree(data_); }
  Temporary(const Temporary&) = delete;
  void* data() const { return data_; }

 private:
  void* data_ = nullptr;
};

class Event {
 public:
  Event() { check(cudaEventCreate(&event_), "an event"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace

struct PromptLinear::Impl {
  DeviceMemory& memory;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  void* slice = nullptr;
  size_t slice_bytes = 0;
  std::vector<Choice> choices;

  explicit Impl(DeviceMemory& from) : memory(from) {
    workspace = memory.take(kWorkspace, "workspace of matrix products");
    check_lt(cublasLtCreate(&handle), "start");
  }
  ~Impl() { cublasLtDestroy(handle); }

  // The choice with the fewest rows that has room for `rows`.
  const Choice* find(const Shape& shape, int rows) const {
    const Choice* best = nullptr;
    for (const Choice& choice : choices) {
      if (choice.shape == shape && choice.rows >= rows && (!best || choice.rows < best->rows)) best = &choice;
    }
    return best;
  }

  void multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm, const void* weights, const void* x,
                float* out, bool add, cudaStream_t stream) {
    const float one = 1, beta = add ? 1.0f : 0.0f;
    auto* operation = const_cast<cublasLtMatmulDescOpaque_t*>(&product.operation);
    auto layout = [](const cublasLtMatrixLayoutOpaque_t& l) { return const_cast<cublasLtMatrixLayoutOpaque_t*>(&l); };
    check_lt(
        cublasLtMatmul(handle, operation, &one, weights, layout(product.weights), x, layout(product.x), &beta, out,
                       layout(product.result), out, layout(product.result), &algorithm, workspace, kWorkspace, stream),
        "matrix product");
  }

  // How many of the kSuggestions in `found` there are, best first.
  int suggest(Product& product, int result_alignment, cublasLtMatmulHeuristicResult_t* found) {
    cublasLtMatmulPreference_t wishes = nullptr;
    check_lt(cublasLtMatmulPreferenceCreate(&wishes), "preference");
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t name, auto value) {
      check_lt(cublasLtMatmulPreferenceSetAttribute(wishes, name, &value, sizeof(value)), "preference");
    };
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kWorkspace));
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE));  // no split-K
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t(256));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, uint32_t(16));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, uint32_t(result_alignment));
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, uint32_t(result_alignment));
    int count = 0;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(handle, &product.operation, &product.weights, &product.x, &product.result,
                                       &product.result, wishes, kSuggestions, found, &count);
    cublasLtMatmulPreferenceDestroy(wishes);
    return status == CUBLAS_STATUS_SUCCESS ? count : 0;
  }

  struct Trial;
  void choose(const Shape& shape, std::span<const int> sizes);
};

// Random weights and rows of one shape, on which algorithms are tried out.
struct PromptLinear::Impl::Trial {
  Impl& impl;
  const Shape shape;
  const int most_rows;
  const Temporary weights, x, result, expected, found;
  bool has_expected = false;

  Trial(Impl& owner, const Shape& of, int rows)
      : impl(owner),
        shape(of),
        most_rows(rows),
        weights(size_t(of.out) * size_t(of.in) * size_of(of.type)),
        x(size_t(rows) * size_t(of.in) * size_of(of.type)),
        result(size_t(rows) * row_bytes()),
        expected(kKinds * row_bytes()),
        found(2 * sizeof(unsigned long long)) {
    if (shape.type == CUDA_R_32F) fill<float>();
    if (shape.type == CUDA_R_16F) fill<__half>();
    if (shape.type == CUDA_R_16BF) fill<__nv_bfloat16>();
    check(cudaGetLastError(), kTrying);
  }

  static constexpr const char* kTrying = "trying out a matrix product";
  size_t row_bytes() const { return size_t(shape.stride) * sizeof(float); }

  template <class Number>
  void fill() {
    fill_random<<<unsigned(shape.out), 256>>>(static_cast<Number*>(weights.data()), shape.in, false);
    fill_random<<<unsigned(most_rows), 256>>>(static_cast<Number*>(x.data()), shape.in, true);
  }

  // Every later choice has to give the rows that this one gives.
  void expect_from(const Choice& choice) {
    const Product product(shape.type, shape.in, shape.out, choice.rows, shape.stride);
    cublasLtMatmulAlgo_t algorithm;
    std::memcpy(&algorithm, choice.algorithm, sizeof(algorithm));
    if (!passes(product, algorithm, choice.rows)) throw Error("cuBLASLt: a matrix product does not repeat itself");
    check(cudaMemcpy(expected.data(), result.data(), kKinds * row_bytes(), cudaMemcpyDeviceToDevice), kTrying);
    has_expected = true;
  }

  void multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm, bool add) {
    impl.multiply(product, algorithm, weights.data(), x.data(), static_cast<float*>(result.data()), add, nullptr);
  }

  // Whether equal rows give equal bits wherever they stand (the expected ones, once there are such), twice over.
  bool passes(const Product& product, const cublasLtMatmulAlgo_t& algorithm, int rows) {
    unsigned long long seen[2][2];
    for (auto& once : seen) {  // columns behind `out` stay zero
      check(cudaMemset(result.data(), 0, size_t(rows) * row_bytes()), kTrying);
      check(cudaMemset(found.data(), 0, sizeof(once)), kTrying);
      multiply(product, algorithm, false);
      multiply(product, algorithm, true);
      const void* wanted = has_expected ? expected.data() : result.data();
      compare_rows<<<unsigned(rows), 256>>>(static_cast<const uint32_t*>(result.data()),
                                            static_cast<const uint32_t*>(wanted), shape.stride,
                                            static_cast<unsigned long long*>(found.data()));
      check(cudaMemcpy(once, found.data(), sizeof(once), cudaMemcpyDeviceToHost), kTrying);
    }
    return seen[0][0] == 0 && seen[1][0] == 0 && seen[0][1] == seen[1][1];
  }

  // The shortest of a few runs, ms.
  float time(const Product& product, const cublasLtMatmulAlgo_t& algorithm) {
    float best = std::numeric_limits<float>::infinity();
    for (int i = 0; i < kTimedRuns; ++i) {
      check(cudaEventRecord(begin.get()), kTrying);
      multiply(product, algorithm, true);
      check(cudaEventRecord(end.get()), kTrying);
      check(cudaEventSynchronize(end.get()), kTrying);
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin.get(), end.get()), kTrying);
      best = std::min(best, ms);
    }
    return best;
  }

  // Without expected rows: the first suggestion that passes, because it decides on the bits and must be the same in
  // every run. With them: the fastest of the first few that pass, since all of them give the same bits.
  std::optional<Choice> choose(int rows) {
    Product product(shape.type, shape.in, shape.out, rows, shape.stride);
    cublasLtMatmulHeuristicResult_t tried[kSuggestions];
    const int count = impl.suggest(product, shape.alignment, tried);
    std::optional<Choice> best;
    const int most = size_t(shape.in) * size_t(shape.out) < kSmallMatrix ? 1 : kTimedChoices;
    for (int i = 0, passed = 0; i < count && passed < most; ++i) {
      if (tried[i].state != CUBLAS_STATUS_SUCCESS || tried[i].workspaceSize > kWorkspace) continue;
      if (!passes(product, tried[i].algo, rows)) continue;
      ++passed;
      const float ms = time(product, tried[i].algo);
      if (best && ms >= best->ms) continue;
      best = Choice{shape, rows, ms, {}};
      std::memcpy(best->algorithm, &tried[i].algo, sizeof(best->algorithm));
      if (!has_expected) break;
    }
    return best;
  }

  Event begin, end;
};

// Appends one choice for the largest row count, and one for each smaller count that some algorithm serves with the same
// bits in less time than the next larger choice needs.
void PromptLinear::Impl::choose(const Shape& shape, std::span<const int> sizes) {
  check(cudaDeviceSynchronize(), "trying out a matrix product");  // others use the workspace
  Trial trial(*this, shape, sizes.back());
  const std::optional<Choice> largest = trial.choose(sizes.back());
  if (!largest)
    throw Error("cuBLASLt: no algorithm multiplies [" + std::to_string(sizes.back()) + ", " + std::to_string(shape.in) +
                "] by [" + std::to_string(shape.out) + ", " + std::to_string(shape.in) +
                "] so that a row's result does not depend on its place");
  trial.expect_from(*largest);
  choices.push_back(trial.choose(sizes.back()).value_or(*largest));
  for (size_t i = sizes.size() - 1; i-- > 0;) {
    const auto smaller = trial.choose(sizes[i]);
    if (smaller && smaller->ms < choices.back().ms) choices.push_back(*smaller);
  }
}

PromptLinear::PromptLinear(std::span<const int> sizes, DeviceMemory& memory)
    : sizes_(sizes.begin(), sizes.end()), impl_(std::make_unique<Impl>(memory)) {}
PromptLinear::~PromptLinear() = default;

void PromptLinear::prepare(const CudaMatrix& matrix) {
  for (const CudaMatrix::Whole& whole : matrix.wholes()) {
    for (const Outputs& outputs : outputs_of(whole, matrix.in())) {
      const Shape shape = shape_of(whole.segment, outputs.whole, matrix.in(), matrix.whole_out());
      if (!impl_->find(shape, sizes_.back())) impl_->choose(shape, sizes_);
      const size_t rows = size_t(tiled(outputs).count);
      const size_t bytes = whole.segment.quantised() ? rows * size_t(matrix.in()) * 2 : 0;
      if (bytes <= impl_->slice_bytes) continue;
      impl_->slice_bytes = std::max(bytes, kSlice);  // taken once, unless rows are enormous
      impl_->slice = impl_->memory.take(impl_->slice_bytes, "weights expanded for prompts");
    }
  }
}

void PromptLinear::run(const CudaMatrix& matrix, const LinearCall& call, cudaStream_t stream) {
  if (call.rows > sizes_.back()) throw Error("CUDA: a prompt product with " + std::to_string(call.rows) + " rows");
  const bool part = matrix.whole_out() != matrix.out();
  if (!part && call.out_stride != matrix.out()) {  // the algorithms were tried out for one stride
    throw Error("CUDA: a prompt product of " + std::to_string(matrix.out()) + " outputs with rows " +
                std::to_string(call.out_stride) + " apart");
  }
  const int in = matrix.in();
  for (size_t s = 0; s < matrix.segments().size(); ++s) {
    const WeightSegment& segment = matrix.segments()[s];
    const CudaMatrix::Whole& whole = matrix.wholes()[s];
    const cudaDataType type = type_of(segment);
    const void* x = type == CUDA_R_32F ? static_cast<const void*>(call.x) : call.x16;
    for (const Outputs& outputs : outputs_of(whole, in)) {
      const Choice* choice = impl_->find(shape_of(whole.segment, outputs.whole, in, matrix.whole_out()), call.rows);
      if (!choice || !x) throw Error("CUDA: a prompt product that was not prepared, or without x");
      const size_t row_bytes = size_t(in) * size_of(type);
      const char* weights = static_cast<const char*>(segment.data) + size_t(outputs.first) * row_bytes;
      if (segment.quantised()) {
        const Piece rows = tiled(outputs);
        dequantise_rows(impl_->slice, segment, in, rows.first, rows.count, stream);
        weights = static_cast<const char*>(impl_->slice) + size_t(outputs.first - rows.first) * row_bytes;
      }
      const Product product(type, in, outputs.count, choice->rows, call.out_stride);
      cublasLtMatmulAlgo_t algorithm;
      std::memcpy(&algorithm, choice->algorithm, sizeof(algorithm));
      impl_->multiply(product, algorithm, weights, x, call.out + segment.first_out + outputs.first, call.accumulate,
                      stream);
    }
  }
  if (!call.bias) return;
  launch(add_bias, dim3(unsigned((matrix.out() + 255) / 256), unsigned(call.rows)), dim3(256), 0, stream, call.out,
         call.bias, matrix.out(), call.out_stride);
}

int PromptLinear::chosen(const CudaMatrix& matrix, int rows) const {
  const WeightSegment& segment = matrix.wholes()[0].segment;
  const Piece piece = pieces_of(segment, matrix.in())[0];
  const Choice* found = impl_->find(shape_of(segment, piece, matrix.in(), matrix.whole_out()), rows);
  return found ? found->rows : -1;
}

}  // namespace sx::cuda
