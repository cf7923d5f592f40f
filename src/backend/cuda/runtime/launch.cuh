// Kernel launches that overlap: with programmatic dependent launch (PDL) a kernel starts while its predecessor ends,
// and may read what does not depend on it (weights) at once. Every kernel launched through launch() must call
// wait_for_previous() before it reads or writes anything an earlier kernel may touch, and should call let_next_start()
// as early as it can.
#pragma once
#include <cuda_runtime.h>

#include <utility>

#include "backend/cuda/runtime/device.h"

namespace sx::cuda {

__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

inline int divide_up(int a, int b) { return (a + b - 1) / b; }  // for grids

// Devices before sm_90 reject the launch attribute, so it is only set from sm_90 on, and not inside PlainLaunches.
bool has_dependent_launch();

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared, cudaStream_t stream,
            Arguments&&... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = has_dependent_launch() ? 1 : 0;
  check(cudaLaunchKernelEx(&config, kernel, Parameters(std::forward<Arguments>(arguments))...), "launch");
}

}  // namespace sx::cuda
