// What a CUDA backend is made with.
#pragma once
#include <cstddef>

namespace sx {

struct CudaOptions {
  int device = 0;
  size_t memory = 0;         // bytes of the arena that all memory comes from; 0: pieces are taken as they are asked for
  bool grows = false;        // more than that may be taken if need be
  bool counts_only = false;  // nothing is taken and nothing is computed: Backend::memory() tells what would be needed
};

}  // namespace sx
