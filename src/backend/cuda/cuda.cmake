# The CUDA backend is a library of its own, which programs load at run time (plugin.h). cuBLASLt is a shared library: its static form
# is half a gigabyte.
set(interface_folder ${CMAKE_CURRENT_BINARY_DIR}/interface)
file(GLOB interface_headers CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/backend/*.h ${CMAKE_SOURCE_DIR}/src/kv/*.h
  ${CMAKE_SOURCE_DIR}/src/tensor/*.h ${CMAKE_SOURCE_DIR}/src/base/*.h)
list(APPEND interface_headers ${CMAKE_CURRENT_LIST_DIR}/plugin.h ${CMAKE_CURRENT_LIST_DIR}/runtime/cuda_options.h)
string(REPLACE ";" "|" interface_list "${interface_headers}")
add_custom_command(OUTPUT ${interface_folder}/backend/interface_id.h
  COMMAND ${CMAKE_COMMAND} -DOUT=${interface_folder}/backend/interface_id.h "-DFILES=${interface_list}"
    -P ${CMAKE_SOURCE_DIR}/cmake/interface_id.cmake
  DEPENDS ${interface_headers} ${CMAKE_SOURCE_DIR}/cmake/interface_id.cmake VERBATIM)
add_custom_target(sx_backend_interface DEPENDS ${interface_folder}/backend/interface_id.h)
target_sources(sx_backend PRIVATE cuda/loader.cc)
target_include_directories(sx_backend PRIVATE ${interface_folder})
target_link_libraries(sx_backend PUBLIC ${CMAKE_DL_LIBS})
add_dependencies(sx_backend sx_backend_interface)

# sx_uses_cuda(targets...): what loads the library from the build tree.
function(sx_uses_cuda)
  if(TARGET specextend_cuda)
    foreach(target ${ARGN})
      add_dependencies(${target} specextend_cuda)
      set_property(TARGET ${target} APPEND PROPERTY BUILD_RPATH $<TARGET_FILE_DIR:specextend_cuda>)
    endforeach()
  endif()
endfunction()
if(NOT SPECEXTEND_CUDA)
  return()
endif()
file(GLOB cuda_kernels RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*/*.cu)
add_library(specextend_cuda MODULE ${cuda_kernels} cuda/plugin.cc
  cuda/runtime/arena.cc cuda/runtime/device_units.cc cuda/runtime/step_block.cc cuda/runtime/graphs.cc cuda/runtime/nccl.cc cuda/runtime/backend.cc
  cuda/runtime/backend_choose.cc cuda/runtime/backend_mixture.cc cuda/runtime/backend_results.cc cuda/runtime/backend_tree.cc cuda/sampling/sample_filtered.cc cuda/linear/matrix.cc)
set_source_files_properties(${cuda_kernels} PROPERTIES COMPILE_OPTIONS "-O3;-lineinfo;--expt-relaxed-constexpr")
add_dependencies(specextend_cuda sx_backend_interface)
target_include_directories(specextend_cuda PRIVATE ${interface_folder})
target_link_libraries(specextend_cuda PRIVATE sx_settings sx_backend CUDA::cudart_static CUDA::cublasLt ${CMAKE_DL_LIBS})
target_link_options(specextend_cuda PRIVATE -Wl,--no-undefined -Wl,--exclude-libs,ALL)
# In a wheel NVIDIA's own packages have cuBLASLt.
set_target_properties(specextend_cuda PROPERTIES
  INSTALL_RPATH "$ORIGIN;$ORIGIN/../nvidia/cu13/lib;$ORIGIN/../nvidia/cublas/lib")
install(TARGETS specextend_cuda LIBRARY DESTINATION lib COMPONENT program)
