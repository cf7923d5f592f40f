#include "bench/peaks/peaks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "backend/cpu/isa.h"
#include "base/memory.h"
#include "base/thread_pool.h"
#include "bench/peaks/peak_kernels.h"

namespace sx {
namespace {

using cpu::Isa;
using cpu::PeakKernels;

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Each thread reads its share of 256 MiB in four streams; the best of several passes.
double read_bandwidth(ThreadPool& pool) {
  constexpr size_t kBytes = size_t(256) << 20;
  const Pages memory(kBytes, "the bandwidth measurement");
  std::memset(memory.data(), 1, kBytes);
  std::atomic<uint64_t> sink{0};
  double best = 0;
  for (int pass = 0; pass < 8; ++pass) {
    const double start = seconds();
    pool.run([&](int thread) {
      const size_t share = kBytes / size_t(pool.size()) / 4 / 64 * 8;  // 64-bit words per stream, whole lines
      const uint64_t* p = memory.as<uint64_t>() + size_t(thread) * share * 4;
      uint64_t sum[4][8] = {};
      for (size_t i = 0; i < share; i += 8)
        for (size_t s = 0; s < 4; ++s)
          for (size_t j = 0; j < 8; ++j) sum[s][j] += p[s * share + i + j];
      uint64_t all = 0;
      for (const auto& s : sum)
        for (uint64_t x : s) all += x;
      sink.fetch_add(all, std::memory_order_relaxed);
    });
    best = std::max(best, double(kBytes) / (seconds() - start));
  }
  return sink.load() ? best * 1e-9 : 0;
}

double arithmetic(ThreadPool& pool, double (*kernel)()) {
  if (!kernel) return 0;
  double best = 0;
  for (int pass = 0; pass < 10; ++pass) {
    std::atomic<int64_t> done{0};
    const double start = seconds();
    pool.run([&](int) { done.fetch_add(int64_t(kernel()), std::memory_order_relaxed); });
    best = std::max(best, double(done.load()) / (seconds() - start));
  }
  return best * 1e-9;
}

PeakKernels kernels_of(Isa isa) {
  switch (isa) {
#if defined(__aarch64__)
    case Isa::kNeonI8mm: return cpu::peak_kernels_neon_i8mm();
    case Isa::kNeonDot: return cpu::peak_kernels_neon_dot();
#elif defined(__x86_64__)
    case Isa::kAvx2: return cpu::peak_kernels_avx2();
    case Isa::kAmx:
    case Isa::kVnni: return cpu::peak_kernels_vnni();
    case Isa::kAvx512: return cpu::peak_kernels_avx512();
#endif
    default: return {nullptr, nullptr};
  }
}

}  // namespace

MachinePeaks measure_peaks(int threads) {
  ThreadPool pool(threads);
  const PeakKernels kernels = kernels_of(cpu::default_isa());
  return {read_bandwidth(pool), arithmetic(pool, kernels.int8), arithmetic(pool, kernels.float16)};
}

}  // namespace sx
