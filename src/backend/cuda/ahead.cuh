// See ahead.h.
#pragma once
#include "backend/cuda/ahead.h"
#include "backend/cuda/hopper.cuh"

namespace sx::cuda {

// Worker `first` of `step`: its share. `fetch` must be a parameter of the kernel.
__device__ __forceinline__ void fetch_ahead(const AheadFetch& fetch, int first, int step) {
#ifdef SX_HOPPER
  for (int i = first; i < fetch.tiles * fetch.columns; i += step) {
    const int tile = i % fetch.tiles, column = i / fetch.tiles, piece = column % fetch.spread * fetch.apart + column / fetch.spread;
    asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%0, {%1, %2}];" ::"l"(reinterpret_cast<uint64_t>(&fetch.map)),
                 "r"(piece * 64), "r"(tile * kAheadOuts) : "memory");
  }
#endif
}

}  // namespace sx::cuda
