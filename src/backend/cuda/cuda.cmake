# The CUDA backend, or the stub that stands in for it. cuBLASLt is a shared library: its static form is half a gigabyte.
if(NOT SPECEXTEND_CUDA)
  target_sources(sx_backend PRIVATE cuda/cuda_stub.cc)
  return()
endif()
file(GLOB cuda_kernels RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.cu)
target_sources(sx_backend PRIVATE ${cuda_kernels} cuda/arena.cc cuda/step_block.cc cuda/graphs.cc cuda/backend.cc
  cuda/backend_results.cc
  cuda/backend_levels.cc cuda/filtered.cc cuda/matrix.cc)
set_source_files_properties(${cuda_kernels} PROPERTIES COMPILE_OPTIONS "-O3;-lineinfo;--expt-relaxed-constexpr")
target_link_libraries(sx_backend PUBLIC CUDA::cudart_static CUDA::cublasLt)
