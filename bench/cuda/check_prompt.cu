// Attention of prompt rows on the device, checked and timed. From the repository root:
//   nvcc -std=c++20 -O3 -Isrc -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_prompt
//     bench/cuda/check_prompt.cu src/backend/cuda/attention/prefill_mma.cu src/backend/cuda/attention/prefill_sm90.cu
//     src/backend/cuda/runtime/device.cu
// 1. The simple kernel against the host in double (some rows of each shape), the tensor core kernels against the simple
//    one (all elements). 2. Batch invariance: the same rows in other chunks have the same bits. 3. Times. `check_prompt quick`
//    leaves out the times.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <random>
#include <string>
#include <vector>

#include "backend/cuda/attention/prefill_mma.cuh"
#include "backend/cuda/runtime/device.h"

namespace {

using namespace sx;
using namespace sx::cuda;

int failures = 0;
constexpr PromptKernel kKernels[] = {PromptKernel::kWgmma, PromptKernel::kMma, PromptKernel::kSimple};
const char* name(PromptKernel kernel) {
  return kernel == PromptKernel::kWgmma ? "wgmma" : kernel == PromptKernel::kMma ? "mma" : "simple";
}
const char* name(DType type) { return type == DType::kBF16 ? "bf16" : type == DType::kF16 ? "f16" : "q8_0"; }

template <class T>
struct Buffer {  // device memory
  T* data = nullptr;
  size_t count = 0;
  explicit Buffer(size_t n) : count(n) { check(cudaMalloc(&data, std::max<size_t>(n, 1) * sizeof(T)), "cudaMalloc"); }
  ~Buffer() { cudaFree(data); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void put(const std::vector<T>& from) {
    check(cudaMemcpy(data, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice), "upload");
  }
  std::vector<T> get(size_t n) const {
    std::vector<T> to(n);
    check(cudaMemcpy(to.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost), "download");
    return to;
  }
  void fill(int byte) { check(cudaMemset(data, byte, count * sizeof(T)), "fill"); }
};

constexpr int kLayers = 2, kSlots = 2, kLayer = 1, kSlot = 1, kFirstRow = 3;
constexpr int kMostRows = 600, kUsed = 1513, kCapacity = 1659;  // cells
// Cells are NaN in other layers and slots, and behind the block of the last one used: the rest of that block is read.
constexpr int kFinite = (kUsed + kCellBlock - 1) / kCellBlock * kCellBlock;
constexpr size_t kBlocks = (kCapacity + kCellBlock - 1) / kCellBlock;

uint16_t half_bits(Half half, float x) {
  if (half == Half::kBF16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return __half_as_ushort(__float2half_rn(std::min(std::max(x, -65504.f), 65504.f)));
}

// One kind of model: its K/V store and queries, on the device and on the host.
struct World {
  DType type;
  int head_dim, heads, kv_heads;
  size_t cells = size_t(kLayers) * kSlots * size_t(kv_heads) * kBlocks * kCellBlock;
  std::vector<float> k, v, q;  // as the kernels see them: k, v [kv_heads][kCapacity][head_dim]
  Buffer<std::byte> k_data, v_data;
  Buffer<uint16_t> k_scale, v_scale;
  Buffer<float> q_data, out;
  Buffer<uint16_t> out16;
  float soft_cap = 0;  // of scores
  std::vector<float> sinks;
  Buffer<float> sink_data;

  int q_stride() const { return (heads + 2 * kv_heads) * head_dim; }
  size_t width() const { return size_t(heads) * size_t(head_dim); }

  World(DType t, int d, int h, int kvh, std::mt19937& random)
      : type(t),
        head_dim(d),
        heads(h),
        kv_heads(kvh),
        k_data(cells * size_t(d) * (t == DType::kQ8_0 ? 1 : 2)),
        v_data(k_data.count),
        k_scale(cells * size_t(d / 32)),
        v_scale(k_scale.count),
        q_data(size_t(kFirstRow + kMostRows + 1) * size_t((h + 2 * kvh) * d)),
        out(size_t(kFirstRow + kMostRows + 1) * size_t(h * d)),
        out16(out.count),
        sink_data(size_t(h)) {
    std::normal_distribution<float> normal;
    q.resize(q_data.count);
    for (float& x : q) x = normal(random);
    q_data.put(q);
    make_store(k, k_data, k_scale, random);
    make_store(v, v_data, v_scale, random);
  }

  void use_sinks() {  // some weigh nothing, some most of all
    for (int head = 0; head < heads; head++) sinks.push_back(float(head * 5 % 11) - 2.f);
    sink_data.put(sinks);
  }

  void make_store(std::vector<float>& values, Buffer<std::byte>& data, Buffer<uint16_t>& scale, std::mt19937& random) {
    std::normal_distribution<float> normal;
    const size_t d = size_t(head_dim), head_cells = size_t(kCapacity);
    values.assign(size_t(kv_heads) * head_cells * d, 0.f);
    std::vector<uint16_t> halves(data.count / 2, 0x7fff), scales(scale.count, 0x7fff);  // NaN as bf16 and as f16
    std::vector<int8_t> bytes(data.count, 1);
    for (size_t cell = 0; cell < size_t(kv_heads) * head_cells; cell++) {
      const size_t head = cell / head_cells, c = cell % head_cells;
      if (c >= size_t(kFinite)) continue;
      const size_t block = (kSlot * kBlocks + c / kCellBlock) * kLayers + kLayer;
      const size_t stored = (block * size_t(kv_heads) + head) * kCellBlock + c % kCellBlock;
      for (size_t i = 0; i < d; i++) {
        const size_t at = stored * d + i;
        float& value = values[cell * d + i];
        if (type == DType::kQ8_0) {
          uint16_t& bits = scales[stored * (d / 32) + i / 32];
          if (i % 32 == 0) bits = half_bits(Half::kF16, 0.01f + 0.01f * float(random() % 1000) / 1000.f);
          bytes[at] = int8_t(int(random() % 255) - 127);
          value = __half2float(__ushort_as_half(bits)) * float(bytes[at]);
        } else {
          halves[at] = half_bits(type == DType::kBF16 ? Half::kBF16 : Half::kF16, normal(random));
          value = type == DType::kBF16 ? __bfloat162float(__ushort_as_bfloat16(halves[at]))
                                       : __half2float(__ushort_as_half(halves[at]));
        }
      }
    }
    const void* from = type == DType::kQ8_0 ? static_cast<const void*>(bytes.data()) : halves.data();
    check(cudaMemcpy(data.data, from, data.count, cudaMemcpyHostToDevice), "upload");
    if (type == DType::kQ8_0) scale.put(scales);
  }

  PromptAttendCall call(int row, int rows, int history, int window, Half half) {
    PromptAttendCall c{};
    c.out = out.data;
    c.out16 = out16.data;
    c.half = half;
    c.q = q_data.data;
    c.q_stride = q_stride();
    c.heads = heads;
    c.kv_heads = kv_heads;
    c.head_dim = head_dim;
    c.scale = 1.f / std::sqrt(float(head_dim));
    c.window = window;
    c.soft_cap = soft_cap;
    c.sinks = sinks.empty() ? nullptr : sink_data.data;
    const bool q8 = type == DType::kQ8_0;
    c.kv = {type,
            kLayers,
            kSlots,
            kv_heads,
            kCapacity,
            head_dim,
            k_data.data,
            v_data.data,
            q8 ? k_scale.data : nullptr,
            q8 ? v_scale.data : nullptr};
    c.layer = kLayer;
    c.slot = kSlot;
    c.first_row = row;
    c.rows = rows;
    c.history = history;
    return c;
  }

  // The row's output for one head, in double, and the root of the sum of its squared weights: the measure of noise.
  double host_row(int row, int head, int history, int window, std::vector<double>& result) const {
    const int index = history + row, low = window > 0 ? std::max(0, index - window + 1) : 0;
    const size_t d = size_t(head_dim), base = size_t(head / (heads / kv_heads)) * kCapacity;
    const float* from = &q[size_t(kFirstRow + row) * size_t(q_stride()) + size_t(head) * d];
    std::vector<double> weights;
    double most = -1e300, sum = 0, squares = 0;
    for (int c = low; c <= index; c++) {
      double s = 0;
      for (size_t i = 0; i < d; i++) s += double(from[i]) * double(k[(base + size_t(c)) * d + i]);
      s /= std::sqrt(double(head_dim));
      weights.push_back(soft_cap > 0 ? std::tanh(s / double(soft_cap)) * double(soft_cap) : s);
      most = std::max(most, weights.back());
    }
    if (!sinks.empty()) sum = std::exp(double(sinks[size_t(head)]) - most);
    for (double& w : weights) sum += w = std::exp(w - most);
    result.assign(d, 0);
    for (int c = low; c <= index; c++) {
      const double w = weights[size_t(c - low)] / sum;
      squares += w * w;
      for (size_t i = 0; i < d; i++) result[i] += w * double(v[(base + size_t(c)) * d + i]);
    }
    return std::sqrt(squares);
  }
};

std::string shape(const World& w, PromptKernel kernel, int history, int rows, int window) {
  char text[160];
  std::snprintf(text, sizeof text, "%s %s dim %d heads %d/%d history %d rows %d window %d", name(kernel), name(w.type),
                w.head_dim, w.heads, w.kv_heads, history, rows, window);
  return text;
}

void fail(const std::string& where, const char* what, size_t row, size_t column, double got, double expected) {
  failures++;
  if (failures > 12) return;
  std::printf("FAIL %s: %s: row %zu column %zu is %g, expected %g\n", where.c_str(), what, row, column, got, expected);
}

// Runs one kernel; false: it does not serve this. Rows outside must stay as they were, and out16 must be out, rounded
// (one element in seven is looked at, to save time).
bool run(World& w, PromptKernel kernel, int history, int rows, int window, Half half, std::vector<float>& result) {
  w.out.fill(0xff);
  w.out16.fill(0xff);
  if (!attend_prompt_with(kernel, w.call(kFirstRow, rows, history, window, half), nullptr)) return false;
  check(cudaDeviceSynchronize(), shape(w, kernel, history, rows, window).c_str());
  const size_t width = w.width(), count = size_t(kFirstRow + rows + 1) * width;
  result = w.out.get(count);
  const std::vector<uint16_t> halves = w.out16.get(count);
  for (size_t i = 0; i < count; i += 7) {
    const size_t row = i / width;
    uint32_t bits;
    std::memcpy(&bits, &result[i], 4);
    const bool inside = row >= size_t(kFirstRow) && row < size_t(kFirstRow + rows);
    const uint16_t expected = inside ? half_bits(half, result[i]) : uint16_t(0xffff);
    if ((!inside && bits != 0xffffffffu) || halves[i] != expected) {
      fail(shape(w, kernel, history, rows, window), inside ? "out16 bits" : "row outside written", row, i % width,
           double(halves[i]), double(expected));
      break;
    }
  }
  return true;
}

void check_shape(World& w, int history, int rows, int window, double (&worst)[3]) {
  const Half half = (history + rows) % 2 == 0 ? Half::kBF16 : Half::kF16;
  const size_t width = w.width(), d = size_t(w.head_dim);
  std::vector<float> simple, other;
  if (!run(w, PromptKernel::kSimple, history, rows, window, half, simple)) {
    return fail(shape(w, PromptKernel::kSimple, history, rows, window), "not served", 0, 0, 0, 0);
  }
  std::vector<double> expected;
  for (int row : {0, 1, rows / 2, rows - 1}) {
    if (row >= rows) continue;
    const int head = (row * 7 + history) % w.heads;
    const double noise = w.host_row(row, head, history, window, expected);
    for (size_t i = 0; i < d; i++) {
      const double got = simple[size_t(kFirstRow + row) * width + size_t(head) * d + i];
      const double error = std::fabs(got - expected[i]);
      worst[2] = std::max(worst[2], error / noise);
      if (!(error <= 2e-4 * noise)) {
        fail(shape(w, PromptKernel::kSimple, history, rows, window), "host", size_t(row), size_t(head) * d + i, got,
             expected[i]);
        break;
      }
    }
  }
  const double tolerance = w.type == DType::kBF16 ? 0.04 : 0.008;
  for (int which = 0; which < 2; which++) {
    if (!run(w, kKernels[which], history, rows, window, half, other)) continue;
    for (size_t at = size_t(kFirstRow) * width; at < size_t(kFirstRow + rows) * width; at += d) {
      double squares = 0;
      for (size_t i = 0; i < d; i++) squares += double(simple[at + i]) * double(simple[at + i]);
      const double noise = std::sqrt(squares / double(d));
      for (size_t i = 0; i < d; i++) {
        const double error = std::fabs(double(other[at + i]) - double(simple[at + i]));
        if (error / noise > worst[which]) worst[which] = error / noise;
        if (!(error <= tolerance * noise)) {
          fail(shape(w, kKernels[which], history, rows, window), "simple kernel", at / width - kFirstRow,
               at % width + i, double(other[at + i]), double(simple[at + i]));
          at = size_t(kFirstRow + rows) * width;  // one per shape
          break;
        }
      }
    }
  }
}

// The same rows in chunks of several sizes: the same bits.
void check_chunks(World& w, int history, int window) {
  constexpr int kRows = 600;
  for (PromptKernel kernel : kKernels) {
    if (kernel == PromptKernel::kSimple && w.head_dim > 128) continue;  // slow, and each row is alone in it anyway
    std::vector<float> whole, pieces;
    std::vector<uint16_t> whole16, pieces16;
    if (!run(w, kernel, history, kRows, window, Half::kBF16, whole)) continue;
    const size_t first = size_t(kFirstRow) * w.width();
    whole16 = w.out16.get(first + kRows * w.width());
    for (int size : {64, 200, 37, 128, 1}) {
      const int end = size == 1 ? 70 : kRows;  // one by one: the first 70 only
      w.out.fill(0xff);
      w.out16.fill(0xff);
      for (int row = 0; row < end; row += size) {
        const PromptAttendCall call =
            w.call(kFirstRow + row, std::min(size, end - row), history + row, window, Half::kBF16);
        attend_prompt_with(kernel, call, nullptr);
      }
      check(cudaDeviceSynchronize(), "chunks");
      const size_t count = size_t(end) * w.width();
      pieces = w.out.get(first + count);
      pieces16 = w.out16.get(first + count);
      if (std::memcmp(&whole[first], &pieces[first], count * 4) == 0 &&
          std::memcmp(&whole16[first], &pieces16[first], count * 2) == 0) {
        continue;
      }
      size_t i = first;
      while (i < first + count - 1 && std::memcmp(&whole[i], &pieces[i], 4) == 0) i++;
      fail(shape(w, kernel, history, kRows, window), ("chunks of " + std::to_string(size)).c_str(),
           i / w.width() - kFirstRow, i % w.width(), double(pieces[i]), double(whole[i]));
    }
  }
}

void check_all() {
  std::mt19937 random(1);
  for (int head_dim : {64, 128, 96, 256, 16, 32, 80}) {
    for (DType type : {DType::kBF16, DType::kF16, DType::kQ8_0}) {
      if (type == DType::kQ8_0 && head_dim % 32 != 0) continue;
      const bool common = head_dim == 64 || head_dim == 128;
      double worst[3] = {};
      int shapes = 0;
      for (int group : {1, 2, 3, 4}) {  // of 2: with soft caps and sinks; of 4: with sinks
        if (!common && group == 1) continue;
        World w(type, head_dim, 2 * group, 2, random);
        if (group == 2) w.soft_cap = 3;
        if (group % 2 == 0) w.use_sinks();
        for (int history : {0, 1, 63, 64, 100, 1000}) {
          for (int rows : {1, 17, 64, 200, 513}) {
            if (!common && (history + rows) % 3 != 0) continue;
            if (group != 3 && rows != 17 && rows != 513) continue;
            if (group != 3 && history > 0 && history < 100) continue;
            for (int window : {0, 50, 200}) {
              if (window == 200 && group == 1) continue;
              check_shape(w, history, rows, window, worst);
              shapes++;
            }
          }
        }
        for (int history : {0, 100, 777}) {
          if (group == 1 || (group != 3 && history != 100)) continue;
          for (int window : {0, 90}) check_chunks(w, history, window);
        }
      }
      std::printf("dim %3d %-4s %3d shapes, worst error / noise: wgmma %.5f mma %.5f simple %.6f%s\n", head_dim,
                  name(type), shapes, worst[0], worst[1], worst[2], failures > 0 ? "  FAILED" : "");
    }
  }
}

__global__ void fill_floats(float* x, size_t count) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    const uint32_t h = uint32_t(i) * 2654435761u ^ uint32_t(i >> 7) * 40503u;
    x[i] = float(int(h >> 16 & 255) + int(h >> 8 & 255) - 255) / 128.f;
  }
}
__global__ void fill_store(uint16_t* x, size_t count, DType type) {
  for (size_t i = blockIdx.x * size_t(blockDim.x) + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    const uint32_t h = uint32_t(i) * 2246822519u ^ uint32_t(i >> 5) * 7919u;
    const float y = float(int(h >> 16 & 255) + int(h >> 8 & 255) - 255) / 128.f;
    x[i] = type == DType::kQ8_0 ? uint16_t(h >> 8)
                                : uint16_t((type == DType::kBF16 ? pack2<true>(y, y) : pack2<false>(y, y)) & 0xffff);
  }
}

void time_shape(DType type, int head_dim, int rows, int history, PromptKernel kernel, float* q, float* out,
                uint16_t* out16) {
  constexpr int kHeads = 32, kKvHeads = 8, kTimeLayers = 2, kCells = 16384;  // 64 MB a layer at head_dim 128
  const bool q8 = type == DType::kQ8_0;
  const size_t elements = size_t(kTimeLayers) * kKvHeads * kCells * size_t(head_dim);
  Buffer<std::byte> k(elements * (q8 ? 1 : 2)), v(elements * (q8 ? 1 : 2));
  Buffer<uint16_t> k_scale(elements / 32), v_scale(elements / 32);
  for (std::byte* x : {k.data, v.data}) fill_store<<<512, 256>>>(reinterpret_cast<uint16_t*>(x), k.count / 2, type);
  k_scale.fill(0x21);  // 0.01 as f16
  v_scale.fill(0x21);
  PromptAttendCall call{};
  call.out = out;
  call.out16 = out16;
  call.half = Half::kBF16;
  call.q = q;
  call.q_stride = (kHeads + 2 * kKvHeads) * head_dim;
  call.heads = kHeads;
  call.kv_heads = kKvHeads;
  call.head_dim = head_dim;
  call.scale = 1.f / std::sqrt(float(head_dim));
  call.kv = {type,
             kTimeLayers,
             1,
             kKvHeads,
             kCells,
             head_dim,
             k.data,
             v.data,
             q8 ? k_scale.data : nullptr,
             q8 ? v_scale.data : nullptr};
  call.rows = rows;
  call.history = history;
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  check(cudaDeviceSynchronize(), "fill");
  const double operations = 4.0 * kHeads * head_dim * rows * (history + (rows + 1) / 2.0);
  const int launches = operations > 1e12 ? 2 : 8, replays = 3;
  if (!attend_prompt_with(kernel, call, stream)) return (void)cudaStreamDestroy(stream);
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int i = 0; i < launches; i++) {
    call.layer = i % kTimeLayers;
    attend_prompt_with(kernel, call, stream);
  }
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "graph");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  check(cudaGraphLaunch(exec, stream), "replay");
  check(cudaEventRecord(begin, stream), "event");
  for (int i = 0; i < replays; i++) check(cudaGraphLaunch(exec, stream), "replay");
  check(cudaEventRecord(end, stream), "event");
  check(cudaStreamSynchronize(stream), "replay");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, begin, end), "event");
  const double us = double(ms) * 1e3 / (launches * replays);
  const double bytes =  // q, out and out16; K and V
      double(rows) * kHeads * head_dim * 10 + 2.0 * (history + rows) * kKvHeads * head_dim * (q8 ? 1 : 2);
  std::printf("%-4s dim %3d rows %5d history %5d %-5s %9.1f us %6.1f TFLOP/s %5.0f GB/s (%.0f%% of 4.3 TB/s)\n",
              name(type), head_dim, rows, history, name(kernel), us, operations / us * 1e-6, bytes / us * 1e-3,
              bytes / us * 1e-3 / 43);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

void time_all() {
  constexpr size_t kRows = 16384;
  Buffer<float> q(kRows * 48 * 128), out(kRows * 32 * 128);
  Buffer<uint16_t> out16(out.count);
  fill_floats<<<512, 256>>>(q.data, q.count);
  for (int head_dim : {128, 64}) {
    for (PromptKernel kernel : {PromptKernel::kWgmma, PromptKernel::kMma}) {
      for (int history : {0, 6144, 14336}) {
        time_shape(DType::kBF16, head_dim, 2048, history, kernel, q.data, out.data, out16.data);
      }
      time_shape(DType::kBF16, head_dim, 16384, 0, kernel, q.data, out.data, out16.data);
    }
    time_shape(DType::kF16, head_dim, 2048, 14336, PromptKernel::kWgmma, q.data, out.data, out16.data);
    time_shape(DType::kQ8_0, head_dim, 2048, 14336, PromptKernel::kMma, q.data, out.data, out16.data);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    check_all();
    std::printf(failures == 0 ? "correct\n" : "%d FAILURES\n", failures);
    if (argc < 2 || std::strcmp(argv[1], "quick") != 0) time_all();
  } catch (const std::exception& error) {
    std::printf("FAIL: %s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
