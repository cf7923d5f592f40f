# The CUDA backend, or the stub that stands in for it. cuBLASLt is a shared library: its static form is half a gigabyte.
if(NOT SPECEXTEND_CUDA)
  target_sources(sx_backend PRIVATE cuda/cuda_stub.cc)
  return()
endif()
file(GLOB cuda_kernels RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*/*.cu)
target_sources(sx_backend PRIVATE ${cuda_kernels}
  cuda/runtime/arena.cc cuda/runtime/step_block.cc cuda/runtime/graphs.cc cuda/runtime/backend.cc cuda/runtime/backend_results.cc
  cuda/runtime/backend_tree.cc cuda/sampling/sample_filtered.cc cuda/linear/matrix.cc)
set_source_files_properties(${cuda_kernels} PROPERTIES COMPILE_OPTIONS "-O3;-lineinfo;--expt-relaxed-constexpr")
target_link_libraries(sx_backend PUBLIC CUDA::cudart_static CUDA::cublasLt)
