// What a CUDA backend is made with.
#pragma once
#include <cstddef>

namespace sx {

// Bytes that memory for cells leaves to the driver: recorded steps, kernels that are loaded later.
inline constexpr size_t kDriverSpare = size_t(512) << 20;

struct CudaOptions {
  int device = 0;
  size_t memory = 0;   // bytes of the arena that all memory comes from; 0: pieces are taken as they are asked for
  size_t beside = 0;   // bytes that must be free besides: cells of one whole text, whose memory is taken as it grows
  size_t cells = 0;    // bytes that the cells of all stores may take as they are used; 0: what there is
  bool grows = false;  // more than that may be taken if need be
  bool counts_only = false;  // nothing is taken and nothing is computed: Backend::memory() tells what would be needed
};

}  // namespace sx
