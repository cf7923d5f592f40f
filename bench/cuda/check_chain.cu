// GEMMs in a batch. Checks that linear_glu leaves the bits of linear_rows and glu, and that the rows of a chain of
// layers have the bits that they have alone. Times what a layer of an 8B model does beside attention, as one graph of
// several layers with weights of their own: norm, 6144x4096, rope and store, 4096x4096 adding, norm, 28672x4096, glu,
// 4096x14336 adding. Prints microseconds per layer: everything, and the GEMMs alone. Built as run_checks.sh does it.
#include <specextend/error.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/linear/linear.h"
#include "backend/cuda/linear/kernels.h"
#include "backend/cuda/elementwise/norm_glu_embed.h"
#include "base/rng.h"
#include "check_small.cuh"
#include "tensor/half.h"

using namespace check;
using namespace sx;
using namespace sx::cuda;

namespace {

constexpr int kLayers = 4, kWidth = 4096, kFfn = 14336, kHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kMostRows = 64;

std::vector<uint16_t> random_halves(size_t count, float scale, uint64_t seed) {
  std::vector<uint16_t> x(count);
  for (size_t i = 0; i < count; ++i) x[i] = float_to_bf16(float(uniform_from(mix64(seed + i)) * 2 - 1) * scale);
  return x;
}

struct Config {
  const char* name;
  Way qkv;
  bool fused, lean;  // glu fused into the GEMM; no f32 copies of what GEMMs read
};

struct Chain {
  Memory memory;
  struct Layer {
    CudaMatrix qkv, out, gate_up, down;
  };
  std::vector<Layer> layers;
  float *x, *normed, *qkv, *gate_up, *activated, *norm_weight, *rope;
  uint16_t *half, *half2, *attended;
  void* scratch;
  KvView kv{};
  const RowInfo* info;
  std::vector<float> first;

  CudaMatrix matrix(const std::vector<uint16_t>& some, int out, int in) {  // rows taken from `some`, again and again
    std::vector<Tensor> parts;
    const int most = int(some.size() / size_t(in));
    for (int done = 0; done < out; done += most) {
      Tensor t;
      t.type = DType::kBF16, t.rank = 2, t.shape = {std::min(most, out - done), in};
      t.data = reinterpret_cast<const std::byte*>(some.data());
      parts.push_back(t);
    }
    return CudaMatrix(parts, memory);
  }
  Chain() {
    const auto some = random_halves(size_t(16) << 20, 0.02f, 1);
    for (int i = 0; i < kLayers; ++i)
      layers.push_back({matrix(some, kQkv, kWidth), matrix(some, kWidth, kWidth), matrix(some, 2 * kFfn, kWidth),
                        matrix(some, kWidth, kFfn)});
    const size_t rows = kMostRows;
    first = random_floats(rows * kWidth);
    x = memory.make<float>(rows * kWidth), normed = memory.make<float>(rows * kWidth),
    qkv = memory.make<float>(rows * kQkv);
    gate_up = memory.make<float>(rows * 2 * kFfn), activated = memory.make<float>(rows * kFfn);
    half = memory.make<uint16_t>(rows * kFfn), half2 = memory.make<uint16_t>(rows * kFfn);
    attended = memory.put(random_halves(rows * kWidth, 1, 7));
    norm_weight = memory.put(std::vector<float>(kWidth, 1.0f));
    rope = memory.put(random_floats(rows * kHeadDim));
    scratch = memory.take(linear_scratch_bytes(kMostRows, 2 * kFfn), "scratch");
    kv = {DType::kBF16, 1, 1, kKvHeads, 128, kHeadDim, nullptr, nullptr, nullptr, nullptr};
    const size_t cells = size_t(kKvHeads) * 128 * kHeadDim * 2;
    kv.k = memory.make<std::byte>(cells), kv.v = memory.make<std::byte>(cells);
    std::vector<RowInfo> rows_info;
    for (int r = 0; r < kMostRows; ++r) rows_info.push_back({0, 0, r, r});
    info = memory.put(rows_info);
  }

  // what: 3 all, 1 GEMMs, 2 the rest. at: the first row of `attended`.
  void layer(int i, int rows, int what, int at, const Config& c, cudaStream_t s) {
    const Layer& l = layers[size_t(i % kLayers)];
    const bool products = (what & 1) != 0, rest = (what & 2) != 0;
    if (rest) norm({c.lean ? nullptr : normed, half, Half::kBF16, x, norm_weight, rows, kWidth, 1e-5f}, s);
    if (products) linear_rows_by(l.qkv, {qkv, half, nullptr, nullptr, rows, kQkv, false}, scratch, c.qkv, s);
    if (rest)
      rope_store(
          {qkv, rope, nullptr, nullptr, 0, kHeads, kKvHeads, kHeadDim, kHeadDim, RopeStyle::kHalves, kv, 0, rows, info},
          s);
    if (products)
      linear_rows_by(l.out, {x, attended + at * kWidth, nullptr, nullptr, rows, kWidth, true}, scratch, Way::kByShape,
                     s);
    if (rest) norm({c.lean ? nullptr : normed, half, Half::kBF16, x, norm_weight, rows, kWidth, 1e-5f}, s);
    const bool fused =
        c.fused && products &&
        linear_glu(l.gate_up, {c.lean ? nullptr : activated, half, nullptr, nullptr, rows, kFfn, false}, half2, s);
    if (products && !fused)
      linear_rows_by(l.gate_up, {gate_up, half, nullptr, nullptr, rows, 2 * kFfn, false}, scratch, Way::kByShape, s);
    if (rest && !fused) glu({c.lean ? nullptr : activated, half2, Half::kBF16, gate_up, rows, kFfn}, s);
    if (products) linear_rows_by(l.down, {x, half2, nullptr, nullptr, rows, kWidth, true}, scratch, Way::kByShape, s);
  }
  std::vector<float> result(int row, int rows, const Config& c) {
    cuda::check(cudaMemcpy(x, first.data() + size_t(row) * kWidth, size_t(rows) * kWidth * 4, cudaMemcpyHostToDevice),
                "upload");
    cuda::check(cudaDeviceSynchronize(), "upload");
    for (int i = 0; i < 3; ++i) layer(i, rows, 3, row, c, nullptr);
    return get<float>(x, size_t(rows) * kWidth);
  }
  double time(int rows, int what, const Config& c, cudaStream_t stream) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    cuda::check(cudaMemcpy(x, first.data(), size_t(rows) * kWidth * 4, cudaMemcpyHostToDevice), "upload");
    cuda::check(cudaDeviceSynchronize(), "upload");
    cuda::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < 2 * kLayers; ++i) layer(i, rows, what, 0, c, stream);
    cuda::check(cudaStreamEndCapture(stream, &graph), "capture");
    cuda::check(cudaGraphInstantiate(&ready, graph, 0), "graph");
    cudaEvent_t start, stop;
    cuda::check(cudaEventCreate(&start), "event"), cuda::check(cudaEventCreate(&stop), "event");
    std::vector<float> times;
    for (int i = 0; i < 12; ++i) {
      cuda::check(cudaEventRecord(start, stream), "event");
      cuda::check(cudaGraphLaunch(ready, stream), "graph");
      cuda::check(cudaEventRecord(stop, stream), "event");
      cuda::check(cudaEventSynchronize(stop), "timing");
      float ms = 0;
      cuda::check(cudaEventElapsedTime(&ms, start, stop), "event");
      if (i >= 3) times.push_back(ms);
    }
    cudaEventDestroy(start), cudaEventDestroy(stop), cudaGraphExecDestroy(ready), cudaGraphDestroy(graph);
    std::sort(times.begin(), times.end());
    return double(times[times.size() / 2]) * 1000 / (2 * kLayers);
  }
};

// Rows of inputs whose outputs are zeros, tiny and large among ordinary ones: all that silu treats in a way of its own.
void spread_rows(std::vector<uint16_t>& x, int in, Half half) {
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t kind = i / size_t(in) % 7;
    const float scale = kind == 3 ? 0.0f : kind == 4 ? 1e-25f : kind == 5 ? 60.0f : 1.0f;
    const float v = (half == Half::kBF16 ? bf16_to_float(x[i]) : f16_to_float(x[i])) * scale;
    x[i] = half == Half::kBF16 ? float_to_bf16(v) : float_to_f16(v);
  }
}

// linear_glu leaves what linear_rows, row by row, and glu leave.
void check_glu(Half half, int out, int in) {
  constexpr int kRows = 130;
  Memory memory;
  const auto bits = [&](size_t count, float scale, uint64_t seed) {
    auto x = random_halves(count, scale, seed);
    if (half == Half::kF16)
      for (uint16_t& v : x) v = float_to_f16(bf16_to_float(v));
    return x;
  };
  const auto weights = bits(size_t(out) * size_t(in), 0.1f, 3);
  Tensor tensor;
  tensor.type = half == Half::kBF16 ? DType::kBF16 : DType::kF16, tensor.rank = 2, tensor.shape = {out, in};
  tensor.data = reinterpret_cast<const std::byte*>(weights.data());
  const CudaMatrix matrix({&tensor, 1}, memory);
  const int width = out / 2;
  const size_t count = size_t(kRows) * size_t(width);
  auto inputs = bits(size_t(kRows) * size_t(in), 1, 5);
  spread_rows(inputs, in, half);
  const uint16_t* x = memory.put(inputs);
  const float* bias = memory.put(random_floats(size_t(out)));
  float *gate_up = memory.make<float>(2 * count), *to = memory.make<float>(count);
  auto* to16 = memory.make<uint16_t>(count);
  void* scratch = memory.take(linear_scratch_bytes(kRows, out), "scratch");
  for (const float* b : {static_cast<const float*>(nullptr), bias}) {
    for (int r = 0; r < kRows; ++r)
      linear_rows(matrix, {gate_up + size_t(r) * size_t(out), x + size_t(r) * size_t(in), nullptr, b, 1, out, false},
                  scratch, nullptr);
    glu({to, to16, half, gate_up, kRows, width}, nullptr);
    const auto want = get<float>(to, count);
    const auto want16 = get<uint16_t>(to16, count);
    for (const int rows : {9, 16, 17, 31, 32, 33, 48, 50, 64, 65, 130}) {
      for (const bool both : {true, false}) {
        const std::string what =
            "glu of " + std::to_string(out) + "x" + std::to_string(in) + ", rows " + std::to_string(rows);
        cuda::check(cudaMemset(to, 0xff, count * 4), "poison"),
            cuda::check(cudaMemset(to16, 0xff, count * 2), "poison");
        must(linear_glu(matrix, {both ? to : nullptr, x, nullptr, b, rows, width, false}, to16, nullptr),
             what + ": not done");
        const auto got = get<float>(to, count);
        const auto got16 = get<uint16_t>(to16, count);
        const size_t n = size_t(rows) * size_t(width);
        must(!both || std::memcmp(got.data(), want.data(), n * 4) == 0, what);
        must(std::memcmp(got16.data(), want16.data(), n * 2) == 0, what + ": 16 bits");
        bool untouched = true;
        for (size_t i = n; i < count; ++i) untouched &= got16[i] == 0xffff && got[i] != got[i];
        must(untouched, what + ": writes behind its rows");
      }
    }
  }
}

void check_and_time() {
  check_glu(Half::kF16, 17000, 264);
  check_glu(Half::kBF16, 9002, 1056);
  check_glu(Half::kBF16, 9040, 520);
  cudaStream_t stream = nullptr;
  cuda::check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  Chain chain;
  const Config configs[] = {
      {"stream, glu apart", Way::kStream, false, false},
      {"by shape, glu apart", Way::kByShape, false, false},
      {"glu inside", Way::kByShape, true, false},
      {"16-bit copies only", Way::kByShape, true, true},
  };
  for (const Config& c : configs) {
    for (const int rows : {16, 40, 64}) {
      const auto got = chain.result(0, rows, c);
      for (const int r : {0, 3, 15, 38, 63}) {
        if (r >= rows) continue;
        const auto alone = chain.result(r, 1, configs[0]);
        must(std::memcmp(alone.data(), got.data() + size_t(r) * kWidth, kWidth * 4) == 0,
             std::string(c.name) + ": row " + std::to_string(r) + " of " + std::to_string(rows));
      }
    }
  }
  std::printf("us per layer: all, products alone, by rows\n");
  for (const Config& c : configs) {
    std::printf("%-19s", c.name);
    for (const int rows : {1, 8, 16, 32, 64}) {
      if (rows <= 8 && &c != configs + 1) continue;
      std::printf(" | %d: %.1f %.1f", rows, chain.time(rows, 3, c, stream), chain.time(rows, 1, c, stream));
    }
    std::printf("\n");
  }
  cudaStreamDestroy(stream);
}

}  // namespace

int main() {
  try {
    check_and_time();
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
  std::printf(failures ? "chain: %d FAILURES\n" : "chain: good\n", failures);
  return failures ? 1 : 0;
}
