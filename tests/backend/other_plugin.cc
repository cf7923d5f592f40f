// A library that says it is the CUDA backend of another version (cuda_loader_test.cc).
#include "backend/cuda/plugin.h"

extern "C" const sx::cuda::Plugin* specextend_cuda_plugin() {
  static const sx::cuda::Plugin plugin{"of-yesterday", nullptr, nullptr, nullptr};
  return &plugin;
}
