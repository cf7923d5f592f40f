// Times the linear layers of the default model's shapes (30 layers of width 576 and feed-forward 1,536, a head of
// 49,152 outputs) for 1..512 rows: milliseconds, GB/s of weights, Gop/s (two operations per weight and row). Every
// matrix of every layer has its own memory, as in a model. A figure is the sum over matrices of each one's fastest
// pass, so a busy machine distorts it less.
//   bench_linear [threads] [layer type] [head type] [instruction set] [rows or OUTxIN ...]
// With shapes (8192x2048), instead of the model copies of each shape are timed in turn, 160 MB of them, so that weights
// come from memory; figures are the fastest call's.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/linear/linear.h"
#include "base/error.h"
#include "tensor/blocks.h"

namespace {

using namespace sx;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A matrix of plausible random weights, packed.
std::unique_ptr<cpu::PackedMatrix> make(DType type, int out, int in, cpu::Isa isa, ThreadPool& pool) {
  const int64_t count = int64_t{out} * in;
  std::vector<std::byte> bytes(dtype_bytes(type, count));
  uint64_t s = 88172645463325252ull;
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& v : values)
    s ^= s << 13, s ^= s >> 7, s ^= s << 17, v = static_cast<float>(static_cast<int32_t>(s)) * 0x1p-36f;
  const int block = dtype_info(type).block;
  if (block == 256 || type == DType::kQ5_0 ||
      type == DType::kQ5_1) {  // no quantiser of ours: random bits, harmless scales
    for (auto& b : bytes) b = static_cast<std::byte>((s ^= s << 13, s ^= s >> 7, s ^= s << 17) & 0x17);
  } else {
    quantise(type, values.data(), count, bytes.data());
  }
  const Tensor tensor{.type = type, .rank = 2, .shape = {out, in}, .data = bytes.data()};
  return cpu::pack_matrix({&tensor, 1}, isa, pool);
}

struct Sum {
  double seconds = 0, bytes = 0, weights = 0;
};

void print(const char* what, int rows, const Sum& s) {
  fmt::print("  {:6} {:9.3f} ms  {:6.1f} GB/s  {:7.1f} Gop/s", what, s.seconds * 1e3, s.bytes / s.seconds * 1e-9,
             2 * s.weights * rows / s.seconds * 1e-9);
}

void time_shape(DType type, int out, int in, cpu::Isa isa, const std::vector<int>& counts, ThreadPool& pool) {
  std::vector<std::unique_ptr<cpu::PackedMatrix>> copies;
  for (size_t bytes = 0; bytes < size_t{160} << 20; bytes += copies.back()->bytes())
    copies.push_back(make(type, out, in, isa, pool));
  const size_t most = static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
  cpu::LinearScratch scratch(isa);
  scratch.reserve(static_cast<int>(most), in, pool.size());
  std::vector<float> x(most * static_cast<size_t>(in)), y(most * static_cast<size_t>(out));
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 251) * 0.01f - 1.0f;
  fmt::print("{} {} {}x{}, {} threads\n", cpu::isa_name(isa), dtype_name(type), out, in, pool.size());
  for (int rows : counts) {
    double best = 1e9;
    const double start = seconds();
    for (size_t call = 0; call < 2 * copies.size() || seconds() - start < 1; ++call) {
      const cpu::PackedMatrix& matrix = *copies[call % copies.size()];
      const double t = seconds();
      cpu::linear({.out = y.data(), .x = x.data(), .weight = &matrix, .rows = rows, .out_stride = out}, matrix, pool,
                  scratch);
      best = std::min(best, seconds() - t);
      if (call > 4 && seconds() - start > 3) break;
    }
    fmt::print("rows {:3}:", rows);
    print("", rows, {best, static_cast<double>(copies[0]->bytes()), static_cast<double>(out) * in});
    fmt::print("\n");
    std::fflush(stdout);
  }
}

int run(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 0;
  const auto type = dtype_from_name(argc > 2 ? argv[2] : "q4_1"),
             head_type = dtype_from_name(argc > 3 ? argv[3] : "q8_0");
  const auto isa = argc > 4 ? cpu::isa_from_name(argv[4]) : cpu::default_isa();
  if (!type || !head_type || !isa)
    fail("usage: bench_linear [threads] [layer type] [head type] [instruction set] [rows or OUTxIN ...]");
  const auto isas = cpu::available_isas();  // asks Linux for AMX
  if (std::find(isas.begin(), isas.end(), *isa) == isas.end())
    fail("bench_linear: this machine or this program has no {}", cpu::isa_name(*isa));
  std::vector<int> counts;
  std::vector<std::pair<int, int>> shapes;
  for (int i = 5; i < argc; ++i) {
    const char* in = std::strchr(argv[i], 'x');
    if (in) shapes.emplace_back(std::atoi(argv[i]), std::atoi(in + 1));
    else counts.push_back(std::atoi(argv[i]));
  }
  if (counts.empty()) counts = {1, 2, 3, 4, 8, 16, 32, 64, 128, 512};
  constexpr int kLayers = 30, kShapes[4][2] = {{960, 576}, {576, 576}, {3072, 576}, {576, 1536}};
  ThreadPool pool(threads);
  for (const auto& [out, in] : shapes) time_shape(*type, out, in, *isa, counts, pool);
  if (!shapes.empty()) return 0;
  const bool k_quants = dtype_info(*type).block == 256;  // their rows are multiples of 256
  auto wide = [&](int in) { return k_quants ? (in + 255) / 256 * 256 : in; };
  std::vector<std::unique_ptr<cpu::PackedMatrix>> matrices;
  for (int l = 0; l < kLayers; ++l)
    for (const auto& shape : kShapes) matrices.push_back(make(*type, shape[0], wide(shape[1]), *isa, pool));
  matrices.push_back(make(*head_type, 49152, dtype_info(*head_type).block == 256 ? 768 : 576, *isa, pool));
  const int most = *std::max_element(counts.begin(), counts.end());
  cpu::LinearScratch scratch(*isa);
  scratch.reserve(most, 1536, pool.size());
  std::vector<float> x(static_cast<size_t>(most) * 1536), y(static_cast<size_t>(most) * 49152);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 251) * 0.01f - 1.0f;
  fmt::print("{} layers {}, head {}, {} threads\n", cpu::isa_name(*isa), dtype_name(*type), dtype_name(*head_type),
             pool.size());
  for (int rows : counts) {
    std::vector<double> best(matrices.size(), 1e9);
    const double start = seconds();
    for (int pass = 0; pass < 5 || (seconds() - start < 1.5 && pass < 400); ++pass)
      for (size_t i = 0; i < matrices.size(); ++i) {
        const double t = seconds();
        cpu::linear({.out = y.data(),
                     .x = x.data(),
                     .weight = matrices[i].get(),
                     .rows = rows,
                     .out_stride = matrices[i]->out()},
                    *matrices[i], pool, scratch);
        best[i] = std::min(best[i], seconds() - t);
      }
    Sum layers, head;
    for (size_t i = 0; i < matrices.size(); ++i) {
      Sum& s = i + 1 < matrices.size() ? layers : head;
      s.seconds += best[i];
      s.bytes += static_cast<double>(matrices[i]->bytes());
      s.weights += static_cast<double>(matrices[i]->in()) * matrices[i]->out();
    }
    fmt::print("rows {:3}:", rows);
    print("layers", rows, layers);
    print("head", rows, head);
    fmt::print("  sum {:.3f} ms\n", (layers.seconds + head.seconds) * 1e3);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
