// Times the x86 kernels of linear layers against each other in one process, on the same weights: tables of kernels of
// today and of before, and variants of the AMX kernels that leave something out (their results are wrong) to see what
// costs time. Weights are copies that are used in turn, so that they come from memory.
//   bench_linear_x86 [what] [threads,...] [types,...] [OUTxIN,...] [rows,...]     what: tables, variants (of AMX), ahead (prefetch
// distance of VNNI), handover (an empty job)
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "backend/cpu/isa.h"
#include "backend/cpu/linear/linear_amx.h"
#include "backend/cpu/linear/linear_kernels.h"
#include "base/error.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "tensor/blocks.h"

namespace sx::cpu {
const LinearKernels* linear_kernels_avx512_before();
const LinearKernels* linear_kernels_avx512_ahead0();
const LinearKernels* linear_kernels_avx512_ahead1024();
const LinearKernels* linear_kernels_avx512_ahead4096();
#define SX_VARIANT(name)                                         \
  void amx_run_##name(const LinearJob&, const AmxWeights&, int); \
  size_t amx_panel_bytes_##name();
#include "amx_variants.h"
#undef SX_VARIANT
}  // namespace sx::cpu

namespace {

using namespace sx;
using namespace sx::cpu;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<std::byte> random_weights(DType type, int64_t count) {
  std::vector<std::byte> bytes(dtype_bytes(type, count));
  uint64_t s = 88172645463325252ull;
  auto next = [&] { return s ^= s << 13, s ^= s >> 7, s ^= s << 17; };
  if (dtype_info(type).block == 256 || type == DType::kQ5_0 || type == DType::kQ5_1) {
    for (auto& b : bytes) b = static_cast<std::byte>(next() & 0x17);
    return bytes;
  }
  std::vector<float> values(static_cast<size_t>(count));
  for (auto& v : values) v = static_cast<float>(static_cast<int32_t>(next())) * 0x1p-36f;
  quantise(type, values.data(), count, bytes.data());
  return bytes;
}

using Run = void (*)(const LinearJob&);

struct Packed {
  const LinearKernels* kernels;
  LinearLayout layout;
  int out, groups;
  std::vector<Pages> copies;
};

Packed pack(const LinearKernels& kernels, DType type, int out, int in, const std::vector<std::byte>& bytes,
            size_t least) {
  Packed p{&kernels, kernels.layout({type, in, true}), out, 0, {}};
  const int group = p.layout.group;
  p.groups = (out + group - 1) / group;
  const size_t padded = static_cast<size_t>(p.layout.blocks) * 32, row = dtype_bytes(type, in);
  const int sub = affine_traits(type).sub;
  const size_t scales = padded / static_cast<size_t>(sub), size = static_cast<size_t>(p.groups) * p.layout.group_bytes;
  p.copies.emplace_back(size + 8192, "weights");
  ThreadPool pool(0);
  pool.run([&](int t) {
    std::vector<int8_t> q(static_cast<size_t>(group) * padded);
    std::vector<float> d(static_cast<size_t>(group) * scales), m(d);
    for (int g = t; g < p.groups; g += pool.size()) {
      for (int o = 0; o < group && g * group + o < out; ++o)
        unpack_affine(type, bytes.data() + static_cast<size_t>(g * group + o) * row, in,
                      &q[static_cast<size_t>(o) * padded], &d[static_cast<size_t>(o) * scales],
                      &m[static_cast<size_t>(o) * scales]);
      kernels.pack(p.layout, {sub, q.data(), d.data(), m.data(), nullptr},
                   p.copies[0].data() + static_cast<size_t>(g) * p.layout.group_bytes);
    }
  });
  while (size * p.copies.size() < least) {
    p.copies.emplace_back(size + 8192, "weights");
    std::memcpy(p.copies.back().data(), p.copies[0].data(), size);
  }
  return p;
}

// Milliseconds of the fastest of several passes.
double time_run(const Packed& p, Run run, size_t panel, int rows, int threads, const std::vector<float>& x,
                std::vector<float>& y, double budget) {
  ThreadPool pool(threads);
  const size_t act = (p.kernels->act_bytes(p.layout.in) + 63) / 64 * 64;
  Pages shared(act * static_cast<size_t>(rows) + 8192, "activations");
  panel = (std::max(panel, p.kernels->panel_bytes(p.layout.in)) + 4095) / 4096 * 4096;
  Pages panels(panel * static_cast<size_t>(threads), "panels");
  const int tiles = (rows + p.kernels->act_rows - 1) / p.kernels->act_rows;
  const int pieces = threads == 1 ? 1 : std::min(threads * 4, std::max(p.groups / 4, threads));
  double best = 1e9;
  size_t turn = 0;
  const double start = seconds();
  for (int pass = 0; pass < 4 || seconds() - start < budget; ++pass) {
    const std::byte* weights = p.copies[turn++ % p.copies.size()].data();
    const double t = seconds();
    const int shares = std::min(tiles, threads);
    pool.each(shares, [&](int i) {
      p.kernels->quantise(x.data(), p.layout.in, rows, tiles * i / shares, tiles * (i + 1) / shares, p.layout.act_block,
                          shared.data());
    });
    pool.each(pieces, [&](int piece, int worker) {
      run({.layout = &p.layout,
           .weights = weights,
           .first = p.groups * piece / pieces,
           .last = p.groups * (piece + 1) / pieces,
           .outputs = p.out,
           .x = x.data(),
           .act = shared.data(),
           .rows = rows,
           .out = y.data(),
           .out_stride = p.out,
           .bias = nullptr,
           .accumulate = false,
           .panel = panels.data() + panel * static_cast<size_t>(worker)});
    });
    best = std::min(best, seconds() - t);
  }
  return best * 1e3;
}

void print(const std::string& what, DType type, const Packed& p, int rows, int threads, double ms) {
  const double bytes = static_cast<double>(p.layout.group_bytes) * p.groups;
  fmt::print("{:6} {:5}x{:<5} {:2} threads {:3} rows {:14} {:9.4f} ms {:7.1f} GB/s {:8.1f} Gop/s\n", dtype_name(type),
             p.out, p.layout.in, threads, rows, what, ms, bytes / ms * 1e-6,
             2.0 * p.out * p.layout.in * rows / ms * 1e-6);
  std::fflush(stdout);
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

struct Variant {
  const char* name;
  Run run;
  size_t (*panel)();
};
template <void (*amx)(const LinearJob&, const AmxWeights&, int)>
void run_variant(const LinearJob& job) {
  const size_t lanes = static_cast<size_t>(job.layout->blocks) * 64 * static_cast<size_t>(job.rows);
  amx(job, {job.layout->type == DType::kQ4_0, false, static_cast<const char*>(job.act) + lanes}, job.rows / 16);
}

// Microseconds of a job of one empty piece per thread, and of four.
int handover(const std::vector<std::string>& threads) {
  for (const auto& t : threads) {
    ThreadPool pool(std::atoi(t.c_str()));
    for (int pieces : {pool.size(), 4 * pool.size()}) {
      double best = 1e9, sum = 0;
      for (int pass = 0; pass < 200; ++pass) {
        const double start = seconds();
        for (int i = 0; i < 100; ++i) pool.each(pieces, [](int) {});
        const double took = (seconds() - start) * 1e4;
        best = std::min(best, took), sum += took / 200;
      }
      fmt::print("{} threads, {} pieces: {:.2f} us best, {:.2f} us mean\n", pool.size(), pieces, best, sum);
    }
  }
  return 0;
}

int run(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "tables";
  const auto threads = split(argc > 2 ? argv[2] : "1,4,8,16"),
             types = split(argc > 3 ? argv[3] : "q4_0,q4_1,q4_k,q8_0");
  const auto shapes = split(argc > 4 ? argv[4] : "14336x4096,3072x576"),
             counts = split(argc > 5 ? argv[5] : "1,2,4,8,16,64,512");
  const auto isas = available_isas();
  auto has = [&](Isa isa) { return std::find(isas.begin(), isas.end(), isa) != isas.end(); };
  std::vector<const LinearKernels*> tables;
  if (has(Isa::kAvx512)) tables = {linear_kernels_avx512_before(), linear_kernels_avx512()};
  if (has(Isa::kAmx)) tables.push_back(linear_kernels_amx());
  if (has(Isa::kAvx2)) tables.push_back(linear_kernels_avx2());
  if (what == "ahead")
    tables = {linear_kernels_avx512_before(), linear_kernels_avx512(), linear_kernels_avx512_ahead0(),
              linear_kernels_avx512_ahead1024(), linear_kernels_avx512_ahead4096()};
  if (what == "handover") return handover(threads);
  const std::vector<Variant> variants = {
#define SX_VARIANT(name) {#name, run_variant<amx_run_##name>, amx_panel_bytes_##name},
#include "amx_variants.h"
#undef SX_VARIANT
  };
  if (what == "variants" && !has(Isa::kAmx)) fail("no AMX here");
  for (const auto& shape : shapes)
    for (const auto& type_name : types) {
      const DType type = *dtype_from_name(type_name);
      const int out = std::atoi(shape.c_str()), in = std::atoi(shape.c_str() + shape.find('x') + 1);
      if (in % dtype_info(type).block) continue;
      const auto bytes = random_weights(type, int64_t{out} * in);
      std::vector<float> x(size_t(512) * static_cast<size_t>(in)), y(size_t(512) * static_cast<size_t>(out));
      for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i * 7919 % 1021) * 0.002f - 1.0f;
      std::vector<Packed> packed;
      if (what == "variants") packed.push_back(pack(*linear_kernels_amx(), type, out, in, bytes, 0));
      else
        for (const auto* t : tables) packed.push_back(pack(*t, type, out, in, bytes, size_t(320) << 20));
      for (const auto& t : threads)
        for (const auto& c : counts) {
          const int team = std::atoi(t.c_str()), rows = std::atoi(c.c_str());
          if (what == "variants") {
            for (int again = 0; again < 2; ++again)
              for (const Variant& v : variants)
                print(v.name, type, packed[0], rows, team,
                      time_run(packed[0], v.run, v.panel(), rows, team, x, y, 0.15));
          } else {
            for (const Packed& p : packed)
              print(p.kernels->name, type, p, rows, team, time_run(p, p.kernels->run, 0, rows, team, x, y, 0.15));
          }
        }
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
