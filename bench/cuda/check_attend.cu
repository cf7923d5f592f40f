// Checks attention of decode and verification (attend_rows) against a plain host computation, proves with memcmp that
// a row's bits depend on its path only, and times it. Exit code 1 on any mismatch. From the repository root:
//   nvcc -std=c++20 -O3 -Isrc -Iinclude -gencode=arch=compute_90a,code=sm_90a -o check_attend
//     bench/cuda/check_attend.cu src/backend/cuda/attention/decode_*.cu src/backend/cuda/runtime/device.cu
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "backend/cuda/attention/decode_mma.cuh"
#include "check_attend.cuh"
#include "check_shares.cuh"

using namespace sx;
using namespace sx::cuda;

namespace {

int failures = 0, steps = 0;
double worst_error[int(DType::kCount)];

struct Shape {
  DType type;
  int heads, kv_heads, head_dim, window;
  float loud = 1;      // queries are so much larger
  float soft_cap = 0;  // of scores
  bool sinks = false;
  std::string name() const {
    const char* types = type == DType::kBF16 ? "bf16" : type == DType::kF16 ? "f16" : "q8";
    return std::string(types) + " heads " + std::to_string(heads) + "/" + std::to_string(kv_heads) + " dim " +
           std::to_string(head_dim) + " window " + std::to_string(window) +
           (soft_cap > 0 ? " soft cap " + std::to_string(soft_cap) : "") + (sinks ? " sinks" : "");
  }
};

int q_stride(const Shape& shape) { return (shape.heads + 2 * shape.kv_heads) * shape.head_dim; }
float sink_of(int head) { return float(head * 5 % 11) - 2.0f; }  // some weigh nothing, some most of all
float scale_of(const Shape& shape) { return 2.0f / std::sqrt(float(shape.head_dim)); }

// q: [rows, q_stride]. `bound`: what the call is told of the histories; it decides how the work is split.
std::vector<float> run(const Shape& shape, const DeviceStore& store, const Step& step, const std::vector<float>& q,
                       int bound, std::vector<uint16_t>* out16 = nullptr) {
  const int rows = int(step.rows.size());
  Device<float> dq(q), out(size_t(rows) * size_t(shape.heads) * size_t(shape.head_dim));
  Device<uint16_t> half(out.count);
  Device<RowInfo> info(step.rows);
  Device<uint64_t> ancestors(step.ancestors);
  Device<RowTile> tiles(step.tiles);
  Device<uint8_t> scratch(attend_scratch_bytes(rows, shape.heads, shape.head_dim, bound));
  std::vector<float> sinks;
  for (int head = 0; head < shape.heads; ++head) sinks.push_back(sink_of(head));
  Device<float> sink_data(sinks);
  out.poison();
  half.poison();
  scratch.poison();
  AttendCall call{};
  call.out = out.data;
  call.out16 = half.data;
  call.half = shape.type == DType::kBF16 ? Half::kBF16 : Half::kF16;
  call.q = dq.data;
  call.q_stride = q_stride(shape);
  call.heads = shape.heads;
  call.kv_heads = shape.kv_heads;
  call.head_dim = shape.head_dim;
  call.scale = scale_of(shape);
  call.window = shape.window;
  call.soft_cap = shape.soft_cap;
  call.sinks = shape.sinks ? sink_data.data : nullptr;
  call.kv = store.view;
  call.layer = 1;
  call.step.rows = info.data;
  call.step.ancestors = ancestors.data;
  call.step.tiles = tiles.data;
  call.rows = rows;
  call.tiles = int(step.tiles.size());
  call.history = bound;
  attend_rows(call, scratch.data, nullptr);
  check(cudaDeviceSynchronize(), "attend_rows");
  if (out16 != nullptr) *out16 = half.get();
  return out.get();
}

void fail(const Shape& shape, const char* what, int row, int column, double got, double want) {
  if (++failures <= 12) {
    std::printf("FAILED %s: %s: row %d column %d: %.9g, expected %.9g\n", shape.name().c_str(), what, row, column, got,
                want);
  }
}

// Both [rows, width]; row a of one, row b of the other.
void same(const Shape& shape, const char* what, const std::vector<float>& x, int a, const std::vector<float>& y,
          int b) {
  const size_t width = size_t(shape.heads) * size_t(shape.head_dim);
  const float *left = &x[size_t(a) * width], *right = &y[size_t(b) * width];
  if (std::memcmp(left, right, width * sizeof(float)) == 0) return;
  for (size_t i = 0; i < width; ++i) {
    if (std::memcmp(left + i, right + i, sizeof(float)) != 0) return fail(shape, what, a, int(i), left[i], right[i]);
  }
}

// The largest relative error (in the 2-norm) of a row and head.
double compare(const Shape& shape, const Store& store, const Step& step, const std::vector<Sequence>& sequences,
               const std::vector<float>& q, const std::vector<float>& out, int every) {
  const size_t dim = size_t(shape.head_dim), width = size_t(shape.heads) * dim;
  double worst = 0;
  for (int row = 0; row < int(step.host.size()); row += every) {
    const Row& host = step.host[size_t(row)];
    if (host.sequence < 0) continue;
    const int slot = sequences[size_t(host.sequence)].slot, count = int(host.cells.size());
    const int first = shape.window > 0 ? std::max(0, count - shape.window) : 0;
    for (int head = 0; head < shape.heads; ++head) {
      const int kv_head = head / (shape.heads / shape.kv_heads);
      const float* query = &q[size_t(row) * size_t(q_stride(shape)) + size_t(head) * dim];
      const float* got = &out[size_t(row) * width + size_t(head) * dim];
      std::vector<double> scores, expected(dim, 0.0);
      double top = -1e300, sum = 0, error = 0, norm = 0;
      for (int i = first; i < count; ++i) {
        const float* key = &store.values[0][store.cell(slot, kv_head, host.cells[size_t(i)]) * dim];
        double score = 0;
        for (size_t d = 0; d < dim; ++d) score += double(query[d]) * double(key[d]);
        score *= double(scale_of(shape));
        scores.push_back(shape.soft_cap > 0 ? std::tanh(score / double(shape.soft_cap)) * double(shape.soft_cap)
                                            : score);
        top = std::max(top, scores.back());
      }
      if (shape.sinks) sum = std::exp(double(sink_of(head)) - top);
      for (int i = first; i < count; ++i) {
        const double p = std::exp(scores[size_t(i - first)] - top);
        const float* value = &store.values[1][store.cell(slot, kv_head, host.cells[size_t(i)]) * dim];
        sum += p;
        for (size_t d = 0; d < dim; ++d) expected[d] += p * double(value[d]);
      }
      int bad = 0;
      double bad_by = 0;
      for (size_t d = 0; d < dim; ++d) {
        const double want = expected[d] / sum, by = std::abs(double(got[d]) - want);
        expected[d] = want;
        error += by * by;
        norm += want * want;
        if (!(by <= bad_by)) {
          bad_by = by;
          bad = int(d);
        }
      }
      const double relative = std::sqrt(error / norm);
      // Queries of 16 bits change loud scores by more than one: another cell may win. They still have to be numbers,
      // and be batch-invariant.
      const double allowed = shape.loud > 1 ? 4 : shape.type == DType::kBF16 ? 3e-2 : 6e-3;
      if (!(relative <= allowed)) {
        fail(shape, "error", row, head * shape.head_dim + bad, double(got[bad]), expected[size_t(bad)]);
      }
      if (shape.loud <= 1) worst = std::max(worst, relative);
    }
  }
  return worst;
}

void check_step(const Shape& shape, const std::vector<Sequence>& sequences, const std::vector<int>& bounds, int every) {
  int capacity = 0;
  for (const Sequence& s : sequences) capacity = std::max(capacity, s.history + int(s.parents.size()));
  capacity += 70;
  const int plain_slot = int(sequences.size());
  Store store(shape.type, plain_slot + 1, shape.kv_heads, capacity, shape.head_dim);
  Step step;
  for (int i = 0; i < int(sequences.size()); ++i) {
    const Sequence& s = sequences[size_t(i)];
    for (int cell = 0; cell < s.history + int(s.parents.size()); ++cell) store.fill(s.slot, cell);
    step.add(s, i);
  }
  const DeviceStore device(store);
  const size_t stride = size_t(q_stride(shape)), width = size_t(shape.heads) * size_t(shape.head_dim);
  std::vector<float> q(step.rows.size() * stride);
  for (float& x : q) x = 1.5f * shape.loud * uniform();
  std::vector<uint16_t> half;
  const std::vector<float> out = run(shape, device, step, q, step.history, &half);
  const double error = compare(shape, store, step, sequences, q, out, every);
  for (size_t i = 0; i < out.size(); ++i) {
    const uint16_t want = shape.type == DType::kBF16 ? brain_bits(out[i]) : half_bits(out[i]);
    if (half[i] != want) {
      fail(shape, "out16", int(i / width), int(i % width), half[i], want);
      break;
    }
  }
  // Other bounds, hence other splits.
  for (int bound : bounds) {
    const std::vector<float> other = run(shape, device, step, q, step.history + bound, nullptr);
    for (int row = 0; row < int(step.rows.size()); ++row) same(shape, "other split", out, row, other, row);
  }
  // Sequences in other order, other tiles, padding between.
  Step moved;
  std::vector<int> place(step.rows.size());
  std::vector<float> moved_q;
  for (int i = int(sequences.size()) - 1; i >= 0; --i) {
    moved.pad_rows(1 + below(3));
    moved.tiles.push_back({0, 0, 0, 0});
    moved_q.resize(moved.rows.size() * stride, NAN);
    for (size_t row = 0; row < step.host.size(); ++row) {
      if (step.host[row].sequence != i) continue;
      place[row] = int(moved_q.size() / stride);
      moved_q.insert(moved_q.end(), q.begin() + ptrdiff_t(row * stride), q.begin() + ptrdiff_t((row + 1) * stride));
    }
    moved.add(sequences[size_t(i)], i, 5 + below(12));
  }
  const std::vector<float> elsewhere = run(shape, device, moved, moved_q, step.history + 64 * below(9));
  for (size_t row = 0; row < place.size(); ++row) same(shape, "other place", out, int(row), elsewhere, place[row]);
  // Plain decoding of paths: the same cells as one history.
  Store plain = store;
  for (int row = 0; row < int(step.rows.size()); row += every) {
    const Row& host = step.host[size_t(row)];
    const int slot = sequences[size_t(host.sequence)].slot, index = int(host.cells.size()) - 1;
    for (int i = 0; i < capacity; ++i) plain.poison(plain_slot, i);
    for (int i = 0; i <= index; ++i) plain.copy(plain_slot, i, slot, host.cells[size_t(i)]);
    const DeviceStore plain_device(plain);
    Step one;
    one.add(Sequence{plain_slot, index, {-1}, 0}, 0);
    const auto row_q = q.begin() + ptrdiff_t(size_t(row) * stride);
    const std::vector<float> plain_q(row_q, row_q + ptrdiff_t(stride));
    const int bound = index + (row % 2 != 0 ? 0 : 70000);
    same(shape, "plain decoding", out, row, run(shape, plain_device, one, plain_q, bound), 0);
  }
  worst_error[int(shape.type)] = std::max(worst_error[int(shape.type)], error);
  ++steps;
}

// The first n rows of a tree are the same rows for every n: other forms of the kernels, other batch.
void check_counts(const Shape& shape, int history) {
  const std::vector<int> tree = random_tree(64, 20, 40);
  Store store(shape.type, 1, shape.kv_heads, history + 80, shape.head_dim);
  for (int cell = 0; cell < history + 64; ++cell) store.fill(0, cell);
  const DeviceStore device(store);
  const size_t stride = size_t(q_stride(shape));
  std::vector<float> q(64 * stride);
  for (float& x : q) x = 1.5f * shape.loud * uniform();
  const auto rows_of = [&](int n, int bound) {
    Step step;
    step.add(Sequence{0, history, {tree.begin(), tree.begin() + n}, 0}, 0);
    const std::vector<float> part(q.begin(), q.begin() + ptrdiff_t(size_t(n) * stride));
    return run(shape, device, step, part, bound);
  };
  const std::vector<float> all = rows_of(64, history);
  for (int n : {1, 2, 3, 4, 8, 15, 16, 17, 24, 31, 32, 33, 47, 48, 49, 63, 64}) {
    const std::vector<float> few = rows_of(n, history + n % 3 * 4000);
    for (int row = 0; row < n; ++row) same(shape, "fewer rows", all, row, few, row);
  }
  ++steps;
}

// Small numbers in the 16-bit type of which `pattern` is the exponent of about 1 (or bytes, when it is 0).
__global__ void fill_noise(uint32_t* words, size_t count, uint32_t pattern) {
  for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += size_t(gridDim.x) * blockDim.x) {
    uint32_t x = uint32_t(i) * 2654435761u + 12345u;
    x = (x ^ (x >> 15)) * 2246822519u;
    x ^= x >> 13;
    words[i] = pattern == 0 ? x : (x & 0x807f807fu) | pattern;
  }
}

// Graph replays of one call per layer, over layers that together exceed L2 several times.
double time_shape(const Shape& shape, int context, int rows, std::string& plan,
                  HopperKernels kernels = HopperKernels::kBoth) {
  const size_t element = shape.type == DType::kQ8_0 ? 1 : 2;
  const int capacity = (context + 576 + kCellBlock - 1) / kCellBlock * kCellBlock;
  const size_t layer_cells = size_t(shape.kv_heads) * size_t(capacity);
  const size_t layer = layer_cells * size_t(shape.head_dim) * element;
  const int layers = int(std::clamp<size_t>((size_t(320) << 20) / (2 * layer) + 1, 2, 64));
  Device<uint32_t> k(layer * size_t(layers) / 4), v(k.count);
  Device<uint32_t> scales(layer_cells * size_t(layers) * size_t(shape.head_dim) / 64 + 1);
  const uint32_t pattern = shape.type == DType::kBF16 ? 0x3f003f00u : shape.type == DType::kF16 ? 0x38003800u : 0;
  fill_noise<<<1024, 256>>>(k.data, k.count, pattern);
  fill_noise<<<1024, 256>>>(v.data, v.count, pattern);
  fill_noise<<<1024, 256>>>(scales.data, scales.count, 0x20002000u);
  Step step;
  step.add(Sequence{0, context, random_tree(rows, 0, 30), 0}, 0);
  std::vector<float> q(size_t(rows) * size_t(q_stride(shape)));
  for (float& x : q) x = uniform();
  Device<float> dq(q), out(size_t(rows) * size_t(shape.heads) * size_t(shape.head_dim));
  Device<uint16_t> half(out.count);
  Device<RowInfo> info(step.rows);
  Device<uint64_t> ancestors(step.ancestors);
  Device<RowTile> tiles(step.tiles);
  Device<uint8_t> scratch(attend_scratch_bytes(rows, shape.heads, shape.head_dim, capacity));
  AttendCall call{};
  call.out = out.data;
  call.out16 = half.data;
  call.half = Half::kBF16;
  call.q = dq.data;
  call.q_stride = q_stride(shape);
  call.heads = shape.heads;
  call.kv_heads = shape.kv_heads;
  call.head_dim = shape.head_dim;
  call.scale = 1 / std::sqrt(float(shape.head_dim));
  uint16_t* scale_data = reinterpret_cast<uint16_t*>(scales.data);
  call.kv = KvView{shape.type,
                   layers,
                   1,
                   shape.kv_heads,
                   capacity,
                   shape.head_dim,
                   reinterpret_cast<std::byte*>(k.data),
                   reinterpret_cast<std::byte*>(v.data),
                   scale_data,
                   scale_data};
  call.step.rows = info.data;
  call.step.ancestors = ancestors.data;
  call.step.tiles = tiles.data;
  call.rows = rows;
  call.tiles = int(step.tiles.size());
  call.history = context;
  if (serves_hopper(call)) {
    const HopperPlan found = hopper_plan(call);
    plan = (found.pairs ? " pairs " : " singles ") + std::to_string(found.units);
    if (found.range_kv_heads < shape.kv_heads) plan += " by " + std::to_string(found.range_kv_heads);
  }
  attend_rows(call, scratch.data, nullptr);  // makes the states that the finish alone will find
  check(cudaDeviceSynchronize(), "attend_rows");
  cudaStream_t stream;
  check(cudaStreamCreate(&stream), "stream");
  cudaGraph_t graph;
  cudaGraphExec_t replay;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  const int calls = context > 65536 ? 8 : 64;
  for (int i = 0; i < calls; ++i) {
    call.layer = i % layers;
    if (kernels == HopperKernels::kBoth) attend_rows(call, scratch.data, stream);
    else attend_rows_hopper(call, scratch.data, stream, kernels);
  }
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&replay, graph, 0), "graph");
  cudaEvent_t start, stop;
  check(cudaEventCreate(&start), "event");
  check(cudaEventCreate(&stop), "event");
  std::vector<float> times;
  for (int i = 0; i < 7; ++i) {
    check(cudaEventRecord(start, stream), "event");
    check(cudaGraphLaunch(replay, stream), "graph launch");
    check(cudaEventRecord(stop, stream), "event");
    check(cudaStreamSynchronize(stream), "graph");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, start, stop), "event");
    times.push_back(ms);
  }
  std::sort(times.begin() + 1, times.end());
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaStreamDestroy(stream);
  return double(times[4]) * 1000 / calls;
}

void time_all() {
  std::printf("us per call (percent of 4.3 TB/s for K and V, TFLOP/s; on Hopper thread blocks and units)\n");
  const auto line = [](const Shape& shape, int context, std::initializer_list<int> counts) {
    std::printf("%s context %d:", shape.name().c_str(), context);
    for (int rows : counts) {
      std::string plan;
      const double us = time_shape(shape, context, rows, plan);
      const double element = shape.type == DType::kQ8_0 ? 1.0625 : 2.0;
      const double bytes = 2.0 * shape.kv_heads * context * shape.head_dim * element;
      const double flops = 4.0 * rows * shape.heads * shape.head_dim * double(context);
      std::printf(" n=%d %.1f (%.0f%% %.0f%s)", rows, us, bytes / us / 4.3e6 * 100, flops / us / 1e6, plan.c_str());
    }
    std::printf("\n");
  };
  const Shape big{DType::kBF16, 32, 8, 128, 0};
  for (int context : {1024, 4096, 7680, 16384, 131072}) line(big, context, {1, 4, 8, 16, 32, 64});
  line(big, 16424, {1, 4, 8, 16, 32, 64});  // much of the last block of each tail is history
  for (int rows : {1, 16, 32, 64}) {        // one kernel after itself
    std::string plan;
    std::printf("16384 n=%d: body %.1f finish %.1f, of it the tail %.1f\n", rows,
                time_shape(big, 16384, rows, plan, HopperKernels::kBody),
                time_shape(big, 16384, rows, plan, HopperKernels::kFinish), time_shape(big, 64, rows, plan));
  }
  line(Shape{DType::kQ8_0, 32, 8, 128, 0}, 16384, {1, 16});
  line(Shape{DType::kF16, 32, 8, 64, 0}, 16384, {1, 16});
  line(Shape{DType::kF16, 9, 3, 64, 0}, 4096, {1, 16});
  line(Shape{DType::kBF16, 16, 8, 256, 0}, 8192, {1, 16});
}

void check_all(bool quick) {
  const std::vector<int> bounds{0, 20000, 400000, 2000000};
  const DType types[] = {DType::kBF16, DType::kF16, DType::kQ8_0};
  // One sequence: histories at borders of blocks, spans (512) and sections (2048), on Hopper at those of sizes of units
  // (1024, 4096), rows on both sides of them.
  const int histories[] = {0,    1,    63,   64,   120, 127,  128, 500,  560, 600,
                           2080, 2111, 2170, 4130, 190, 1075, 330, 1090, 370};
  for (int i = 0; i < int(std::size(histories)); ++i) {
    if (quick && i % 4 != 2) continue;
    const Shape shape{types[i % 3], 8, 2, 128, 0};
    const int nodes[] = {1, 3, 16, 70};
    check_step(shape, {Sequence{0, histories[i], random_tree(nodes[i % 4], 60, 30), 0}}, bounds, 1 + i % 4 * 5);
  }
  // The shape of Llama-3.1-8B: on Hopper 64 rows go in pairs of warpgroups, a thread block doing several units, up to
  // 16 rows by single units.
  const Shape llama{DType::kBF16, 32, 8, 128, 0};
  check_step(llama, {Sequence{0, quick ? 8200 : 16420, random_tree(64, 62, 10), 0}}, {0, 9000, 300000}, 31);
  // Thread blocks get whole sections, beginnings and ends of sections, units; the body ends with a half tile.
  for (int history : {8250, 8320, 16420}) {
    if (!quick || history == 8320) check_counts(llama, history);
  }
  check_counts(Shape{DType::kBF16, 12, 3, 128, 0}, 7700);
  // Scores of some hundreds: what weights are relative to on Hopper is not 0 any more, is raised, and differs from unit
  // to unit.
  for (DType type : {DType::kBF16, DType::kF16}) {
    for (float loud : {40.f, 400.f}) {
      check_counts(Shape{type, 16, 4, 128, 0, loud}, 2600);
      check_step(Shape{type, 8, 2, 128, 700, loud}, {Sequence{0, 2150, random_tree(48, 30, 20), 2}}, bounds, 6);
    }
  }
  check_counts(Shape{DType::kBF16, 40, 5, 128, 6000}, 13000);  // a window that begins within a section
  if (!quick) check_counts(Shape{DType::kF16, 4, 1, 128, 0}, 33000);
  check_counts(Shape{DType::kF16, 8, 2, 64, 0}, 2090);
  check_counts(Shape{DType::kBF16, 4, 4, 128, 900}, 3000);
  check_counts(Shape{DType::kBF16, 16, 4, 128, 2500}, 5200);         // pairs with a window
  if (!quick) check_counts(Shape{DType::kF16, 4, 1, 64, 0}, 67700);  // units of all sizes
  for (DType type : types) {
    // Several sequences, uncommitted nodes, long chains, many nodes.
    for (int dim : {64, 96, 128, 256}) {
      if (quick && dim != 96) continue;
      const int group = dim == 64 ? 3 : dim == 96 ? 1 : dim == 128 ? 4 : 2;
      check_step(Shape{type, 2 * group, 2, dim, 0},
                 {Sequence{0, 2085, random_tree(64, 62, 10), 9}, Sequence{2, 3, random_tree(20, 3, 50), 0},
                  Sequence{1, 612, random_tree(33, 31, 20), 5}},
                 bounds, 9);
    }
    if (type != DType::kQ8_0) {  // pairs of several sequences, with and without a window
      for (int window : {0, 2900}) {
        check_step(Shape{type, 8, 2, type == DType::kBF16 ? 128 : 64, window},
                   {Sequence{0, 4300, random_tree(48, 47, 10), 0}, Sequence{1, 1700, random_tree(32, 20, 20), 0},
                    Sequence{2, 5950, random_tree(40, 30, 20), 6}},
                   bounds, 29);
      }
    }
    check_step(Shape{type, 16, 1, 128, 0}, {Sequence{0, 700, random_tree(30, 10, 60), 12}}, bounds, 4);
    check_step(Shape{type, 8, 8, 64, 0}, {Sequence{0, 1100, random_tree(40, 10, 60), 3}}, bounds, 7);
    // Windows: ending inside a block, at a border, within the tail, within the tail.
    const int windows[] = {1, 17, 64, 100, 129, 700, 1500, 1700}, dims[] = {64, 128, 256, 96};
    for (int i = 0; i < 8; ++i) {
      if (quick && i % 4 != 3) continue;
      check_step(Shape{type, 8, 2, dims[i % 4], windows[i]},
                 {Sequence{0, 2150, random_tree(40, 30, 20), 2}, Sequence{1, 90, random_tree(5, 1, 50), 0}}, bounds, 8);
    }
    // Soft caps (Gemma 2) and sinks (gpt-oss).
    for (int dim : {64, 128, 256, 32}) {
      for (int both = 0; both < 3; ++both) {
        if (quick && (dim / 64 + both) % 3 != 0) continue;
        check_step(Shape{type, 8, 2, dim, dim == 64 ? 128 : 0, 1, both != 1 ? 3.0f : 0.0f, both != 0},
                   {Sequence{0, 1150, random_tree(40, 30, 20), 2}, Sequence{1, 90, random_tree(5, 1, 50), 0}}, bounds,
                   8);
      }
    }
    // More states than fit the scratch at the last bound: kv heads in several launches.
    check_step(Shape{type, 24, 6, 64, 0}, {Sequence{0, 200, random_tree(40, 10, 60), 0}}, {0, 2000000}, 20);
    // No tensor cores.
    check_step(Shape{type, 4, 2, 32, 0}, {Sequence{0, 200, random_tree(40, 30, 20), 2}}, {0, 500}, 5);
    if (type != DType::kQ8_0) {
      check_step(Shape{type, 4, 4, 80, 50}, {Sequence{0, 200, random_tree(20, 10, 20), 0}}, {0, 500}, 5);
    }
    // Many sequences of one row.
    std::vector<Sequence> batch;
    for (int i = 0; i < 11; ++i) batch.push_back(Sequence{i, 150 + 37 * i, {-1}, 0});
    check_step(Shape{type, 8, 2, 64, 0}, batch, bounds, 2);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string wanted = argc > 1 ? argv[1] : "";  // quick: fewer checks, no times; time: times only
  const bool quick = wanted == "quick";
  try {
    ShareCheck shares;
    for (int i = 0; i < 3000; ++i) shares.check_step();
    failures += shares.failures;
    if (wanted != "time") check_all(quick);
    std::printf("%d steps, %d failures; worst errors: bf16 %.1e, f16 %.1e, q8 %.1e\n", steps, failures,
                worst_error[int(DType::kBF16)], worst_error[int(DType::kF16)], worst_error[int(DType::kQ8_0)]);
    if (!quick) time_all();
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
  return failures == 0 ? 0 : 1;
}
