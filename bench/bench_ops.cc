// The op table as a benchmark: each row's time, the bytes it must move per second and the operations per second. By
// default the large rows (shapes of SmolLM2-135M, square matrices of every type) on the best instruction set here.
// The rates belong to min_us, the shortest single run, which a busy machine disturbs least.
//   bench_ops [--threads=N] [--isa=NAME] [--rows=all|large] [flags of Google Benchmark, e.g. --benchmark_filter=attend]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <string_view>

#include "backend/registry.h"
#include "base/error.h"
#include "problem.h"

namespace {

using namespace sx;

struct Options {
  CpuOptions cpu;
  bool all = false;
};

// Takes our own flags out of the command line; the rest is Google Benchmark's.
Options parse(int& count, char** arguments) {
  Options options;
  int kept = 1;
  for (int i = 1; i < count; ++i) {
    const std::string_view argument = arguments[i];
    const auto value_of = [&](std::string_view flag) {
      return argument.starts_with(flag) ? std::string(argument.substr(flag.size())) : std::string();
    };
    if (const std::string threads = value_of("--threads="); !threads.empty()) {
      options.cpu.threads = std::atoi(threads.c_str());
    } else if (const std::string isa = value_of("--isa="); !isa.empty()) {
      options.cpu.isa = cpu::isa_from_name(isa);
      if (!options.cpu.isa) fail("--isa={}: no such instruction set", isa);
    } else if (const std::string rows = value_of("--rows="); !rows.empty()) {
      if (rows != "all" && rows != "large") fail("--rows={}: expected all or large", rows);
      options.all = rows == "all";
    } else {
      arguments[kept++] = arguments[i];
    }
  }
  count = kept;
  return options;
}

void run_row(benchmark::State& state, const parity::OpRow& row, const CpuOptions& cpu) {
  const auto problem = parity::make_problem(row);
  const auto backend = make_cpu_backend(cpu);
  const auto instance = problem->make(*backend);
  using Clock = std::chrono::steady_clock;
  double best = 1e9;  // seconds
  for (auto _ : state) {
    const auto start = Clock::now();
    instance->run();
    best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
  }
  const parity::Cost cost = problem->cost();
  state.counters["min_us"] = best * 1e6;
  state.counters["GB/s"] = cost.bytes / best / 1e9;
  if (cost.flops > 0) state.counters["GFLOP/s"] = cost.flops / best / 1e9;
}

}  // namespace

int main(int count, char** arguments) {
  try {
    const Options options = parse(count, arguments);
    benchmark::Initialize(&count, arguments);
    if (benchmark::ReportUnrecognizedArguments(count, arguments)) return 1;
    benchmark::AddCustomContext("backend", make_cpu_backend(options.cpu)->name());
    for (const parity::OpRow& row : parity::op_table()) {
      if (!options.all && !row.large) continue;
      benchmark::RegisterBenchmark(parity::row_name(row).c_str(), run_row, row, options.cpu)
          ->Unit(benchmark::kMicrosecond)
          ->UseRealTime()
          ->MinTime(0.1);
    }
    benchmark::RunSpecifiedBenchmarks();
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_ops: {}\n", error.what());
    return 1;
  }
}
