// How fast memory is copied: what a step that only reads weights and K/V is measured by.
#pragma once
#ifdef SX_BENCH_CUDART
#include <cuda_runtime.h>
#endif
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <vector>

#include "base/clock.h"

namespace sx {

// Bytes per second of a large copy, read and written bytes counted; 0: not known.
inline double copy_speed(bool cpu) {
#ifdef SX_BENCH_CUDART
  if (!cpu) {
    const size_t bytes = size_t{2} << 30;
    void *from = nullptr, *to = nullptr;
    if (cudaMalloc(&from, bytes) != cudaSuccess || cudaMalloc(&to, bytes) != cudaSuccess) {
      cudaFree(from), cudaGetLastError();
      return 0;
    }
    cudaMemset(from, 1, bytes);
    double best = 0;
    for (int i = 0; i < 12; ++i) {
      cudaDeviceSynchronize();
      const double start = now_ms();
      cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice);
      cudaDeviceSynchronize();
      if (i > 2) best = std::max(best, 2.0 * double(bytes) / (now_ms() - start) * 1000);
    }
    cudaFree(from), cudaFree(to);
    return best;
  }
#endif
  if (!cpu) return 0;
  std::vector<char> from(size_t{64} << 20, 1), to(from.size());
  double best = 0;
  for (int i = 0; i < 6; ++i) {
    const double start = now_ms();
    std::memcpy(to.data(), from.data(), from.size());
    best = std::max(best, 2.0 * double(from.size()) / (now_ms() - start) * 1000);
  }
  return best;
}

}  // namespace sx
