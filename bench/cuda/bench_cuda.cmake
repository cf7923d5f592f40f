# Steps of a model, its drafts and the ops between them on a backend. With CUDA it also measures the device's copy speed.
add_executable(bench_cuda ${CMAKE_CURRENT_LIST_DIR}/bench_cuda.cc ${CMAKE_CURRENT_LIST_DIR}/whole_drafts.cc)
target_link_libraries(bench_cuda PRIVATE sx_speculative nlohmann_json::nlohmann_json)
sx_uses_cuda(bench_cuda)
if(SPECEXTEND_CUDA)
  find_package(CUDAToolkit REQUIRED)
  target_compile_definitions(bench_cuda PRIVATE SX_BENCH_CUDART)
  target_link_libraries(bench_cuda PRIVATE CUDA::cudart_static)
endif()
