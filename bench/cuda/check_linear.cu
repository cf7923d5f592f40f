// nvcc -std=c++20 -O3 -lineinfo -Isrc -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_linear
//   bench/cuda/check_linear.cu
//   src/backend/cuda/linear/matrix.cc src/backend/cuda/linear/*.cu src/backend/cuda/runtime/device.cu
//   src/tensor/{blocks,dtype,quantise}.cc src/base/error.cc -lfmt -lcublasLt
// (one line; src/tensor and src/base may also be compiled with g++). Options: check, time, prompts (the times of
// prefill only); without any: all.
//
// Checks linear_rows and PromptLinear against double precision and for batch invariance (a row's bits do not depend on
// its batch), then times the shapes of an 8B model and of small drafts.
#include <specextend/error.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/runtime/launch.cuh"
#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/kernels.h"
#include "base/clock.h"
#include "base/rng.h"
#include "tensor/blocks.h"
#include "tensor/half.h"

namespace {

using namespace sx;
using namespace sx::cuda;

bool failed = false;
#define FAIL(...) (failed = true, std::printf("FAILED: " __VA_ARGS__), std::printf("\n"))

class Memory : public DeviceMemory {
 public:
  ~Memory() override {
    for (void* p : taken_) cudaFree(p);
  }
  void* take(size_t bytes, const char* purpose) override {
    void* p = nullptr;
    check(cudaMalloc(&p, std::max<size_t>(bytes, 256)), purpose);
    check(cudaMemset(p, 0, std::max<size_t>(bytes, 256)), purpose);
    taken_.push_back(p);
    return p;
  }
  template <class T>
  T* put(const std::vector<T>& values) {
    void* p = take(values.size() * sizeof(T), "check");
    check(cudaMemcpy(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
    return static_cast<T*>(p);
  }

 private:
  std::vector<void*> taken_;
};

uint64_t counter = 1;
float random_float() { return float(uniform_from(mix64(counter++)) * 2 - 1); }

// A tensor of random weights around 0.05 and its bytes.
struct Weights {
  std::vector<std::byte> bytes;
  Tensor tensor;
  Weights(DType type, int out, int in) {
    const DTypeInfo info = dtype_info(type);
    bytes.resize(dtype_bytes(type, in) * size_t(out));
    const size_t blocks = bytes.size() / size_t(info.bytes);
    for (size_t i = 0; i < bytes.size(); i += 8) {
      const uint64_t bits = mix64(counter++);
      std::memcpy(&bytes[i], &bits, std::min<size_t>(8, bytes.size() - i));
    }
    const auto put = [&](size_t block, size_t at, float value) {
      const uint16_t h = float_to_f16(value);
      std::memcpy(&bytes[block * size_t(info.bytes) + at], &h, 2);
    };
    for (size_t b = 0; b < blocks; ++b) {
      const float d = 0.004f * (1.2f + random_float());
      switch (type) {
        case DType::kF32: {
          const float v = 0.1f * random_float();
          std::memcpy(&bytes[b * 4], &v, 4);
          break;
        }
        case DType::kF16: put(b, 0, 0.1f * random_float()); break;
        case DType::kBF16: {
          const uint16_t v = float_to_bf16(0.1f * random_float());
          std::memcpy(&bytes[b * 2], &v, 2);
          break;
        }
        case DType::kQ4_1:
        case DType::kQ5_1: put(b, 2, -0.03f * (1 + random_float())); [[fallthrough]];
        case DType::kQ4_0:
        case DType::kQ5_0:
        case DType::kQ8_0: put(b, 0, type == DType::kQ8_0 ? d / 8 : d); break;
        case DType::kQ4_K:
        case DType::kQ5_K: put(b, 0, d / 16), put(b, 2, d / 16); break;
        case DType::kQ2_K: put(b, 80, d / 4), put(b, 82, d / 4); break;
        case DType::kQ3_K: put(b, 108, d / 8); break;
        case DType::kQ6_K: put(b, 208, d / 128); break;
        default: break;
      }
    }
    tensor.type = type;
    tensor.rank = 2;
    tensor.shape = {out, in};
    tensor.data = bytes.data();
  }
};

struct Problem {
  std::string name;
  std::vector<Weights> parts;
  int in, out = 0;
  std::vector<float> dense;  // [out, in]
  Problem(std::string what, std::vector<std::pair<DType, int>> sizes, int inputs) : name(std::move(what)), in(inputs) {
    for (const auto& [type, rows] : sizes) {
      parts.emplace_back(type, rows, in);
      dense.resize(size_t(out + rows) * size_t(in));
      dequantise(type, parts.back().tensor.data, int64_t(rows) * in, dense.data() + size_t(out) * size_t(in));
      out += rows;
    }
    name += " " + std::to_string(out) + "x" + std::to_string(in);
  }
  CudaMatrix place(Memory& memory) const {
    std::vector<Tensor> tensors;
    for (const Weights& part : parts) tensors.push_back(part.tensor);
    return CudaMatrix(tensors, memory);
  }
  bool streams() const {  // the kernels for Hopper have a part in it
    for (const Weights& part : parts) {
      if (part.tensor.type != DType::kF32) return in % 8 == 0 && can_stream();
    }
    return false;
  }
  bool quantised() const { return dtype_is_quantised(parts[0].tensor.type); }
  bool exact() const {  // weights reach the tensor cores as they are
    for (const Weights& part : parts) {
      if (dtype_is_quantised(part.tensor.type)) return false;
    }
    return true;
  }
};

// x as f32 and as 16-bit numbers, whose values are those of x.
struct Activations {
  std::vector<float> x;
  std::vector<uint16_t> x16;
  Activations(int rows, int in, Half half) : x(size_t(rows) * size_t(in)), x16(x.size()) {
    for (size_t i = 0; i < x.size(); ++i) {
      x16[i] = half == Half::kBF16 ? float_to_bf16(random_float()) : float_to_f16(random_float());
      x[i] = half == Half::kBF16 ? bf16_to_float(x16[i]) : f16_to_float(x16[i]);
    }
  }
};

// The norm of the error over that of the reference, over some rows.
double error_of(const Problem& p, const Activations& a, const std::vector<float>& bias, const std::vector<float>& old,
                const std::vector<float>& got, int stride, std::vector<int> rows) {
  double wrong = 0, all = 0, worst = 0;
  int bad_row = -1, bad_out = -1;
  for (int r : rows) {
    for (int o = 0; o < p.out; ++o) {
      double sum = 0;
      const float *w = &p.dense[size_t(o) * size_t(p.in)], *x = &a.x[size_t(r) * size_t(p.in)];
      for (int k = 0; k < p.in; ++k) sum += double(w[k]) * double(x[k]);
      const double want = sum + double(bias[size_t(o)]) + double(old[size_t(r) * size_t(stride) + size_t(o)]);
      const double difference = double(got[size_t(r) * size_t(stride) + size_t(o)]) - want;
      wrong += difference * difference;
      all += sum * sum;
      if (!(std::abs(difference) <= worst)) worst = std::abs(difference), bad_row = r, bad_out = o;
    }
  }
  const double error = std::sqrt(wrong / all), limit = p.exact() ? 2e-5 : 1.5e-3;
  if (!(error < limit))
    FAIL("%s: error %.2e, worst at row %d output %d: off by %g", p.name.c_str(), error, bad_row, bad_out, worst);
  return error;
}

// One failure must not hide what the rest has to say.
template <class Work>
void attempt(const Work& work) {
  try {
    work();
  } catch (const std::exception& error) { FAIL("%s", error.what()); }
}

constexpr int kRows = 130;
constexpr Way kInParts[] = {Way::kWhole2, Way::kWhole2x96, Way::kWhole2x128};
constexpr const char* kInPartsNames[] = {"2x64", "2x96", "2x128"};

int max_shared_memory() {
  int bytes = 0;
  check(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), "device");
  return bytes;
}

void check_rows(const Problem& p) {
  Memory memory;
  const CudaMatrix matrix = p.place(memory);
  const int stride = p.out + 3;
  const Activations a(kRows, p.in, matrix.half());
  std::vector<float> bias(size_t(p.out)), old(size_t(kRows) * size_t(stride));
  for (float& v : bias) v = random_float();
  for (float& v : old) v = random_float();
  const uint16_t* x16 = memory.put(a.x16);
  const float *x = memory.put(a.x), *device_bias = memory.put(bias);
  float* out = memory.put(old);
  void* scratch = memory.take(linear_scratch_bytes(kRows, p.out), "scratch");
  // Rows [first, first + rows) as one call, with bias and accumulation, or without. Comes back with one row more.
  const auto run = [&](int first, int rows, bool plain, Way way) {
    std::vector<float> got(size_t(std::min(rows + 1, kRows)) * size_t(stride));
    check(cudaMemcpy(out, old.data(), got.size() * 4, cudaMemcpyHostToDevice), "upload");
    const size_t at = size_t(first) * size_t(p.in);
    linear_rows_by(matrix, {out, x16 + at, x + at, plain ? nullptr : device_bias, rows, stride, !plain}, scratch, way,
                   nullptr);
    check(cudaDeviceSynchronize(), p.name.c_str());
    check(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost), "download");
    return got;
  };
  // Alone: the reference for everything else. Row r alone starts from row 0 of `old`.
  std::vector<float> alone(old.size()), plain_alone(old.size());
  for (int r = 0; r < kRows; ++r) {
    for (const bool plain : {false, true}) {
      const auto got = run(r, 1, plain, Way::kByShape);
      std::memcpy((plain ? plain_alone : alone).data() + size_t(r) * size_t(stride), got.data(), size_t(stride) * 4);
      if (std::memcmp(got.data() + p.out, old.data() + p.out, (got.size() - size_t(p.out)) * 4) != 0) {
        FAIL("%s: one row writes behind its %d outputs", p.name.c_str(), p.out);
      }
    }
  }
  std::vector<float> same_old(old);
  for (int r = 1; r < kRows; ++r) std::copy_n(old.begin(), stride, same_old.begin() + ptrdiff_t(r) * stride);
  const double error = error_of(p, a, bias, same_old, alone, stride, {0, 1, 7, 8, 33, 63, 64, 129});
  old = same_old;
  const auto compare = [&](int first, int rows, bool plain, Way way) {
    const auto got = run(first, rows, plain, way);
    const auto& want = plain ? plain_alone : alone;
    for (size_t r = 0; r * size_t(stride) < got.size(); ++r) {
      const bool computed = r < size_t(rows);
      const float* expected = computed ? &want[(size_t(first) + r) * size_t(stride)] : &old[r * size_t(stride)];
      for (int o = 0; o < stride; ++o) {
        const float* wanted = o < p.out ? &expected[o] : &old[size_t(o)];
        if (std::memcmp(&got[r * size_t(stride) + size_t(o)], wanted, 4) == 0) continue;
        FAIL("%s: row %d of %d (first %d, plain %d, way %d), output %d: %g, alone %g", p.name.c_str(), int(r), rows,
             first, plain, int(way), o, double(got[r * size_t(stride) + size_t(o)]), double(*wanted));
        return;
      }
    }
  };
  const bool many = max_shared_memory() >= 227 * 1024;  // what many_rows needs
  for (const int rows : {1, 2, 7, 8, 9, 16, 17, 24, 32, 33, 48, 64, 65, 130}) {
    for (const int first : {0, 11}) {
      if (first > 0 && (rows > 33 || rows == 1)) continue;
      compare(first, rows, false, Way::kByShape);
      compare(first, rows, true, Way::kFew);
      if (many && !p.quantised()) compare(first, rows, true, Way::kInside);
      if (many && !p.quantised()) compare(first, rows, false, Way::kScratch);
      if (!p.streams()) continue;
      compare(first, rows, false, Way::kStream);
      if (p.quantised()) {
        compare(first, rows, true, Way::kStream);
        compare(first, rows, true, Way::kParts4), compare(first, rows, false, Way::kParts4);
        continue;
      }
      for (const Way way : kInParts) compare(first, rows, true, way), compare(first, rows, false, way);
    }
  }
  if (p.streams() && (p.out == 2500 || p.out == 300)) {  // every number of rows
    for (int rows = 1; rows <= kManyRows; ++rows) {
      for (const Way way : {Way::kByShape, Way::kFew, Way::kStream}) compare(rows % 3, rows, rows % 2 == 0, way);
      for (const Way way : kInParts) compare(rows % 3, rows, rows % 2 == 0, way);
    }
  }
  std::printf("%s: %.1e  ", p.name.c_str(), error);
}

void check_prompt(const Problem& p) {
  constexpr int kPrompt = 256;
  Memory memory;
  const CudaMatrix matrix = p.place(memory);
  constexpr int kSizes[] = {64, 128, kPrompt};
  PromptLinear prompt(kSizes, memory);
  prompt.prepare(matrix);
  const Activations a(kPrompt, p.in, matrix.half());
  std::vector<float> bias(size_t(p.out)), old(size_t(kPrompt) * size_t(p.out));
  for (float& v : bias) v = random_float();
  for (float& v : old) v = random_float();
  // Row r of the input and of `old` stands at row (r * 37 + turn) % kPrompt; `rows` of them are multiplied at once.
  const auto run = [&](int turn, int rows) {
    std::vector<float> x(a.x.size()), from(old.size()), got(old.size()), back(old.size());
    std::vector<uint16_t> x16(a.x16.size());
    const auto place = [&](int r) { return size_t((r * 37 + turn) % kPrompt); };
    for (int r = 0; r < kPrompt; ++r) {
      std::copy_n(a.x.begin() + ptrdiff_t(r) * p.in, p.in, x.begin() + ptrdiff_t(place(r)) * p.in);
      std::copy_n(a.x16.begin() + ptrdiff_t(r) * p.in, p.in, x16.begin() + ptrdiff_t(place(r)) * p.in);
      std::copy_n(old.begin() + ptrdiff_t(r) * p.out, p.out, from.begin() + ptrdiff_t(place(r)) * p.out);
    }
    Memory here;
    x16.resize(x16.size() * 2), x.resize(x.size() * 2), from.resize(from.size() * 2);  // room for padding
    float* out = here.put(from);
    const uint16_t* all16 = here.put(x16);
    const float *all = here.put(x), *biases = here.put(bias);
    for (int at = 0; at < kPrompt; at += rows) {
      const int n = std::min(rows, kPrompt - at);  // the padding overwrites the rows behind them: they are put back
      prompt.run(matrix,
                 {out + ptrdiff_t(at) * p.out, all16 + ptrdiff_t(at) * p.in, all + ptrdiff_t(at) * p.in, biases, n,
                  p.out, true},
                 nullptr);
      const size_t end = size_t(at + n) * size_t(p.out);
      check(cudaMemcpy(out + end, from.data() + end, (from.size() - end) * 4, cudaMemcpyHostToDevice), "upload");
    }
    check(cudaDeviceSynchronize(), p.name.c_str());
    check(cudaMemcpy(got.data(), out, got.size() * 4, cudaMemcpyDeviceToHost), "download");
    for (int r = 0; r < kPrompt; ++r) {
      std::copy_n(got.begin() + ptrdiff_t(place(r)) * p.out, p.out, back.begin() + ptrdiff_t(r) * p.out);
    }
    return back;
  };
  const auto first = run(0, kPrompt), second = run(101, kPrompt);
  const double error = error_of(p, a, bias, old, first, p.out, {0, 5, 100, 255});
  if (std::memcmp(first.data(), second.data(), first.size() * 4) != 0)
    FAIL("prompt %s: bits depend on the place", p.name.c_str());
  for (const int rows : {1, 50, 64, 100, 200})
    if (std::memcmp(first.data(), run(7, rows).data(), first.size() * 4) != 0)
      FAIL("prompt %s: bits depend on the number of rows, %d", p.name.c_str(), rows);
  std::printf("prompt %s: %.1e (1 row as %d)  ", p.name.c_str(), error, prompt.chosen(matrix, 1));
}

void check_all() {
  using D = DType;
  for (const D type : {D::kBF16, D::kF16, D::kF32}) {
    for (const auto& [out, in] :
         {std::pair{1, 33}, {17, 64}, {100, 100}, {3, 8}, {200, 1536}, {515, 1056}, {130, 4096}, {999, 576}}) {
      check_rows(Problem(dtype_name(type), {{type, out}}, in));
    }
  }
  for (const D type : {D::kQ4_0, D::kQ4_1, D::kQ5_0, D::kQ5_1, D::kQ8_0}) {
    for (const auto& [out, in] : {std::pair{1, 32}, {33, 576}, {300, 1536}})
      check_rows(Problem(dtype_name(type), {{type, out}}, in));
  }
  for (const D type : {D::kQ2_K, D::kQ3_K, D::kQ4_K, D::kQ5_K, D::kQ6_K}) {
    for (const auto& [out, in] : {std::pair{20, 256}, {131, 2304}})
      check_rows(Problem(dtype_name(type), {{type, out}}, in));
  }
  // Not small, so that every kernel is the one by shape for some rows: few outputs, many, parts by two.
  for (const D type : {D::kBF16, D::kQ4_0, D::kQ8_0, D::kQ2_K})
    check_rows(Problem(dtype_name(type), {{type, 300}}, 14336));
  for (const D type : {D::kF16, D::kQ4_1, D::kQ8_0, D::kQ6_K})
    check_rows(Problem(dtype_name(type), {{type, 17000}}, type == D::kQ6_K ? 256 : type == D::kF16 ? 264 : 288));
  for (const D type : {D::kBF16, D::kQ4_0, D::kQ8_0, D::kQ5_1}) {
    for (const int out : {2500, 6100}) check_rows(Problem(dtype_name(type), {{type, out}}, 1056));
  }
  check_rows(Problem("BF16", {{D::kBF16, 8300}}, 264));
  check_rows(Problem("Q4_0", {{D::kQ4_0, 68000}}, 160));  // several tiles for each block
  check_rows(Problem("mixed", {{D::kQ4_0, 10}, {D::kQ4_K, 37}, {D::kQ6_K, 30}, {D::kBF16, 5}, {D::kF16, 21}}, 512));
  check_rows(Problem("joined", {{D::kBF16, 70}, {D::kBF16, 9}, {D::kF32, 3}, {D::kBF16, 60}}, 768));
  std::printf("\n");
  attempt([] { check_prompt(Problem("BF16", {{D::kBF16, 777}}, 576)); });
  attempt([] { check_prompt(Problem("F16", {{D::kF16, 512}}, 1024)); });
  attempt([] { check_prompt(Problem("F32", {{D::kF32, 64}}, 96)); });
  attempt([] { check_prompt(Problem("Q4_0", {{D::kQ4_0, 300}}, 1536)); });
  attempt([] { check_prompt(Problem("Q6_K", {{D::kQ6_K, 20000}}, 1536)); });
  attempt([] { check_prompt(Problem("mixed", {{D::kQ4_0, 10}, {D::kQ6_K, 33}, {D::kBF16, 5}}, 512)); });
  std::printf("\n");
}

// Microseconds per call; calls go round over the matrices, recorded as a graph.
template <class Call>
double time_calls(int count, cudaStream_t stream, const Call& call) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t ready = nullptr;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < count; ++i) call(i);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&ready, graph, 0), "graph");
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  std::vector<float> times;
  for (int i = 0; i < 9; ++i) {
    check(cudaEventRecord(start, stream), "event");
    check(cudaGraphLaunch(ready, stream), "graph");
    check(cudaEventRecord(stop, stream), "event");
    check(cudaEventSynchronize(stop), "timing");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, stop), "event");
    if (i >= 2) times.push_back(ms);
  }
  cudaEventDestroy(start), cudaEventDestroy(stop), cudaGraphExecDestroy(ready), cudaGraphDestroy(graph);
  std::sort(times.begin(), times.end());
  return double(times[times.size() / 2]) * 1000 / count;
}

void time_shape(DType type, int out, int in, cudaStream_t stream) {
  Memory memory;
  const size_t bytes = dtype_bytes(type, in) * size_t(out);
  const int copies = int(std::clamp<size_t>((size_t(256) << 20) / bytes, 1, 24));
  const Weights weights(type, std::min(out, 4096), in);  // repeated until there are `out` rows
  std::vector<Tensor> parts;
  for (int done = 0; done < out; done += 4096) {
    parts.push_back(weights.tensor);
    parts.back().shape[0] = std::min(4096, out - done);
  }
  std::vector<CudaMatrix> matrices;
  for (int i = 0; i < copies; ++i) matrices.emplace_back(parts, memory);
  const Activations a(64, in, matrices[0].half());
  const uint16_t* x16 = memory.put(a.x16);
  auto* result = static_cast<float*>(memory.take(size_t(64) * size_t(out) * 4, "result"));
  void* scratch = memory.take(linear_scratch_bytes(64, out), "scratch");
  std::printf("%-4s %6dx%-5d", dtype_name(type), out, in);
  const auto time = [&](int rows, Way way) {
    return time_calls(std::max(24, copies), stream, [&](int i) {
      linear_rows_by(matrices[size_t(i % copies)], {result, x16, nullptr, nullptr, rows, out, false}, scratch, way,
                     stream);
    });
  };
  for (const int rows : {1, 8}) {
    const double us = time(rows, Way::kByShape);
    std::printf(" | %d: %.1f %.0f%%", rows, us, double(matrices[0].bytes()) / us / 4.3e6 * 100);
  }
  for (const int rows : {16, 32, 48, 64}) {  // by shape, in brackets all that is possible
    LinearTask task{};
    task.in = in, task.out = out, task.rows = rows, task.parts = parts_of(in);
    const bool half = type == DType::kBF16 || type == DType::kF16, streams = can_stream();
    const bool large = max_shared_memory() >= 227 * 1024;
    if (!half && rows == 48) continue;
    const double us = time(rows, Way::kByShape);
    std::printf("%s | %d: %.1f %.0f%% (few %.1f", half && rows % 32 == 16 ? "\n " : "", rows, us,
                double(matrices[0].bytes()) / us / 4.3e6 * 100, time(rows, Way::kFew));
    if (large && half) std::printf(" many %.1f", time(rows, Way::kScratch));
    if (streams && half) {
      std::printf(" stream%d %.1f", 32 * stream_plan(task).warps, time(rows, Way::kStream));
      for (size_t i = 0; i < std::size(kInParts); ++i)
        std::printf(" %s %.1f", kInPartsNames[i], time(rows, kInParts[i]));
    } else if (streams) {
      std::printf(" stream %.1f parts4 %.1f", time(rows, Way::kStream), time(rows, Way::kParts4));
    }
    std::printf(")");
  }
  std::printf("\n");
}

void time_prompt(DType type, int out, int in, cudaStream_t stream) {
  constexpr int kSizes[] = {64, 128, 192, 256, 384, 512, 768, 1024};
  constexpr int kMost = 1024;
  Memory memory;
  const Weights weights(type, std::min(out, 4096), in);
  std::vector<Tensor> parts;
  for (int done = 0; done < out; done += 4096) {
    parts.push_back(weights.tensor);
    parts.back().shape[0] = std::min(4096, out - done);
  }
  const CudaMatrix matrix(parts, memory);
  PromptLinear prompt(kSizes, memory);
  const double start = now_ms();
  prompt.prepare(matrix);
  std::printf("prompt %s %dx%d (set up in %.0f ms):", dtype_name(type), out, in, now_ms() - start);
  const Activations a(kMost, in, matrix.half());
  const uint16_t* x16 = memory.put(a.x16);
  auto* result = static_cast<float*>(memory.take(size_t(kMost) * size_t(out) * 4, "result"));
  for (const int rows : kSizes) {
    const auto call = [&](int) { prompt.run(matrix, {result, x16, nullptr, nullptr, rows, out, true}, stream); };
    const double us = time_calls(8, stream, call);
    std::printf(" %d rows (as %d) %.0f us, %.0f TFLOP/s;", rows, prompt.chosen(matrix, rows), us,
                2.0 * rows * double(out) * double(in) / us / 1e6);
  }
  std::printf("\n");
}

void time_decoding(cudaStream_t stream) {
  using D = DType;
  std::printf(
      "us and %% of 4.3 TB/s by rows; 16 and more: by shape (few, many, stream with so many outputs per block, parts\n"
      "shared by 2 blocks for so many outputs; quantised: by 4)\n");
  for (const auto& [out, in] : {std::pair{6144, 4096},
                                {4096, 4096},
                                {28672, 4096},
                                {4096, 14336},
                                {8192, 8192},
                                {128256, 4096},
                                {2304, 768},
                                {768, 768},
                                {32000, 768},
                                {576, 1536}}) {
    time_shape(D::kBF16, out, in, stream);
  }
  for (const D type : {D::kQ4_0, D::kQ4_K, D::kQ8_0, D::kQ6_K}) {
    for (const auto& [out, in] : {std::pair{4096, 4096}, {28672, 4096}, {4096, 14336}, {6144, 8192}})
      time_shape(type, out, in, stream);
  }
}

void time_prompts(cudaStream_t stream) {
  for (const DType type : {DType::kBF16, DType::kQ4_0})
    for (const auto& [out, in] : {std::pair{6144, 4096}, {4096, 4096}, {28672, 4096}, {4096, 14336}})
      time_prompt(type, out, in, stream);
}

}  // namespace

int main(int count, char** arguments) {
  const std::string what = count > 1 ? arguments[1] : "";
  if (what != "time" && what != "prompts") attempt(check_all);
  cudaStream_t stream = nullptr;
  attempt([&] { check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream"); });
  if (what != "check" && what != "prompts") attempt([&] { time_decoding(stream); });
  if (what != "check") attempt([&] { time_prompts(stream); });
  std::printf(failed ? "linear: FAILED\n" : "linear: ok\n");
  return failed ? 1 : 0;
}
