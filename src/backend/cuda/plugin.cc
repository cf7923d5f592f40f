// The one symbol that libspecextend_cuda.so shows.
#include "backend/cuda/plugin.h"

#include "backend/cuda/runtime/backend.h"
#include "backend/interface_id.h"

extern "C" __attribute__((visibility("default"))) const sx::cuda::Plugin* specextend_cuda_plugin() {
  static const sx::cuda::Plugin plugin{SX_BACKEND_INTERFACE, sx::cuda::why_unavailable, sx::cuda::device_count,
                                       sx::cuda::make_backend};
  return &plugin;
}
